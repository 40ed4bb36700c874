//! The KV transfers between this project's engines over the measured window.
//!
//! As with steps, only a server on this machine is asked: its router or an engine, whose clock is
//! this machine's. A transfer belongs to the window when its end was told within it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use pb_bench::Conditions;
use pb_contract::{Clock, Nanos, TransferLine, WallClock};
use pb_load::follow::{RowItem, RowReader};
use pb_load::{Endpoint, LoadError};
use pb_record::RunWriter;
use pb_target::Target;

use super::ARM;
use super::steps::is_own;

/// Route of the stream.
const ROUTE: &str = "/transfers";

/// Most transfers that are kept, some 100 MB.
const MOST_TRANSFERS: usize = 500_000;

/// What was read.
#[derive(Debug, Default)]
struct Kept {
    lines: Vec<TransferLine>,
    dropped: u64,
    /// Why rows of unknown number are missing.
    lost: BTreeSet<String>,
}

/// A window whose transfers are being read.
#[derive(Debug)]
pub(crate) struct TransferWatch {
    reader: RowReader,
    kept: Arc<Mutex<Kept>>,
}

impl TransferWatch {
    /// Begins to read; `None` where there is nothing to read.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(target: &Target, endpoint: &Endpoint) -> Result<Option<TransferWatch>> {
        if !is_own(target, endpoint) {
            return Ok(None);
        }
        let kept = Arc::new(Mutex::new(Kept::default()));
        let (into, from) = (Arc::clone(&kept), WallClock.now());
        // The server still has rows from before, which are no part of the window.
        let reader = RowReader::spawn(endpoint, ROUTE, 0, move |item| take(&into, from, item))?;
        Ok(Some(TransferWatch { reader, kept }))
    }

    /// Ends the reading: the rows, and what a reader should know of them.
    pub(crate) fn stop(self) -> (Vec<TransferLine>, Vec<String>) {
        let ended = self.reader.stop();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = std::mem::take(&mut *kept);
        let mut notes: Vec<String> = Vec::new();
        match ended {
            // A server that tells of no transfers has none to tell of.
            Ok(_) | Err(LoadError::Unsupported { .. }) => {}
            Err(error) => notes.push(format!("the KV transfers are not all there: {error}")),
        }
        if kept.dropped > 0 {
            notes.push(format!(
                "{} KV transfers are not in transfers.csv: they came faster than they were read, \
                 or are more than {MOST_TRANSFERS}",
                kept.dropped
            ));
        }
        let lost = kept.lost.iter();
        notes.extend(lost.map(|why| format!("KV transfers may be missing: {why}")));
        (kept.lines, notes)
    }
}

/// Writes what was read, where the server told of any transfer.
///
/// # Errors
/// The table cannot be written.
pub(super) fn keep(
    watch: Option<TransferWatch>,
    writer: &mut RunWriter,
    conditions: &mut Conditions,
) -> Result<()> {
    if let Some((lines, notes)) = watch.map(TransferWatch::stop) {
        writer.transfers(ARM, 0, &lines)?;
        conditions.warnings.extend(notes);
    }
    Ok(())
}

/// Keeps a transfer of the window; on the reader's thread.
fn take(kept: &Mutex<Kept>, from: Nanos, item: RowItem<TransferLine>) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    match item {
        RowItem::Row(line) if line.told_ns < from => {}
        RowItem::Row(line) if kept.lines.len() < MOST_TRANSFERS => kept.lines.push(line),
        RowItem::Row(_) => kept.dropped += 1,
        // Those that were gone before the window are none of it.
        RowItem::Dropped(_) | RowItem::Lost(_) if kept.lines.is_empty() => {}
        RowItem::Dropped(count) => kept.dropped += count,
        RowItem::Lost(why) => drop(kept.lost.insert(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transfers_of_the_window_are_kept_and_gaps_are_told() {
        let kept = Mutex::new(Kept::default());
        let row = |told| {
            RowItem::Row(TransferLine {
                told_ns: Nanos(told),
                ..TransferLine::default()
            })
        };
        let lost = || RowItem::Lost("worker 0 went away".to_owned());
        for item in [
            RowItem::Dropped(5),
            lost(),
            row(9),
            row(10),
            RowItem::Dropped(2),
            row(11),
        ] {
            take(&kept, Nanos(10), item);
        }
        {
            let kept = kept.lock().unwrap();
            let told: Vec<u64> = kept.lines.iter().map(|line| line.told_ns.0).collect();
            assert_eq!((told, kept.dropped), (vec![10, 11], 2));
            assert!(kept.lost.is_empty());
        }
        take(&kept, Nanos(10), lost());
        take(&kept, Nanos(10), lost());
        assert_eq!(kept.into_inner().unwrap().lost.len(), 1);
    }
}
