//! The KV transfers of all workers, as one stream of rows.
//!
//! Each worker is followed from the router's start: its rows come as they end, get a number of the
//! router's own and the worker's, and stay for whoever asks. Where rows may be missing, because a
//! worker went away or told faster than it was read, a line says so.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use pb_contract::TransferLine;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use super::client::{self, LegError, LegFault};
use super::error::ApiError;
use super::shell::{Phase, Shared, draining};
use crate::worker::WorkerId;

/// Lines that are kept.
const KEPT: usize = 65_536;

/// Lines of one part of an answer.
const AT_ONCE: usize = 256;

/// How long a worker that has no such rows is left alone.
const WITHOUT: Duration = Duration::from_secs(5);

/// The last lines of all workers.
pub(crate) struct TransferLog {
    lines: Mutex<Lines>,
    /// Changes with every line.
    version: watch::Sender<u64>,
}

struct Lines {
    kept: VecDeque<(u64, Bytes)>,
    next: u64,
    most: usize,
}

impl Default for TransferLog {
    fn default() -> Self {
        TransferLog::of(KEPT)
    }
}

impl TransferLog {
    fn of(most: usize) -> Self {
        TransferLog {
            lines: Mutex::new(Lines {
                kept: VecDeque::new(),
                next: 0,
                most,
            }),
            version: watch::Sender::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the line that `make` makes of its number.
    fn push(&self, make: impl FnOnce(u64) -> Vec<u8>) {
        let mut lines = self.lock();
        let seq = lines.next;
        lines.next += 1;
        if lines.kept.len() == lines.most {
            lines.kept.pop_front();
        }
        let mut line = make(seq);
        line.push(b'\n');
        lines.kept.push_back((seq, Bytes::from(line)));
        drop(lines);
        self.version.send_modify(|version| *version += 1);
    }

    /// The text of some lines from number `from` on, and the number to ask for next; nothing when
    /// there are none.
    fn read(&self, from: u64) -> Option<(Vec<u8>, u64)> {
        let lines = self.lock();
        let oldest = lines.kept.front()?.0;
        let start = lines.kept.partition_point(|(seq, _)| *seq < from);
        let found = lines.kept.iter().skip(start).take(AT_ONCE);
        let mut text = Vec::new();
        let mut next = from;
        for (seq, line) in found {
            text.extend_from_slice(line);
            next = seq + 1;
        }
        if next == from {
            return None;
        }
        if from < oldest {
            let gone = format!("{{\"dropped\":{}}}\n", oldest - from);
            text.splice(0..0, gone.into_bytes());
        }
        Some((text, next))
    }
}

/// A line of a worker.
#[derive(Deserialize)]
#[serde(untagged)]
enum Told {
    Dropped { dropped: u64 },
    Row(Box<TransferLine>),
}

/// Follows worker `id` until the server drains.
pub(crate) async fn follow(shared: Arc<Shared>, id: WorkerId) {
    let mut follower = Follower {
        id,
        engine: None,
        next: 0,
        cut: None,
    };
    let mut phase = shared.phase.clone();
    loop {
        let wait = tokio::select! {
            wait = follower.once(&shared) => wait,
            () = draining(&mut phase) => return,
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = draining(&mut phase) => return,
        }
    }
}

/// What is known of a worker's rows.
struct Follower {
    id: WorkerId,
    /// The engine that told the last ones.
    engine: Option<HeaderValue>,
    /// The number to ask it for next.
    next: u64,
    /// Why the last answer ended; nothing is lost if the same engine is there again.
    cut: Option<String>,
}

impl Follower {
    /// Reads one answer to its end; how long to wait before the next try.
    async fn once(&mut self, shared: &Arc<Shared>) -> Duration {
        let soon = shared.options.poll_every_ns.to_duration();
        let path = format!("/transfers?from={}", self.next);
        let headers = shared.headers(None, false);
        let limits = shared.limits(shared.options.silence_ns);
        let url = shared.url(self.id);
        let sent = client::send(url, Method::GET, &path, &headers, Bytes::new(), limits);
        // The poller tells when a worker does not answer.
        let Ok(mut leg) = sent.await else {
            self.lost(shared);
            return soon;
        };
        if leg.status != StatusCode::OK {
            return WITHOUT;
        }
        let engine = leg.engine.take();
        if self.engine.is_some() && engine != self.engine {
            // Another engine has numbers of its own: it is asked again, from the start.
            self.lost(shared);
            (self.engine, self.next) = (engine, 0);
            return Duration::ZERO;
        }
        (self.engine, self.cut) = (engine, None);
        let mut rest = Vec::new();
        loop {
            match leg.lines(&mut rest).await {
                Ok(Some(lines)) => {
                    for line in lines {
                        if let Err(why) = self.take(shared, &line) {
                            self.cut = Some(why);
                            self.lost(shared);
                            return WITHOUT;
                        }
                    }
                }
                Err(error) if error.fault == LegFault::Silent && rest.is_empty() => return soon,
                end => {
                    let said = |error: LegError| error.message;
                    self.cut = Some(end.err().map_or("its rows ended".to_owned(), said));
                    return soon;
                }
            }
        }
    }

    fn take(&mut self, shared: &Shared, line: &[u8]) -> Result<(), String> {
        let told = serde_json::from_slice(line)
            .map_err(|error| format!("/transfers answers what is not understood: {error}"))?;
        match told {
            Told::Dropped { dropped } => {
                let line = json!({ "dropped": dropped, "worker": self.id.0 }).to_string();
                shared.transfers.push(|_| line.into_bytes());
            }
            Told::Row(mut line) => {
                self.next = line.seq + 1;
                line.worker = Some(self.id.0);
                // The worker's clock may be another machine's.
                line.told_ns = shared.clock.now();
                shared.transfers.push(|seq| {
                    line.seq = seq;
                    // OK because a row has string keys only and a Vec takes every write.
                    serde_json::to_vec(&line).unwrap()
                });
            }
        }
        Ok(())
    }

    /// After a cut: what the engine had not told by then, nobody will.
    fn lost(&mut self, shared: &Shared) {
        let Some(why) = self.cut.take() else {
            return;
        };
        let why = format!("worker {} went away: {why}", self.id);
        let line = json!({ "lost": why, "worker": self.id.0 }).to_string();
        shared.transfers.push(|_| line.into_bytes());
    }
}

/// The rows of all workers as they end, one JSON object a line, from line `from` on.
pub(crate) async fn transfers(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, ApiError> {
    let from = from(request.uri().query())?;
    let news = shared.transfers.version.subscribe();
    let state = (shared.phase.clone(), news, from, shared);
    let chunks = stream::unfold(state, |(mut phase, mut news, from, shared)| async move {
        loop {
            news.borrow_and_update();
            if let Some((text, next)) = shared.transfers.read(from) {
                let part = Ok::<Bytes, Infallible>(Bytes::from(text));
                return Some((part, (phase, news, next, shared)));
            }
            if *phase.borrow_and_update() >= Phase::Draining {
                return None;
            }
            tokio::select! {
                changed = news.changed() => changed.ok()?,
                changed = phase.changed() => changed.ok()?,
            }
        }
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(chunks)).into_response())
}

/// The number in the query; 0 when it is not there.
fn from(query: Option<&str>) -> Result<u64, ApiError> {
    let mut pairs = query.unwrap_or_default().split('&');
    match pairs.find_map(|pair| pair.strip_prefix("from=")) {
        None => Ok(0),
        Some(value) => value.parse().map_err(|_| {
            ApiError::bad_request(format!("from must be a number of a row, got {value:?}"))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_fell_out_are_counted() {
        let log = TransferLog::of(3);
        assert!(log.read(0).is_none());
        for _ in 0..5 {
            log.push(|seq| seq.to_string().into_bytes());
        }
        let text = |from| {
            let (text, next) = log.read(from).unwrap();
            (String::from_utf8(text).unwrap(), next)
        };
        assert_eq!(text(0), ("{\"dropped\":2}\n2\n3\n4\n".to_owned(), 5));
        assert_eq!(text(3), ("3\n4\n".to_owned(), 5));
        assert!(log.read(5).is_none() && log.read(9).is_none());
    }

    #[test]
    fn queries() {
        assert_eq!(from(None).unwrap(), 0);
        assert_eq!(from(Some("x=1&from=7")).unwrap(), 7);
        assert!(from(Some("from=x")).is_err() && from(Some("from=-1")).is_err());
    }
}
