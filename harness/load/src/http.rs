//! Connections that are read by the task that waits for them.
//!
//! The connection is polled by the very task that reads the response, not by one of its own: what
//! a read brought reaches the parser in the same wake-up, with no scheduler in between.
//! Connections are made before the run and kept, or made by each request for itself; they are
//! never shared by two requests at once, over HTTP/2 neither. A request is never sent twice.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pb_contract::{FailKind, Nanos};

use crate::connect::{ConnectFailure, ConnectTimes, Connector};
use crate::endpoint::{Endpoint, HttpVersion};
use crate::http1::Http1;
use crate::http2::Http2;
use crate::lag::ReadLag;
use crate::response::{ResponseError, ResponseHead};
use crate::stamps::Stamps;
use crate::wire::Wire;

/// Connections made at the same time before a run.
const CONNECT_AT_ONCE: usize = 32;

/// A connection that failed under a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// What happened, with its causes.
    pub(crate) text: String,
    /// The bytes were no HTTP.
    pub(crate) is_protocol: bool,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        let text = chain(&error);
        Broken {
            text,
            is_protocol: false,
        }
    }
}

impl From<ResponseError> for Broken {
    fn from(error: ResponseError) -> Self {
        Broken {
            text: error.to_string(),
            is_protocol: !matches!(error, ResponseError::Incomplete(_)),
        }
    }
}

impl From<hyper::Error> for Broken {
    fn from(error: hyper::Error) -> Self {
        let text = chain(&error);
        Broken {
            text,
            is_protocol: error.is_parse(),
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// A request that got no response head.
#[derive(Debug)]
pub(crate) enum SendFailure {
    /// The connection was dead before a byte was written.
    Unsent(String),
    /// The connection failed under the request.
    Broken(Broken),
}

impl SendFailure {
    /// What happened.
    pub(crate) fn text(self) -> String {
        match self {
            SendFailure::Unsent(text) => format!("the server hung up: {text}"),
            SendFailure::Broken(broken) => broken.text,
        }
    }
}

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Data; more may come.
    Data,
    /// The response is whole; its last data has been lent.
    End,
    /// The response broke off or is none.
    Broken(Broken),
}

#[derive(Debug)]
enum Protocol {
    Http1(Box<Http1>),
    Http2(Box<Http2>),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    protocol: Protocol,
    stamps: Arc<Stamps>,
}

impl Conn {
    /// Connects to an endpoint that has no pool, within `limit`.
    pub(crate) async fn open(endpoint: &Endpoint, limit: Nanos) -> Result<Conn, ConnectFailure> {
        let connecting = async { Conn::over(&Connector::new(endpoint).await?).await };
        within(limit, endpoint, connecting).await
    }

    /// Connects, however long that takes.
    async fn over(connector: &Connector) -> Result<Conn, ConnectFailure> {
        let socket = connector.open().await?;
        let stamps = socket.stamps();
        let protocol = match connector.endpoint().http_version() {
            HttpVersion::Http1 => Protocol::Http1(Box::new(Http1::new(socket))),
            HttpVersion::Http2 => {
                let greeted = Http2::handshake(socket).await.map_err(|error| {
                    let authority = connector.endpoint().authority();
                    ConnectFailure::new(FailKind::Connect, format!("{authority}: {error}"))
                });
                Protocol::Http2(Box::new(greeted?))
            }
        };
        Ok(Conn { protocol, stamps })
    }

    /// Whether a request can be sent, when that can be told without waiting.
    fn ready_now(&mut self) -> Option<bool> {
        match &mut self.protocol {
            Protocol::Http1(conn) => Some(conn.is_ready()),
            Protocol::Http2(_) => None,
        }
    }

    /// Whether a request can be sent.
    async fn ready(&mut self) -> bool {
        match &mut self.protocol {
            Protocol::Http1(conn) => conn.is_ready(),
            Protocol::Http2(conn) => conn.ready().await,
        }
    }

    /// Begins to send a request: over HTTP/1.1 as much as the socket takes at once, over HTTP/2
    /// with the wait for the head.
    pub(crate) fn start(&mut self, request: Wire) {
        match (&mut self.protocol, request) {
            (Protocol::Http1(conn), Wire::Http1(bytes)) => conn.start(bytes),
            (Protocol::Http2(conn), Wire::Http2(request)) => conn.start(*request),
            // OK because both follow the version of one endpoint.
            _ => unreachable!("a request of another version than the connection"),
        }
    }

    /// Sends what is left of the request and waits for the response head.
    pub(crate) async fn head(&mut self) -> Result<ResponseHead, SendFailure> {
        match &mut self.protocol {
            Protocol::Http1(conn) => conn.head().await,
            Protocol::Http2(conn) => conn.head().await,
        }
    }

    /// Sends a request and waits for the response head.
    pub(crate) async fn send(&mut self, request: Wire) -> Result<ResponseHead, SendFailure> {
        self.start(request);
        self.head().await
    }

    /// Waits for more of the body and lends it to `sink`, with the instant of its arrival.
    pub(crate) async fn read(&mut self, mut sink: impl FnMut(Nanos, &[u8]) + Send) -> Read {
        match &mut self.protocol {
            Protocol::Http1(conn) => conn.read(&mut sink).await,
            Protocol::Http2(conn) => conn.read(&mut sink).await,
        }
    }

    /// When the first byte of the current request was written.
    pub(crate) fn sent_at(&self) -> Option<Nanos> {
        self.stamps.first_write()
    }

    /// When the last bytes that were read had arrived.
    pub(crate) fn read_at(&self) -> Nanos {
        self.stamps.last_read()
    }

    fn is_reusable(&self) -> bool {
        match &self.protocol {
            Protocol::Http1(conn) => conn.is_reusable(),
            Protocol::Http2(conn) => conn.is_reusable(),
        }
    }
}

/// A connection, or the failure that there was none within `limit`: a server that takes the TCP
/// connection and speaks no TLS would be waited for without end.
async fn within(
    limit: Nanos,
    endpoint: &Endpoint,
    connecting: impl Future<Output = Result<Conn, ConnectFailure>>,
) -> Result<Conn, ConnectFailure> {
    let connected = tokio::time::timeout(limit.to_duration(), connecting).await;
    connected.unwrap_or_else(|_| {
        let what = match endpoint.is_secure() {
            true => "connection and TLS handshake",
            false => "connection",
        };
        let message = format!("{}: no {what} within {limit}", endpoint.authority());
        Err(ConnectFailure::new(FailKind::TimeoutConnect, message))
    })
}

/// Connections to one endpoint: idle ones, or the means to make a new one for each request.
#[derive(Debug)]
pub(crate) struct Pool {
    connector: Arc<Connector>,
    /// For a connection that no request waits for.
    connect_limit: Nanos,
    /// Connections are kept for further requests.
    reuse: bool,
    idle: Mutex<Vec<Conn>>,
}

impl Pool {
    /// A pool without connections; the name is resolved here. A connection that is made ahead of
    /// time may take `connect_limit`.
    pub(crate) async fn new(
        endpoint: &Endpoint,
        connect_limit: Nanos,
    ) -> Result<Pool, ConnectFailure> {
        Ok(Pool {
            connector: Arc::new(Connector::new(endpoint).await?),
            connect_limit,
            reuse: true,
            idle: Mutex::new(Vec::new()),
        })
    }

    /// Whether connections are kept for further requests; otherwise each request has its own.
    pub(crate) fn reusing(mut self, reuse: bool) -> Pool {
        self.reuse = reuse;
        self
    }

    /// Addresses that the target's name has.
    pub(crate) fn addresses(&self) -> usize {
        self.connector.addresses()
    }

    /// How long the connections took so far.
    pub(crate) fn times(&self) -> ConnectTimes {
        self.connector.times()
    }

    /// How late the connections were read.
    pub(crate) fn read_lag(&self) -> ReadLag {
        self.connector.read_lag()
    }

    /// Makes `count` connections ahead of time, several at once.
    pub(crate) async fn preconnect(&self, count: usize) -> Result<(), ConnectFailure> {
        let mut opening = tokio::task::JoinSet::new();
        let mut begun = 0;
        loop {
            while begun < count && opening.len() < CONNECT_AT_ONCE {
                let (connector, limit) = (Arc::clone(&self.connector), self.connect_limit);
                opening.spawn(async move {
                    within(limit, connector.endpoint(), Conn::over(&connector)).await
                });
                begun += 1;
            }
            let Some(opened) = opening.join_next().await else {
                return Ok(());
            };
            // OK because the tasks are never aborted and connecting does not panic.
            self.idle().push(opened.expect("connecting ends")?);
        }
    }

    /// A live idle connection, when one can be had without waiting.
    pub(crate) fn take_ready(&self) -> Option<Conn> {
        let mut idle = self.idle();
        loop {
            let mut conn = idle.pop()?;
            match conn.ready_now() {
                Some(true) => return Some(conn),
                Some(false) => {}
                None => {
                    idle.push(conn);
                    return None;
                }
            }
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
        if self.reuse && conn.is_reusable() {
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
