//! One streamed completion, from its intended arrival to its row.
//!
//! Whatever happens to the request ends in exactly one record: a refused connection, an error
//! status, silence, half a stream, the end of the run. Limits are of four kinds because they mean
//! different things: no connection, no first token (a queue), silence later (a stall), too long
//! in all.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use hyper::{Method, Response, StatusCode};
use pb_contract::{Clock, FailKind, Nanos, RequestRow, WallClock};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::driver::SendOrder;
use crate::error_body::{error_text, has_error, status_message};
use crate::events::{StreamOutcome, StreamReading};
use crate::http::{Conn, Pool, SendFailure, request};
use crate::payload::payload;
use crate::rows::{Record, RunContext, blank_row, finish_row};
use crate::sse::DEFAULT_MAX_EVENT_BYTES;
use crate::wait::{Patience, Waited};

/// Longest error body that is read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// How long a request may take and how large an event may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// For a connection, when the request finds none free.
    pub connect_ns: Nanos,
    /// From sending to the first token.
    pub first_token_ns: Nanos,
    /// Between two reads after the first token.
    pub idle_ns: Nanos,
    /// From the intended arrival to the end.
    pub total_ns: Nanos,
    /// Bytes of one event.
    pub max_event_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connect_ns: Nanos::from_secs(30),
            first_token_ns: Nanos::from_secs(120),
            idle_ns: Nanos::from_secs(60),
            total_ns: Nanos::from_secs(600),
            max_event_bytes: DEFAULT_MAX_EVENT_BYTES,
        }
    }
}

/// What a request needs beside its order.
#[derive(Clone, Debug)]
pub(crate) struct Carrier {
    pub(crate) pool: Arc<Pool>,
    pub(crate) context: RunContext,
    pub(crate) limits: Limits,
    /// Becomes true when running requests are to be given up.
    pub(crate) cut: watch::Receiver<bool>,
}

/// A request that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) record: Record,
    /// Its text, when it succeeded.
    pub(crate) answer: Option<String>,
}

/// A request under way.
struct Attempt<'a> {
    carrier: &'a Carrier,
    patience: Patience,
    row: RequestRow,
    /// The next turn needs the answer.
    keep_text: bool,
}

/// Sends an order and reads its stream to whatever end it has.
pub(crate) async fn run_request(carrier: Carrier, order: SendOrder) -> Ended {
    let mut row = blank_row(&carrier.context, &order);
    (row.fail, row.fail_message) = (None, None);
    let deadline = order.intended + carrier.limits.total_ns;
    let mut attempt = Attempt {
        carrier: &carrier,
        patience: Patience::new(carrier.cut.clone(), deadline),
        row,
        keep_text: order.wants_answer,
    };
    let mut outcome = attempt.run(&order).await;
    let closed = attempt.row.closed_ns.unwrap_or_else(|| WallClock.now());
    let answer = outcome
        .failure
        .is_none()
        .then(|| std::mem::take(&mut outcome.text));
    Ended {
        record: finish_row(attempt.row, outcome, closed),
        answer,
    }
}

impl Attempt<'_> {
    async fn run(&mut self, order: &SendOrder) -> StreamOutcome {
        let endpoint = self.carrier.pool.endpoint();
        let (route, body) = payload(endpoint, order);
        let built = request(endpoint, Method::POST, route, "text/event-stream", body);
        let mut unsent = match built {
            Ok(request) => request,
            Err(error) => return failed(FailKind::Protocol, error.to_string()),
        };
        let connect_by = WallClock.now() + self.carrier.limits.connect_ns;
        loop {
            let connected = self
                .patience
                .wait(connect_by, CONNECT, self.carrier.pool.acquire());
            let mut conn = match connected.await {
                Waited::Got(Ok(conn)) => conn,
                Waited::Got(Err(failure)) => return failed(failure.kind, failure.message),
                Waited::Gave(kind, message) => return failed(kind, message),
            };
            let limit = WallClock.now() + self.carrier.limits.first_token_ns;
            let sent = self.patience.wait(limit, FIRST, conn.send(unsent)).await;
            self.row.sent_ns = conn.sent_at();
            match sent {
                Waited::Got(Ok(response)) => return self.response(conn, response, limit).await,
                // Not a byte was written, so taking another connection sends nothing twice.
                Waited::Got(Err(SendFailure::Unsent(request))) => unsent = *request,
                Waited::Got(Err(SendFailure::Broken(error))) => return broken_head(&error),
                Waited::Gave(kind, message) => return failed(kind, message),
            }
        }
    }

    async fn response(
        &mut self,
        conn: Conn,
        response: Response<Incoming>,
        first_limit: Nanos,
    ) -> StreamOutcome {
        self.row.headers_ns = Some(conn.read_at());
        let status = response.status();
        self.row.http_status = Some(status.as_u16());
        let kind = text_of(&response, CONTENT_TYPE);
        // A server that names no type may stream all the same.
        let streams = kind
            .as_deref()
            .is_none_or(|kind| kind.trim_start().starts_with("text/event-stream"));
        if status == StatusCode::OK && streams {
            return self.stream(conn, response.into_body(), first_limit).await;
        }
        let retry_after = text_of(&response, RETRY_AFTER);
        let body = self.small_body(conn, response.into_body()).await;
        if status != StatusCode::OK {
            let status = status.to_string();
            let message = status_message(&status, &body, retry_after.as_deref());
            return failed(FailKind::HttpStatus, message);
        }
        if has_error(&body) {
            return failed(FailKind::InBandError, error_text(&body));
        }
        let kind = kind.unwrap_or_default();
        let message = format!("the response is {kind}, not an event stream");
        failed(FailKind::Protocol, message)
    }

    /// Reads an event stream.
    async fn stream(
        &mut self,
        mut conn: Conn,
        mut body: Incoming,
        first_limit: Nanos,
    ) -> StreamOutcome {
        let mut reading = StreamReading::new(self.carrier.limits.max_event_bytes);
        if self.keep_text {
            reading = reading.keeping_text();
        }
        loop {
            let (limit, silence) = if reading.has_content() {
                // Reads follow one another, so the last one's stamp is the time.
                (conn.read_at() + self.carrier.limits.idle_ns, IDLE)
            } else {
                (first_limit, FIRST)
            };
            let chunk = conn.chunk(&mut body);
            match self.patience.wait(limit, silence, chunk).await {
                Waited::Got(Some(Ok(bytes))) => {
                    reading.bytes(conn.read_at(), &bytes);
                    if reading.failed() {
                        return reading.abandon();
                    }
                }
                Waited::Got(Some(Err(error))) => {
                    return reading.end(Some(&format!("the connection broke: {}", chain(&error))));
                }
                Waited::Got(None) => {
                    self.row.closed_ns = Some(conn.read_at());
                    self.carrier.pool.release(conn);
                    return reading.end(None);
                }
                Waited::Gave(kind, message) => {
                    let mut outcome = reading.abandon();
                    outcome.failure.get_or_insert((kind, message));
                    return outcome;
                }
            }
        }
    }

    /// The text of a response that is no stream, for its message.
    async fn small_body(&mut self, mut conn: Conn, mut body: Incoming) -> String {
        let mut text = Vec::new();
        while text.len() < MAX_ERROR_BYTES {
            let limit = WallClock.now() + self.carrier.limits.idle_ns;
            match self.patience.wait(limit, IDLE, conn.chunk(&mut body)).await {
                Waited::Got(Some(Ok(bytes))) => text.extend_from_slice(&bytes),
                Waited::Got(None) => {
                    self.carrier.pool.release(conn);
                    break;
                }
                // What the head said is the failure; a body that breaks off shortens its message.
                Waited::Got(Some(Err(_))) | Waited::Gave(..) => break,
            }
        }
        text.truncate(MAX_ERROR_BYTES);
        String::from_utf8_lossy(&text).into_owned()
    }
}

const CONNECT: FailKind = FailKind::TimeoutConnect;
const FIRST: FailKind = FailKind::TimeoutFirstToken;
const IDLE: FailKind = FailKind::TimeoutIdle;

/// A header's value, when it is text.
fn text_of(response: &Response<Incoming>, name: HeaderName) -> Option<String> {
    let value = response.headers().get(name)?;
    value.to_str().ok().map(str::to_owned)
}

fn failed(kind: FailKind, message: String) -> StreamOutcome {
    StreamOutcome {
        failure: Some((kind, message)),
        ..StreamOutcome::default()
    }
}

/// A connection that failed before the response head was whole.
fn broken_head(error: &hyper::Error) -> StreamOutcome {
    let text = chain(error);
    if error.is_parse() {
        return failed(FailKind::Protocol, format!("not an HTTP response: {text}"));
    }
    failed(
        FailKind::Truncated,
        format!("the connection broke before the response head: {text}"),
    )
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
