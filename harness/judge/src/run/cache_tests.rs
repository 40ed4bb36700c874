//! Cold against warm, worked out by hand.

use pb_contract::RequestId;
use pb_contract::manifest::RunState;

use super::fixture::{MS, data_from, request};
use super::*;

/// Three cold requests of 400 ms and the same prompts warm at 100 ms, 96 tokens found each.
fn cache_run(found: u32) -> (pb_record::RunData, RunNotes) {
    let (mut rows, mut tokens) = (Vec::new(), Vec::new());
    for id in 0..3_u64 {
        for (class, offset, ttft) in [("cold", 0, 400), ("warm", 10, 100)] {
            let at = (id + offset) * 1000 * MS;
            let times = (at, 1000, (ttft + id) * MS);
            let (mut row, events) = request("cache", 0, id + offset, class, times, &[MS]);
            row.cached_tokens = Some(if class == "warm" { found } else { 0 });
            rows.push(row);
            tokens.extend(events);
        }
    }
    let proof = ResetProof {
        arm: "cache".into(),
        block: 0,
        accepted: true,
        probe_cached_tokens: Some(0),
    };
    let note = CacheNote {
        arm: "cache".to_owned(),
        block: 0,
        cold_class: "cold".to_owned(),
        warm_class: "warm".to_owned(),
        block_size: 16,
        planned_cached_tokens: (10..13).map(|id| (RequestId(id), 96)).collect(),
        pairs: (0..3)
            .map(|id| (RequestId(id), RequestId(id + 10)))
            .collect(),
    };
    let notes = RunNotes {
        resets: vec![proof],
        cache: vec![note],
        ..RunNotes::default()
    };
    (
        data_from(RunState::Complete, (rows, tokens, Vec::new())),
        notes,
    )
}

#[test]
fn cold_and_warm_are_proven_before_they_are_compared() {
    let (run, given) = cache_run(96);
    let verdict = judge(&run, &given);
    let cache = &verdict.cache[0];
    assert!(
        cache.cold_proven && cache.warm_proven,
        "{:?}",
        cache.reasons
    );
    assert_eq!(
        (cache.planned_tokens, cache.cached_tokens),
        (288, Some(288))
    );
    assert_eq!(
        (cache.cold_ttft.p50_ns, cache.warm_ttft.p50_ns),
        (Some(401 * MS), Some(101 * MS))
    );
    // 100/400, 101/401, 102/402: between 0.25 and 0.2538.
    let ratio = cache.ttft_ratio.unwrap();
    assert!(ratio.point > 0.25 && ratio.point < 0.2538, "{ratio:?}");
    assert_eq!(verdict.outcome, Outcome::Pass);

    let (run, given) = cache_run(80);
    let verdict = judge(&run, &given);
    let cache = &verdict.cache[0];
    assert!(cache.cold_proven && !cache.warm_proven);
    assert_eq!((cache.ttft_ratio, cache.reasons.len()), (None, 3));
    assert_eq!(verdict.outcome, Outcome::Void);
}

#[test]
fn cold_needs_a_reset_and_no_hits() {
    let (mut run, mut given) = cache_run(96);
    run.requests
        .iter_mut()
        .find(|row| row.class == "cold")
        .unwrap()
        .cached_tokens = Some(16);
    let cache = judge(&run, &given).cache.remove(0);
    assert!(!cache.cold_proven && cache.reasons == ["cold request 0 found 16 tokens"]);
    given.resets.clear();
    let cache = judge(&run, &given).cache.remove(0);
    assert_eq!(cache.reasons[0], "no reset was recorded");
}
