//! What has come and was not polled yet.
//!
//! Whoever polls takes all that is there at once, and many short frames may wait: with few, reader
//! and poller would wake each other for each handful. Long ones are bounded by their number.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Incoming, TransportError};

/// Frames that may wait, however long. With the longest payload this bounds memory; as many again
/// may have been taken and not be polled.
const FRAMES: usize = 8;
/// Frames that may wait while they are short.
const SHORT_FRAMES: usize = 256;
/// What short frames may have together, bytes.
const SHORT_BYTES: usize = 1 << 20;

pub(super) type Arrival = Result<Incoming, TransportError>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Arrival>,
    bytes: usize,
    inboxes: usize,
    /// Whether the end that polls is gone.
    gone: bool,
    /// Whether somebody waits for an arrival, so that waking costs nothing when nobody does.
    polling: bool,
}

impl State {
    fn full(&self) -> bool {
        let frames = self.waiting.len();
        frames >= FRAMES && (frames >= SHORT_FRAMES || self.bytes >= SHORT_BYTES)
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
    room: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A queue of whole frames, whatever happened to whoever held it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where readers and writers put what they have.
pub(super) struct Inbox(Arc<Shared>);

/// Where it is polled.
pub(super) struct Arrivals {
    shared: Arc<Shared>,
    taken: VecDeque<Arrival>,
}

/// A queue of what came.
pub(super) fn inbox() -> (Inbox, Arrivals) {
    let shared = Arc::new(Shared::default());
    shared.state().inboxes = 1;
    let arrivals = Arrivals {
        shared: Arc::clone(&shared),
        taken: VecDeque::new(),
    };
    (Inbox(shared), arrivals)
}

impl Inbox {
    /// Waits for room; false when nobody will poll any more.
    pub(super) fn put(&self, arrival: Arrival) -> bool {
        let bytes = match &arrival {
            Ok(Incoming::Data(_, cells)) => cells.len(),
            _ => 0,
        };
        let mut state = self.0.state();
        while state.full() && !state.gone {
            let waited = self.0.room.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.gone {
            return false;
        }
        state.bytes += bytes;
        state.waiting.push_back(arrival);
        if std::mem::take(&mut state.polling) {
            drop(state);
            self.0.arrived.notify_one();
        }
        true
    }
}

impl Clone for Inbox {
    fn clone(&self) -> Inbox {
        self.0.state().inboxes += 1;
        Inbox(Arc::clone(&self.0))
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.0.state().inboxes -= 1;
        self.0.arrived.notify_one();
    }
}

impl Arrivals {
    /// The next thing that came; none when nothing did within `timeout`.
    ///
    /// # Errors
    /// What a reader or a writer met, or all of them are gone.
    pub(super) fn poll(&mut self, timeout: Duration) -> Result<Option<Incoming>, TransportError> {
        if self.taken.is_empty() {
            let mut state = self.shared.state();
            if state.waiting.is_empty() && state.inboxes > 0 && !timeout.is_zero() {
                state.polling = true;
                let nothing = |state: &mut State| state.waiting.is_empty() && state.inboxes > 0;
                let arrived = &self.shared.arrived;
                let waited = arrived.wait_timeout_while(state, timeout, nothing);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                state.polling = false;
            }
            if state.waiting.is_empty() && state.inboxes == 0 {
                return Err(TransportError::Closed);
            }
            let was_full = state.full();
            std::mem::swap(&mut self.taken, &mut state.waiting);
            state.bytes = 0;
            drop(state);
            if was_full {
                self.shared.room.notify_all();
            }
        }
        self.taken.pop_front().transpose()
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.gone = true;
        state.waiting.clear();
        drop(state);
        self.shared.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::CellBytes;
    use super::*;
    use crate::cells::Span;
    use crate::message::{DataHead, TransferId};

    fn cells(bytes: usize) -> Arrival {
        let head = DataHead {
            id: TransferId(bytes as u64),
            span: Span::cell(0, 0),
            sums: vec![0],
        };
        Ok(Incoming::Data(head, CellBytes::from(vec![0; bytes])))
    }

    /// How many frames of a length are taken while nobody polls, where at least `frames` are.
    fn taken_without_a_poll(bytes: usize, frames: usize) -> usize {
        let (inbox, arrivals) = inbox();
        let put = AtomicUsize::new(0);
        let counted = std::thread::scope(|scope| {
            scope.spawn(|| {
                while inbox.put(cells(bytes)) {
                    put.fetch_add(1, Ordering::SeqCst);
                }
            });
            for _ in 0..60_000 {
                if put.load(Ordering::SeqCst) >= frames {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            // And what is put beyond them.
            std::thread::sleep(Duration::from_millis(30));
            let counted = put.load(Ordering::SeqCst);
            // Lets the thread that waits for room go.
            drop(arrivals);
            counted
        });
        assert_eq!(put.load(Ordering::SeqCst), counted, "put after the end");
        counted
    }

    #[test]
    fn long_frames_are_bounded_by_number_and_short_ones_by_bytes() {
        for (bytes, frames) in [(16 << 20, 8), (200 << 10, 8), (64 << 10, 16), (100, 256)] {
            assert_eq!(taken_without_a_poll(bytes, frames), frames, "{bytes}");
        }
    }

    #[test]
    fn everything_comes_in_order_and_then_the_end() {
        let (inbox, mut arrivals) = inbox();
        assert!(arrivals.poll(Duration::ZERO).unwrap().is_none());
        let other = inbox.clone();
        let feeding = std::thread::spawn(move || {
            for bytes in 1..2_000 {
                assert!(inbox.put(cells(bytes)));
            }
            assert!(other.put(Err(TransportError::Backlog { frames: 1 })));
        });
        for bytes in 1..2_000 {
            let Ok(Some(Incoming::Data(head, _))) = arrivals.poll(Duration::from_secs(60)) else {
                panic!("no frame {bytes}");
            };
            assert_eq!(head.id, TransferId(bytes));
        }
        let last = arrivals.poll(Duration::from_secs(60));
        assert!(matches!(last, Err(TransportError::Backlog { .. })));
        feeding.join().unwrap();
        let end = arrivals.poll(Duration::from_secs(60));
        assert!(matches!(end, Err(TransportError::Closed)));
    }
}
