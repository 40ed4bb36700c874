//! Public faults in failures and in load, each by its number in the measurement definitions (3.2
//! and 3.3).

use std::sync::atomic::Ordering;

use pb_contract::{FailKind, Nanos, RequestStatus};
use pb_load::rows::{Record, RunContext};
use pb_load::{Endpoint, Limits, RunSummary, StopSignal, run_plan_blocking};
use pb_record::metrics::{Counts, failures};

use crate::driver::{closed, open, patient, plan};
use crate::refusals::{fails, limits, one};
use crate::script::{Answer, End, Gate, ScriptServer, eventually, with_more_time};
use crate::wall::{run, token};

/// How late a test machine may be.
const SLACK: u64 = 60_000_000_000;

fn run_at(endpoint: &Endpoint, plan: pb_contract::plan::Plan) -> (Vec<Record>, RunSummary) {
    let mut records = Vec::new();
    let (context, limits) = (RunContext::default(), Limits::default());
    let emit = |record| records.push(record);
    let stop = StopSignal::new();
    let summary = run_plan_blocking(plan, context, endpoint, limits, stop, emit).unwrap();
    records.sort_by_key(|record: &Record| record.row.request);
    (records, summary)
}

fn quick() -> Answer {
    let parts = vec![(0, token("a", 1)), (1, "data: [DONE]\n\n".to_owned())];
    Answer {
        status: "200 OK",
        parts,
        end: End::Proper,
    }
}

#[test]
fn row_25_an_error_after_ten_tokens_is_a_failure_that_keeps_them() {
    let mut parts: Vec<(u64, String)> = (0..10).map(|i| (i, token("a", 1))).collect();
    parts.push((
        10,
        "data: {\"error\":{\"message\":\"gone\"}}\n\n".to_owned(),
    ));
    let record = one(
        move || Answer {
            status: "200 OK",
            parts: parts.clone(),
            end: End::Proper,
        },
        Limits::default(),
    );
    fails(&record, FailKind::InBandError, "gone");
    assert_eq!((record.tokens.len(), record.row.streamed_tokens), (10, 10));
    let counts = Counts::of([&record.row]);
    assert_eq!((counts.ok, counts.failed), (0, 1));
}

#[test]
fn row_26_a_stream_without_a_token_is_a_failure() {
    let record = one(
        || Answer::json("200 OK", "data: [DONE]\n\n"),
        Limits::default(),
    );
    fails(&record, FailKind::NoTokens, "without a token");
}

#[test]
fn row_29_a_refused_connection_is_a_failure_and_never_tried_again() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let endpoint = Endpoint::parse(&format!("http://127.0.0.1:{port}")).unwrap();
    let requests = vec![open(0, 0), open(1, 5)];
    let (records, summary) = run_at(&endpoint.with_connections(0), patient(requests, vec![]));
    assert_eq!((records.len(), summary.sent), (2, 2));
    for record in &records {
        fails(record, FailKind::Connect, "refused");
        assert_eq!(record.row.sent_ns, None, "not a byte was sent");
        let end = record.row.closed_ns.unwrap();
        assert!(
            end < record.row.intended_ns + Nanos(SLACK),
            "not tried again"
        );
    }
    assert_eq!(summary.connections.count, 0);
    assert_eq!(
        summary.connections.during_requests, 2,
        "one attempt a request"
    );
}

#[test]
fn row_30_a_429_keeps_its_retry_after() {
    let record = one(
        || {
            let status = "429 Too Many Requests\r\nretry-after: 7";
            Answer::json(
                status,
                "{\"error\":{\"message\":\"slow down\",\"code\":429}}",
            )
        },
        Limits::default(),
    );
    fails(&record, FailKind::HttpStatus, "slow down; Retry-After: 7");
    assert_eq!(record.row.http_status, Some(429));
}

#[test]
fn row_35_the_populations_sum_to_what_was_offered() {
    with_more_time(|times| {
        let server = ScriptServer::start(|asked| match asked.number % 4 {
            0 => quick(),
            1 => Answer::json("503 Service Unavailable", "busy"),
            2 => Answer::new(
                "200 OK",
                &[(0, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")],
                End::Cut,
            ),
            _ => Answer::new("200 OK", &[], End::Hang),
        });
        let requests = (0..12).map(|id| open(id, 10 * id)).collect();
        let mut short = plan(requests, vec![]);
        short.horizon_ns = Nanos::from_millis(200);
        short.drain_ns = Nanos::from_millis(400 * times);
        let (records, _) = run(&server, short, Limits::default());
        let counts = Counts::of(records.iter().map(|record| &record.row));
        let parts = [
            counts.ok,
            counts.failed,
            counts.truncated,
            counts.incomplete,
            counts.not_offered,
        ];
        assert_eq!((counts.offered, parts.iter().sum::<u64>()), (12, 12));
        let kinds = failures(records.iter().map(|record| &record.row));
        assert_eq!(kinds.values().sum::<u64>(), 12 - counts.ok);
        // On a slow machine more are cut off.
        parts == [3, 3, 3, 3, 0]
    });
}

#[test]
fn row_37_a_server_that_never_answers_ends_by_the_deadline_and_gets_no_more() {
    with_more_time(|times| {
        let server = ScriptServer::start(|_| Answer::new("200 OK", &[], End::Hang));
        let mut short = plan(vec![], vec![closed(0, 2, 100)]);
        short.horizon_ns = Nanos::from_millis(100 * times);
        short.drain_ns = Nanos::from_millis(100 * times);
        let cut_off = short.horizon_ns + short.drain_ns;
        let (records, summary) = run(&server, short, Limits::default());
        let late = summary.end_ns - summary.start_ns;
        assert!(late >= cut_off && late < cut_off + Nanos(SLACK), "{late}");
        if summary.sent < 2 {
            return false;
        }
        assert_eq!((records.len(), summary.sent), (2, 2));
        for record in &records {
            assert_eq!(record.row.status, RequestStatus::Incomplete);
        }
        eventually("both are read", || server.count(|seen| &seen.requests) >= 2);
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(server.count(|seen| &seen.requests), 2, "none after the end");
        true
    });
}

#[test]
fn row_40_connections_are_made_before_the_run_or_counted_apart() {
    let server = ScriptServer::start(|_| quick());
    let requests: Vec<_> = (0..4).map(|id| open(id, 0)).collect();
    let (_, made) = run(
        &server,
        patient(requests.clone(), vec![]),
        Limits::default(),
    );
    assert_eq!(
        (made.connections.count, made.connections.during_requests),
        (4, 0)
    );
    let endpoint = server.endpoint().with_connections(1);
    let (records, late) = run_at(&endpoint, patient(requests, vec![]));
    assert_eq!(late.preconnected, 1);
    let times = late.connections;
    assert_eq!(times.count, 1 + times.during_requests);
    assert!(
        records
            .iter()
            .all(|record| record.row.status == RequestStatus::Ok)
    );
}

#[test]
fn row_41_five_hundred_in_flight_are_five_hundred() {
    let gate = Gate::default();
    let server = ScriptServer::start(move |_| {
        gate.wait_for(500);
        quick()
    });
    let long = patient((0..500).map(|id| open(id, 0)).collect(), vec![]);
    let endpoint = server.endpoint().with_connections(500);
    let (records, summary) = run_at(&endpoint, long);
    assert!(
        records
            .iter()
            .all(|record| record.row.status == RequestStatus::Ok)
    );
    assert_eq!(summary.max_in_flight, 500);
    assert_eq!(server.seen.max_in_flight.load(Ordering::SeqCst), 500);
}

#[test]
fn row_42_a_burst_is_one_instant_and_its_spread_is_in_the_rows() {
    let server = ScriptServer::start(|_| quick());
    let burst = (0..100).map(|id| open(id, 50)).collect();
    let endpoint = server.endpoint().with_connections(100);
    let (records, summary) = run_at(&endpoint, patient(burst, vec![]));
    let due = summary.start_ns + Nanos::from_millis(50);
    for record in &records {
        assert_eq!(record.row.intended_ns, due);
        let lag = record.row.sent_ns.unwrap() - due;
        assert!(lag < Nanos(SLACK), "{lag}");
    }
}

#[test]
fn a_connection_that_does_not_come_about_has_a_limit_of_its_own() {
    // A listener whose queue is full answers no further handshake.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || {
        let wait = std::time::Duration::from_millis(100);
        std::net::TcpStream::connect_timeout(&address, wait).ok()
    };
    // Three in a row, because a busy machine is late at times.
    let fill = || connect().or_else(connect).or_else(connect);
    let held: Vec<_> = std::iter::from_fn(fill).take(10_000).collect();
    let endpoint = Endpoint::parse(&format!("http://{address}"))
        .unwrap()
        .with_connections(0);
    let mut limits = limits(10_000, 10_000, 20_000);
    limits.connect_ns = Nanos::from_millis(150);
    let long = patient(vec![open(0, 0)], vec![]);
    let mut records = Vec::new();
    let emit = |record| records.push(record);
    let (context, stop) = (RunContext::default(), StopSignal::new());
    run_plan_blocking(long, context, &endpoint, limits, stop, emit).unwrap();
    fails(
        &records[0],
        FailKind::TimeoutConnect,
        "without a connection in time",
    );
    assert!(!held.is_empty(), "the queue took some");
}
