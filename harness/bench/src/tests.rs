//! The arithmetic of a run on streams whose numbers are worked out by hand.

use pb_contract::{FailKind, Nanos, RequestRow, TokenRow};

use crate::document::{Cache, Document, Frame};
use crate::goodput::Objective;
use crate::sample::{self, Sample};
use crate::{Conditions, Spread, Tally};

pub(crate) const MS: u64 = 1_000_000;

/// A request that is due at `at` ms and gets `(ms after that, tokens)` events.
pub(crate) fn request(id: u64, at: u64, events: &[(u64, u32)]) -> Sample {
    let events = events.iter().map(|&(ms, tokens)| (Nanos(ms * MS), tokens));
    sample::record(id, Nanos(at * MS), &events.collect::<Vec<_>>())
}

/// One token at 200 ms, three in one event at 300, one at 400; a role at 50; closed at 416.
pub(crate) fn worked(id: u64, at: u64) -> Sample {
    request(id, at, &[(200, 1), (300, 3), (400, 1)])
}

pub(crate) fn failed(id: u64, at: u64) -> Sample {
    sample::refused(id, Nanos(at * MS))
}

pub(crate) fn frame() -> Frame {
    Frame {
        start: Nanos(1000 * MS),
        arrivals_ns: None,
        exhausted: false,
        cache: Cache {
            state: "asis",
            planned_hit_tokens: None,
            measured_hit_tokens: None,
            known_rows: 0,
        },
        cache_reasons: Vec::new(),
        schedule_sha256: "0".repeat(64),
        seed: 1,
    }
}

pub(crate) fn document(
    objectives: &[&str],
    frame: Frame,
    records: Vec<(RequestRow, Vec<TokenRow>)>,
) -> Document {
    let objectives: Vec<Objective> = objectives.iter().map(|o| o.parse().unwrap()).collect();
    let mut tally = Tally::new(objectives);
    for (row, tokens) in records {
        tally.add(row, &tokens);
    }
    Document::new(&tally, frame)
}

fn all_equal(spread: Option<Spread>, n: usize, value: f64) {
    let s = spread.expect("samples");
    assert_eq!(s.n, n);
    for got in [s.mean, s.p50, s.p90, s.p95, s.p99, s.p999, s.max] {
        assert!((got - value).abs() < 1e-9, "{got} is not {value}");
    }
}

#[test]
fn the_worked_stream_has_its_published_numbers() {
    let doc = document(&[], frame(), vec![worked(0, 1000)]);
    all_equal(doc.ttft_ms, 1, 200.0);
    all_equal(doc.ttfr_ms, 1, 50.0);
    all_equal(doc.service_ttft_ms, 1, 199.75);
    all_equal(doc.event_gap_ms, 2, 100.0);
    all_equal(doc.tpot_ms, 1, 50.0);
    all_equal(doc.e2e_ms, 1, 400.0);
    all_equal(doc.driver_lag_ms, 1, 0.25);
    // A third of 100 ms three times and 100 ms; a nanosecond is left over for the first.
    let itl = doc.itl_ms.unwrap();
    assert_eq!((itl.n, itl.mean), (4, 50.0));
    assert_eq!((itl.p50, itl.p90, itl.max), (33.333_333, 100.0, 100.0));
    assert_eq!(doc.tokens.bundled_share, Some(0.6));
    assert_eq!((doc.tokens.output, doc.tokens.output_estimated), (5, 0));
    assert_eq!(doc.tokens.input_planned, 12);
    assert_eq!(doc.tokens.input_served, Some(13));
    assert_eq!((doc.stalls.count, doc.stalls.share), (Some(0), Some(0.0)));
    assert!(doc.validity.valid);
    assert_eq!(doc.exit_code(), 0);
}

#[test]
fn rates_count_from_the_start_to_the_end_of_the_last_stream() {
    // Two good streams, one failure: the last stream closes at 1000 + 584 + 416 ms.
    let frame = Frame {
        arrivals_ns: Some(Nanos(600 * MS)),
        ..frame()
    };
    let records = vec![worked(0, 1000), failed(1, 1100), worked(2, 1584)];
    let doc = document(&["ttft:200", "tpot:50", "e2el:400"], frame, records);
    assert_eq!(doc.rates.offered_rps, Some(5.0));
    assert_eq!(doc.rates.achieved_rps, Some(2.0));
    assert_eq!(doc.rates.output_tps, Some(10.0));
    assert_eq!(doc.rates.goodput_rps, Some(2.0));
    let c = doc.counts;
    assert_eq!((c.offered, c.ok, c.failed), (3, 2, 1));
    assert_eq!(doc.failures, [(FailKind::HttpStatus, 1)].into());
    all_equal(doc.ttft_ms, 2, 200.0);
}

#[test]
fn one_missed_limit_is_a_miss() {
    for (objective, good) in [
        ("ttft:200", 1.0),
        ("ttft:199.9", 0.0),
        ("tpot:50", 1.0),
        ("tpot:49.9", 0.0),
        ("itl:100", 1.0),
        ("itl:99", 0.0),
        ("e2el:400", 1.0),
        ("e2el:399", 0.0),
    ] {
        let records = vec![worked(0, 1000), failed(1, 1000)];
        let doc = document(&["ttft:500", objective], frame(), records);
        // One request in 416 ms, or none.
        assert_eq!(doc.rates.goodput_rps, Some(good / 0.416), "{objective}");
    }
    let doc = document(&[], frame(), vec![worked(0, 1000)]);
    assert_eq!(doc.rates.goodput_rps, None);
}

#[test]
fn an_answer_of_one_token_has_no_time_between_tokens() {
    let doc = document(&["tpot:1"], frame(), vec![request(0, 1000, &[(200, 1)])]);
    assert_eq!(
        (doc.tpot_ms, doc.itl_ms, doc.event_gap_ms),
        (None, None, None)
    );
    assert_eq!((doc.stalls.count, doc.stalls.total_ms), (None, None));
    assert_eq!(doc.rates.goodput_rps, Some(1.0 / 0.416));
    // Tokens that the server counts and does not stream leave the time a token unknown.
    let (mut row, tokens) = request(0, 1000, &[(200, 1)]);
    row.completion_tokens = Some(9);
    let doc = document(&["tpot:1"], frame(), vec![(row, tokens)]);
    assert_eq!(doc.rates.goodput_rps, Some(0.0));
}

#[test]
fn a_run_without_an_answer_has_no_percentiles_and_fails() {
    let doc = document(&[], frame(), vec![failed(0, 1000), failed(1, 1000)]);
    let spreads = [
        doc.ttft_ms,
        doc.ttfr_ms,
        doc.service_ttft_ms,
        doc.itl_ms,
        doc.event_gap_ms,
        doc.tpot_ms,
        doc.e2e_ms,
        doc.driver_lag_ms,
    ];
    assert!(spreads.iter().all(Option::is_none));
    assert_eq!(doc.tokens.input_served, None);
    assert_eq!(doc.counts.failed, doc.counts.offered);
    assert_eq!((doc.validity.valid, doc.exit_code()), (false, 1));
}

#[test]
fn a_late_client_makes_the_run_void() {
    // The 99th percentile of 100 requests is the 99th: one late request is allowed, two are not.
    let late = |count: u64| {
        let records = (0..100).map(|id| {
            let (mut row, tokens) = worked(id, 1000 + id);
            if id < count {
                row.sent_ns = Some(row.intended_ns + Nanos(MS + 1));
            }
            (row, tokens)
        });
        document(&[], frame(), records.collect())
    };
    assert!(late(1).validity.valid);
    let void = late(2);
    assert_eq!((void.validity.valid, void.exit_code()), (false, 3));
    let reasons = &void.validity.reasons;
    assert!(
        reasons[0].contains("driver lag p99 1.000 ms"),
        "{reasons:?}"
    );
}

#[test]
fn an_exhausted_schedule_and_a_wrong_cache_make_the_run_void() {
    let frame = Frame {
        exhausted: true,
        cache_reasons: vec!["the cache was warm".into()],
        ..frame()
    };
    let doc = document(&[], frame, vec![worked(0, 1000)]);
    assert_eq!((doc.validity.reasons.len(), doc.exit_code()), (2, 3));
    assert!(doc.validity.reasons[0].contains("--num-prompts"));
    assert_eq!(doc.validity.reasons[1], "the cache was warm");
}

#[test]
fn tokens_without_usage_are_estimated_from_the_stream() {
    let (mut row, tokens) = worked(0, 1000);
    (row.completion_tokens, row.prompt_tokens) = (None, None);
    let doc = document(&[], frame(), vec![(row, tokens), worked(1, 1000)]);
    assert_eq!((doc.tokens.output, doc.tokens.output_estimated), (10, 5));
    // One of two answers says how long its prompt was: their sum is not known.
    assert_eq!(doc.tokens.input_served, None);
}

#[test]
fn limits_are_read_and_others_say_what_to_write() {
    for text in ["", "ttft", "ttft:", "ttft:-1", "ttft:inf", "speed:3"] {
        let error = text.parse::<Objective>().unwrap_err();
        assert!(error.contains("ttft:200"), "{text}: {error}");
    }
}

/// The document of records under conditions.
pub(crate) fn under(
    conditions: &Conditions,
    records: impl IntoIterator<Item = (RequestRow, Vec<TokenRow>)>,
) -> Document {
    let mut tally = conditions.tally();
    for (row, tokens) in records {
        tally.add(row, &tokens);
    }
    Document::of(&tally, conditions)
}
