//! A socket that knows when its bytes came and went.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use pb_contract::{Clock, Nanos, WallClock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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

    /// When the last bytes were read.
    pub(crate) fn last_read(&self) -> Nanos {
        Nanos(self.last_read_ns.load(Ordering::Relaxed))
    }
}

/// Stamps the reads of a stream and its first write after a [`Stamps::begin`].
#[derive(Debug)]
pub(crate) struct Stamped<S> {
    stream: S,
    stamps: Arc<Stamps>,
}

impl<S> Stamped<S> {
    pub(crate) fn new(stream: S) -> Self {
        Stamped {
            stream,
            stamps: Arc::default(),
        }
    }

    pub(crate) fn stamps(&self) -> Arc<Stamps> {
        Arc::clone(&self.stamps)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stamped<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            let now = WallClock.now().0;
            self.stamps.last_read_ns.store(now, Ordering::Relaxed);
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> Stamped<S> {
    /// Runs a write and stamps its beginning when it is the first that succeeds.
    fn write(
        &mut self,
        write: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let pending = self.stamps.first_write_ns.load(Ordering::Relaxed) == 0;
        let before = if pending { WallClock.now().0 } else { 0 };
        let result = write(Pin::new(&mut self.stream));
        if pending && matches!(result, Poll::Ready(Ok(count)) if count > 0) {
            self.stamps.first_write_ns.store(before, Ordering::Relaxed);
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stamped<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(|stream| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(|stream| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
