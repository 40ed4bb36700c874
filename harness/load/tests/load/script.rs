//! A server that does exactly what a test says, on a real socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pb_contract::{Clock, Nanos, WallClock};
use pb_load::Endpoint;

/// A request as the server read it.
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    /// In lower case.
    pub(crate) headers: String,
    pub(crate) raw_headers: String,
    pub(crate) body: serde_json::Value,
    /// How many requests came before it.
    pub(crate) number: usize,
}

/// How a response ends.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum End {
    /// Properly; the connection stays open.
    Proper,
    /// Properly; the connection is closed after it.
    Close,
    /// The connection is closed in the middle.
    Cut,
    /// Nothing more comes until the client hangs up.
    Hang,
}

/// A response: bytes at milliseconds after the request was read.
pub(crate) struct Answer {
    pub(crate) status: &'static str,
    pub(crate) parts: Vec<(u64, String)>,
    pub(crate) end: End,
}

impl Answer {
    pub(crate) fn new(status: &'static str, parts: &[(u64, &str)], end: End) -> Answer {
        let parts = parts
            .iter()
            .map(|&(ms, text)| (ms, text.to_owned()))
            .collect();
        Answer { status, parts, end }
    }

    /// A JSON body at once.
    pub(crate) fn json(status: &'static str, body: &str) -> Answer {
        Answer::new(status, &[(0, body)], End::Proper)
    }
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    pub(crate) requests: AtomicUsize,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) max_in_flight: AtomicUsize,
    pub(crate) hung_up: AtomicUsize,
}

pub(crate) struct ScriptServer {
    pub(crate) port: u16,
    pub(crate) seen: Arc<Seen>,
}

type Handler = dyn Fn(&Asked) -> Answer + Send + Sync;

impl ScriptServer {
    /// Serves until the process ends.
    pub(crate) fn start(handler: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen::default());
        let (handler, shared): (Arc<Handler>, _) = (Arc::new(handler), Arc::clone(&seen));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let (handler, seen) = (Arc::clone(&handler), Arc::clone(&shared));
                std::thread::spawn(move || serve(&socket, &*handler, &seen));
            }
        });
        ScriptServer { port, seen }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let url = format!("http://127.0.0.1:{}", self.port);
        Endpoint::parse(&url).unwrap().with_model("m")
    }

    pub(crate) fn count(&self, of: fn(&Seen) -> &AtomicUsize) -> usize {
        of(&self.seen).load(Ordering::SeqCst)
    }
}

fn serve(socket: &TcpStream, handler: &Handler, seen: &Seen) {
    socket.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(socket);
    while let Some(asked) = read_request(&mut reader, seen) {
        let now = seen.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        seen.max_in_flight.fetch_max(now, Ordering::SeqCst);
        let end = answer(socket, &handler(&asked));
        seen.in_flight.fetch_sub(1, Ordering::SeqCst);
        match end {
            Ok(End::Proper) => {}
            Ok(End::Cut | End::Close) => {
                let _ = socket.shutdown(std::net::Shutdown::Both);
                return;
            }
            Ok(End::Hang) | Err(_) => {
                // Reads until the client hangs up.
                let _ = reader.read_to_end(&mut Vec::new());
                seen.hung_up.fetch_add(1, Ordering::SeqCst);
                return;
            }
        }
    }
}

fn read_request(reader: &mut BufReader<&TcpStream>, seen: &Seen) -> Option<Asked> {
    let mut first = String::new();
    if reader.read_line(&mut first).ok()? == 0 {
        return None;
    }
    let (mut raw_headers, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        raw_headers += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut words = first.split(' ');
    Some(Asked {
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        headers: raw_headers.to_ascii_lowercase(),
        raw_headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
        number: seen.requests.fetch_add(1, Ordering::SeqCst),
    })
}

fn answer(mut socket: &TcpStream, answer: &Answer) -> std::io::Result<End> {
    let start = WallClock.now();
    let head = format!(
        "HTTP/1.1 {}\r\ntransfer-encoding: chunked\r\n\r\n",
        answer.status
    );
    socket.write_all(head.as_bytes())?;
    for (ms, text) in &answer.parts {
        let due = start + Nanos::from_millis(*ms);
        std::thread::sleep(due.saturating_sub(WallClock.now()).to_duration());
        socket.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())?;
    }
    if matches!(answer.end, End::Proper | End::Close) {
        socket.write_all(b"0\r\n\r\n")?;
    }
    Ok(answer.end)
}

/// Holds whoever comes until `count` have come, so that they are there together however slow the
/// machine is.
#[derive(Default)]
pub(crate) struct Gate {
    come: AtomicUsize,
}

impl Gate {
    pub(crate) fn wait_for(&self, count: usize) {
        self.come.fetch_add(1, Ordering::SeqCst);
        eventually("all come", || self.come.load(Ordering::SeqCst) >= count);
    }
}

/// Does `attempt` with 1, 8 and 64 times the time until it says that the machine was quick enough
/// to tell anything.
pub(crate) fn with_more_time(attempt: impl Fn(u64) -> bool) {
    let told = [1, 8, 64].into_iter().any(attempt);
    assert!(told, "this machine is too slow to tell");
}

/// Waits until a condition holds; panics after a minute.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = WallClock.now();
    while !condition() {
        assert!(
            WallClock.now() < start + Nanos::from_secs(60),
            "never: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
