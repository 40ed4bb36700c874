//! Hits are counted once, where they belong, and never beyond what was asked (row 26).

use crate::common::*;
use pb_contract::{EngineConfig, Fault, Nanos, Preemption, PrefixCacheKind, RequestId};
use pb_core::{Engine, Hold};

/// Report 30 (SGLang #2555): a cold prompt in several chunks has a hit rate of zero.
fn cold_prompt_in_chunks(fault: Fault) -> Engine {
    let mut config = config(4, 32);
    config.fault = fault;
    let mut engine = toy(config);
    engine.add(greedy(0, &prompt("cold", 60), 3)).unwrap();
    let clock = pb_contract::VirtualClock::new();
    while engine.has_work() {
        engine.step(&clock).unwrap();
    }
    engine
}

#[test]
fn own_chunks_are_no_hits() {
    let clean = cold_prompt_in_chunks(Fault::None).counters();
    assert_eq!((clean.queried_tokens, clean.hit_tokens), (60, 0));
    let faulty = cold_prompt_in_chunks(Fault::CounterDrift);
    let law = faulty.check().unwrap_err();
    assert!(law.starts_with("counters:"), "{law}");
}

/// Report 17 (vLLM #25780): a request that is preempted and finds its own blocks again adds
/// nothing to the hit rate.
fn preempted_without_reuse(fault: Fault) -> Engine {
    let mut config = config(4, 12);
    config.fault = fault;
    let mut engine = toy(config);
    for i in 0..2 {
        let request = greedy(i, &prompt(&format!("own {i}"), 12), 30);
        engine.add(request).unwrap();
    }
    let mut outcome = Outcome::default();
    drain(&mut engine, &mut outcome, 500);
    engine
}

#[test]
fn hits_after_a_preemption_are_kept_apart() {
    let clean = preempted_without_reuse(Fault::None).counters();
    assert!(clean.preemptions > 0);
    assert_eq!((clean.queried_tokens, clean.hit_tokens), (24, 0));
    assert!(clean.preempted_hit_tokens > 0);
    assert_eq!(clean.prompt_tokens, 24);
    let faulty = preempted_without_reuse(Fault::PreemptedHitCounted).counters();
    assert_ne!(faulty.hit_tokens, 0);
}

/// Report 31 (SGLang #11898, #11900): what is reported as cached is below the prompt's length,
/// and a preemption does not report again.
#[test]
fn cached_tokens_stay_below_the_prompt() {
    for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        let mut engine = toy(EngineConfig {
            prefix_cache: cache,
            ..config(4, 14)
        });
        let same = prompt("below", 16);
        let requests: Vec<_> = (0..6).map(|i| seeded(i, &same, 20, i)).collect();
        let outcome = run(&mut engine, &requests);
        assert_expected(&outcome, &requests);
        assert!(engine.counters().preemptions > 0);
        for request in &requests {
            assert!(outcome.cached[&request.id] < 16);
        }
        let c = engine.counters();
        assert!(c.hit_tokens <= c.queried_tokens);
        assert_eq!(c.queried_tokens, 6 * 16);
        let cached: usize = outcome.cached.values().sum();
        assert_eq!(c.hit_tokens, cached as u64);
    }
}

/// A request that waits is looked up in every step and counted when it is admitted (vLLM #43736);
/// what it had found before does not matter (report 16, vLLM #18957).
#[test]
fn failed_admissions_are_not_counted() {
    let mut engine = toy(config(4, 12));
    let shared = prompt("shared", 16);
    let mut outcome = run(&mut engine, &[greedy(0, &shared, 2)]);
    let before = engine.counters();
    // The first takes the pool; the second would hit, and waits until its hit is evicted.
    engine.add(greedy(1, &prompt("greedy", 20), 26)).unwrap();
    let mut second = shared.clone();
    second.extend(prompt("tail", 16));
    let second = greedy(2, &second, 4);
    engine.add(second.clone()).unwrap();
    step(&mut engine, &mut outcome);
    while engine.has_work() {
        let waiting = engine.waiting().count();
        let counted = engine.counters().queried_tokens - before.queried_tokens;
        assert_eq!(counted, if waiting > 0 { 20 } else { 52 });
        step(&mut engine, &mut outcome);
    }
    assert_eq!(outcome.tokens[&RequestId(2)], expected(&second));
    let c = engine.counters();
    assert_eq!(
        c.hit_tokens - before.hit_tokens,
        outcome.cached[&RequestId(2)] as u64
    );
}

/// Report 35 (vllm-ascend #16315): preemptions are bounded, two requests do not push each other
/// out in turn: each preemption is paid for by a block that an older request has gained.
#[test]
fn preemptions_are_bounded() {
    for preemption in [Preemption::Recompute, Preemption::Swap] {
        let mut config = config(4, 16);
        config.scheduling.preemption = preemption;
        config.scheduling.swap_blocks = 32;
        let mut engine = toy(config);
        let requests: Vec<_> = (0..5)
            .map(|i| greedy(i, &prompt(&format!("thrash {i}"), 8), 40))
            .collect();
        let outcome = run(&mut engine, &requests);
        assert_expected(&outcome, &requests);
        let blocks: usize = requests.len() * (8 + 40usize).div_ceil(4);
        let preemptions = engine.counters().preemptions;
        assert!(
            preemptions > 0 && preemptions <= blocks as u64,
            "{preemptions}"
        );
    }
}

#[test]
fn rows_add_up() {
    let mut engine = toy(config(4, 16));
    let requests: Vec<_> = (0..5)
        .map(|i| greedy(i, &prompt(&format!("rows {i}"), 11), 12))
        .collect();
    let outcome = run(&mut engine, &requests);
    for step in &outcome.steps {
        let row = &step.row;
        let computed: usize = step.scheduled.iter().map(|s| s.count).sum();
        assert_eq!(row.prefill_tokens + row.decode_tokens, computed);
        assert_eq!(row.prefill_seqs + row.decode_seqs, step.scheduled.len());
        assert_eq!(row.preempted, step.preempted.len());
        let context: usize = step.scheduled.iter().map(|s| s.start + s.count).sum();
        assert_eq!(row.context_tokens, context);
        assert_eq!(
            row.active_blocks + row.reclaimable_blocks + row.free_blocks,
            16
        );
        assert!(row.hit_tokens <= row.queried_tokens);
    }
    let numbers: Vec<u64> = outcome.steps.iter().map(|s| s.row.step).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
}

#[test]
fn the_wait_for_the_lock_goes_into_one_row() {
    let mut engine = toy(config(4, 16));
    engine.add(greedy(0, &prompt("lock", 4), 3)).unwrap();
    engine.set_lock_wait(Nanos(77));
    let mut outcome = Outcome::default();
    drain(&mut engine, &mut outcome, 10);
    let waits: Vec<u64> = outcome.steps.iter().map(|s| s.row.lock_wait_ns.0).collect();
    assert_eq!(waits, [77, 0, 0]);
}

#[test]
fn a_pinned_prefix_outlives_pressure() {
    for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        let mut engine = toy(EngineConfig {
            prefix_cache: cache,
            ..config(4, 16)
        });
        let kept = prompt("kept", 16);
        let mut outcome = run(&mut engine, &[greedy(0, &kept, 2)]);
        let pin = engine.pin_prefix(&kept, None, None).unwrap().unwrap();
        let reader = engine.hold_prefix(&kept[..8], None, None, Hold::Transfer);
        let reader = reader.unwrap().unwrap();
        engine.check().unwrap();
        let c = engine.counters();
        assert_eq!((c.pinned_blocks, c.in_transfer_blocks), (4, 2));
        assert_eq!(engine.buckets().active, 4);
        assert!(!engine.reset_prefix_cache());
        // 12 blocks are left to others, and no more.
        engine.add(greedy(1, &prompt("crowd", 30), 19)).unwrap();
        drain(&mut engine, &mut outcome, 100);
        assert!(engine.add(greedy(2, &prompt("crowd", 30), 20)).is_err());
        let again = greedy(3, &[&kept[..], &prompt("more", 3)].concat(), 4);
        let found = run(&mut engine, std::slice::from_ref(&again));
        assert_eq!(found.cached[&RequestId(3)], 16, "{cache:?}");
        assert_expected(&found, std::slice::from_ref(&again));
        assert!(engine.unpin(pin) && !engine.unpin(pin));
        assert_eq!(engine.buckets().active, 2);
        assert!(engine.unpin(reader));
        assert_idle(&engine);
        assert_eq!(engine.pin_prefix(&prompt("never", 9), None, None), Ok(None));
    }
}
