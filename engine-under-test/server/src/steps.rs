//! The live stream of step rows.
//!
//! The engine thread must not wait for whoever watches it, so rows go into a bounded ring and a
//! watcher that is too slow is told how many rows it missed instead of being given fewer rows
//! silently.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pb_contract::StepRow;
use tokio::sync::watch;

use crate::waits::LockWaits;

/// Rows that one read takes at most, so that a chunk of the response stays small.
const ROWS_PER_READ: usize = 256;

struct Rows {
    rows: VecDeque<StepRow>,
    /// Number of the first row ever pushed.
    first: Option<u64>,
    /// Number of the last row that fell out.
    fallen: Option<u64>,
}

/// The last rows of the engine.
pub(crate) struct StepRing {
    rows: Mutex<Rows>,
    capacity: usize,
    /// Changes with every row; watchers wait on it.
    version: watch::Sender<u64>,
}

/// What a watcher reads.
#[derive(Debug, PartialEq)]
pub(crate) struct StepRead {
    /// Rows from the asked number on that are gone.
    pub(crate) dropped: u64,
    /// Rows, oldest first.
    pub(crate) rows: Vec<StepRow>,
    /// What to ask for next.
    pub(crate) next: u64,
}

impl StepRing {
    pub(crate) fn new(capacity: usize) -> Self {
        let rows = Rows {
            rows: VecDeque::new(),
            first: None,
            fallen: None,
        };
        StepRing {
            rows: Mutex::new(rows),
            capacity: capacity.max(1),
            version: watch::Sender::new(0),
        }
    }

    /// Adds the next row; numbers must increase. For the engine thread, whose waits are counted.
    pub(crate) fn push(&self, row: StepRow, waits: &LockWaits) {
        let mut state = waits.lock(&self.rows);
        state.first.get_or_insert(row.step);
        if state.rows.len() == self.capacity
            && let Some(old) = state.rows.pop_front()
        {
            state.fallen = Some(old.step);
        }
        state.rows.push_back(row);
        drop(state);
        self.version.send_modify(|version| *version += 1);
    }

    /// A receiver that changes when rows come.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Rows whose number is at least `from`.
    pub(crate) fn read(&self, from: u64) -> StepRead {
        let state = self.lock();
        let wanted = from.max(state.first.unwrap_or(0));
        let dropped = state
            .fallen
            .map_or(0, |fallen| (fallen + 1).saturating_sub(wanted));
        let start = state.rows.partition_point(|row| row.step < from);
        let rows: Vec<StepRow> = state
            .rows
            .iter()
            .skip(start)
            .take(ROWS_PER_READ)
            .copied()
            .collect();
        let next = rows.last().map_or(from, |row| row.step + 1);
        StepRead {
            dropped,
            rows,
            next,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits() -> LockWaits {
        LockWaits::new(std::sync::Arc::new(pb_contract::WallClock))
    }

    fn row(step: u64) -> StepRow {
        StepRow {
            step,
            ..StepRow::default()
        }
    }

    #[test]
    fn rows_that_fell_out_are_counted() {
        let ring = StepRing::new(4);
        assert_eq!(
            ring.read(0),
            StepRead {
                dropped: 0,
                rows: vec![],
                next: 0
            }
        );
        for step in 1..=10 {
            ring.push(row(step), &waits());
        }
        // 7, 8, 9, 10 are left; numbering starts at 1, so 1 to 6 are gone.
        let rows = vec![row(7), row(8), row(9), row(10)];
        assert_eq!(
            ring.read(0),
            StepRead {
                dropped: 6,
                rows: rows.clone(),
                next: 11
            }
        );
        assert_eq!(
            ring.read(5),
            StepRead {
                dropped: 2,
                rows,
                next: 11
            }
        );
        assert_eq!(
            ring.read(9),
            StepRead {
                dropped: 0,
                rows: vec![row(9), row(10)],
                next: 11
            }
        );
        assert_eq!(
            ring.read(11),
            StepRead {
                dropped: 0,
                rows: vec![],
                next: 11
            }
        );
    }

    #[test]
    fn a_long_backlog_is_read_in_parts_without_a_gap() {
        let ring = StepRing::new(10_000);
        for step in 0..1_000 {
            ring.push(row(step), &waits());
        }
        let (mut next, mut seen) = (0, Vec::new());
        loop {
            let read = ring.read(next);
            assert_eq!(read.dropped, 0);
            if read.rows.is_empty() {
                break;
            }
            seen.extend(read.rows.iter().map(|row| row.step));
            next = read.next;
        }
        assert_eq!(seen, (0..1_000).collect::<Vec<_>>());
    }
}
