//! As many connections as a machine has.

use std::net::TcpListener;

use pb_contract::RequestStatus;
use pb_load::{Endpoint, Limits, LoadError, RunContext, StopSignal, run_plan_blocking};

use crate::driver::{open, patient};

/// Answers the first request that comes on any of its connections and holds all others open.
fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 64];
                    loop {
                        socket.readable().await.unwrap();
                        match socket.try_read(&mut buffer) {
                            Ok(0) => return,
                            Ok(_) => break,
                            Err(_) => {}
                        }
                    }
                    let event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n";
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{event}",
                        event.len()
                    );
                    socket.writable().await.unwrap();
                    socket.try_write(answer.as_bytes()).unwrap();
                    std::future::pending::<()>().await
                });
            }
        });
    });
    port
}

fn run(port: u16, connections: usize) -> Result<usize, LoadError> {
    let url = format!("http://127.0.0.1:{port}");
    let endpoint = Endpoint::parse(&url).unwrap().with_connections(connections);
    let long = patient(vec![open(0, 0)], vec![]);
    let mut ok = 0;
    let summary = run_plan_blocking(
        long,
        RunContext::default(),
        &endpoint,
        Limits::default(),
        StopSignal::new(),
        |record| ok += usize::from(record.row.status == RequestStatus::Ok),
    )?;
    assert_eq!(ok, 1);
    Ok(summary.preconnected)
}

/// Both ends are in this process, so it needs two descriptors for each.
#[test]
fn row_51_twenty_thousand_connections_are_open_or_refused_before_the_run() {
    const CONNECTIONS: usize = 20_000;
    match pb_load::ensure_descriptors(2 * CONNECTIONS) {
        Ok(()) => assert_eq!(run(start(), CONNECTIONS).unwrap(), CONNECTIONS),
        // The limit of this machine stands; the run says so before it begins.
        Err(_) => {
            let refused = run(start(), CONNECTIONS);
            assert!(
                matches!(
                    refused,
                    Err(LoadError::Descriptors { .. }) | Ok(CONNECTIONS)
                ),
                "{refused:?}"
            );
        }
    }
}

#[test]
fn row_51_more_connections_than_ports_are_refused_before_the_run() {
    let refused = run(start(), 70_000);
    let is_clear = match &refused {
        Err(LoadError::Ports { needed, .. }) => *needed == 70_000,
        Err(LoadError::Descriptors { needed, .. }) => *needed > 70_000,
        _ => false,
    };
    assert!(is_clear, "{refused:?}");
}
