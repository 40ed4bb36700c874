//! Servers that never stop talking, answer without measure, or say nothing at all: every wait has
//! an end, and nothing grows.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pb_contract::{Clock, FailKind, Nanos, RequestStatus, WallClock};
use pb_load::control::Method;
use pb_load::rows::{Record, RunContext};
use pb_load::{Control, ControlLimits, Endpoint, Limits, LoadError, StopSignal, run_plan_blocking};

use crate::driver::{open, plan};
use crate::refusals::{fails, limits};

/// Answers every connection with `head` and then with `piece`, over and over and without a pause,
/// until the client leaves.
pub(crate) fn flood(head: &str, piece: &str) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let head = Arc::new(head.as_bytes().to_vec());
    let pieces = Arc::new(piece.repeat(1 + (32 << 10) / piece.len()).into_bytes());
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let (head, pieces) = (Arc::clone(&head), Arc::clone(&pieces));
            std::thread::spawn(move || pour(socket, &head, &pieces));
        }
    });
    let url = format!("http://127.0.0.1:{port}");
    Endpoint::parse(&url).unwrap().with_model("m")
}

fn pour(mut socket: TcpStream, head: &[u8], pieces: &[u8]) {
    let mut request = [0; 4_096];
    if !matches!(socket.read(&mut request), Ok(1..)) {
        return;
    }
    let _ = socket.write_all(head);
    while socket.write_all(pieces).is_ok() {}
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
const TOKEN: &str = "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[7]}]}\n\n";
const PING: &str = ": ping\n\n";

/// The one request's record, and whether the run ended by itself.
fn one(endpoint: &Endpoint, limits: Limits, drain: Nanos, stop: StopSignal) -> Record {
    let mut long = plan(vec![open(0, 0)], vec![]);
    long.drain_ns = drain;
    let mut records = Vec::new();
    let emit = |record| records.push(record);
    let context = RunContext::default();
    run_plan_blocking(long, context, endpoint, limits, stop, emit).unwrap();
    assert_eq!(records.len(), 1);
    records.remove(0)
}

const HOUR: Nanos = Nanos::from_secs(3_600);

#[test]
fn a_stream_without_a_pause_ends_by_each_of_its_limits() {
    let hour_ms = 3_600_000;
    // Tokens for ever: the limit of the whole request.
    let tokens = flood(STREAM, TOKEN);
    let record = one(
        &tokens,
        limits(hour_ms, hour_ms, 300),
        HOUR,
        StopSignal::new(),
    );
    if record.row.fail == Some(FailKind::Protocol) {
        // A machine quick enough to read more events than are kept in 300 ms.
        fails(&record, FailKind::Protocol, "events with content");
    } else {
        fails(&record, FailKind::TimeoutTotal, "whole request");
    }
    let end = record.row.intended_ns + Nanos::from_millis(300);
    assert!(record.tokens.iter().all(|token| token.at_ns < end));
    // Comments for ever: no first token in time, and the whole request.
    let pings = flood(STREAM, PING);
    let record = one(
        &pings,
        limits(200, hour_ms, hour_ms),
        HOUR,
        StopSignal::new(),
    );
    fails(&record, FailKind::TimeoutFirstToken, "first token");
    let record = one(
        &pings,
        limits(hour_ms, hour_ms, 200),
        HOUR,
        StopSignal::new(),
    );
    fails(&record, FailKind::TimeoutTotal, "whole request");
    // Bytes that mean nothing yet: responses before the final one.
    let interim = flood("", "HTTP/1.1 103 Early Hints\r\n\r\n");
    let record = one(
        &interim,
        limits(200, hour_ms, hour_ms),
        HOUR,
        StopSignal::new(),
    );
    fails(&record, FailKind::TimeoutFirstToken, "first token");
    // A body that is an error: what the head said is the failure.
    let error = flood("HTTP/1.1 500 Oh\r\n\r\n", "x");
    let record = one(
        &error,
        limits(hour_ms, hour_ms, hour_ms),
        HOUR,
        StopSignal::new(),
    );
    fails(&record, FailKind::HttpStatus, "HTTP 500");
}

#[test]
fn a_stream_without_a_pause_ends_with_the_run() {
    let wide = limits(3_600_000, 3_600_000, 3_600_000);
    let pings = flood(STREAM, PING);
    let record = one(&pings, wide, Nanos::from_millis(300), StopSignal::new());
    fails(&record, FailKind::Cancelled, "cut off");
    assert_eq!(record.row.status, RequestStatus::Incomplete);
    // By hand, once bytes flow.
    let stop = StopSignal::new();
    let switch = stop.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        switch.stop();
    });
    let record = one(&pings, wide, HOUR, stop);
    thread.join().unwrap();
    assert!(matches!(
        record.row.status,
        RequestStatus::Incomplete | RequestStatus::NotOffered
    ));
}

#[test]
fn a_request_that_has_its_whole_time_is_no_cut_off_one() {
    // The last request's time ends at the very instant at which the run is cut off.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let endpoint = Endpoint::parse(&url).unwrap();
    let limits = limits(60_000, 60_000, 2_000);
    let mut short = plan(vec![open(0, 0), open(1, 1_000)], vec![]);
    short.drain_ns = limits.total_ns;
    let mut records: Vec<Record> = Vec::new();
    let (context, stop) = (RunContext::default(), StopSignal::new());
    run_plan_blocking(short, context, &endpoint, limits, stop, |r| records.push(r)).unwrap();
    for record in &records {
        fails(record, FailKind::TimeoutTotal, "whole request");
    }
    assert_eq!(records.len(), 2);
}

#[test]
fn no_more_events_are_kept_than_a_request_can_have() {
    let tokens = flood(STREAM, TOKEN);
    // Two output tokens were asked for: 64 events for each, and 65,536.
    let wide = limits(3_600_000, 3_600_000, 3_600_000);
    let record = one(&tokens, wide, HOUR, StopSignal::new());
    fails(
        &record,
        FailKind::Protocol,
        "more than 65664 events with content",
    );
    assert_eq!(record.tokens.len(), 65_664);
    // One line of data without an end.
    let line = flood(&format!("{STREAM}data: "), "x");
    let record = one(&line, wide, HOUR, StopSignal::new());
    fails(&record, FailKind::Protocol, "larger than 16777216 bytes");
}

#[tokio::test]
async fn a_control_request_reads_no_more_than_16_mib() {
    for head in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 9000000000\r\n\r\n",
    ] {
        let control = Control::new(&flood(head, "x 1\n")).unwrap();
        let error = control.metrics().await.unwrap_err().to_string();
        assert!(
            error.contains("GET /metrics") && error.contains("16 MiB"),
            "{error}"
        );
    }
}

fn impatient(url: &str, connect_ms: u64, total_ms: u64) -> Endpoint {
    let limits = ControlLimits {
        connect_ns: Nanos::from_millis(connect_ms),
        total_ns: Nanos::from_millis(total_ms),
    };
    Endpoint::parse(url).unwrap().with_control_limits(limits)
}

/// Takes connections and says nothing.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[tokio::test]
async fn a_control_request_takes_no_longer_than_its_endpoint_allows() {
    let (_listener, address) = silent();
    let endpoint = impatient(&format!("http://{address}"), 3_600_000, 100);
    let start = WallClock.now();
    let error = Control::new(&endpoint)
        .unwrap()
        .metrics()
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
    // Never earlier, and far from the 300 s of an endpoint that says nothing.
    let took = WallClock.now() - start;
    assert!(
        took >= Nanos::from_millis(100) && took < Nanos::from_secs(60),
        "{took}"
    );
    // Pieces that keep coming are no answer either.
    let endless = flood("", "HTTP/1.1 103 Early Hints\r\n\r\n");
    let limits = ControlLimits {
        total_ns: Nanos::from_millis(100),
        ..ControlLimits::default()
    };
    let control = Control::new(&endless.with_control_limits(limits)).unwrap();
    let error = control.exchange(Method::GET, "/x", None).await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
}

#[test]
fn tls_to_a_server_that_speaks_none_ends_at_the_connect_limit() {
    let (_listener, address) = silent();
    let url = format!("https://{address}");
    let endpoint = impatient(&url, 100, 3_600_000);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let asked = async { Control::new(&endpoint).unwrap().metrics().await };
    let error = runtime.unwrap().block_on(asked).unwrap_err().to_string();
    assert!(error.contains("TLS handshake within"), "{error}");
    // And of a run, before it begins.
    let limits = Limits {
        connect_ns: Nanos::from_millis(100),
        ..Limits::default()
    };
    let none = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&none);
    let result = run_plan_blocking(
        plan(vec![open(0, 0)], vec![]),
        RunContext::default(),
        &endpoint,
        limits,
        StopSignal::new(),
        move |_| seen.store(false, Ordering::SeqCst),
    );
    let error = result.unwrap_err();
    assert!(matches!(error, LoadError::Connect { .. }), "{error}");
    assert!(
        error.to_string().contains("TLS handshake within"),
        "{error}"
    );
    assert!(none.load(Ordering::SeqCst), "no request was made");
}
