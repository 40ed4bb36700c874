//! Requests to workers.
//!
//! Each has a connection of its own, so that leaving it is closing it: the worker sees the end of
//! the connection and stops. On one machine a connection costs some tens of microseconds.

use std::fmt;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::sse::SseReader;

/// Name of the engine whose rows an answer has.
const ENGINE_HEADER: &str = "x-prefillbench-engine";

/// Address of a worker: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerUrl {
    host: String,
    port: u16,
}

impl WorkerUrl {
    /// Reads an address.
    ///
    /// # Errors
    /// Says what is missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fix = "write it as http://HOST:PORT, for example http://127.0.0.1:8001";
        let Some(rest) = text.strip_prefix("http://") else {
            return Err(format!("{text}: {fix} (workers are asked without TLS)"));
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest
            .rsplit_once(':')
            .ok_or_else(|| format!("{text}: {fix}"))?;
        let port = port.parse().map_err(|_| format!("{text}: {fix}"))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]_".contains(c);
        if host.is_empty() || port == 0 || !host.chars().all(plain) {
            return Err(format!("{text}: {fix}"));
        }
        Ok(WorkerUrl {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// How a request to a worker went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegFault {
    /// No connection.
    Connect,
    /// The connection ended too early.
    Cut,
    /// Nothing came for too long.
    Silent,
    /// What came is no answer.
    Nonsense,
}

/// A request to a worker that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LegError {
    pub(crate) fault: LegFault,
    pub(crate) message: String,
}

impl LegError {
    pub(crate) fn new(fault: LegFault, message: impl fmt::Display) -> Self {
        LegError {
            fault,
            message: message.to_string(),
        }
    }
}

/// Limits of a request to a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LegLimits {
    pub(crate) connect: Duration,
    /// Longest silence, before the answer and in it.
    pub(crate) silence: Duration,
    /// Largest event, and largest answer that is not a stream.
    pub(crate) answer_bytes: usize,
}

/// An answer that comes in. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) status: StatusCode,
    pub(crate) kind: Option<HeaderValue>,
    /// The engine that answers, where it says so.
    pub(crate) engine: Option<HeaderValue>,
    body: Incoming,
    events: SseReader,
    limits: LegLimits,
    connection: JoinHandle<()>,
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Sends a request and waits for the head of the answer.
pub(crate) async fn send(
    url: &WorkerUrl,
    method: Method,
    path: &str,
    headers: &HeaderMap,
    body: Bytes,
    limits: LegLimits,
) -> Result<Leg, LegError> {
    let unreachable = |error: &dyn fmt::Display| LegError::new(LegFault::Connect, error);
    let connect = TcpStream::connect((url.host.trim_matches(['[', ']']), url.port));
    let stream = match timeout(limits.connect, connect).await {
        Ok(stream) => stream.map_err(|error| unreachable(&error))?,
        Err(_) => return Err(unreachable(&"no connection in time")),
    };
    // A request must not wait in the kernel for more of it.
    drop(stream.set_nodelay(true));
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(&error))?;
    let connection = tokio::spawn(async move {
        // Its end is seen at the answer.
        drop(driver.await);
    });
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    // OK because paths are the router's own.
    *request.uri_mut() = path.parse().expect("a path");
    *request.headers_mut() = headers.clone();
    // OK because an address has only characters that a header may have.
    let host = HeaderValue::from_str(&url.to_string()).expect("an authority");
    request.headers_mut().insert(header::HOST, host);
    let answer = timeout(limits.silence, sender.send_request(request)).await;
    let failure = match answer {
        Ok(Ok(answer)) => {
            return Ok(Leg {
                status: answer.status(),
                kind: answer.headers().get(header::CONTENT_TYPE).cloned(),
                engine: answer.headers().get(ENGINE_HEADER).cloned(),
                body: answer.into_body(),
                events: SseReader::default(),
                limits,
                connection,
            });
        }
        Ok(Err(error)) if error.is_parse() => LegError::new(LegFault::Nonsense, error),
        Ok(Err(error)) => LegError::new(LegFault::Cut, error),
        Err(_) => LegError::new(LegFault::Silent, "no answer in time"),
    };
    connection.abort();
    Err(failure)
}

impl Leg {
    /// The next bytes; none at the proper end.
    async fn bytes(&mut self) -> Result<Option<Bytes>, LegError> {
        loop {
            let frame = timeout(self.limits.silence, self.body.frame()).await;
            match frame {
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Ok(Some(Err(error))) => return Err(LegError::new(LegFault::Cut, error)),
                Err(_) => return Err(LegError::new(LegFault::Silent, "no more in time")),
            }
        }
    }

    /// The next event; none at the end of the stream.
    pub(crate) async fn event(&mut self) -> Result<Option<Vec<u8>>, LegError> {
        loop {
            if let Some(event) = self.events.next() {
                return Ok(Some(event));
            }
            let Some(bytes) = self.bytes().await? else {
                if self.events.at_boundary() {
                    return Ok(None);
                }
                return Err(LegError::new(LegFault::Cut, "the last event is cut"));
            };
            let limit = self.limits.answer_bytes;
            if self.events.feed(&bytes, limit).is_err() {
                let why = format!("an event is longer than {limit} bytes");
                return Err(LegError::new(LegFault::Nonsense, why));
            }
        }
    }

    /// The next lines, without their ends; none at the end of the stream. What stands behind the
    /// last line feed is kept in `rest` for the next time.
    pub(crate) async fn lines(
        &mut self,
        rest: &mut Vec<u8>,
    ) -> Result<Option<Vec<Vec<u8>>>, LegError> {
        let Some(bytes) = self.bytes().await? else {
            return Ok(None);
        };
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let limit = self.limits.answer_bytes;
            if rest.len() + part.len() > limit {
                let why = format!("a line is longer than {limit} bytes");
                return Err(LegError::new(LegFault::Nonsense, why));
            }
            rest.extend_from_slice(part);
            if rest.last() == Some(&b'\n') {
                let line = std::mem::take(rest);
                lines.extend((!line.trim_ascii().is_empty()).then_some(line));
            }
        }
        Ok(Some(lines))
    }

    /// All that is left.
    pub(crate) async fn whole(mut self) -> Result<Vec<u8>, LegError> {
        let mut all = Vec::new();
        while let Some(bytes) = self.bytes().await? {
            if bytes.len() > self.limits.answer_bytes - all.len() {
                let why = format!("longer than {} bytes", self.limits.answer_bytes);
                return Err(LegError::new(LegFault::Nonsense, why));
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, shown) in [
            ("http://127.0.0.1:8001", "127.0.0.1:8001"),
            ("http://localhost:1/", "localhost:1"),
            ("http://[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(WorkerUrl::parse(text).unwrap().to_string(), shown);
        }
        for text in [
            "127.0.0.1:8001",
            "https://127.0.0.1:8001",
            "http://127.0.0.1",
            "http://:80",
            "http://h:0",
            "http://h:70000",
            "http://user@h:80",
            "http://h:80/v1",
            "http://h\r\nx:80",
        ] {
            assert!(
                WorkerUrl::parse(text)
                    .unwrap_err()
                    .contains("http://HOST:PORT"),
                "{text:?}"
            );
        }
    }
}
