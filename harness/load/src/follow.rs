//! Reading rows that a server tells while it runs.
//!
//! A server that tells its steps or its transfers (`GET ROUTE?from=N`, one JSON object a line,
//! without end) lets a run explain a stall: rows carry instants of the same machine clock as the
//! token rows. A reader has a connection and a thread of its own, so it delays no request. Where
//! rows are missing a line says so: `{"dropped":K}`, or `{"lost":"WHY"}`.

use bytes::Bytes;
use hyper::Method;
use pb_contract::Nanos;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::endpoint::Endpoint;
use crate::error::LoadError;
use crate::error_body::error_text;
use crate::http::{Conn, Read};
use crate::shell_wall::{StopSignal, runtime};
use crate::wire::request;

/// Longest line accepted.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Silence after a stop that ends the reading: what the engine did last has then arrived.
const QUIET: Nanos = Nanos::from_millis(200);

/// One line of a stream.
// Items are handed on one by one and not kept, so their size costs nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq)]
pub enum RowItem<R> {
    /// A row.
    Row(R),
    /// The reader was too late for so many rows.
    Dropped(u64),
    /// Nobody knows how many rows are missing here, and why they are.
    Lost(String),
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsEnd {
    /// Rows.
    pub rows: u64,
    /// Rows that the server had dropped before they were read.
    pub dropped: u64,
    /// The server ended the stream, not the caller.
    pub ended_by_server: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line<R> {
    Dropped { dropped: u64 },
    Lost { lost: String },
    Row(Box<R>),
}

/// Reads the rows of `route` from number `from` on and hands each to `on`, until `stop` is on and
/// the stream has been silent for 200 ms, or the server ends it.
///
/// # Errors
/// No connection, no such route, or a line that is no row.
pub async fn read_rows<R: DeserializeOwned>(
    endpoint: &Endpoint,
    route: &str,
    from: u64,
    stop: StopSignal,
    mut on: impl FnMut(RowItem<R>),
) -> Result<RowsEnd, LoadError> {
    let name = format!("GET {}?from={from}", endpoint.path(route));
    let secrets = endpoint.secrets();
    let control = |reason: String| LoadError::Control {
        request: name.clone(),
        reason: secrets.hide(&reason).into_owned(),
    };
    let mut conn = Conn::open(endpoint, endpoint.control_limits().connect_ns)
        .await
        .map_err(|failure| LoadError::connect(endpoint, failure))?;
    let route = format!("{route}?from={from}");
    let accept = "application/x-ndjson";
    let built = request(endpoint, Method::GET, &route, accept, Bytes::new(), None);
    let request = built.map_err(|error| control(error.to_string()))?;
    let sent = conn.send(request).await;
    let head = sent.map_err(|failure| control(failure.text()))?;
    if head.status == 404 {
        return Err(LoadError::Unsupported { request: name });
    }
    let mut lines = Lines::default();
    let mut end = RowsEnd::default();
    loop {
        let mut bytes = Vec::new();
        let Some(read) = next_read(&mut conn, &mut bytes, &stop).await else {
            return Ok(end);
        };
        if head.status != 200 && !bytes.is_empty() {
            let message = error_text(&secrets.hide(&String::from_utf8_lossy(&bytes)));
            return Err(LoadError::Status {
                request: name,
                status: head.status,
                message,
            });
        }
        lines
            .feed(&bytes, |item| {
                match &item {
                    RowItem::Row(_) => end.rows += 1,
                    RowItem::Dropped(count) => end.dropped += count,
                    RowItem::Lost(_) => {}
                }
                on(item);
            })
            .map_err(control)?;
        match read {
            Read::Data => {}
            Read::End => {
                end.ended_by_server = true;
                return Ok(end);
            }
            Read::Broken(broken) => return Err(control(broken.text)),
        }
    }
}

/// The next bytes; `None` when the caller has stopped and nothing more comes.
async fn next_read(conn: &mut Conn, bytes: &mut Vec<u8>, stop: &StopSignal) -> Option<Read> {
    if !stop.is_stopped() {
        tokio::select! {
            biased;
            read = conn.read(|_, part| bytes.extend_from_slice(part)) => return Some(read),
            () = stop.stopped() => {}
        }
    }
    let read = conn.read(|_, part| bytes.extend_from_slice(part));
    tokio::time::timeout(QUIET.to_duration(), read).await.ok()
}

/// Cuts bytes into lines and lines into items.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn feed<R: DeserializeOwned>(
        &mut self,
        bytes: &[u8],
        mut on: impl FnMut(RowItem<R>),
    ) -> Result<(), String> {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.rest.len() + piece.len() > MAX_LINE_BYTES {
                return Err(format!("a line is longer than {MAX_LINE_BYTES} bytes"));
            }
            self.rest.extend_from_slice(piece);
            if !piece.ends_with(b"\n") {
                continue;
            }
            let line = self.rest.trim_ascii();
            if !line.is_empty() {
                let item = serde_json::from_slice(line)
                    .map_err(|_| format!("not a row: {}", String::from_utf8_lossy(line)))?;
                on(match item {
                    Line::Dropped { dropped } => RowItem::Dropped(dropped),
                    Line::Lost { lost } => RowItem::Lost(lost),
                    Line::Row(row) => RowItem::Row(*row),
                });
            }
            self.rest.clear();
        }
        Ok(())
    }
}

/// A reader on a thread of its own.
#[derive(Debug)]
pub struct RowReader {
    stop: StopSignal,
    route: &'static str,
    thread: std::thread::JoinHandle<Result<RowsEnd, LoadError>>,
}

impl RowReader {
    /// Starts reading from row `from` on; `on` runs on the reader's thread.
    ///
    /// # Errors
    /// The system gives no thread or no runtime.
    pub fn spawn<R: DeserializeOwned + Send + 'static>(
        endpoint: &Endpoint,
        route: &'static str,
        from: u64,
        on: impl FnMut(RowItem<R>) + Send + 'static,
    ) -> Result<RowReader, LoadError> {
        let (stop, endpoint) = (StopSignal::new(), endpoint.clone());
        let signal = stop.clone();
        let runtime = runtime()?;
        let thread = std::thread::Builder::new()
            .name("row-reader".to_owned())
            .spawn(move || runtime.block_on(read_rows(&endpoint, route, from, signal, on)))
            .map_err(|source| LoadError::System {
                what: "cannot start a thread",
                source,
            })?;
        Ok(RowReader {
            stop,
            route,
            thread,
        })
    }

    /// Reads what is left and ends.
    ///
    /// # Errors
    /// Whatever went wrong while reading; rows handed out before remain good.
    pub fn stop(self) -> Result<RowsEnd, LoadError> {
        self.stop.stop();
        self.thread.join().unwrap_or_else(|_| {
            Err(LoadError::Control {
                request: format!("GET {}", self.route),
                reason: "the reader's callback panicked".to_owned(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use pb_contract::StepRow;

    use super::*;

    #[test]
    fn lines_in_any_split_give_the_same_items() {
        let row = StepRow {
            step: 7,
            duration_ns: Nanos(9),
            ..StepRow::default()
        };
        let text = format!(
            "{}\n\n{{\"dropped\":3}}\r\n{{\"lost\":\"gone\"}}\n{{",
            serde_json::to_string(&row).unwrap()
        );
        for cut in 0..=text.len() {
            let (mut lines, mut items) = (Lines::default(), Vec::<RowItem<StepRow>>::new());
            for part in [&text.as_bytes()[..cut], &text.as_bytes()[cut..]] {
                lines.feed(part, |item| items.push(item)).unwrap();
            }
            let lost = RowItem::Lost("gone".to_owned());
            assert_eq!(items, [RowItem::Row(row), RowItem::Dropped(3), lost]);
        }
    }

    #[test]
    fn other_lines_are_refused() {
        let mut lines = Lines::default();
        let error = lines
            .feed::<StepRow>(b"{\"step\":1}\n", |_| {})
            .unwrap_err();
        assert!(error.starts_with("not a row"), "{error}");
        let mut lines = Lines::default();
        let long = vec![b' '; MAX_LINE_BYTES + 1];
        assert!(lines.feed::<StepRow>(&long, |_| {}).is_err());
    }
}
