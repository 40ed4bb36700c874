//! Rows of transfers, of all workers in one stream.

use std::net::SocketAddr;

use pb_contract::{TransferEnd, TransferLine, TransferRow};
use pb_router::Pool;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::setup::{get, options, raw, start};
use crate::worker::Worker;

/// Row `seq` of a worker, of so many bytes.
fn row(seq: u64, bytes: u64) -> Value {
    let row = TransferRow {
        bytes,
        ended: TransferEnd::Expired,
        ..TransferRow::default()
    };
    let line = TransferLine {
        seq,
        row,
        ..TransferLine::default()
    };
    serde_json::to_value(line).unwrap()
}

/// Reads lines until there are `count` of them.
async fn lines(stream: &mut TcpStream, count: usize) -> Vec<Value> {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    loop {
        let all: Vec<Value> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .filter(Value::is_object)
            .collect();
        if all.len() >= count {
            return all;
        }
        let n = stream.read(&mut buffer).await.unwrap();
        assert!(n > 0, "the stream ended: {text}");
        text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
    }
}

#[tokio::test]
async fn rows_of_all_workers_come_with_their_worker_and_gaps_are_told() {
    // The second one knows no such path.
    let (a, b) = (Worker::of("prefill").await, Worker::of("decode").await);
    a.transfers("one", &[row(0, 10), row(1, 11)]);
    let running = start(options(&[(Pool::Prefill, &a), (Pool::Decode, &b)])).await;
    let mut stream = ask(running.addr, "/transfers?from=0").await;
    let first = lines(&mut stream, 2).await;
    let seen = |line: &Value| {
        let number = |key: &str| line[key].as_u64().unwrap_or(u64::MAX);
        (number("seq"), number("worker"), number("bytes"))
    };
    assert_eq!(
        first.iter().map(seen).collect::<Vec<_>>(),
        [(0, 0, 10), (1, 0, 11)]
    );
    assert!(first.iter().all(|line| line["told_ns"].as_u64() > Some(0)));
    assert_eq!(first[0]["ended"], "expired");
    // The same engine goes on where it was, though each of its answers ends.
    a.transfers("one", &[row(0, 10), row(1, 11), row(2, 12)]);
    // Another engine begins again, and what the first one had not told is lost.
    assert_eq!(seen(&lines(&mut stream, 1).await[0]), (2, 0, 12));
    a.transfers("two", &[row(0, 20)]);
    let rest = lines(&mut stream, 2).await;
    assert!(
        rest[0]["lost"].as_str().unwrap().contains("worker 0"),
        "{rest:?}"
    );
    assert_eq!(seen(&rest[1]), (4, 0, 20));
    let wrong = get(running.addr, "/transfers?from=x").await;
    assert_eq!(wrong.status, 400);
}

/// Sends a request whose answer has no end.
async fn ask(addr: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(&raw("GET", path, "", b"")).await.unwrap();
    stream
}
