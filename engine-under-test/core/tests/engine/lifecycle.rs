//! Coming, going, being refused: whatever happens to a request, the counts return to where they
//! were (row 25), and every load that is taken ends (row 24).

use crate::common::*;
use pb_contract::{
    EngineConfig, EngineRequest, Fault, FinishReason, Preemption, PrefixCacheKind, RequestId,
};
use pb_core::{AdmitError, Engine, EngineSpec, ToyExecutor};

fn caches() -> [PrefixCacheKind; 4] {
    [
        PrefixCacheKind::None,
        PrefixCacheKind::HashChain,
        PrefixCacheKind::Radix,
        PrefixCacheKind::Oracle,
    ]
}

fn with_cache(cache: PrefixCacheKind) -> EngineConfig {
    EngineConfig {
        prefix_cache: cache,
        ..config(4, 32)
    }
}

#[test]
fn abort_while_waiting() {
    for cache in caches() {
        let mut engine = toy(with_cache(cache));
        engine.add(greedy(0, &prompt("w", 30), 4)).unwrap();
        assert_eq!(engine.counters().waiting, 1);
        assert!(engine.abort(RequestId(0)));
        assert!(!engine.abort(RequestId(0)));
        assert!(!engine.has_work());
        assert_idle(&engine);
    }
}

#[test]
fn abort_in_the_middle_of_a_prompt() {
    for cache in caches() {
        for chunks in 1..3 {
            let mut engine = toy(with_cache(cache));
            let mut outcome = Outcome::default();
            engine.add(greedy(0, &prompt("m", 40), 4)).unwrap();
            (0..chunks).for_each(|_| step(&mut engine, &mut outcome));
            assert_eq!(engine.block_table(RequestId(0)).len(), 4 * chunks);
            assert!(engine.abort(RequestId(0)));
            assert_idle(&engine);
        }
    }
}

#[test]
fn abort_while_decoding() {
    for cache in caches() {
        let mut engine = toy(with_cache(cache));
        let mut outcome = Outcome::default();
        engine.add(greedy(0, &prompt("d", 10), 30)).unwrap();
        (0..7).for_each(|_| step(&mut engine, &mut outcome));
        assert_eq!(outcome.tokens[&RequestId(0)].len(), 7);
        assert!(engine.abort(RequestId(0)));
        assert_idle(&engine);
        assert!(engine.reset_prefix_cache());
        assert_eq!(engine.buckets().free, engine.kv().usable_blocks());
    }
}

/// Two requests that outgrow the pool: the later one is preempted and aborted while it waits.
fn abort_preempted(cache: PrefixCacheKind, preemption: Preemption) {
    let mut config = EngineConfig {
        prefix_cache: cache,
        ..config(4, 12)
    };
    config.scheduling.preemption = preemption;
    config.scheduling.swap_blocks = 16;
    let mut engine = toy(config);
    let mut outcome = Outcome::default();
    let first = greedy(0, &prompt("p0", 12), 30);
    engine.add(first.clone()).unwrap();
    engine.add(greedy(1, &prompt("p1", 12), 30)).unwrap();
    while engine.counters().preemptions == 0 {
        step(&mut engine, &mut outcome);
    }
    assert_eq!(engine.waiting().collect::<Vec<_>>(), [RequestId(1)]);
    let swapped = engine.counters().swapped_blocks;
    assert_eq!(swapped > 0, preemption == Preemption::Swap);
    assert!(engine.abort(RequestId(1)));
    assert_eq!(engine.counters().swapped_blocks, 0);
    drain(&mut engine, &mut outcome, 100);
    assert_eq!(outcome.tokens[&RequestId(0)], expected(&first));
    assert_idle(&engine);
}

#[test]
fn abort_while_preempted_or_swapped() {
    for cache in caches() {
        abort_preempted(cache, Preemption::Recompute);
        abort_preempted(cache, Preemption::Swap);
    }
}

#[test]
fn what_can_never_run_is_refused_at_once() {
    let mut engine = toy(config(4, 8));
    let refused = |engine: &mut Engine, request: EngineRequest| {
        let error = engine.add(request).unwrap_err();
        assert!(!engine.has_work());
        error
    };
    assert_eq!(
        refused(&mut engine, greedy(0, &[], 1)),
        AdmitError::EmptyPrompt
    );
    // Report 62 (vLLM #42381): a prompt as long as the context leaves no room for a token.
    let full = prompt("full", MAX_LEN);
    assert!(matches!(
        refused(&mut engine, greedy(0, &full, 1)),
        AdmitError::PromptTooLong { prompt_tokens, .. } if prompt_tokens == MAX_LEN
    ));
    // Report 60 (vLLM #39734): 8 blocks of 4 tokens hold 32; the last token's KV is not needed.
    assert_eq!(
        refused(&mut engine, greedy(0, &prompt("big", 20), 14)),
        AdmitError::NeverFits {
            needed_blocks: 9,
            pool_blocks: 8
        }
    );
    let fits = greedy(1, &prompt("big", 20), 13);
    let outcome = run(&mut engine, std::slice::from_ref(&fits));
    assert_expected(&outcome, std::slice::from_ref(&fits));
    assert_eq!(outcome.finished[&RequestId(1)], FinishReason::Length);
    assert!(matches!(
        refused(&mut engine, greedy(0, &[VOCAB as u32], 1)),
        AdmitError::TokenOutOfRange { position: 0, .. }
    ));
    let mut unknown = greedy(0, &[1], 1);
    unknown.adapter = Some("c".to_owned());
    let text = refused(&mut engine, unknown).to_string();
    assert_eq!(text, "adapter = \"c\": not loaded; loaded are a, b");
    assert_idle(&engine);
}

#[test]
fn one_token_is_enough() {
    let mut engine = toy(config(4, 8));
    let request = greedy(0, &prompt("one", 4), 1);
    let outcome = run(&mut engine, std::slice::from_ref(&request));
    assert_expected(&outcome, std::slice::from_ref(&request));
    assert_eq!(outcome.steps.len(), 1);
    assert_idle(&engine);
}

#[test]
fn the_context_length_ends_a_request() {
    let mut engine = toy(config(4, 64));
    let request = greedy(0, &prompt("long", MAX_LEN - 5), 100);
    let outcome = run(&mut engine, std::slice::from_ref(&request));
    assert_eq!(outcome.tokens[&RequestId(0)].len(), 5);
    assert_eq!(outcome.finished[&RequestId(0)], FinishReason::Length);
    assert_expected(&outcome, std::slice::from_ref(&request));
}

/// No step passes without a computed token while there is work, so a load of `T` tokens with `P`
/// preempted tokens ends within `T + P` steps.
#[test]
fn every_step_makes_progress() {
    for cache in caches() {
        let mut engine = toy(EngineConfig {
            prefix_cache: cache,
            ..config(4, 20)
        });
        for i in 0..12 {
            let request = seeded(i, &prompt(&format!("progress {i}"), 5 + i as usize), 30, i);
            engine.add(request).unwrap();
        }
        let mut outcome = Outcome::default();
        while engine.has_work() {
            step(&mut engine, &mut outcome);
            let row = &outcome.steps[outcome.steps.len() - 1].row;
            assert!(row.prefill_tokens + row.decode_tokens > 0, "{cache:?}");
        }
        assert_eq!(outcome.finished.len(), 12);
        assert_idle(&engine);
    }
}

#[test]
fn reset_is_refused_while_blocks_are_in_use() {
    for cache in caches() {
        let mut engine = toy(with_cache(cache));
        let mut outcome = Outcome::default();
        let request = greedy(0, &prompt("reset", 20), 4);
        engine.add(request.clone()).unwrap();
        step(&mut engine, &mut outcome);
        assert!(!engine.reset_prefix_cache());
        drain(&mut engine, &mut outcome, 50);
        assert!(engine.reset_prefix_cache());
        let again = greedy(1, &request.prompt, 4);
        let outcome = run(&mut engine, &[again]);
        assert_eq!(outcome.cached[&RequestId(1)], 0);
    }
}

#[test]
fn a_planted_fault_needs_permission() {
    let mut config = config(4, 8);
    config.fault = Fault::StaleHit;
    let spec = EngineSpec::simulated(VOCAB, MAX_LEN);
    let refused = Engine::new(config, spec, Box::new(ToyExecutor::new(VOCAB)));
    let text = refused.err().unwrap();
    assert!(text.starts_with("fault = StaleHit"), "{text}");
}

/// A lost request is found by the law of the queues.
#[test]
fn a_request_lost_on_preemption_is_found() {
    let mut config = config(4, 12);
    config.fault = Fault::LostOnPreemption;
    let mut engine = toy(config);
    engine.add(greedy(0, &prompt("p0", 12), 30)).unwrap();
    engine.add(greedy(1, &prompt("p1", 12), 30)).unwrap();
    let clock = pb_contract::VirtualClock::new();
    while engine.counters().preemptions == 0 {
        engine.check().unwrap();
        engine.step(&clock).unwrap();
    }
    let law = engine.check().unwrap_err();
    assert!(
        law.starts_with("queues: request 1 is 0 times running"),
        "{law}"
    );
}
