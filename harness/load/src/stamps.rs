//! A socket that knows when its bytes came and went.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use pb_contract::{Clock, Nanos, WallClock};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::arrival::{self, Clocks, Received};
use crate::lag::ReadLags;

/// Instants of a connection; zero means that it has not happened.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    first_write_ns: AtomicU64,
    last_read_ns: AtomicU64,
}

impl Stamps {
    /// Forgets the first write: the next one is the first of a request.
    pub(crate) fn begin(&self) {
        self.first_write_ns.store(0, Ordering::Relaxed);
    }

    /// When the first byte since [`Stamps::begin`] was written.
    pub(crate) fn first_write(&self) -> Option<Nanos> {
        let at = self.first_write_ns.load(Ordering::Relaxed);
        (at > 0).then_some(Nanos(at))
    }

    /// When the last bytes that were read had arrived.
    pub(crate) fn last_read(&self) -> Nanos {
        Nanos(self.last_read_ns.load(Ordering::Relaxed))
    }
}

/// Stamps the reads of a socket and its first write after a [`Stamps::begin`].
#[derive(Debug)]
pub(crate) struct Stamped {
    socket: TcpStream,
    stamps: Arc<Stamps>,
    lags: Arc<ReadLags>,
    clocks: Clocks,
}

impl Stamped {
    /// Over a connected socket; how late it is read goes to `lags`.
    pub(crate) fn new(socket: TcpStream, lags: Arc<ReadLags>) -> Self {
        arrival::ask_for_arrivals(&socket);
        Stamped {
            socket,
            stamps: Arc::default(),
            lags,
            clocks: Clocks::default(),
        }
    }

    pub(crate) fn stamps(&self) -> Arc<Stamps> {
        Arc::clone(&self.stamps)
    }

    /// Whether the peer has said nothing and not hung up.
    pub(crate) fn is_quiet(&self) -> bool {
        arrival::is_quiet(&self.socket)
    }

    /// Reads what is there; `None` when nothing is.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let (length, clocks) = (buffer.len(), &mut self.clocks);
        let mut received = None;
        let result = self.socket.try_io(Interest::READABLE, || {
            let got = arrival::receive(&self.socket, buffer, clocks)?;
            received = Some(got);
            // A read that was not filled has emptied the socket. Saying so here saves the read
            // that would find that out; a hang-up that has been seen is remembered all the same.
            if got.bytes > 0 && got.bytes < length {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        match result {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(received),
        }
    }
}

impl AsyncRead for Stamped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.socket.poll_read_ready(cx))?;
            let Some(received) = self.receive(buf.initialize_unfilled())? else {
                continue;
            };
            if received.bytes > 0 {
                buf.advance(received.bytes);
                let at = received.at.0;
                self.stamps.last_read_ns.store(at, Ordering::Relaxed);
                self.lags.add(&received);
            }
            return Poll::Ready(Ok(()));
        }
    }
}

impl Stamped {
    /// Runs a write and stamps its beginning when it is the first that succeeds.
    fn write(
        &mut self,
        write: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let pending = self.stamps.first_write_ns.load(Ordering::Relaxed) == 0;
        let before = if pending { WallClock.now().0 } else { 0 };
        let result = write(Pin::new(&mut self.socket));
        if pending && matches!(result, Poll::Ready(Ok(count)) if count > 0) {
            self.stamps.first_write_ns.store(before, Ordering::Relaxed);
        }
        result
    }
}

impl AsyncWrite for Stamped {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(|socket| socket.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(|socket| socket.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
