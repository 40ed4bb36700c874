//! Frames over stream sockets: a thread that reads and one that writes for each connection, and
//! bounded queues between them and the transport.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use pb_contract::Clock;

use super::buffers::{Buffers, CellBytes};
use super::outgoing::{Frame, Out};
use super::{Incoming, TransportError};
use crate::frame::{FrameHead, HEADER_BYTES};
use crate::message::Message;

/// Frames that wait to be written on a connection.
const QUEUE_FRAMES: usize = 64;
/// Frames that have arrived and were not polled. With the largest payload this bounds memory.
const INBOX_FRAMES: usize = 8;

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

/// Where readers and writers put what they have.
pub(super) type Inbox = SyncSender<Result<Incoming, TransportError>>;

/// A queue of what came, and its entrance.
pub(super) fn inbox() -> (Inbox, Receiver<Result<Incoming, TransportError>>) {
    sync_channel(INBOX_FRAMES)
}

/// The next thing that came.
pub(super) fn poll(
    from: &Receiver<Result<Incoming, TransportError>>,
    timeout: Duration,
) -> Result<Option<Incoming>, TransportError> {
    match from.recv_timeout(timeout) {
        Ok(Ok(incoming)) => Ok(Some(incoming)),
        Ok(Err(error)) => Err(error),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(TransportError::Closed),
    }
}

/// The writing end of a connection.
pub(super) struct Writer(SyncSender<Frame>);

impl Clone for Writer {
    fn clone(&self) -> Self {
        Writer(self.0.clone())
    }
}

impl Writer {
    pub(super) fn put(&self, frame: Frame) -> Result<(), TransportError> {
        self.0.try_send(frame).map_err(|e| match e {
            TrySendError::Full(_) => TransportError::Backlog {
                frames: QUEUE_FRAMES,
            },
            TrySendError::Disconnected(_) => TransportError::Closed,
        })
    }
}

/// A connection with its threads. Dropping it ends them.
pub(super) struct Link {
    socket: Socket,
    writer: Option<Writer>,
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
        handle: impl FnOnce(&Writer) -> Handle,
    ) -> Result<Link, TransportError> {
        let set_up = |error| TransportError::io("setting up a connection", error);
        socket.set_write_timeout(stall).map_err(set_up)?;
        let (to_writer, outgoing) = sync_channel(QUEUE_FRAMES);
        let writer = Writer(to_writer);
        let mut handle = handle(&writer);
        let (mut reads, mut writes) = (
            socket.try_clone().map_err(set_up)?,
            socket.try_clone().map_err(set_up)?,
        );
        let (inbox_reads, inbox_writes) = (inbox.clone(), inbox.clone());
        let clock = Arc::clone(clock);
        let buffers = Buffers::default();
        let reader = std::thread::spawn(move || {
            loop {
                let frame = read_frame(&mut reads, &buffers);
                let told = frame.and_then(|(message, payload)| handle(message, payload));
                let over = told.is_err();
                if let Some(told) = told.transpose()
                    && inbox_reads.send(told).is_err()
                {
                    return;
                }
                if over {
                    return;
                }
            }
        });
        let writer_thread = std::thread::spawn(move || {
            write_all(&mut writes, stall, &outgoing, &inbox_writes, clock.as_ref());
        });
        Ok(Link {
            socket,
            writer: Some(writer),
            threads: vec![reader, writer_thread],
        })
    }

    pub(super) fn put(&self, frame: Frame) -> Result<(), TransportError> {
        let writer = self.writer.as_ref().ok_or(TransportError::Closed)?;
        writer.put(frame)
    }

    /// Ends the threads. Whoever holds the inbox must have dropped its other end.
    pub(super) fn close(&mut self) {
        self.socket.shutdown();
        self.writer = None;
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
    outgoing: &Receiver<Frame>,
    inbox: &Inbox,
    clock: &dyn Clock,
) {
    let mut out = Out::new(socket, stall);
    for frame in outgoing {
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
        if inbox.send(told).is_err() || over {
            break;
        }
    }
    socket.shutdown();
}

pub(super) fn is_gone(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted
    )
}

/// Reads all of `out`. `started` says whether the frame has begun: an end before is no cut.
fn read_exact(socket: &mut Socket, out: &mut [u8], started: bool) -> Result<(), TransportError> {
    let mut got = 0;
    while got < out.len() {
        let missing = out.len() - got;
        match socket.read(&mut out[got..]) {
            Ok(n) if n > 0 => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if !is_gone(&e) => return Err(TransportError::io("reading a frame", e)),
            _ if got == 0 && !started => return Err(TransportError::Closed),
            _ => return Err(TransportError::Cut { missing }),
        }
    }
    Ok(())
}

/// The next frame.
pub(super) fn read_frame(
    socket: &mut Socket,
    buffers: &Buffers,
) -> Result<(Message, CellBytes), TransportError> {
    let mut header = [0; HEADER_BYTES];
    read_exact(socket, &mut header, false)?;
    let head = FrameHead::parse(&header)?;
    let mut body = vec![0; head.body_bytes];
    read_exact(socket, &mut body, true)?;
    // The body is verified before room is made for what it announces.
    let message = head.message(&body)?;
    let mut payload = buffers.take(head.payload_bytes);
    read_exact(socket, &mut payload, true)?;
    Ok((message, payload))
}
