//! A client that shows the bytes as they are: heads, chunks and events.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A whole response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The `data:` payloads.
    pub(crate) fn events(&self) -> Vec<String> {
        events_of(&self.text())
    }

    pub(crate) fn error(&self) -> Value {
        self.json()["error"].clone()
    }
}

pub(crate) fn events_of(text: &str) -> Vec<String> {
    assert!(text.ends_with("\n\n"), "an event is cut: {text:?}");
    let blocks = text.split_terminator("\n\n");
    blocks
        .map(|block| block.strip_prefix("data: ").expect(block).to_owned())
        .collect()
}

/// Splits a response into head and body, undoing the chunks.
pub(crate) fn parse_response(raw: &[u8]) -> Reply {
    let end = raw
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .expect("no end of the head");
    let head = String::from_utf8(raw[..end].to_vec())
        .unwrap()
        .to_lowercase();
    let status = head[9..12].parse().unwrap();
    let mut rest = &raw[end + 4..];
    if !head.contains("transfer-encoding: chunked") {
        return Reply {
            status,
            head,
            body: rest.to_vec(),
        };
    }
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 2 + size + 2..];
    }
    Reply { status, head, body }
}

pub(crate) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) async fn send(addr: SocketAddr, raw: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(raw).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    parse_response(&answer)
}

/// As `send`, or nothing when the server cut the connection off: a refusal may come before the
/// body has been read, and then the system may drop it.
pub(crate) async fn try_send(addr: SocketAddr, raw: &[u8]) -> Option<Reply> {
    let mut stream = TcpStream::connect(addr).await.ok()?;
    stream.write_all(raw).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    (!answer.is_empty()).then(|| parse_response(&answer))
}

pub(crate) async fn get(addr: SocketAddr, path: &str) -> Reply {
    send(addr, &request("GET", path, "", b"")).await
}

pub(crate) async fn post(addr: SocketAddr, path: &str, body: &Value) -> Reply {
    send(
        addr,
        &request("POST", path, "", body.to_string().as_bytes()),
    )
    .await
}

/// An open response, read piece by piece.
pub(crate) struct Open {
    pub(crate) stream: TcpStream,
    seen: Vec<u8>,
}

impl Open {
    pub(crate) async fn post(addr: SocketAddr, path: &str, body: &Value) -> Open {
        let raw = request("POST", path, "", body.to_string().as_bytes());
        Open::raw(addr, &raw, None).await
    }

    /// With a small receive buffer when `buffer` is set.
    pub(crate) async fn raw(addr: SocketAddr, raw: &[u8], buffer: Option<u32>) -> Open {
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(size) = buffer {
            socket.set_recv_buffer_size(size).unwrap();
        }
        let mut stream = socket.connect(addr).await.unwrap();
        stream.write_all(raw).await.unwrap();
        Open {
            stream,
            seen: Vec::new(),
        }
    }

    /// Reads until `done` likes what has come.
    pub(crate) async fn read_until(&mut self, done: impl Fn(&str) -> bool) -> String {
        loop {
            let text = String::from_utf8_lossy(&self.seen).into_owned();
            if done(&text) {
                return text;
            }
            let mut buffer = [0; 4096];
            let n = self.stream.read(&mut buffer).await.unwrap();
            assert!(n > 0, "the stream ended: {text}");
            self.seen.extend(&buffer[..n]);
        }
    }

    pub(crate) async fn rest(mut self) -> Reply {
        self.stream.read_to_end(&mut self.seen).await.unwrap();
        parse_response(&self.seen)
    }
}
