//! Frames that wait to be written on a connection, and those that need not wait.
//!
//! Handing a frame to another thread costs two wake-ups, which is more than the system call that
//! sends a short frame. So whoever puts a short frame writes it, if nothing is before it and as far
//! as the socket has room; the thread writes what is left, and all long frames, so that several
//! connections are written at once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::TransportError;
use super::outgoing::Frame;
use super::wire::Socket;

/// Frames that wait to be written on a connection.
const QUEUE_FRAMES: usize = 64;

struct State {
    waiting: VecDeque<Frame>,
    /// Whether the thread is in the middle of a frame.
    writing: bool,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    more: Condvar,
    socket: Socket,
}

/// The writing end of a connection.
#[derive(Clone)]
pub(super) struct Outbox(Arc<Shared>);

impl Outbox {
    pub(super) fn new(socket: Socket) -> Outbox {
        let state = State {
            waiting: VecDeque::new(),
            writing: false,
            closed: false,
        };
        Outbox(Arc::new(Shared {
            state: Mutex::new(state),
            more: Condvar::new(),
            socket,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Frames are whole, or their number of written bytes says how far they are.
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a frame, now or later; true when it is written already and nothing more will be told
    /// of it.
    pub(super) fn put(&self, mut frame: Frame) -> Result<bool, TransportError> {
        let mut state = self.state();
        if state.closed {
            return Err(TransportError::Closed);
        }
        let first = state.waiting.is_empty() && !state.writing;
        if first && frame.is_short() && frame.write_now(&self.0.socket) {
            return Ok(true);
        }
        if state.waiting.len() >= QUEUE_FRAMES {
            return Err(TransportError::Backlog {
                frames: QUEUE_FRAMES,
            });
        }
        state.waiting.push_back(frame);
        drop(state);
        self.0.more.notify_one();
        Ok(false)
    }

    /// The next frame for the one thread that writes; none when there will be no more.
    pub(super) fn next(&self) -> Option<Frame> {
        let mut state = self.state();
        state.writing = false;
        while !state.closed {
            if let Some(frame) = state.waiting.pop_front() {
                state.writing = true;
                return Some(frame);
            }
            let more = self.0.more.wait(state);
            state = more.unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Ends the connection, for both directions and all threads.
    pub(super) fn close(&self) {
        self.0.socket.shutdown();
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
        drop(state);
        self.0.more.notify_all();
    }
}
