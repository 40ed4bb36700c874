//! The steps of this project's engine over the measured window, for `diagnose`.
//!
//! Only an engine on this machine is asked: its steps carry instants of the machine's clock, and
//! on another machine they would be of another one. They are read on a thread and a connection of
//! their own and written after the run. A run without them is as good as one with them, so what
//! goes wrong here is a warning.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use pb_contract::{Clock, Nanos, StepRow, WallClock};
use pb_load::Endpoint;
use pb_load::control::Control;
use pb_load::steps::{StepItem, StepReader};
use pb_target::{ServerKind, Target};
use serde_json::Value;
use tokio::runtime::Runtime;

/// Most steps that are kept, some 200 MB.
const MOST_STEPS: usize = 500_000;

/// What was read.
#[derive(Debug, Default)]
struct Kept {
    rows: Vec<StepRow>,
    lost: u64,
}

/// A window whose steps are being read.
#[derive(Debug)]
pub(crate) struct StepWatch {
    reader: StepReader,
    kept: Arc<Mutex<Kept>>,
}

/// Whether the server is this project's engine on this machine.
pub(super) fn is_own(target: &Target, endpoint: &Endpoint) -> bool {
    let authority = endpoint.authority();
    let host = authority
        .rsplit_once(':')
        .map_or(&*authority, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = host.parse::<std::net::IpAddr>();
    let is_here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    is_here && target.kind() == ServerKind::OwnEngine
}

/// What this project's engine says of its configuration; nothing of another server.
pub(crate) fn engine_config(
    runtime: &Runtime,
    target: &Target,
    endpoint: &Endpoint,
) -> Option<Value> {
    if !is_own(target, endpoint) {
        return None;
    }
    let control = Control::new(endpoint).ok()?;
    let info = runtime.block_on(control.server_info()).ok().flatten()?;
    info.get("config").cloned()
}

impl StepWatch {
    /// Begins to read; `None` where there is nothing to read.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(target: &Target, endpoint: &Endpoint) -> Result<Option<StepWatch>> {
        if !is_own(target, endpoint) {
            return Ok(None);
        }
        let kept = Arc::new(Mutex::new(Kept::default()));
        let (into, from) = (Arc::clone(&kept), WallClock.now());
        // The server still has steps from before, which are no part of the window.
        let reader = StepReader::spawn(endpoint, 0, move |item| keep(&into, from, item))?;
        Ok(Some(StepWatch { reader, kept }))
    }

    /// Ends the reading: the rows, and what a reader should know of them.
    pub(crate) fn stop(self) -> (Vec<StepRow>, Option<String>) {
        let ended = self.reader.stop();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = std::mem::take(&mut *kept);
        let note = match ended {
            Err(error) => Some(format!("the engine's steps are not all there: {error}")),
            Ok(_) if kept.lost > 0 => Some(format!(
                "{} of the engine's steps are not in steps.csv: they came faster than they were \
                 read, or are more than {MOST_STEPS}",
                kept.lost
            )),
            Ok(_) => None,
        };
        (kept.rows, note)
    }
}

/// Keeps a step of the window; on the reader's thread.
fn keep(kept: &Mutex<Kept>, from: Nanos, item: StepItem) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    match item {
        StepItem::Row(row) if row.start_ns < from => {}
        StepItem::Row(row) if kept.rows.len() < MOST_STEPS => kept.rows.push(row),
        StepItem::Row(_) => kept.lost += 1,
        // Those that were gone before the window are none of it.
        StepItem::Dropped(_) if kept.rows.is_empty() => {}
        StepItem::Dropped(count) => kept.lost += count,
        // At least one; an engine knows how many.
        StepItem::Lost(_) => kept.lost += 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_steps_of_the_window_are_kept() {
        let kept = Mutex::new(Kept::default());
        let row = |start| {
            StepItem::Row(StepRow {
                start_ns: Nanos(start),
                ..StepRow::default()
            })
        };
        for item in [
            StepItem::Dropped(5),
            row(9),
            row(10),
            StepItem::Dropped(2),
            row(11),
        ] {
            keep(&kept, Nanos(10), item);
        }
        let kept = kept.into_inner().unwrap();
        let starts: Vec<u64> = kept.rows.iter().map(|row| row.start_ns.0).collect();
        assert_eq!((starts, kept.lost), (vec![10, 11], 2));
    }
}
