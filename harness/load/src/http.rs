//! Connections that are read by the task that waits for them.
//!
//! The connection is polled by the very task that reads the response, not by one of its own: a
//! byte is stamped in the read that returned it and reaches the parser in the same wake-up, with
//! no scheduler in between. Connections are made before the run, kept, and never shared by two
//! requests at once, over HTTP/2 neither. A request is never sent twice.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use pb_contract::{FailKind, Nanos};

use crate::connect::{ConnectFailure, ConnectTimes, Connector, Socket};
use crate::endpoint::{Endpoint, HttpVersion};
use crate::stamps::Stamps;

/// Body of a request.
pub(crate) type Body = Full<Bytes>;

/// Work without a result.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Bytes that an HTTP/2 server may send ahead: more than any event, so that flow control never
/// holds a token back.
const HTTP2_WINDOW_BYTES: u32 = 64 << 20;

/// Connections made at the same time before a run.
const CONNECT_AT_ONCE: usize = 32;

/// A request that got no response head.
#[derive(Debug)]
pub(crate) enum SendFailure {
    /// The connection was dead before a byte was written: the request is still unsent.
    Unsent(Box<Request<Body>>),
    /// The connection failed under the request.
    Broken(hyper::Error),
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// One connection.
pub(crate) struct Conn {
    sender: Sender,
    /// The connection's own work; `None` once it is closed.
    io: Option<Work>,
    stamps: Arc<Stamps>,
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conn")
            .field("sender", &self.sender)
            .field("is_open", &self.io.is_some())
            .finish_non_exhaustive()
    }
}

impl Conn {
    /// Connects to an endpoint that has no pool.
    pub(crate) async fn open(endpoint: &Endpoint) -> Result<Conn, ConnectFailure> {
        Conn::over(&Connector::new(endpoint).await?).await
    }

    /// Connects.
    async fn over(connector: &Connector) -> Result<Conn, ConnectFailure> {
        let socket = connector.open().await?;
        let stamps = socket.stamps();
        let (sender, io) = handshake(socket, connector.endpoint().http_version())
            .await
            .map_err(|error| {
                let authority = connector.endpoint().authority();
                ConnectFailure::new(FailKind::Connect, format!("{authority}: {error}"))
            })?;
        let io = Some(io);
        Ok(Conn { sender, io, stamps })
    }

    /// Whether a request can be sent: lets the connection notice that its peer has hung up.
    async fn ready(&mut self) -> bool {
        // Polled once at least, which reads what has come while nobody looked.
        poll_fn(|cx| {
            advance(&mut self.io, cx);
            Poll::Ready(())
        })
        .await;
        let ready = match &mut self.sender {
            Sender::Http1(sender) => drive(&mut self.io, sender.ready()).await,
            Sender::Http2(sender) => drive(&mut self.io, sender.ready()).await,
        };
        ready.is_ok() && self.io.is_some()
    }

    /// Sends a request and waits for the response head.
    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, SendFailure> {
        self.stamps.begin();
        let sent = match &mut self.sender {
            Sender::Http1(sender) => drive(&mut self.io, sender.try_send_request(request)).await,
            Sender::Http2(sender) => drive(&mut self.io, sender.try_send_request(request)).await,
        };
        sent.map_err(|mut error| match error.take_message() {
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
        self.stamps.first_write()
    }

    /// When the last bytes were read.
    pub(crate) fn read_at(&self) -> Nanos {
        self.stamps.last_read()
    }
}

async fn handshake(socket: Socket, version: HttpVersion) -> hyper::Result<(Sender, Work)> {
    let io = TokioIo::new(socket);
    match version {
        HttpVersion::Http1 => {
            let (sender, connection) = http1::handshake(io).await?;
            // An error of the connection reaches the request through their channel.
            let work = async move { drop(connection.await) };
            Ok((Sender::Http1(sender), Box::pin(work)))
        }
        HttpVersion::Http2 => {
            let tasks = Tasks::default();
            let (sender, connection) = http2::Builder::new(tasks.clone())
                .initial_stream_window_size(HTTP2_WINDOW_BYTES)
                .initial_connection_window_size(HTTP2_WINDOW_BYTES)
                .handshake(io)
                .await?;
            let connection: Work = Box::pin(async move { drop(connection.await) });
            Ok((Sender::Http2(sender), Box::pin(tasks.run_with(connection))))
        }
    }
}

/// The parts of an HTTP/2 connection. The library would hand them to the runtime as tasks; here
/// they stay together and are polled by whoever reads the connection.
#[derive(Clone, Default)]
struct Tasks {
    added: Arc<Mutex<Vec<Work>>>,
}

impl Tasks {
    fn list(&self) -> MutexGuard<'_, Vec<Work>> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All parts, run to their ends. The list is emptied at once and whenever it grows, because
    /// a part in it would keep itself alive.
    fn run_with(self, first: Work) -> impl Future<Output = ()> + Send {
        let mut running = std::mem::take(&mut *self.list());
        running.push(first);
        poll_fn(move |cx| {
            loop {
                running.retain_mut(|work| work.as_mut().poll(cx).is_pending());
                let mut added = self.list();
                if added.is_empty() {
                    break;
                }
                running.append(&mut added);
            }
            if running.is_empty() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, future: F) {
        self.list().push(Box::pin(future));
    }
}

/// Lets a connection read and write what it can.
fn advance(io: &mut Option<Work>, cx: &mut Context<'_>) {
    if let Some(work) = io
        && work.as_mut().poll(cx).is_ready()
    {
        *io = None;
    }
}

/// Polls a connection and what waits for it in one task.
async fn drive<F: Future>(io: &mut Option<Work>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        // First what an earlier read has left, whose stamp another read would overwrite.
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        advance(io, cx);
        future.as_mut().poll(cx)
    })
    .await
}

/// Idle connections to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    connector: Arc<Connector>,
    idle: Mutex<Vec<Conn>>,
}

impl Pool {
    /// A pool without connections; the name is resolved here.
    pub(crate) async fn new(endpoint: &Endpoint) -> Result<Pool, ConnectFailure> {
        Ok(Pool {
            connector: Arc::new(Connector::new(endpoint).await?),
            idle: Mutex::new(Vec::new()),
        })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        self.connector.endpoint()
    }

    /// How long the connections took so far.
    pub(crate) fn times(&self) -> ConnectTimes {
        self.connector.times()
    }

    /// Makes `count` connections ahead of time, several at once.
    pub(crate) async fn preconnect(&self, count: usize) -> Result<(), ConnectFailure> {
        let mut opening = tokio::task::JoinSet::new();
        let mut begun = 0;
        loop {
            while begun < count && opening.len() < CONNECT_AT_ONCE {
                let connector = Arc::clone(&self.connector);
                opening.spawn(async move { Conn::over(&connector).await });
                begun += 1;
            }
            let Some(opened) = opening.join_next().await else {
                return Ok(());
            };
            // OK because the tasks are never aborted and connecting does not panic.
            self.idle().push(opened.expect("connecting ends")?);
        }
    }

    /// A live idle connection, else a new one.
    pub(crate) async fn acquire(&self) -> Result<Conn, ConnectFailure> {
        loop {
            let Some(mut conn) = self.take_idle() else {
                self.connector.during_request();
                return Conn::over(&self.connector).await;
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
    let builder = Request::builder().method(method);
    let mut builder = match endpoint.http_version() {
        HttpVersion::Http1 => builder
            .uri(endpoint.path(route))
            .header(HOST, endpoint.authority()),
        HttpVersion::Http2 => builder.uri(endpoint.url(route)),
    };
    builder = builder
        .header(ACCEPT, accept)
        .header(CONTENT_TYPE, "application/json");
    if let Some(key) = endpoint.api_key() {
        builder = builder.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    let mut request = builder.body(Full::new(body))?;
    for (name, value) in endpoint.headers() {
        request.headers_mut().insert(name, value.clone());
    }
    Ok(request)
}
