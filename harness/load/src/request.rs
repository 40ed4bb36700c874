//! One streamed completion, from its intended arrival to its row.
//!
//! Whatever happens to the request ends in exactly one record: a refused connection, an error
//! status, silence, half a stream, the end of the run. Limits are of four kinds because they mean
//! different things: no connection, no first token (a queue), silence later (a stall), too long
//! in all.

use std::sync::Arc;

use hyper::StatusCode;
use pb_contract::{Clock, FailKind, Nanos, RequestRow, WallClock};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::driver::SendOrder;
use crate::error_body::{error_text, has_error, status_message};
use crate::events::{StreamOutcome, StreamReading};
use crate::http::{Broken, Conn, Pool, Read, SendFailure};
use crate::response::ResponseHead;
use crate::rows::{Record, RunContext, blank_row, finish_row};
use crate::secrets::Secrets;
use crate::sse::DEFAULT_MAX_EVENT_BYTES;
use crate::wait::{Patience, Waited};
use crate::wire::Wire;

/// Longest error body that is read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Longest value of a header that a message repeats, in characters.
const MAX_VALUE_CHARS: usize = 100;

/// Content events that are kept of one stream, for each token that it may have. A token is one
/// event at most on every server known; a proxy that cuts texts into characters makes more.
const EVENTS_PER_TOKEN: usize = 64;

/// Content events that any stream may have beside these.
const SPARE_EVENTS: usize = 65_536;

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
    /// What no message may repeat.
    pub(crate) secrets: Secrets,
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
    /// When nothing but this client kept it any more.
    pub(crate) free: Nanos,
    /// When a connection for it was begun, if none was free.
    pub(crate) connecting: Option<Nanos>,
}

/// A request under way.
struct Attempt<'a> {
    carrier: &'a Carrier,
    patience: Patience,
    row: RequestRow,
    /// The next turn needs the answer.
    keep_text: bool,
    /// When a connection was begun.
    connecting: Option<Nanos>,
}

/// An order, ready to be sent or begun to be.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) order: SendOrder,
    /// Its bytes, or why there are none.
    pub(crate) wire: Result<Wire, String>,
    /// The connection on which it was started; none was free otherwise.
    pub(crate) conn: Option<Conn>,
}

/// Sends an order and reads its stream to whatever end it has.
pub(crate) async fn run_request(carrier: Carrier, sending: Sending) -> Ended {
    let Sending { order, wire, conn } = sending;
    let mut row = blank_row(&carrier.context, &order);
    (row.fail, row.fail_message) = (None, None);
    let deadline = order.intended + carrier.limits.total_ns;
    let mut attempt = Attempt {
        carrier: &carrier,
        patience: Patience::new(carrier.cut.clone(), deadline),
        row,
        keep_text: order.wants_answer,
        connecting: None,
    };
    let mut outcome = match wire {
        Ok(wire) => attempt.run(wire, conn).await,
        Err(message) => failed(FailKind::Protocol, message),
    };
    let closed = attempt.row.closed_ns.unwrap_or_else(|| WallClock.now());
    // Texts of the server were searched before they were cut; this is for all others.
    if let Some((_, message)) = &mut outcome.failure {
        *message = carrier.secrets.hide(message).into_owned();
    }
    let connecting = attempt.connecting;
    let answer = outcome
        .failure
        .is_none()
        .then(|| std::mem::take(&mut outcome.text));
    Ended {
        record: finish_row(attempt.row, outcome, closed),
        answer,
        free: order.free,
        connecting,
    }
}

impl Attempt<'_> {
    async fn run(&mut self, wire: Wire, mut started: Option<Conn>) -> StreamOutcome {
        let now = WallClock.now();
        let connect_by = now + self.carrier.limits.connect_ns;
        if started.is_none() {
            self.connecting = Some(now);
        }
        loop {
            let mut conn = match started.take() {
                Some(conn) => conn,
                None => match self.connection(connect_by).await {
                    Ok(mut conn) => {
                        conn.start(wire.clone());
                        conn
                    }
                    Err(outcome) => return outcome,
                },
            };
            let limit = WallClock.now() + self.carrier.limits.first_token_ns;
            let head = self.patience.wait(limit, FIRST, conn.head()).await;
            self.row.sent_ns = conn.sent_at();
            match head {
                Waited::Got(Ok(head)) => return self.response(conn, &head, limit).await,
                // Not a byte was written, so taking another connection sends nothing twice.
                Waited::Got(Err(SendFailure::Unsent(_))) => {}
                Waited::Got(Err(SendFailure::Broken(broken))) => return broken_head(&broken),
                Waited::Gave(kind, message) => return failed(kind, message),
            }
        }
    }

    async fn connection(&mut self, connect_by: Nanos) -> Result<Conn, StreamOutcome> {
        let opening = self.carrier.pool.acquire();
        match self.patience.wait(connect_by, CONNECT, opening).await {
            Waited::Got(Ok(conn)) => Ok(conn),
            Waited::Got(Err(failure)) => Err(failed(failure.kind, failure.message)),
            Waited::Gave(kind, message) => Err(failed(kind, message)),
        }
    }

    async fn response(
        &mut self,
        conn: Conn,
        head: &ResponseHead,
        first_limit: Nanos,
    ) -> StreamOutcome {
        self.row.headers_ns = Some(conn.read_at());
        self.row.http_status = Some(head.status);
        let kind = head.text("content-type");
        // A server that names no type may stream all the same.
        let streams = kind.is_none_or(|kind| kind.trim_start().starts_with("text/event-stream"));
        if head.status == 200 && streams {
            return self.stream(conn, first_limit).await;
        }
        let body = self.small_body(conn).await;
        if head.status != 200 {
            let status = StatusCode::from_u16(head.status);
            let status = status.map_or(head.status.to_string(), |status| status.to_string());
            let after = head.text("retry-after").map(|after| self.short(after));
            let message = status_message(&status, &body, after.as_deref());
            return failed(FailKind::HttpStatus, message);
        }
        if has_error(&body) {
            return failed(FailKind::InBandError, error_text(&body));
        }
        let kind = self.short(kind.unwrap_or_default());
        let message = format!("the response is {kind}, not an event stream");
        failed(FailKind::Protocol, message)
    }

    /// A value of the response head, to be repeated in a message.
    fn short(&self, value: &str) -> String {
        let value = self.carrier.secrets.hide(value);
        value.chars().take(MAX_VALUE_CHARS).collect()
    }

    /// Reads an event stream.
    async fn stream(&mut self, mut conn: Conn, first_limit: Nanos) -> StreamOutcome {
        let tokens = self.row.max_tokens as usize;
        let mut reading = StreamReading::new(self.carrier.limits.max_event_bytes)
            .keeping_events(tokens.saturating_mul(EVENTS_PER_TOKEN) + SPARE_EVENTS)
            .hiding(&self.carrier.secrets);
        if self.keep_text {
            reading = reading.keeping_text();
        }
        let deadline = self.patience.deadline();
        loop {
            let (limit, silence) = if reading.has_content() {
                // Reads follow one another, so the last one's stamp is the time.
                (conn.read_at() + self.carrier.limits.idle_ns, IDLE)
            } else {
                (first_limit, FIRST)
            };
            let until = limit.min(deadline);
            let read = conn.read(|at, bytes| {
                // What came too late is no part of the answer.
                if at < until {
                    reading.bytes(at, bytes);
                }
            });
            let over = match self.patience.wait(limit, silence, read).await {
                Waited::Got(_) if reading.failed() => return reading.abandon(),
                Waited::Got(Read::Broken(broken)) => {
                    return reading.end(Some(&format!("the connection broke: {}", broken.text)));
                }
                Waited::Got(Read::End) if conn.read_at() < until => {
                    self.row.closed_ns = Some(conn.read_at());
                    self.carrier.pool.release(conn);
                    return reading.end(None);
                }
                // A stream that never pauses never waits, so it is asked here.
                Waited::Got(_) => self.patience.over(conn.read_at(), limit, silence),
                Waited::Gave(kind, message) => Some((kind, message)),
            };
            if let Some(reason) = over {
                let mut outcome = reading.abandon();
                outcome.failure.get_or_insert(reason);
                return outcome;
            }
        }
    }

    /// The text of a response that is no stream, for its message.
    async fn small_body(&mut self, mut conn: Conn) -> String {
        let mut text = Vec::new();
        while text.len() < MAX_ERROR_BYTES {
            let limit = WallClock.now() + self.carrier.limits.idle_ns;
            let read = conn.read(|_, bytes| text.extend_from_slice(bytes));
            match self.patience.wait(limit, IDLE, read).await {
                Waited::Got(Read::Data) => {
                    // A body that never pauses never waits.
                    let over = self.patience.over(conn.read_at(), limit, IDLE);
                    if over.is_some() {
                        break;
                    }
                }
                Waited::Got(Read::End) => {
                    self.carrier.pool.release(conn);
                    break;
                }
                // What the head said is the failure; a body that breaks off shortens its message.
                Waited::Got(Read::Broken(_)) | Waited::Gave(..) => break,
            }
        }
        text.truncate(MAX_ERROR_BYTES);
        let text = String::from_utf8_lossy(&text);
        self.carrier.secrets.hide(&text).into_owned()
    }
}

const CONNECT: FailKind = FailKind::TimeoutConnect;
const FIRST: FailKind = FailKind::TimeoutFirstToken;
const IDLE: FailKind = FailKind::TimeoutIdle;

fn failed(kind: FailKind, message: String) -> StreamOutcome {
    StreamOutcome {
        failure: Some((kind, message)),
        ..StreamOutcome::default()
    }
}

/// A connection that failed before the response head was whole.
fn broken_head(broken: &Broken) -> StreamOutcome {
    let text = &broken.text;
    if broken.is_protocol {
        return failed(FailKind::Protocol, format!("not an HTTP response: {text}"));
    }
    failed(
        FailKind::Truncated,
        format!("the connection broke before the response head: {text}"),
    )
}
