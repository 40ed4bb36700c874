//! The real client against scripted servers: times, connections, cut-off, stop.

use pb_contract::plan::Plan;
use pb_contract::{FailKind, Nanos, RequestStatus};
use pb_load::rows::{Record, RunContext};
use pb_load::{Limits, RunOptions, RunSummary, StopSignal, run_plan_blocking, run_plan_with};
use pb_record::metrics::{event_gaps, request_metrics};

use crate::driver::{closed, open, patient, plan};
use crate::script::{Answer, Asked, End, Gate, ScriptServer, eventually, with_more_time};

const MS: u64 = 1_000_000;
/// How late a test machine may be: only a client that does not look at all is later.
const SLACK: u64 = 60_000 * MS;
/// How far the two clocks may be apart that an arrival is told by.
const CLOCKS: u64 = MS;

pub(crate) fn run(server: &ScriptServer, plan: Plan, limits: Limits) -> (Vec<Record>, RunSummary) {
    let context = RunContext {
        arm: "B".into(),
        block: 3,
    };
    let mut records = Vec::new();
    let emit = |record| records.push(record);
    let endpoint = server.endpoint().with_api_key("k").unwrap();
    let summary =
        run_plan_blocking(plan, context, &endpoint, limits, StopSignal::new(), emit).unwrap();
    records.sort_by_key(|record: &Record| record.row.request);
    (records, summary)
}

pub(crate) fn token(text: &str, id: u32) -> String {
    format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"token_ids\":[{id}]}}]}}\n\n")
}

/// A stream of one token after `first` and one after `second` milliseconds.
fn two_tokens(first: u64, second: u64) -> Answer {
    let parts = [
        (first, token("a", 1)),
        (second, token("b", 2)),
        (
            second,
            "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n".into(),
        ),
        (
            second,
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\
             \"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\ndata: [DONE]\n\n"
                .into(),
        ),
    ];
    Answer {
        status: "200 OK",
        parts: parts.to_vec(),
        end: End::Proper,
    }
}

/// The worked stream through the real client: each instant is at or after the script's and not
/// much later; the order of magnitude of lateness belongs to the machine, the rest to us.
#[test]
fn the_worked_stream_over_a_socket() {
    let event = |content: &str, ids: &str| {
        format!("data: {{\"choices\":[{{\"delta\":{content},\"token_ids\":{ids}}}]}}\n\n")
    };
    let server = ScriptServer::start(move |_| Answer {
        status: "200 OK",
        parts: vec![
            (
                50,
                event("{\"role\":\"assistant\",\"content\":\"\"}", "null"),
            ),
            (200, event("{\"content\":\"A\"}", "[1]")),
            (300, event("{\"content\":\"BCD\"}", "[2,3,4]")),
            (400, event("{\"content\":\"E\"}", "[5]")),
            (
                410,
                "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n".to_owned(),
            ),
            (
                415,
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\
                 \"completion_tokens\":5}}\n\n"
                    .to_owned(),
            ),
            (416, "data: [DONE]\n\n".to_owned()),
        ],
        end: End::Proper,
    });
    let (records, _) = run(
        &server,
        patient(vec![open(0, 0)], vec![]),
        Limits::default(),
    );
    let row = &records[0].row;
    assert_eq!((row.status, row.streamed_tokens), (RequestStatus::Ok, 5));
    assert_eq!((row.arm.as_str(), row.block), ("B", 3));
    assert_eq!((row.completion_tokens, row.cached_tokens), (Some(5), None));
    let metrics = request_metrics(row);
    let near = |value: Option<u64>, ms: u64| {
        let value = value.unwrap();
        assert!(
            value + CLOCKS >= ms * MS && value < ms * MS + SLACK,
            "{value} for {ms} ms"
        );
    };
    near(metrics.ttfr_ns, 50);
    near(metrics.ttft_ns, 200);
    near(metrics.service_ttft_ns, 200);
    near(metrics.e2e_ns, 400);
    near(metrics.close_ns, 416);
    let tokens: Vec<u32> = records[0].tokens.iter().map(|token| token.tokens).collect();
    assert_eq!(tokens, [1, 3, 1]);
    assert_eq!(event_gaps(&records[0].tokens).len(), 2);
    let decode = row.last_token_ns.unwrap() - row.first_token_ns.unwrap();
    assert_eq!(metrics.tpot_ns, Some((decode.0 + 2) / 4));
}

#[test]
fn the_request_asks_for_what_a_measurement_needs() {
    let server = ScriptServer::start(|asked: &Asked| {
        assert_eq!(
            (asked.method.as_str(), asked.path.as_str()),
            ("POST", "/v1/completions")
        );
        assert!(
            asked.headers.contains("authorization: bearer k"),
            "{}",
            asked.headers
        );
        let expected = serde_json::json!({
            "model": "m", "prompt": [1, 2, 3], "temperature": 0.0, "max_tokens": 2,
            "ignore_eos": true, "stream": true, "return_token_ids": true,
            "stream_options": { "include_usage": true, "continuous_usage_stats": false },
        });
        assert_eq!(asked.body, expected);
        two_tokens(0, 1)
    });
    let (records, _) = run(
        &server,
        patient(vec![open(0, 0)], vec![]),
        Limits::default(),
    );
    assert_eq!(
        records[0].row.status,
        RequestStatus::Ok,
        "{:?}",
        records[0].row.fail_message
    );
}

#[test]
fn row_43_a_closed_loop_keeps_its_streams_and_its_connections() {
    // The first three are answered when all of them are there.
    let gate = Gate::default();
    let server = ScriptServer::start(move |_| {
        gate.wait_for(3);
        two_tokens(5, 10)
    });
    let (records, summary) = run(
        &server,
        patient(vec![], vec![closed(0, 3, 12)]),
        Limits::default(),
    );
    assert_eq!(records.len(), 12);
    assert!(
        records
            .iter()
            .all(|record| record.row.status == RequestStatus::Ok)
    );
    assert_eq!(
        (summary.sent, summary.max_in_flight, summary.preconnected),
        (12, 3, 3)
    );
    assert!(summary.closed_exhausted);
    assert_eq!(
        server.count(|seen| &seen.max_in_flight),
        3,
        "never more than the streams"
    );
    assert_eq!(
        server.count(|seen| &seen.connections),
        3,
        "connections are kept"
    );
    for record in &records {
        let row = &record.row;
        let (sent, headers) = (row.sent_ns.unwrap(), row.headers_ns.unwrap());
        assert!(row.intended_ns <= sent && sent <= headers);
        assert!(headers <= row.first_token_ns.unwrap());
        assert!(row.last_token_ns.unwrap() <= row.closed_ns.unwrap());
    }
    // Each later request was due in the very instant in which one ended.
    let ends: Vec<Nanos> = records
        .iter()
        .map(|record| record.row.closed_ns.unwrap())
        .collect();
    assert!(
        records[3..]
            .iter()
            .all(|record| ends.contains(&record.row.intended_ns))
    );
}

#[test]
fn row_41_the_open_loop_holds_a_hundred_in_flight() {
    let gate = Gate::default();
    let server = ScriptServer::start(move |_| {
        gate.wait_for(100);
        two_tokens(1, 2)
    });
    let requests = (0..100).map(|id| open(id, 0)).collect();
    let (records, summary) = run(&server, patient(requests, vec![]), Limits::default());
    assert_eq!((records.len(), summary.max_in_flight), (100, 100));
    assert_eq!(server.count(|seen| &seen.max_in_flight), 100);
}

#[test]
fn connections_that_died_while_idle_are_replaced_without_a_failure() {
    with_more_time(|times| {
        // Proper responses, but the server hangs up after each of them.
        let server = ScriptServer::start(|_| Answer {
            end: End::Close,
            ..two_tokens(0, 1)
        });
        let requests = (0..3).map(|id| open(id, 150 * times * id)).collect();
        let (records, _) = run(&server, patient(requests, vec![]), Limits::default());
        let failed = records.iter().filter(|record| record.row.fail.is_some());
        for record in failed.clone() {
            // The server was so late that it hung up on the next request, which is a failure.
            let message = record.row.fail_message.as_deref().unwrap();
            assert!(message.contains("the connection broke"), "{message}");
        }
        if failed.count() > 0 {
            return false;
        }
        for record in &records {
            assert_eq!(record.row.finish_reason.as_deref(), Some("length"));
        }
        let connections = server.count(|seen| &seen.connections);
        assert!(connections >= 3, "none of them could be kept");
        true
    });
}

/// The server hangs up in the moment in which the next request arrives, as llama.cpp's does.
#[test]
fn a_kept_connection_that_breaks_under_a_request_is_a_failure_and_an_own_one_does_not() {
    for reuse in [true, false] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connections = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let seen = std::sync::Arc::clone(&connections);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                std::thread::spawn(move || answer_once(socket));
            }
        });
        let options = RunOptions {
            reuse_connections: reuse,
            ..RunOptions::default()
        };
        let mut records: Vec<Record> = Vec::new();
        let summary = run_plan_with(
            patient(vec![], vec![closed(0, 1, 6)]),
            RunContext::default(),
            &pb_load::Endpoint::parse(&url).unwrap(),
            options,
            |record| records.push(record),
        )
        .unwrap();
        assert_eq!((records.len(), summary.sent), (6, 6));
        let failed = records.iter().filter(|record| record.row.fail.is_some());
        let opened = connections.load(std::sync::atomic::Ordering::SeqCst);
        if reuse {
            // Every second request finds the connection of the one before, and is not sent again.
            assert_eq!((failed.count(), opened), (3, 3));
            assert_eq!(summary.preconnected, 1);
            continue;
        }
        assert_eq!((failed.count(), opened), (0, 6));
        let times = summary.connections;
        assert_eq!((times.count, times.during_requests), (6, 6));
        assert_eq!(summary.preconnected, 0);
        // The connecting lies between the intended arrival and the first byte.
        let waited: u64 = records
            .iter()
            .map(|record| {
                let row = &record.row;
                (row.sent_ns.unwrap() - row.intended_ns).0
            })
            .sum();
        assert!(waited >= times.tcp_sum_ns.0, "{waited} and {times:?}");
        assert_eq!(summary.send_lag.count, 6);
    }
}

/// Answers one request and keeps the connection until the next one comes.
fn answer_once(mut socket: std::net::TcpStream) {
    use std::io::{Read, Write};
    let mut request = [0; 4_096];
    let events = [&token("a", 1), "data: [DONE]\n\n"].concat();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
        events.len()
    );
    if matches!(socket.read(&mut request), Ok(1..)) {
        let _ = socket.write_all(format!("{head}{events}").as_bytes());
        let _ = socket.read(&mut request);
    }
}

#[test]
fn a_connection_that_breaks_after_the_end_of_the_stream_is_no_failure() {
    let server = ScriptServer::start(|_| Answer {
        end: End::Cut,
        ..two_tokens(0, 1)
    });
    let (records, _) = run(
        &server,
        patient(vec![open(0, 0)], vec![]),
        Limits::default(),
    );
    assert_eq!(records[0].row.status, RequestStatus::Ok);
    assert_eq!(records[0].row.completion_tokens, Some(2));
}

#[test]
fn what_runs_at_the_cut_off_is_incomplete_and_hung_up_on() {
    with_more_time(|times| {
        let server = ScriptServer::start(|_| {
            Answer::new(
                "200 OK",
                &[(1, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")],
                End::Hang,
            )
        });
        let mut short = plan(vec![open(0, 0), open(1, 50)], vec![]);
        short.horizon_ns = Nanos::from_millis(100);
        short.drain_ns = Nanos::from_millis(150 * times);
        let cut_off = short.horizon_ns + short.drain_ns;
        let (records, summary) = run(&server, short, Limits::default());
        let took = summary.end_ns - summary.start_ns;
        assert!(
            took >= cut_off && took < cut_off + Nanos(SLACK),
            "a server that never answers ends by the deadline: {took}"
        );
        if summary.sent < 2 {
            return false;
        }
        for record in &records {
            assert_eq!(record.row.status, RequestStatus::Incomplete);
            assert_eq!(record.row.fail, Some(FailKind::Cancelled));
        }
        if records.iter().any(|record| record.tokens.is_empty()) {
            return false;
        }
        let kept = records.iter().all(|record| record.tokens.len() == 1);
        assert!(kept, "what had come is kept");
        eventually("the server sees both hang up", || {
            server.count(|seen| &seen.hung_up) >= 2
        });
        true
    });
}

#[test]
fn a_stop_ends_the_run_early() {
    let server = ScriptServer::start(|_| Answer::new("200 OK", &[], End::Hang));
    let (stop, endpoint) = (StopSignal::new(), server.endpoint());
    let switch = stop.clone();
    let thread = std::thread::spawn(move || {
        eventually("the request is there", || {
            server.count(|seen| &seen.requests) == 1
        });
        switch.stop();
    });
    let mut records = Vec::new();
    let summary = run_plan_blocking(
        patient(vec![open(0, 0), open(1, 500_000)], vec![]),
        RunContext::default(),
        &endpoint,
        Limits::default(),
        stop,
        |record: Record| records.push(record),
    )
    .unwrap();
    thread.join().unwrap();
    assert!(summary.stopped && summary.end_ns - summary.start_ns < Nanos::from_secs(120));
    assert_eq!(records[0].row.status, RequestStatus::Incomplete);
}

#[test]
fn an_unreachable_target_is_an_error_before_the_run() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let endpoint = pb_load::Endpoint::parse(&format!("http://127.0.0.1:{port}")).unwrap();
    let result = run_plan_blocking(
        plan(vec![open(0, 0)], vec![]),
        RunContext::default(),
        &endpoint,
        Limits::default(),
        StopSignal::new(),
        |_| panic!("no request was made"),
    );
    let message = result.unwrap_err().to_string();
    assert!(message.contains(&format!("127.0.0.1:{port}")), "{message}");
}
