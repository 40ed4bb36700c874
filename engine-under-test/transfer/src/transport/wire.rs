//! Frames over stream sockets: a thread that reads and one that writes for each connection, and
//! bounded queues between them and the transport.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use pb_contract::Clock;

use super::buffers::{Buffers, CellBytes};
use super::inbox::Inbox;
use super::outbox::Outbox;
use super::outgoing::{Frame, Out};
use super::{Incoming, TransportError};
use crate::frame::{FrameHead, HEADER_BYTES};
use crate::message::Message;

/// Bytes that are read ahead of a frame: one call for several short frames, or for the head of a
/// long one and a little of its payload, which is then copied once more.
pub(super) const AHEAD_BYTES: usize = 16 << 10;

/// A connection.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(super) fn try_clone(&self) -> std::io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(s) => Socket::Tcp(s.try_clone()?),
            Socket::Unix(s) => Socket::Unix(s.try_clone()?),
        })
    }

    pub(super) fn shutdown(&self) {
        // It may be closed already, which is what is wanted.
        let _ = match self {
            Socket::Tcp(s) => s.shutdown(Shutdown::Both),
            Socket::Unix(s) => s.shutdown(Shutdown::Both),
        };
    }

    fn set_write_timeout(&self, limit: Duration) -> std::io::Result<()> {
        match self {
            Socket::Tcp(s) => s.set_write_timeout(Some(limit)),
            Socket::Unix(s) => s.set_write_timeout(Some(limit)),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(s) => s.as_fd(),
            Socket::Unix(s) => s.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.read(out),
            Socket::Unix(s) => s.read(out),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.write(bytes),
            Socket::Unix(s) => s.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.write_vectored(parts),
            Socket::Unix(s) => s.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A connection with its threads. Dropping it ends them.
pub(super) struct Link {
    outbox: Outbox,
    threads: Vec<JoinHandle<()>>,
}

/// What a reader makes of a frame: something to tell, or nothing.
pub(super) type Handle =
    Box<dyn FnMut(Message, CellBytes) -> Result<Option<Incoming>, TransportError> + Send>;

impl Link {
    /// Starts the threads. `stall` is how long a write may make no progress.
    pub(super) fn start(
        socket: Socket,
        stall: Duration,
        inbox: &Inbox,
        clock: &Arc<dyn Clock>,
        handle: impl FnOnce(&Outbox) -> Handle,
    ) -> Result<Link, TransportError> {
        let set_up = |error| TransportError::io("setting up a connection", error);
        socket.set_write_timeout(stall).map_err(set_up)?;
        let reads = socket.try_clone().map_err(set_up)?;
        let mut writes = socket.try_clone().map_err(set_up)?;
        let outbox = Outbox::new(socket);
        let mut handle = handle(&outbox);
        let (inbox_reads, inbox_writes) = (inbox.clone(), inbox.clone());
        let clock = Arc::clone(clock);
        let mut frames = FrameReader::new(reads, AHEAD_BYTES);
        let reader = std::thread::spawn(move || {
            loop {
                let frame = frames.next();
                let told = frame.and_then(|(message, payload)| handle(message, payload));
                let over = told.is_err();
                if let Some(told) = told.transpose()
                    && !inbox_reads.put(told)
                {
                    return;
                }
                if over {
                    return;
                }
            }
        });
        let outgoing = outbox.clone();
        let writer = std::thread::spawn(move || {
            write_all(&mut writes, stall, &outgoing, &inbox_writes, clock.as_ref());
        });
        Ok(Link {
            outbox,
            threads: vec![reader, writer],
        })
    }

    /// As [`Outbox::put`].
    pub(super) fn put(&self, frame: Frame) -> Result<bool, TransportError> {
        self.outbox.put(frame)
    }

    /// Ends the threads. Whoever holds the inbox must have dropped its other end.
    pub(super) fn close(&mut self) {
        self.outbox.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing to say that the closed connection does not.
            let _ = thread.join();
        }
    }
}

/// Writes frames until the connection or the transport ends.
fn write_all(
    socket: &mut Socket,
    stall: Duration,
    outgoing: &Outbox,
    inbox: &Inbox,
    clock: &dyn Clock,
) {
    let mut out = Out::new(socket, stall);
    while let Some(frame) = outgoing.next() {
        let told = match out.write(&frame) {
            Ok(()) => match frame.done {
                None => continue,
                Some((id, posted)) => {
                    let wire_ns = clock.now().saturating_sub(posted).0;
                    Ok(Incoming::Sent { id, wire_ns })
                }
            },
            Err(error) => Err(error),
        };
        let over = told.is_err();
        if !inbox.put(told) || over {
            break;
        }
    }
    outgoing.close();
}

pub(super) fn is_gone(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted
    )
}

/// Reads frames from a socket.
pub(super) struct FrameReader {
    socket: Socket,
    buffers: Buffers,
    /// What was read ahead, and which of it is unused.
    ahead: Vec<u8>,
    unused: Range<usize>,
}

impl FrameReader {
    /// Reads up to `ahead` bytes more than are needed.
    pub(super) fn new(socket: Socket, ahead: usize) -> FrameReader {
        FrameReader {
            socket,
            buffers: Buffers::default(),
            ahead: vec![0; ahead],
            unused: 0..0,
        }
    }

    /// The next frame.
    pub(super) fn next(&mut self) -> Result<(Message, CellBytes), TransportError> {
        let mut header = [0; HEADER_BYTES];
        self.exactly(&mut header, false)?;
        let head = FrameHead::parse(&header)?;
        let mut body = vec![0; head.body_bytes];
        self.exactly(&mut body, true)?;
        // The body is verified before room is made for what it announces.
        let message = head.message(&body)?;
        let mut payload = self.buffers.take(head.payload_bytes);
        self.exactly(&mut payload, true)?;
        Ok((message, payload))
    }

    /// Fills `out`. `started` says whether the frame has begun: an end before is no cut.
    fn exactly(&mut self, out: &mut [u8], started: bool) -> Result<(), TransportError> {
        let mut got = self.take(out);
        while got < out.len() {
            let missing = out.len() - got;
            // What is longer goes to where it belongs.
            let direct = missing >= self.ahead.len();
            let read = match direct {
                true => self.socket.read(&mut out[got..]),
                false => self.socket.read(&mut self.ahead),
            };
            match read {
                Ok(n) if n > 0 && direct => got += n,
                Ok(n) if n > 0 => {
                    self.unused = 0..n;
                    got += self.take(&mut out[got..]);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if !is_gone(&e) => return Err(TransportError::io("reading a frame", e)),
                _ if got == 0 && !started => return Err(TransportError::Closed),
                _ => return Err(TransportError::Cut { missing }),
            }
        }
        Ok(())
    }

    /// Takes what was read ahead, as far as it goes.
    fn take(&mut self, out: &mut [u8]) -> usize {
        let n = out.len().min(self.unused.len());
        let from = self.unused.start;
        out[..n].copy_from_slice(&self.ahead[from..from + n]);
        self.unused.start += n;
        n
    }
}
