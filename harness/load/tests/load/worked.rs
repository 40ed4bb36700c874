//! The worked stream of five tokens, from the mock server through the real client.

use pb_contract::plan::{ChatTurn, PlannedBody, PlannedPrompt};
use pb_contract::{Nanos, RequestStatus};
use pb_load::rows::Record;
use pb_load::{Endpoint, Limits, RunContext, StopSignal, run_plan_blocking};
use pb_mock::{Log, LoggedWrite, Mock, MockOptions, Script};
use pb_record::metrics::{Bundle, event_gaps, request_metrics, token_itl};
use serde_json::json;

use crate::driver::{open, patient};

/// How far a time may be from the script's, in milliseconds.
const EXACT_MS: f64 = 1.0;

/// Runs the stream once; `fields` go into the body of the request.
fn once(server_url: &str, fields: serde_json::Value) -> Record {
    let serde_json::Value::Object(fields) = fields else {
        panic!("fields are an object");
    };
    let endpoint = Endpoint::parse(server_url).unwrap().with_model("mock");
    let endpoint = endpoint.with_extra_body(fields);
    let mut request = open(0, 5);
    let turn = ChatTurn {
        role: "user".into(),
        content: "hi".into(),
    };
    request.body = PlannedBody {
        prompt: PlannedPrompt::Chat(vec![turn]),
        ..request.body
    };
    let mut records = Vec::new();
    run_plan_blocking(
        patient(vec![request], vec![]),
        RunContext::default(),
        &endpoint,
        Limits::default(),
        StopSignal::new(),
        |record| records.push(record),
    )
    .unwrap();
    records.remove(0)
}

/// Instants of the log: how late the server began and how late each write was, in milliseconds.
struct Truth {
    began: f64,
    late: Vec<f64>,
}

/// Numbers of the writes: the head is 0.
const ROLE: usize = 1;
const A: usize = 2;
const BCD: usize = 3;
const E: usize = 4;
const END: usize = 7;

impl Truth {
    /// From the log, whose due times must be the script's.
    fn of(record: &Record, log: &Log) -> Truth {
        let request = &log.requests[0];
        let ms = |ns: u64| ns as f64 / 1e6;
        let due = request
            .writes
            .iter()
            .map(|write| ms((write.due_ns - request.start_ns).0));
        let due: Vec<f64> = due.collect();
        assert_eq!(
            due,
            [0.0, 50.0, 200.0, 300.0, 400.0, 410.0, 415.0, 416.0, 416.0]
        );
        let late = |write: &LoggedWrite| ms((write.written_ns - write.due_ns).0);
        Truth {
            began: ms(request.start_ns.saturating_sub(record.row.intended_ns).0),
            late: request.writes.iter().map(late).collect(),
        }
    }

    /// When a write of the script left, after the intended arrival.
    fn left(&self, write: usize, script_ms: f64) -> f64 {
        script_ms + self.began + self.late[write]
    }

    /// The time between two writes of the script.
    fn gap(&self, from: usize, to: usize, script_ms: f64) -> f64 {
        script_ms + self.late[to] - self.late[from]
    }
}

/// A name, what the client measured and what is true, in milliseconds.
type Time = (&'static str, f64, f64);

fn times(record: &Record, truth: &Truth) -> Vec<Time> {
    let ms = |ns: u64| ns as f64 / 1e6;
    let metrics = request_metrics(&record.row);
    let whole = |ns: Option<u64>| ms(ns.unwrap());
    let gaps = event_gaps(&record.tokens);
    assert_eq!(gaps.len(), 2, "the finish event carries no token");
    vec![
        ("TTFT", whole(metrics.ttft_ns), truth.left(A, 200.0)),
        ("TTFR", whole(metrics.ttfr_ns), truth.left(ROLE, 50.0)),
        ("E2E", whole(metrics.e2e_ns), truth.left(E, 400.0)),
        ("close", whole(metrics.close_ns), truth.left(END, 416.0)),
        ("first gap", ms(gaps[0].gap_ns), truth.gap(A, BCD, 100.0)),
        ("second gap", ms(gaps[1].gap_ns), truth.gap(BCD, E, 100.0)),
    ]
}

/// Writes later than this tell of a machine that is busy with something else.
const QUIET_MS: f64 = 0.2;

/// Tries that must have had the machine for themselves before the client is blamed.
const QUIET_TRIES: usize = 5;

/// The client measures the script's times within a millisecond, but for what the log says that
/// the server itself was late. A server that lost the processor between its clock and its write
/// knows less than that, so one exact try is enough; and a machine on which the server is always
/// late cannot tell.
fn assert_exact(fields: &serde_json::Value, more: impl Fn(&Record, &Truth) -> Vec<Time>) {
    let (mut wrong, mut quiet) = (Vec::new(), 0);
    for _ in 0..15 {
        let options = MockOptions {
            script: Some(Script::worked_stream()),
            spin_ns: Nanos::from_micros(300),
            ..MockOptions::default()
        };
        let server = Mock::start(options).unwrap();
        let record = once(&server.base_url(), fields.clone());
        let truth = Truth::of(&record, &server.stop());
        let message = &record.row.fail_message;
        assert_eq!(record.row.status, RequestStatus::Ok, "{message:?}");
        assert_eq!(record.row.completion_tokens, Some(5));
        let all = [times(&record, &truth), more(&record, &truth)].concat();
        wrong = all;
        wrong.retain(|time| (time.1 - time.2).abs() > EXACT_MS);
        if wrong.is_empty() {
            return;
        }
        quiet += usize::from(truth.late.iter().all(|&late| late < QUIET_MS));
    }
    assert!(quiet < QUIET_TRIES, "never within {EXACT_MS} ms: {wrong:?}");
    eprintln!("void: this machine is too busy to tell a millisecond");
}

/// What follows when the tokens of each event are known.
fn of_tokens(record: &Record, truth: &Truth) -> Vec<Time> {
    let tokens: Vec<u32> = record.tokens.iter().map(|token| token.tokens).collect();
    assert_eq!(tokens, [1, 3, 1]);
    assert_eq!(record.row.streamed_tokens, 5);
    let itl = token_itl(&record.tokens, Bundle::Even);
    assert_eq!(itl.len(), 4);
    let (first, second) = (truth.gap(A, BCD, 100.0), truth.gap(BCD, E, 100.0));
    let expected = [first / 3.0, first / 3.0, first / 3.0, second];
    let itl = itl.into_iter().zip(expected);
    let mut times: Vec<_> = itl
        .map(|(ns, ms)| ("token ITL", ns as f64 / 1e6, ms))
        .collect();
    let tpot = request_metrics(&record.row).tpot_ns.unwrap();
    times.push(("TPOT", tpot as f64 / 1e6, truth.gap(A, E, 200.0) / 4.0));
    times
}

#[test]
fn the_worked_stream_is_exact_when_the_server_names_its_tokens() {
    assert_exact(&json!({}), of_tokens);
}

#[test]
fn the_worked_stream_is_exact_when_the_usage_grows() {
    let usage = json!({ "include_usage": true, "continuous_usage_stats": true });
    assert_exact(
        &json!({ "return_token_ids": null, "stream_options": usage }),
        of_tokens,
    );
}

/// Only the last usage tells five; the events look like one token each.
#[test]
fn the_worked_stream_is_exact_but_for_the_tokens_that_only_the_last_usage_tells() {
    assert_exact(&json!({ "return_token_ids": null }), |record, _| {
        let tokens: Vec<u32> = record.tokens.iter().map(|token| token.tokens).collect();
        assert_eq!(tokens, [1, 1, 1]);
        assert_eq!(record.row.streamed_tokens, 3);
        Vec::new()
    });
}
