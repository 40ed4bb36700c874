//! A client that is too simple to be wrong: blocking reads, each with the instant it returned.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use pb_contract::{Clock, Nanos, WallClock};
use pb_mock::{Handle, Mock, MockOptions};

/// A response as it came.
pub struct Seen {
    /// Just before the request was written.
    pub sent: Nanos,
    /// Each read: when it returned and what.
    pub reads: Vec<(Nanos, Vec<u8>)>,
    /// The connection failed instead of ending.
    pub reset: bool,
}

impl Seen {
    /// Everything as text.
    pub fn text(&self) -> String {
        let bytes: Vec<u8> = self.reads.iter().flat_map(|(_, b)| b.clone()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Status line's number.
    pub fn status(&self) -> u16 {
        let text = self.text();
        text.split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or(0)
    }

    /// What follows the head.
    pub fn body(&self) -> String {
        let text = self.text();
        text.split_once("\r\n\r\n")
            .map(|(_, body)| body.to_string())
            .unwrap_or_default()
    }

    /// Milliseconds after the request when the bytes seen first held `needle`.
    pub fn when(&self, needle: &str) -> Option<f64> {
        let mut text = String::new();
        for (at, bytes) in &self.reads {
            text.push_str(&String::from_utf8_lossy(bytes));
            if text.contains(needle) {
                return Some((*at - self.sent).as_millis_f64());
            }
        }
        None
    }
}

/// A server with these options.
pub fn start(options: MockOptions) -> Handle {
    Mock::start(options).unwrap()
}

/// Sends a request and reads to the end of the connection, or for about `patience`.
pub fn ask(server: &Handle, method: &str, path: &str, body: &str, patience: Duration) -> Seen {
    let mut socket = TcpStream::connect(server.addr).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let sent = WallClock.now();
    socket.write_all(request.as_bytes()).unwrap();
    let (mut reads, mut reset) = (Vec::new(), false);
    let mut buffer = vec![0; 1 << 16];
    while WallClock.now() < sent + Nanos(patience.as_nanos() as u64) {
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => reads.push((WallClock.now(), buffer[..n].to_vec())),
            Err(error) => {
                reset = error.kind() == std::io::ErrorKind::ConnectionReset;
                break;
            }
        }
    }
    Seen { sent, reads, reset }
}

/// Longer than any answer takes on any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A streamed completion.
pub fn complete(server: &Handle, body: &str) -> Seen {
    ask(server, "POST", "/v1/completions", body, PATIENCE)
}

/// A client with a stream of which something has come; it leaves when this is dropped.
pub fn streaming(server: &Handle, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server.addr).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).unwrap();
    let (mut text, mut buffer) = (String::new(), [0; 4_096]);
    while !text.contains("\"text\"") {
        let n = socket.read(&mut buffer).unwrap();
        assert!(n > 0, "the stream ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    socket
}

/// Waits until a condition holds; panics after a minute.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = WallClock.now();
    while !condition() {
        assert!(
            WallClock.now() < start + Nanos::from_secs(60),
            "never: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
