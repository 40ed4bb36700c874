//! What a stream means: the worked stream, recorded streams, and the faults of real servers.

use pb_contract::{FailKind, Nanos, RequestStatus};
use pb_load::driver::SendOrder;
use pb_load::events::{CountRule, StreamOutcome, StreamReading};
use pb_load::rows::{Record, RunContext, blank_row, finish_row};
use pb_record::metrics::{Bundle, event_gaps, request_metrics, token_itl};

const MS: u64 = 1_000_000;

pub(crate) fn read(events: &[(u64, &str)]) -> StreamOutcome {
    let mut reading = StreamReading::new(1 << 20);
    for (ms, text) in events {
        reading.bytes(Nanos::from_millis(*ms), format!("{text}\n\n").as_bytes());
    }
    reading.end(None)
}

pub(crate) fn chat(delta: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}")
}

pub(crate) fn gaps(outcome: &StreamOutcome) -> Vec<u64> {
    outcome
        .content
        .windows(2)
        .map(|pair| (pair[1].at - pair[0].at).0 / MS)
        .collect()
}

pub(crate) fn record(outcome: StreamOutcome, closed: Nanos) -> Record {
    let body = pb_contract::plan::PlannedBody::of_ids("x", vec![1], 5);
    let order = SendOrder {
        id: Default::default(),
        intended: Nanos::ZERO,
        free: Nanos::ZERO,
        body: body.into(),
        wants_answer: false,
    };
    finish_row(blank_row(&RunContext::default(), &order), outcome, closed)
}

/// 50 ms role; 200 "A"; 300 "BCD" (3 tokens); 400 "E"; 410 finish; 415 usage; 416 [DONE]. The
/// values are worked by hand in the measurement definitions.
#[test]
fn the_worked_stream_gives_the_defined_values() {
    let logprobs = |tokens: &str| format!("\"logprobs\":{{\"content\":[{tokens}]}}");
    let event = |text: &str, tokens: &str| {
        let logprobs = logprobs(tokens);
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},{logprobs}}}]}}")
    };
    let outcome = read(&[
        (50, &chat("{\"role\":\"assistant\",\"content\":\"\"}")),
        (200, &event("A", "{}")),
        (300, &event("BCD", "{},{},{}")),
        (400, &event("E", "{}")),
        (
            410,
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}",
        ),
        (
            415,
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5}}",
        ),
        (416, "data: [DONE]"),
    ]);
    assert_eq!(outcome.failure, None);
    assert_eq!(outcome.count_rule, Some(CountRule::Logprobs));
    let record = record(outcome, Nanos::from_millis(416));
    let metrics = request_metrics(&record.row);
    assert_eq!(metrics.ttft_ns, Some(200 * MS));
    assert_eq!(metrics.ttfr_ns, Some(50 * MS));
    assert_eq!(metrics.tpot_ns, Some(50 * MS));
    assert_eq!(metrics.e2e_ns, Some(400 * MS));
    assert_eq!(metrics.close_ns, Some(416 * MS));
    let gaps: Vec<u64> = event_gaps(&record.tokens)
        .iter()
        .map(|gap| gap.gap_ns)
        .collect();
    assert_eq!(gaps, [100 * MS, 100 * MS]);
    let itl = token_itl(&record.tokens, Bundle::Even);
    assert_eq!(itl, [33_333_334, 33_333_333, 33_333_333, 100 * MS]);
}

#[test]
fn continuous_usage_counts_a_bundle() {
    let event = |text: &str, usage: u32| {
        let usage = format!("\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{usage}}}");
        format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}],{usage}}}")
    };
    let outcome = read(&[
        (100, &event("a", 1)),
        (200, &event("bcd", 4)),
        (201, "data: [DONE]"),
    ]);
    let tokens: Vec<u32> = outcome.content.iter().map(|event| event.tokens).collect();
    assert_eq!((tokens, outcome.streamed_tokens), (vec![1, 3], 4));
    assert_eq!(
        (gaps(&outcome), outcome.count_rule),
        (vec![100], Some(CountRule::ContinuousUsage))
    );
}

#[test]
fn token_ids_count_even_when_their_text_is_held_back() {
    let event = |text: &str, ids: &str| {
        format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"token_ids\":{ids}}}]}}")
    };
    let outcome = read(&[
        (10, &event("a", "[5]")),
        (20, &event("", "[6]")),
        (30, &event("\u{1F642}", "[7,8]")),
        (40, &event("", "[]")),
        (50, "data: [DONE]"),
    ]);
    let seen: Vec<(u64, u32)> = outcome
        .content
        .iter()
        .map(|event| (event.at.0 / MS, event.tokens))
        .collect();
    assert_eq!(seen, [(10, 1), (20, 1), (30, 2)]);
    assert_eq!(outcome.count_rule, Some(CountRule::TokenIds));
}

#[test]
fn a_role_event_after_the_first_chunk_is_no_token() {
    let outcome = read(&[
        (50, &chat("{\"role\":\"assistant\"}")),
        (900, &chat("{\"content\":\"a\"}")),
        (910, &chat("{\"content\":\"b\"}")),
        (911, "data: [DONE]"),
    ]);
    assert_eq!(outcome.first_event, Some(Nanos::from_millis(50)));
    assert_eq!(outcome.first_token(), Some(Nanos::from_millis(900)));
    assert_eq!(gaps(&outcome), [10]);
}

#[test]
fn reasoning_and_tool_calls_are_content() {
    for reasoning in ["reasoning", "reasoning_content"] {
        let outcome = read(&[
            (80, &chat(&format!("{{\"{reasoning}\":\"hm\"}}"))),
            (900, &chat("{\"content\":\"a\"}")),
            (901, "data: [DONE]"),
        ]);
        assert_eq!(outcome.first_token(), Some(Nanos::from_millis(80)));
        assert_eq!(outcome.first_output, Some(Nanos::from_millis(900)));
    }
    let call = "{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}";
    let outcome = read(&[(7, &chat(call)), (8, "data: [DONE]")]);
    assert_eq!(outcome.first_output, Some(Nanos::from_millis(7)));
}

#[test]
fn errors_inside_a_stream_fail_it_and_keep_its_tokens() {
    let token = "data: {\"choices\":[{\"text\":\"a\"}]}";
    for error in [
        "data: {\"error\":{\"message\":\"out of blocks\",\"code\":500}}",
        "error: {\"message\":\"out of blocks\"}",
        "event: error\ndata: {\"message\":\"out of blocks\"}",
        "data: {\"error\":\"out of blocks\"}",
    ] {
        let outcome = read(&[(1, token), (2, error), (3, "data: [DONE]")]);
        let failure = Some((FailKind::InBandError, "out of blocks".to_owned()));
        assert_eq!(outcome.failure, failure, "{error}");
        assert_eq!((outcome.content.len(), outcome.done), (1, false));
        let record = record(outcome, Nanos(9));
        assert_eq!(record.row.status, RequestStatus::Failed);
        assert_eq!(record.tokens.len(), 1);
    }
}

#[test]
fn ends_that_are_no_success() {
    let token = "data: {\"choices\":[{\"text\":\"a\"}]}";
    let finish = "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}";
    let kind = |events: &[(u64, &str)]| read(events).failure.map(|(kind, _)| kind);
    assert_eq!(
        kind(&[(1, token), (2, token), (3, token)]),
        Some(FailKind::Truncated)
    );
    assert_eq!(kind(&[(1, "data: [DONE]")]), Some(FailKind::NoTokens));
    assert_eq!(
        kind(&[(1, finish), (2, "data: [DONE]")]),
        Some(FailKind::NoTokens)
    );
    assert_eq!(kind(&[(1, "data: nonsense")]), Some(FailKind::Protocol));
    assert_eq!(kind(&[(1, "data: [1]")]), Some(FailKind::Protocol));
    assert_eq!(kind(&[(1, "{\"id\":1}")]), Some(FailKind::Protocol));
    assert_eq!(kind(&[]), Some(FailKind::Truncated));
    // A finish reason without [DONE], or the other way round, is an end.
    assert_eq!(kind(&[(1, token), (2, finish)]), None);
    assert_eq!(kind(&[(1, token), (2, "data: [DONE]")]), None);
}

#[test]
fn an_event_above_the_limit_is_a_protocol_failure() {
    let mut reading = StreamReading::new(64);
    reading.bytes(Nanos(1), &[b'x'; 100]);
    assert!(reading.failed());
    assert_eq!(
        reading.abandon().failure.map(|(kind, _)| kind),
        Some(FailKind::Protocol)
    );
}
