//! A router around a test, and a client that shows the bytes as they are.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{Nanos, WallClock};
use pb_router::Pool;
use pb_router::http::{RouterOptions, WorkerUrl, serve};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::worker::Worker;

pub(crate) struct Running {
    pub(crate) addr: SocketAddr,
    _stop: oneshot::Sender<()>,
}

/// Options for these workers, with rules that suit tests.
pub(crate) fn options(workers: &[(Pool, &Worker)]) -> RouterOptions {
    let url = |worker: &Worker| WorkerUrl::parse(&format!("http://{}", worker.addr)).unwrap();
    let workers = workers.iter().map(|(pool, worker)| (*pool, url(worker)));
    RouterOptions {
        poll_every_ns: Nanos::from_millis(20),
        // A slow machine is not to look like a dead worker.
        connect_timeout_ns: Nanos::from_secs(30),
        silence_ns: Nanos::from_secs(60),
        ..RouterOptions::new(workers.collect())
    }
}

pub(crate) async fn start(options: RouterOptions) -> Running {
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, at) = oneshot::channel();
    tokio::spawn(async move {
        let stopped = async move { drop(stopped.await) };
        let say = Box::new(|_: &str| {});
        let ready = |address| ready.send(address).unwrap();
        serve(options, Arc::new(WallClock), say, ready, stopped)
            .await
            .unwrap();
    });
    Running {
        addr: at.await.unwrap(),
        _stop: stop,
    }
}

/// One prefill worker, one decode worker, and the router.
pub(crate) async fn pair() -> (Worker, Worker, Running) {
    let (prefill, decode) = (Worker::of("prefill").await, Worker::of("decode").await);
    let workers = [(Pool::Prefill, &prefill), (Pool::Decode, &decode)];
    let running = start(options(&workers)).await;
    (prefill, decode, running)
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The `data:` of each event.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = self.text();
        assert!(text.ends_with("\n\n"), "an event is cut: {text:?}");
        let events = text.split_terminator("\n\n");
        events
            .map(|event| event.strip_prefix("data: ").expect(event).to_owned())
            .collect()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let prefix = format!("{name}: ");
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(&prefix))
    }
}

pub(crate) fn raw(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) async fn send(addr: SocketAddr, bytes: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    reply(&answer)
}

pub(crate) async fn post(addr: SocketAddr, path: &str, body: &str) -> Reply {
    send(addr, &raw("POST", path, "", body.as_bytes())).await
}

pub(crate) async fn get(addr: SocketAddr, path: &str) -> Reply {
    send(addr, &raw("GET", path, "", b"")).await
}

/// A request whose answer is not read.
pub(crate) async fn open(addr: SocketAddr, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let bytes = raw("POST", path, "", body.as_bytes());
    stream.write_all(&bytes).await.unwrap();
    stream
}

fn reply(raw: &[u8]) -> Reply {
    let end = raw
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .expect("no end of the head");
    let head = String::from_utf8(raw[..end].to_vec())
        .unwrap()
        .to_lowercase();
    let status = head[9..12].parse().unwrap();
    let mut rest = &raw[end + 4..];
    let mut body = rest.to_vec();
    if head.contains("transfer-encoding: chunked") {
        body.clear();
        loop {
            let line = rest
                .windows(2)
                .position(|w| w == b"\r\n")
                .expect("a cut chunk");
            let size = std::str::from_utf8(&rest[..line]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            if size == 0 {
                break;
            }
            body.extend(&rest[line + 2..line + 2 + size]);
            rest = &rest[line + 2 + size + 2..];
        }
    }
    Reply { status, head, body }
}

/// Waits until `done`, for as long as a slow machine may need.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, done: impl Fn() -> F) {
    for _ in 0..6000 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not in a minute: {what}");
}
