use pb_contract::plan::{ChatTurn, OpenRequest};
use pb_target::Counters;

use super::*;

fn body(ids: std::ops::Range<u32>, planned: Option<u32>) -> PlannedBody {
    let mut body = PlannedBody::of_ids("x", ids.collect(), 4);
    body.planned_hit_tokens = planned;
    body
}

fn open(bodies: Vec<PlannedBody>) -> Plan {
    let request = |(id, body): (usize, PlannedBody)| OpenRequest {
        id: RequestId(id as u64),
        offset_ns: pb_contract::Nanos(id as u64),
        body,
    };
    Plan {
        open: bodies.into_iter().enumerate().map(request).collect(),
        ..Plan::default()
    }
}

/// Request `id`, sent at `10 * id`, with its first token `lasting` later.
fn row(id: u64, tokens: u32, cached: Option<u32>, lasting: u64) -> RequestRow {
    let row = serde_json::json!({
        "arm": "a", "block": 0, "request": id, "class": "x", "intended_ns": 0,
        "sent_ns": 10 * id, "first_token_ns": 10 * id + lasting, "status": "ok",
        "prompt_tokens_planned": tokens, "prompt_tokens": tokens, "cached_tokens": cached,
        "max_tokens": 4, "streamed_tokens": 4,
    });
    serde_json::from_value(row).unwrap()
}

fn window(query: u64, hits: u64) -> ServerWindow {
    ServerWindow {
        counters: Counters {
            query_tokens: Some(query),
            hit_tokens: Some(hits),
            ..Counters::default()
        },
        ..ServerWindow::default()
    }
}

/// Three equal prompts of 33 tokens, in blocks of 16.
fn shared() -> (Plan, Claim) {
    let plan = open(vec![
        body(0..33, Some(0)),
        body(0..33, Some(32)),
        body(0..33, Some(32)),
    ]);
    let prefixes = Prefixes::new(&plan, &[], 16);
    let claim = Claim::of("cold", &plan, prefixes, false);
    (plan, claim)
}

#[test]
fn what_follows_from_the_plan_agrees() {
    let (plan, claim) = shared();
    let rows = [
        row(0, 33, Some(0), 5),
        row(1, 33, Some(32), 5),
        row(2, 33, Some(32), 5),
    ];
    let verdict = claim.judge(&plan, &rows, Some(&window(99, 64)));
    assert_eq!(verdict.reasons, [] as [String; 0]);
    assert_eq!(verdict.notes, [] as [String; 0]);
    let expected = Cache {
        state: "cold",
        planned_hit_tokens: Some(64),
        measured_hit_tokens: Some(64),
        known_rows: 3,
    };
    assert_eq!(verdict.cache, expected);
}

#[test]
fn a_race_is_allowed_what_it_can_cause_and_no_more() {
    let (plan, claim) = shared();
    // The second is sent before the first has its first token; the third after both.
    let race = |second: u32, third: u32| {
        let rows = [
            row(0, 33, Some(0), 15),
            row(1, 33, Some(second), 6),
            row(2, 33, Some(third), 5),
        ];
        claim.judge(&plan, &rows, None)
    };
    for second in [0, 16, 32] {
        let verdict = race(second, 32);
        assert_eq!(verdict.reasons, [] as [String; 0], "{second}");
        assert!(
            verdict.notes[0].contains("from 32 to 96 tokens"),
            "{:?}",
            verdict.notes
        );
    }
    let verdict = race(0, 16);
    let reason = &verdict.reasons[0];
    assert!(
        reason.starts_with("prefix hits other than planned: 1 of 3 requests"),
        "{reason}"
    );
    assert!(
        reason.contains("request 2 with 16 where 32 were planned"),
        "{reason}"
    );
}

/// vllm #54227, #52884: hits of an earlier run.
#[test]
fn row_54_hits_that_nothing_explains_void_the_run() {
    let plan = open(vec![body(0..33, Some(0)), body(100..133, Some(0))]);
    let claim = Claim::of("cold", &plan, Prefixes::new(&plan, &[], 16), true);
    let rows = [row(0, 33, Some(32), 5), row(1, 33, Some(32), 5)];
    let verdict = claim.judge(&plan, &rows, None);
    assert_eq!(verdict.reasons.len(), 1);
    assert!(
        verdict.reasons[0].contains("64 in all where 0 were planned"),
        "{verdict:?}"
    );
    assert_eq!(verdict.cache.planned_hit_tokens, Some(0));
    // As it is, nothing is claimed, so nothing is wrong.
    let verdict = Claim::none().judge(&plan, &rows, None);
    assert_eq!((verdict.reasons.len(), verdict.cache.state), (0, "asis"));
    assert_eq!(verdict.cache.measured_hit_tokens, Some(64));
    assert_eq!(verdict.cache.planned_hit_tokens, None);
}

/// Counters that contradict the answers, or show other traffic.
#[test]
fn counters_that_do_not_fit_void_the_run() {
    let (plan, claim) = shared();
    let rows = [
        row(0, 33, Some(0), 5),
        row(1, 33, Some(32), 5),
        row(2, 33, Some(32), 5),
    ];
    for (window, part) in [
        (
            window(99, 48),
            "64 tokens were found, the server's counters 48",
        ),
        (
            window(120, 64),
            "looked up 120 prompt tokens where this run sent 99",
        ),
    ] {
        let verdict = claim.judge(&plan, &rows, Some(&window));
        assert_eq!(verdict.reasons.len(), 1, "{verdict:?}");
        assert!(verdict.reasons[0].contains(part), "{verdict:?}");
    }
    // A cache that is off looks nothing up, and that is no traffic of someone else.
    let off = Claim::nothing("cold");
    let rows = [row(0, 33, Some(0), 5)];
    let verdict = off.judge(&plan, &rows, Some(&window(0, 0)));
    assert_eq!(verdict.reasons, [] as [String; 0]);
    assert_eq!(verdict.notes, [] as [String; 0]);
}

/// vllm #44377: who says nothing has not said zero.
#[test]
fn row_64_known_rows_speak_and_their_number_is_told() {
    let (plan, claim) = shared();
    let rows = [
        row(0, 33, None, 5),
        row(1, 33, Some(32), 5),
        row(2, 33, Some(32), 5),
    ];
    let verdict = claim.judge(&plan, &rows, None);
    assert_eq!(verdict.reasons, [] as [String; 0]);
    assert_eq!(
        (verdict.cache.known_rows, verdict.cache.planned_hit_tokens),
        (2, Some(64))
    );
    assert!(
        verdict.notes[0].starts_with("2 of 3 answers"),
        "{verdict:?}"
    );
    let silent = [0, 1, 2].map(|id| row(id, 33, None, 5));
    let verdict = claim.judge(&plan, &silent, None);
    assert_eq!(verdict.cache.measured_hit_tokens, None);
    assert!(
        verdict.notes[0].contains("could not be compared"),
        "{verdict:?}"
    );
    // Counters speak for them, within the range.
    let verdict = |hits| claim.judge(&plan, &silent, Some(&window(99, hits)));
    assert_eq!(verdict(64).reasons, [] as [String; 0]);
    assert_eq!(verdict(64).cache.measured_hit_tokens, Some(64));
    assert!(verdict(65).reasons[0].contains("65 tokens found where 64 were planned"));
    let overlapping = [0, 1, 2].map(|id| row(id, 33, None, 100));
    let verdict = |hits| claim.judge(&plan, &overlapping, Some(&window(99, hits)));
    for hits in [0, 50, 96] {
        assert_eq!(verdict(hits).reasons, [] as [String; 0], "{hits}");
    }
    assert_eq!(verdict(97).reasons.len(), 1);
}

/// vllm #25780.
#[test]
fn row_65_preemptions_flag_the_hit_rate() {
    let (plan, claim) = shared();
    let rows = [row(0, 33, Some(0), 5)];
    let mut window = window(33, 0);
    window.counters.preemptions = Some(2);
    let verdict = claim.judge(&plan, &rows, Some(&window));
    assert_eq!(verdict.reasons, [] as [String; 0]);
    assert!(verdict.notes[0].starts_with("2 preemptions"), "{verdict:?}");
}

#[test]
fn what_could_not_be_shown_voids_the_run_and_claims_nothing() {
    let (plan, _) = shared();
    let claim = Claim::unproven("warm", "the cache is off");
    let verdict = claim.judge(&plan, &[row(0, 33, Some(0), 5)], None);
    assert_eq!(verdict.cache.state, "unproven");
    assert_eq!(verdict.cache.planned_hit_tokens, None);
    assert_eq!(
        verdict.reasons,
        ["the cache was not shown to be warm: the cache is off"]
    );
}

#[test]
fn the_template_of_a_chat_may_be_found() {
    let chat = |content: &str| {
        let turn = ChatTurn {
            role: "user".into(),
            content: content.into(),
        };
        let mut body = PlannedBody::of("x", PlannedPrompt::Chat(vec![turn]), 40, 4);
        body.planned_hit_tokens = Some(0);
        body
    };
    let plan = open(vec![chat("a"), chat("b")]);
    let claim = Claim::of("cold", &plan, None, true).with_server(Some(16), 0, true);
    // 60 tokens are counted where 40 were planned: 20 of the template, in two blocks at most.
    let verdict = |cached| claim.judge(&plan, &[row(1, 60, Some(cached), 5)], None);
    assert_eq!(verdict(0).reasons, [] as [String; 0]);
    assert_eq!(verdict(32).reasons, [] as [String; 0]);
    assert_eq!(verdict(48).reasons.len(), 1, "the prompt itself was found");
    // Warm, what the prompts found before is the expectation.
    let claim = Claim::of("warm", &plan, None, true);
    let claim = claim.or_found(&plan, &[chat("b")], &[Some(48)]);
    let claim = claim.with_server(Some(16), 0, true);
    let verdict = |cached| claim.judge(&plan, &[row(1, 60, Some(cached), 5)], None);
    assert_eq!(verdict(48).reasons, [] as [String; 0]);
    assert_eq!(verdict(48).cache.planned_hit_tokens, Some(48));
    assert_eq!(verdict(32).reasons.len(), 1);
}

#[test]
fn of_what_nothing_is_known_nothing_is_wrong() {
    let plan = open(vec![body(0..33, None)]);
    let claim = Claim::of("cold", &plan, None, true);
    let verdict = claim.judge(&plan, &[row(0, 33, Some(16), 5)], None);
    assert_eq!(verdict.reasons, [] as [String; 0]);
    assert!(
        verdict.notes[0].contains("of 1 requests it is not known"),
        "{verdict:?}"
    );
    assert_eq!(verdict.cache.planned_hit_tokens, None);
}
