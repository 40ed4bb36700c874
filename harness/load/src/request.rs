//! One streamed completion, from its intended arrival to its row.
//!
//! Whatever happens to the request ends in exactly one record: a refused connection, an error
//! status, silence, half a stream, the end of the run. Limits are of three kinds because they
//! mean different things: no first token (a queue), silence later (a stall), too long in all.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Response, StatusCode};
use pb_contract::wire::{CompletionRequest, Prompt, SamplingFields, StreamOptions};
use pb_contract::{Clock, FailKind, Nanos, RequestRow, WallClock};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::driver::SendOrder;
use crate::endpoint::Endpoint;
use crate::events::{StreamOutcome, StreamReading, error_text};
use crate::http::{Conn, Pool, SendFailure, request};
use crate::rows::{Record, RunContext, blank_row, finish_row};
use crate::sse::DEFAULT_MAX_EVENT_BYTES;

/// Longest error body that is read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// How long a request may take and how large an event may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
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

/// The end of a wait.
enum Waited<T> {
    Got(T),
    /// Given up, with the reason.
    Gave(FailKind, String),
}

/// A request under way.
struct Attempt<'a> {
    carrier: &'a Carrier,
    cut: watch::Receiver<bool>,
    row: RequestRow,
    deadline: Nanos,
}

/// Sends an order and reads its stream to whatever end it has.
pub(crate) async fn run_request(carrier: Carrier, order: SendOrder) -> Record {
    let mut row = blank_row(&carrier.context, &order);
    (row.fail, row.fail_message) = (None, None);
    let deadline = order.intended + carrier.limits.total_ns;
    let cut = carrier.cut.clone();
    let mut attempt = Attempt {
        carrier: &carrier,
        cut,
        row,
        deadline,
    };
    let outcome = attempt.run(&order).await;
    let closed = attempt.row.closed_ns.unwrap_or_else(|| WallClock.now());
    finish_row(attempt.row, outcome, closed)
}

impl Attempt<'_> {
    async fn run(&mut self, order: &SendOrder) -> StreamOutcome {
        let endpoint = self.carrier.pool.endpoint();
        let body = completion_body(endpoint, order);
        let route = "/v1/completions";
        let built = request(endpoint, Method::POST, route, "text/event-stream", body);
        let mut unsent = match built {
            Ok(request) => request,
            Err(error) => return failed(FailKind::Protocol, error.to_string()),
        };
        loop {
            let pool = Arc::clone(&self.carrier.pool);
            let mut conn = match self.wait(self.deadline, TOTAL, pool.acquire()).await {
                Waited::Got(Ok(conn)) => conn,
                Waited::Got(Err(failure)) => return failed(failure.kind, failure.message),
                Waited::Gave(kind, message) => return failed(kind, message),
            };
            let limit = WallClock.now() + self.carrier.limits.first_token_ns;
            let sent = self.wait(limit, FIRST, conn.send(unsent)).await;
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
        self.row.http_status = Some(response.status().as_u16());
        if response.status() == StatusCode::OK {
            self.stream(conn, response.into_body(), first_limit).await
        } else {
            self.refusal(conn, response).await
        }
    }

    /// Reads an event stream.
    async fn stream(
        &mut self,
        mut conn: Conn,
        mut body: Incoming,
        first_limit: Nanos,
    ) -> StreamOutcome {
        let mut reading = StreamReading::new(self.carrier.limits.max_event_bytes);
        loop {
            let (limit, silence) = if reading.has_content() {
                (WallClock.now() + self.carrier.limits.idle_ns, IDLE)
            } else {
                (first_limit, FIRST)
            };
            match self.wait(limit, silence, conn.chunk(&mut body)).await {
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

    /// Reads the body of an error status for its message.
    async fn refusal(&mut self, mut conn: Conn, response: Response<Incoming>) -> StreamOutcome {
        let status = response.status();
        let mut body = response.into_body();
        let mut text = Vec::new();
        while text.len() < MAX_ERROR_BYTES {
            let limit = WallClock.now() + self.carrier.limits.idle_ns;
            match self.wait(limit, IDLE, conn.chunk(&mut body)).await {
                Waited::Got(Some(Ok(bytes))) => text.extend_from_slice(&bytes),
                Waited::Got(None) => {
                    self.carrier.pool.release(conn);
                    break;
                }
                // The status is the failure; a body that breaks off only shortens its message.
                Waited::Got(Some(Err(_))) | Waited::Gave(..) => break,
            }
        }
        text.truncate(MAX_ERROR_BYTES);
        let message = error_text(&String::from_utf8_lossy(&text));
        failed(FailKind::HttpStatus, format!("HTTP {status}: {message}"))
    }

    /// Waits for `future` until `limit`, the request's deadline or the end of the run.
    async fn wait<T>(
        &mut self,
        limit: Nanos,
        kind: FailKind,
        future: impl Future<Output = T>,
    ) -> Waited<T> {
        let now = WallClock.now();
        let (at, kind) = if self.deadline < limit {
            (self.deadline, TOTAL)
        } else {
            (limit, kind)
        };
        let span = at.saturating_sub(now);
        tokio::select! {
            biased;
            _ = self.cut.wait_for(|cut| *cut) => {
                let message = "still running when the run was cut off".to_owned();
                Waited::Gave(FailKind::Cancelled, message)
            }
            result = tokio::time::timeout(span.to_duration(), future) => match result {
                Ok(value) => Waited::Got(value),
                Err(_) => Waited::Gave(kind, format!("given up {}", silence_of(kind))),
            },
        }
    }
}

const FIRST: FailKind = FailKind::TimeoutFirstToken;
const IDLE: FailKind = FailKind::TimeoutIdle;
const TOTAL: FailKind = FailKind::TimeoutTotal;

fn silence_of(kind: FailKind) -> &'static str {
    match kind {
        FailKind::TimeoutFirstToken => "without a first token in time",
        FailKind::TimeoutIdle => "after the stream had been silent too long",
        _ => "after the limit of the whole request",
    }
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
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// The body of a measured request: greedy, of the planned length, with token ids and usage.
fn completion_body(endpoint: &Endpoint, order: &SendOrder) -> Bytes {
    let body = CompletionRequest {
        model: endpoint.model().map(str::to_owned),
        prompt: Prompt::Ids(order.body.prompt.clone()),
        echo: None,
        logprobs: None,
        sampling: SamplingFields {
            temperature: Some(0.0),
            max_tokens: Some(order.body.max_tokens),
            ignore_eos: Some(true),
            stream: Some(true),
            stream_options: Some(StreamOptions {
                include_usage: true,
                continuous_usage_stats: false,
            }),
            cache_salt: order.body.cache_salt.clone(),
            return_token_ids: Some(true),
            ..SamplingFields::default()
        },
    };
    // OK because the type holds only strings, numbers and lists, which JSON can always hold.
    serde_json::to_vec(&body)
        .expect("a request body is plain JSON")
        .into()
}
