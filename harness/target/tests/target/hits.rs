//! Planned hits against measured ones.

use std::collections::BTreeMap;

use pb_contract::{Nanos, RequestId, RequestRow, RequestStatus};
use pb_target::{Counters, HitFlag, HitSource, HitVerdict, ServerWindow, check_hits};

fn row(id: u64, prompt_tokens: u32, cached_tokens: Option<u32>) -> RequestRow {
    let blank = serde_json::json!({
        "arm": "a", "block": 0, "request": id, "class": "x", "intended_ns": Nanos(1),
        "status": "ok", "prompt_tokens_planned": prompt_tokens, "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens, "max_tokens": 1, "streamed_tokens": 1,
    });
    serde_json::from_value(blank).unwrap()
}

fn planned(tokens: &[(u64, u32)]) -> BTreeMap<RequestId, u32> {
    tokens
        .iter()
        .map(|(id, tokens)| (RequestId(*id), *tokens))
        .collect()
}

fn window(query: u64, hits: u64) -> ServerWindow {
    let counters = Counters {
        query_tokens: Some(query),
        hit_tokens: Some(hits),
        external_hit_tokens: Some(0),
        preemptions: Some(0),
        ..Counters::default()
    };
    ServerWindow {
        counters,
        ..ServerWindow::default()
    }
}

#[test]
fn what_was_planned_agrees() {
    let rows = [row(0, 20, Some(0)), row(1, 20, Some(16))];
    let check = check_hits(&planned(&[(1, 16)]), &rows, Some(&window(40, 16)), 0);
    assert_eq!(check.verdict, HitVerdict::Agrees);
    assert_eq!(
        (check.planned_hit_tokens, check.measured_hit_tokens),
        (16, Some(16))
    );
    assert_eq!((check.known_rows, check.ok_rows), (2, 2));
    assert_eq!(
        (check.source, check.flags),
        (Some(HitSource::Usage), vec![])
    );
}

#[test]
fn a_mismatch_voids_with_its_reason() {
    // The sums agree; the requests do not.
    let rows = [row(0, 20, Some(16)), row(1, 20, Some(0))];
    let check = check_hits(&planned(&[(1, 16)]), &rows, None, 0);
    let HitVerdict::Differs { reason } = check.verdict else {
        panic!("{:?}", check.verdict);
    };
    for part in ["2 of 2 requests", "request 0 with 16 where 0"] {
        assert!(reason.contains(part), "{reason}");
    }
    let near = [row(1, 20, Some(15))];
    let verdict = |tolerance| check_hits(&planned(&[(1, 16)]), &near, None, tolerance).verdict;
    assert_eq!(verdict(1), HitVerdict::Agrees);
    assert!(matches!(verdict(0), HitVerdict::Differs { .. }));
}

/// vllm #44377, #16162, vllm-ascend #9911.
#[test]
fn row_64_the_hit_rate_uses_known_rows_and_says_how_many() {
    let rows = [row(0, 20, None), row(1, 20, Some(16)), row(2, 20, Some(16))];
    let plan = planned(&[(0, 16), (1, 16), (2, 16)]);
    let check = check_hits(&plan, &rows, None, 0);
    assert_eq!(check.verdict, HitVerdict::Agrees);
    assert_eq!(
        (check.planned_hit_tokens, check.measured_hit_tokens),
        (32, Some(32))
    );
    assert_eq!(
        check.flags,
        [HitFlag::PartlyKnown {
            known_rows: 2,
            ok_rows: 3
        }]
    );
    let silent = [row(0, 20, None)];
    let check = check_hits(&planned(&[]), &silent, None, 0);
    assert!(
        matches!(check.verdict, HitVerdict::Unknown { .. }),
        "never zero: {check:?}"
    );
    assert_eq!(check.measured_hit_tokens, None);
}

/// vllm #25780: what a preempted request finds of its own is counted as a hit.
#[test]
fn row_65_preemptions_are_flagged() {
    let mut preempted = window(20, 16);
    preempted.counters.preemptions = Some(3);
    let plan = planned(&[(0, 16)]);
    let check = check_hits(&plan, &[row(0, 20, Some(16))], Some(&preempted), 0);
    assert_eq!(check.flags, [HitFlag::Preemptions { count: 3 }]);
    assert_eq!(check.verdict, HitVerdict::Agrees);
    let check = check_hits(&plan, &[row(0, 20, None)], Some(&preempted), 0);
    let HitVerdict::Unknown { reason } = check.verdict else {
        panic!("{:?}", check.verdict);
    };
    assert!(reason.contains("recomputation"), "{reason}");
}

#[test]
fn counters_speak_for_silent_answers_when_nothing_else_ran() {
    let rows = [row(0, 20, None), row(1, 20, None)];
    let plan = planned(&[(1, 16)]);
    let check = check_hits(&plan, &rows, Some(&window(40, 16)), 0);
    assert_eq!(
        (check.verdict, check.source),
        (HitVerdict::Agrees, Some(HitSource::Counters))
    );
    let check = check_hits(&plan, &rows, Some(&window(40, 12)), 0);
    assert!(matches!(check.verdict, HitVerdict::Differs { .. }));
    let check = check_hits(&plan, &rows, Some(&window(57, 16)), 0);
    assert!(matches!(check.verdict, HitVerdict::Unknown { .. }));
    let other = HitFlag::OtherTraffic {
        server_tokens: 57,
        cell_tokens: 40,
    };
    assert_eq!(check.flags, [other]);
    let mut restarted = window(40, 16);
    restarted.restarted = true;
    let check = check_hits(&plan, &rows, Some(&restarted), 0);
    assert!(
        matches!(check.verdict, HitVerdict::Unknown { .. }),
        "{check:?}"
    );
    let mut failed = rows;
    failed[0].status = RequestStatus::Failed;
    let check = check_hits(&plan, &failed, Some(&window(40, 16)), 0);
    assert!(
        matches!(check.verdict, HitVerdict::Unknown { .. }),
        "{check:?}"
    );
    let mut unsaid = [row(0, 20, None)];
    unsaid[0].prompt_tokens = None;
    let check = check_hits(&planned(&[]), &unsaid, Some(&window(20, 0)), 0);
    assert!(
        matches!(check.verdict, HitVerdict::Unknown { .. }),
        "{check:?}"
    );
}

#[test]
fn answers_and_counters_that_contradict_each_other_are_flagged() {
    let check = check_hits(
        &planned(&[(0, 16)]),
        &[row(0, 20, Some(16))],
        Some(&window(20, 8)),
        0,
    );
    let differ = HitFlag::SourcesDiffer {
        usage_tokens: 16,
        counter_tokens: 8,
    };
    assert_eq!(
        (check.verdict, check.flags),
        (HitVerdict::Agrees, vec![differ])
    );
}

/// vLLM counts no lookups while its prefix cache is off: that is no other traffic.
#[test]
fn a_cache_that_is_off_counts_nothing_and_that_is_no_doubt() {
    let rows = [row(0, 20, Some(0)), row(1, 20, Some(0))];
    let check = check_hits(&planned(&[]), &rows, Some(&window(0, 0)), 0);
    assert_eq!((check.verdict, check.flags), (HitVerdict::Agrees, vec![]));
    // Answers that found something while nothing was looked up contradict it.
    let rows = [row(0, 20, Some(16)), row(1, 20, Some(0))];
    let check = check_hits(&planned(&[(0, 16)]), &rows, Some(&window(0, 0)), 0);
    let other = HitFlag::OtherTraffic {
        server_tokens: 0,
        cell_tokens: 40,
    };
    assert_eq!(check.flags, [other]);
}
