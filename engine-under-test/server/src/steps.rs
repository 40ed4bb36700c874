//! The live streams of the engine thread: rows of steps, rows of transfers, changes of the cache.
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

/// A row that knows its number.
pub(crate) trait Numbered: Clone {
    /// Its number; the next row's is larger.
    fn number(&self) -> u64;
}

impl Numbered for StepRow {
    fn number(&self) -> u64 {
        self.step
    }
}

struct Rows<R> {
    rows: VecDeque<R>,
    /// Number of the first row ever pushed.
    first: Option<u64>,
    /// Number of the last row that fell out.
    fallen: Option<u64>,
}

/// The last rows of one kind.
pub(crate) struct Ring<R> {
    rows: Mutex<Rows<R>>,
    capacity: usize,
    /// Changes with every row; watchers wait on it.
    version: watch::Sender<u64>,
}

/// What a watcher reads.
#[derive(Debug, PartialEq)]
pub(crate) struct Read<R> {
    /// Rows from the asked number on that are gone.
    pub(crate) dropped: u64,
    /// Rows, oldest first.
    pub(crate) rows: Vec<R>,
    /// What to ask for next.
    pub(crate) next: u64,
}

impl<R: Numbered> Ring<R> {
    pub(crate) fn new(capacity: usize) -> Self {
        let rows = Rows {
            rows: VecDeque::new(),
            first: None,
            fallen: None,
        };
        Ring {
            rows: Mutex::new(rows),
            capacity: capacity.max(1),
            version: watch::Sender::new(0),
        }
    }

    /// Adds the next row; numbers must increase. For the engine thread, whose waits are counted.
    pub(crate) fn push(&self, row: R, waits: &LockWaits) {
        let mut state = waits.lock(&self.rows);
        state.first.get_or_insert(row.number());
        if state.rows.len() == self.capacity
            && let Some(old) = state.rows.pop_front()
        {
            state.fallen = Some(old.number());
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
    pub(crate) fn read(&self, from: u64) -> Read<R> {
        let state = self.lock();
        let wanted = from.max(state.first.unwrap_or(0));
        let dropped = state
            .fallen
            .map_or(0, |fallen| (fallen + 1).saturating_sub(wanted));
        let start = state.rows.partition_point(|row| row.number() < from);
        let rows: Vec<R> = state
            .rows
            .iter()
            .skip(start)
            .take(ROWS_PER_READ)
            .cloned()
            .collect();
        // Whoever asks beyond the end is told where it is.
        let end = state.rows.back().map_or(0, |row| row.number() + 1);
        let next = rows.last().map_or(from.min(end), |row| row.number() + 1);
        Read {
            dropped,
            rows,
            next,
        }
    }

    /// Number of the oldest row that is left; none when there is none.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.lock().rows.front().map(Numbered::number)
    }

    fn lock(&self) -> MutexGuard<'_, Rows<R>> {
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
        let ring = Ring::new(4);
        assert_eq!(
            ring.read(0),
            Read {
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
            Read {
                dropped: 6,
                rows: rows.clone(),
                next: 11
            }
        );
        assert_eq!(
            ring.read(5),
            Read {
                dropped: 2,
                rows,
                next: 11
            }
        );
        assert_eq!(
            ring.read(9),
            Read {
                dropped: 0,
                rows: vec![row(9), row(10)],
                next: 11
            }
        );
        for at_or_beyond_the_end in [11, 12, u64::MAX] {
            assert_eq!(
                ring.read(at_or_beyond_the_end),
                Read {
                    dropped: 0,
                    rows: vec![],
                    next: 11
                }
            );
        }
    }

    #[test]
    fn a_long_backlog_is_read_in_parts_without_a_gap() {
        let ring = Ring::new(10_000);
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
