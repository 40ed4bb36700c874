//! A worker that answers by script, byte for byte, over real sockets.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// One thing that a worker does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Writes these bytes.
    Send(Vec<u8>),
    /// Waits until the peer closes the connection, and notes that it did.
    UntilClosed,
    /// Waits until the test says so.
    UntilReleased,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Default)]
struct State {
    scripts: VecDeque<Vec<Step>>,
    seen: Vec<Seen>,
    closed: usize,
    info: Value,
    events: Vec<Value>,
    polls: usize,
    /// The engine's name, and its rows of transfers; none: it knows no such path.
    transfers: Option<(String, Vec<Value>)>,
    /// Tickets that were given back.
    released: Vec<u64>,
    /// It has an error for the router's questions.
    deaf: bool,
    /// What it says when its cache is to be reset: status and body.
    reset: Option<(&'static str, &'static str)>,
}

/// A worker.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) addr: SocketAddr,
    state: Arc<Mutex<State>>,
    release: Arc<watch::Sender<bool>>,
}

/// A whole answer.
pub(crate) fn answer(status: &str, body: &str) -> Vec<Step> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    vec![Step::Send([head.as_bytes(), body.as_bytes()].concat())]
}

/// The head of a stream.
pub(crate) fn stream_head() -> Step {
    Step::Send(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec(),
    )
}

/// One chunk of a stream.
pub(crate) fn chunk(bytes: &str) -> Step {
    Step::Send(format!("{:x}\r\n{bytes}\r\n", bytes.len()).into_bytes())
}

/// The end of a stream.
pub(crate) fn stream_end() -> Step {
    Step::Send(b"0\r\n\r\n".to_vec())
}

/// A stream of these events, each in a chunk, and `[DONE]`.
pub(crate) fn stream(events: &[&str]) -> Vec<Step> {
    let mut steps = vec![stream_head()];
    steps.extend(
        events
            .iter()
            .map(|event| chunk(&format!("data: {event}\n\n"))),
    );
    steps.push(chunk("data: [DONE]\n\n"));
    steps.push(stream_end());
    steps
}

impl Worker {
    /// Starts one that says `info` of itself; null: it knows no such path.
    pub(crate) async fn start(info: Value) -> Worker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = State {
            info,
            ..State::default()
        };
        let worker = Worker {
            addr: listener.local_addr().unwrap(),
            state: Arc::new(Mutex::new(state)),
            release: Arc::new(watch::channel(false).0),
        };
        let own = worker.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let own = own.clone();
                tokio::spawn(async move { own.serve(socket).await });
            }
        });
        worker
    }

    /// Starts one of this role.
    pub(crate) async fn of(role: &str) -> Worker {
        Worker::start(info(role)).await
    }

    /// What it does with the next request that has no script yet.
    pub(crate) fn script(&self, steps: Vec<Step>) {
        self.state.lock().unwrap().scripts.push_back(steps);
    }

    /// Lets everybody go who waits for it.
    pub(crate) fn release(&self) {
        self.release.send_replace(true);
    }

    /// Tells of blocks that it has.
    pub(crate) fn stored(&self, hashes: &[String]) {
        let mut state = self.state.lock().unwrap();
        let seq = state.events.len();
        state.events.push(json!({
            "seq": seq, "kind": "stored", "hashes": hashes, "parent": null, "tokens": 0,
        }));
    }

    /// Has an error for the router's questions from now on.
    pub(crate) fn deafen(&self) {
        self.state.lock().unwrap().deaf = true;
    }

    /// What it says when its cache is to be reset: status and body.
    pub(crate) fn resets(&self, status: &'static str, body: &'static str) {
        self.state.lock().unwrap().reset = Some((status, body));
    }

    /// Tickets that it was told to release.
    pub(crate) fn released(&self) -> Vec<u64> {
        self.state.lock().unwrap().released.clone()
    }

    /// Has the engine `name` tell these rows of transfers from now on.
    pub(crate) fn transfers(&self, name: &str, rows: &[Value]) {
        self.state.lock().unwrap().transfers = Some((name.to_owned(), rows.to_vec()));
    }

    /// Requests to generate, in order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// Connections that the peer closed while it waited for that.
    pub(crate) fn closed(&self) -> usize {
        self.state.lock().unwrap().closed
    }

    /// How often its events were asked for.
    pub(crate) fn polls(&self) -> usize {
        self.state.lock().unwrap().polls
    }

    async fn serve(&self, mut socket: TcpStream) {
        let Some(seen) = read_request(&mut socket).await else {
            return;
        };
        if let Some(reply) = self.small(&seen) {
            for step in reply {
                if let Step::Send(bytes) = step {
                    let _ = socket.write_all(&bytes).await;
                }
            }
            return;
        }
        let steps = {
            let mut state = self.state.lock().unwrap();
            state.seen.push(seen);
            state.scripts.pop_front()
        };
        for step in steps.unwrap_or_else(|| answer("500 No Script", "{}")) {
            match step {
                Step::Send(bytes) => {
                    if socket.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                Step::UntilClosed => {
                    let mut buffer = [0; 64];
                    while matches!(socket.read(&mut buffer).await, Ok(n) if n > 0) {}
                    self.state.lock().unwrap().closed += 1;
                    return;
                }
                Step::UntilReleased => {
                    let mut released = self.release.subscribe();
                    released.wait_for(|go| *go).await.unwrap();
                }
            }
        }
    }

    /// Answers what is not a request to generate.
    fn small(&self, seen: &Seen) -> Option<Vec<Step>> {
        let mut state = self.state.lock().unwrap();
        let path = seen.path.split('?').next().unwrap();
        let body = match path {
            "/worker" if state.info.is_null() => return Some(answer("404 Not Found", "{}")),
            "/worker" => state.info.to_string(),
            "/health" => String::new(),
            "/kv_events" if state.deaf => {
                return Some(answer("500 Internal Server Error", "{}"));
            }
            "/kv_events" if state.info.is_null() => {
                return Some(answer("404 Not Found", "{}"));
            }
            "/kv_events" => {
                state.polls += 1;
                let since = seen.path.rsplit('=').next().unwrap().parse().unwrap();
                let new = state.events.iter().skip(since);
                json!({
                    "engine_id": self.addr.to_string(), "block_size": 4, "oldest_seq": 0,
                    "next_seq": state.events.len(), "events": new.collect::<Vec<_>>(),
                })
                .to_string()
            }
            "/kv_release" => {
                let ticket = seen.path.rsplit('=').next().unwrap().parse().unwrap();
                state.released.push(ticket);
                r#"{"released":true}"#.to_owned()
            }
            "/transfers" => {
                let Some((engine, rows)) = &state.transfers else {
                    return Some(answer("404 Not Found", "{}"));
                };
                let from: u64 = seen.path.rsplit('=').next().unwrap().parse().unwrap();
                let new = rows.iter().filter(|row| row["seq"].as_u64() >= Some(from));
                let body: String = new.map(|row| format!("{row}\n")).collect();
                let head = format!("200 OK\r\nx-prefillbench-engine: {engine}");
                return Some(answer(&head, &body));
            }
            "/v1/models" => json!({ "object": "list", "data": [{ "id": "m" }] }).to_string(),
            "/tokenize" => {
                let asked: Value = serde_json::from_slice(&seen.body).unwrap();
                let text = asked["prompt"].as_str().unwrap_or_default();
                json!({ "count": text.len(), "max_model_len": 100, "tokens": text.as_bytes() })
                    .to_string()
            }
            "/reset_prefix_cache" => {
                let success = ("200 OK", r#"{"success":true}"#);
                let (status, body) = state.reset.unwrap_or(success);
                return Some(answer(status, body));
            }
            _ => return None,
        };
        Some(answer("200 OK", &body))
    }
}

/// What a worker of a role says of itself.
pub(crate) fn info(role: &str) -> Value {
    json!({
        "engine_id": "e", "role": role, "block_size": 4, "blocks_total": 1000,
        "blocks_free": 1000, "running": 0, "waiting": 0, "kv_transport": "tcp",
        "hash": { "algorithm": "blake3", "identity": "00".repeat(32) },
    })
}

async fn read_request(socket: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end + 4;
        }
        let n = socket.read(&mut buffer).await.ok()?;
        if n == 0 {
            return None;
        }
        bytes.extend_from_slice(&buffer[..n]);
    };
    let head = String::from_utf8(bytes[..end].to_vec())
        .unwrap()
        .to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.trim().parse().unwrap());
    while bytes.len() < end + length {
        let n = socket.read(&mut buffer).await.ok()?;
        if n == 0 {
            return None;
        }
        bytes.extend_from_slice(&buffer[..n]);
    }
    let path = head.split(' ').nth(1).unwrap().to_owned();
    Some(Seen {
        path,
        head,
        body: bytes[end..].to_vec(),
    })
}
