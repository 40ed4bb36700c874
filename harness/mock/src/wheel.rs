//! Every stream of one thread, written on time.
//!
//! One task holds the due instants of all streams in a heap, sleeps until the earliest and writes
//! whatever is due. A task for each stream would wake a task for each write; this wakes one.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use pb_contract::{Clock, Nanos, WallClock};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::log::LoggedWrite;
use crate::program::Program;
use crate::timer::Timer;

/// Writes between two looks at the sockets, so that new requests do not wait for long.
const BATCH: usize = 64;

/// Pause before the next try at a client whose window is full.
const RETRY: Nanos = Nanos::from_micros(200);

/// Where the bytes go.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A socket.
    Socket(Rc<TcpStream>),
    /// The framing layer of HTTP/2.
    Frames(mpsc::UnboundedSender<Bytes>),
}

/// What became of a stream.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What was written.
    pub(crate) writes: Vec<LoggedWrite>,
    /// The client is gone.
    pub(crate) gone: bool,
}

#[derive(Debug)]
struct Running {
    program: Program,
    /// Number of the step that is next.
    next: usize,
    /// Bytes written.
    sent: usize,
    /// When the step that is being written began.
    began: Option<Nanos>,
    start: Nanos,
    sink: Sink,
    writes: Vec<LoggedWrite>,
    done: oneshot::Sender<Outcome>,
}

#[derive(Debug, Default)]
struct Inner {
    due: BinaryHeap<Reverse<(Nanos, u64)>>,
    streams: BTreeMap<u64, Running>,
    tickets: u64,
}

/// The streams of one thread.
#[derive(Debug, Default)]
pub(crate) struct Wheel {
    inner: RefCell<Inner>,
    earlier: Notify,
}

impl Wheel {
    /// Starts a stream whose schedule counts from `start`; a ticket to cancel it by, and its end.
    pub(crate) fn start(
        &self,
        program: Program,
        start: Nanos,
        sink: Sink,
    ) -> (u64, oneshot::Receiver<Outcome>) {
        let (done, end) = oneshot::channel();
        let mut inner = self.inner.borrow_mut();
        let ticket = inner.tickets;
        inner.tickets += 1;
        let due = start + Nanos(program.steps.first().map_or(0, |step| step.at_ns));
        let first = inner.due.peek().is_none_or(|Reverse((at, _))| due < *at);
        let running = Running {
            writes: Vec::with_capacity(program.steps.len()),
            program,
            next: 0,
            sent: 0,
            began: None,
            start,
            sink,
            done,
        };
        inner.streams.insert(ticket, running);
        inner.due.push(Reverse((due, ticket)));
        if first {
            self.earlier.notify_one();
        }
        (ticket, end)
    }

    /// Ends a stream whose client left; its end reports what was written.
    pub(crate) fn cancel(&self, ticket: u64) {
        let running = self.inner.borrow_mut().streams.remove(&ticket);
        if let Some(running) = running {
            running.finish(true);
        }
    }

    /// Writes what is due, for ever.
    pub(crate) async fn run(&self, timer: &Timer) -> io::Result<()> {
        loop {
            let next = self.inner.borrow().due.peek().map(|Reverse((at, _))| *at);
            match next {
                None => self.earlier.notified().await,
                Some(at) if WallClock.now() >= at => {
                    self.write_due();
                    tokio::task::yield_now().await;
                }
                Some(at) => tokio::select! {
                    result = timer.until(at) => result?,
                    () = self.earlier.notified() => {}
                },
            }
        }
    }

    /// Writes some of what is due.
    fn write_due(&self) {
        let mut inner = self.inner.borrow_mut();
        for _ in 0..BATCH {
            let Some(&Reverse((due, ticket))) = inner.due.peek() else {
                return;
            };
            if due > WallClock.now() {
                return;
            }
            inner.due.pop();
            let Some(running) = inner.streams.get_mut(&ticket) else {
                continue;
            };
            match running.step() {
                Next::At(at) => inner.due.push(Reverse((at, ticket))),
                Next::End { gone } => {
                    if let Some(running) = inner.streams.remove(&ticket) {
                        running.finish(gone);
                    }
                }
            }
        }
    }
}

enum Next {
    At(Nanos),
    End { gone: bool },
}

impl Running {
    /// Writes the step that is due, or as much of it as the client takes.
    fn step(&mut self) -> Next {
        if self.next >= self.program.steps.len() {
            return Next::End { gone: false };
        }
        let now = WallClock.now();
        let blocked = self.began.is_some();
        let began = *self.began.get_or_insert(now);
        // What is due together leaves together, unless it is to be seen in pieces.
        let last = self.program.last_of_group(self.next);
        let end = self.program.steps[last].end;
        while self.sent < end {
            match self.write(end) {
                Ok(0) => return Next::End { gone: true },
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Next::At(WallClock.now() + RETRY);
                }
                Err(_) => return Next::End { gone: true },
            }
        }
        while self.next <= last {
            let step = self.program.steps[self.next];
            let from = match self.next {
                0 => 0,
                n => self.program.steps[n - 1].end,
            };
            self.writes.push(LoggedWrite {
                due_ns: self.start + Nanos(step.at_ns),
                written_ns: began,
                bytes: step.end - from,
                tokens: step.tokens,
                kind: step.kind,
                blocked,
            });
            self.next += 1;
        }
        self.began = None;
        if self.next >= self.program.steps.len() && self.program.refill() {
            (self.next, self.sent) = (0, 0);
        }
        match self.program.steps.get(self.next) {
            Some(next) => Next::At(self.start + Nanos(next.at_ns)),
            None => Next::End { gone: false },
        }
    }

    fn write(&self, end: usize) -> io::Result<usize> {
        let bytes = &self.program.bytes[self.sent..end];
        match &self.sink {
            Sink::Socket(socket) => socket.try_write(bytes),
            Sink::Frames(frames) => match frames.send(Bytes::copy_from_slice(bytes)) {
                Ok(()) => Ok(bytes.len()),
                Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
            },
        }
    }

    fn finish(self, gone: bool) {
        let outcome = Outcome {
            writes: self.writes,
            gone,
        };
        // A stream that nobody waits for any more has nobody to tell.
        let _ = self.done.send(outcome);
    }
}
