//! How late the server's own writes are, by the number of streams: 100 tokens at 10 ms each, all
//! begun within one interval, read by a client on another thread.
//!
//! ```console
//! $ cargo run --release -p pb-mock --example lateness -- --spin-us 0 1 100 1000
//! ```

use std::net::SocketAddr;

use pb_contract::Nanos;
use pb_mock::{Log, Mock, MockOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const BODY: &str = r#"{"prompt":"x","max_tokens":100,"stream":true}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut spin_us = 0;
    if arguments.first().is_some_and(|a| a == "--spin-us") {
        spin_us = arguments
            .get(1)
            .ok_or("--spin-us needs a number")?
            .parse()?;
        arguments.drain(..2);
    }
    println!("streams   writes   lateness us: p50      p99      max   blocked");
    for streams in &arguments {
        let server = Mock::start(MockOptions {
            spin_ns: Nanos::from_micros(spin_us),
            ..MockOptions::default()
        })?;
        let streams = streams.parse()?;
        let address = server.addr;
        std::thread::spawn(move || clients(address, streams))
            .join()
            .map_err(|_| "the client panicked")??;
        print(streams, &server.stop());
    }
    Ok(())
}

/// Runs all streams to their ends on one thread.
fn clients(address: SocketAddr, streams: usize) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let tasks: Vec<_> = (0..streams)
            .map(|_| tokio::spawn(stream(address)))
            .collect();
        for task in tasks {
            task.await.map_err(std::io::Error::other)??;
        }
        Ok(())
    })
}

async fn stream(address: SocketAddr) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    socket.write_all(request.as_bytes()).await?;
    let mut buffer = [0; 4096];
    while socket.read(&mut buffer).await? > 0 {}
    Ok(())
}

fn print(streams: usize, log: &Log) {
    let writes = || log.requests.iter().flat_map(|request| &request.writes);
    let mut late: Vec<f64> = writes()
        .map(|write| (write.written_ns - write.due_ns).0 as f64 / 1e3)
        .collect();
    late.sort_by(f64::total_cmp);
    let at = |share: f64| late[((late.len() as f64 * share).ceil() as usize).max(1) - 1];
    let blocked = writes().filter(|write| write.blocked).count();
    println!(
        "{streams:7} {:8} {:17.1} {:8.1} {:8.1} {blocked:9}",
        late.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
