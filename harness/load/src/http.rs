//! Connections that know when their bytes came and went.
//!
//! The connection is polled by the very task that reads the response, not by one of its own: a
//! byte is stamped in the read that returned it and reaches the parser in the same wake-up, with
//! no scheduler in between. Connections are made before the run, kept, and never shared by two
//! requests at once. A request is never sent twice.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use pb_contract::{Clock, FailKind, Nanos, WallClock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::endpoint::Endpoint;

/// Body of a request.
pub(crate) type Body = Full<Bytes>;

type Io = http1::Connection<TokioIo<Stamped>, Body>;

/// Instants of a connection; zero means that it has not happened.
#[derive(Debug, Default)]
struct Marks {
    first_write_ns: AtomicU64,
    last_read_ns: AtomicU64,
}

/// A socket that stamps its reads and the first write after a reset.
#[derive(Debug)]
struct Stamped {
    socket: TcpStream,
    marks: Arc<Marks>,
}

impl AsyncRead for Stamped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.socket).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.marks
                .last_read_ns
                .store(WallClock.now().0, Ordering::Relaxed);
        }
        result
    }
}

impl Stamped {
    /// Runs a write and stamps its beginning when it is the first that succeeds.
    fn write(
        &mut self,
        write: impl FnOnce(Pin<&mut TcpStream>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let pending = self.marks.first_write_ns.load(Ordering::Relaxed) == 0;
        let before = if pending { WallClock.now().0 } else { 0 };
        let result = write(Pin::new(&mut self.socket));
        if pending && matches!(result, Poll::Ready(Ok(count)) if count > 0) {
            self.marks.first_write_ns.store(before, Ordering::Relaxed);
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

/// A connection that could not be made.
#[derive(Debug)]
pub(crate) struct ConnectFailure {
    pub(crate) kind: FailKind,
    pub(crate) message: String,
}

/// A request that got no response head.
#[derive(Debug)]
pub(crate) enum SendFailure {
    /// The connection was dead before a byte was written: the request is still unsent.
    Unsent(Box<Request<Body>>),
    /// The connection failed under the request.
    Broken(hyper::Error),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    sender: SendRequest<Body>,
    /// The connection's own work; `None` once it is closed.
    io: Option<Pin<Box<Io>>>,
    marks: Arc<Marks>,
}

impl Conn {
    /// Connects, without Nagle's delay.
    pub(crate) async fn open(endpoint: &Endpoint) -> Result<Conn, ConnectFailure> {
        let failure = |error: &dyn std::fmt::Display, port_exhausted| ConnectFailure {
            kind: if port_exhausted {
                FailKind::ClientPortExhausted
            } else {
                FailKind::Connect
            },
            message: format!("{}: {error}", endpoint.authority()),
        };
        let socket = TcpStream::connect(endpoint.address())
            .await
            .map_err(|error| failure(&error, error.kind() == io::ErrorKind::AddrNotAvailable))?;
        socket
            .set_nodelay(true)
            .map_err(|error| failure(&error, false))?;
        let marks = Arc::new(Marks::default());
        let stamped = Stamped {
            socket,
            marks: Arc::clone(&marks),
        };
        let (sender, io) = http1::handshake(TokioIo::new(stamped))
            .await
            .map_err(|error| failure(&error, false))?;
        Ok(Conn {
            sender,
            io: Some(Box::pin(io)),
            marks,
        })
    }

    /// Whether a request can be sent: lets the connection notice that its peer has hung up.
    async fn ready(&mut self) -> bool {
        drive(&mut self.io, self.sender.ready()).await.is_ok() && self.io.is_some()
    }

    /// Sends a request and waits for the response head.
    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, SendFailure> {
        self.marks.first_write_ns.store(0, Ordering::Relaxed);
        let sent = self.sender.try_send_request(request);
        drive(&mut self.io, sent)
            .await
            .map_err(|mut error| match error.take_message() {
                Some(request) => SendFailure::Unsent(Box::new(request)),
                None => SendFailure::Broken(error.into_error()),
            })
    }

    /// The next bytes of a response body; `None` at its end.
    pub(crate) async fn chunk(&mut self, body: &mut Incoming) -> Option<hyper::Result<Bytes>> {
        loop {
            match drive(&mut self.io, body.frame()).await? {
                // Trailers carry nothing that is measured.
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// When the first byte of the current request was written.
    pub(crate) fn sent_at(&self) -> Option<Nanos> {
        let at = self.marks.first_write_ns.load(Ordering::Relaxed);
        (at > 0).then_some(Nanos(at))
    }

    /// When the last bytes were read.
    pub(crate) fn read_at(&self) -> Nanos {
        Nanos(self.marks.last_read_ns.load(Ordering::Relaxed))
    }
}

/// Polls a connection and what waits for it in one task.
async fn drive<F: Future>(io: &mut Option<Pin<Box<Io>>>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        // The connection first: it reads what the future waits for. An error of the connection
        // reaches the future through their channel.
        if io
            .as_mut()
            .is_some_and(|io| io.as_mut().poll(cx).is_ready())
        {
            *io = None;
        }
        future.as_mut().poll(cx)
    })
    .await
}

/// Idle connections to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    endpoint: Endpoint,
    idle: Mutex<Vec<Conn>>,
}

impl Pool {
    pub(crate) fn new(endpoint: Endpoint) -> Pool {
        Pool {
            endpoint,
            idle: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Makes `count` connections ahead of time.
    pub(crate) async fn preconnect(&self, count: usize) -> Result<(), ConnectFailure> {
        for _ in 0..count {
            let conn = Conn::open(&self.endpoint).await?;
            self.idle().push(conn);
        }
        Ok(())
    }

    /// A live idle connection, else a new one.
    pub(crate) async fn acquire(&self) -> Result<Conn, ConnectFailure> {
        loop {
            let Some(mut conn) = self.take_idle() else {
                return Conn::open(&self.endpoint).await;
            };
            if conn.ready().await {
                return Ok(conn);
            }
        }
    }

    /// Takes a connection back whose response was read to its end.
    pub(crate) fn release(&self, conn: Conn) {
        if conn.io.is_some() {
            self.idle().push(conn);
        }
    }

    fn take_idle(&self) -> Option<Conn> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request to a route of the endpoint, with its headers.
pub(crate) fn request(
    endpoint: &Endpoint,
    method: Method,
    route: &str,
    accept: &str,
    body: Bytes,
) -> Result<Request<Body>, hyper::http::Error> {
    let mut builder = Request::builder()
        .method(method)
        .uri(endpoint.path(route))
        .header(HOST, endpoint.authority())
        .header(ACCEPT, accept)
        .header(CONTENT_TYPE, "application/json");
    if let Some(key) = endpoint.api_key() {
        builder = builder.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    builder.body(Full::new(body))
}
