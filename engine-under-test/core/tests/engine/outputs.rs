//! What is generated depends on the request alone: not on chunks, cache, preemption or company.

use crate::common::*;
use pb_contract::{
    EngineConfig, EngineRequest, Fault, PolicyKind, Preemption, PrefixCacheKind, RequestId,
};

/// A pool so small that the requests of [`crowd`] push each other out.
fn pressed(preemption: Preemption, swap_blocks: usize) -> EngineConfig {
    let mut config = config(4, 24);
    config.scheduling.preemption = preemption;
    config.scheduling.swap_blocks = swap_blocks;
    config
}

/// Greedy and seeded requests whose outputs outgrow 24 blocks together.
fn crowd() -> Vec<EngineRequest> {
    let draw = |i: u64| prompt(&format!("crowd {i}"), 9 + 3 * i as usize);
    (0..6)
        .map(|i| match i % 2 {
            0 => greedy(i, &draw(i), 40),
            _ => seeded(i, &draw(i), 40, 100 + i),
        })
        .collect()
}

#[test]
fn preemption_by_recomputation_changes_no_token() {
    let requests = crowd();
    let mut engine = toy(pressed(Preemption::Recompute, 0));
    let outcome = run(&mut engine, &requests);
    assert!(engine.counters().preemptions > 0, "the pool was not tight");
    assert_expected(&outcome, &requests);
    assert_idle(&engine);
}

#[test]
fn preemption_by_swap_changes_no_token_and_is_no_hit() {
    let requests = crowd();
    let mut config = pressed(Preemption::Swap, 64);
    config.prefix_cache = PrefixCacheKind::None;
    let mut engine = toy(config);
    let outcome = run(&mut engine, &requests);
    assert_expected(&outcome, &requests);
    assert_idle(&engine);
    let c = engine.counters();
    assert!(c.preemptions > 0 && c.swapped_out_blocks > 0);
    assert!(c.swapped_in_tokens > 0);
    assert_eq!(
        (c.hit_tokens, c.preempted_hit_tokens, c.swap_full),
        (0, 0, 0)
    );
    // Nothing is computed twice: prompts once, and all generated tokens but the last of each.
    let computed: usize = outcome
        .steps
        .iter()
        .map(|s| s.row.prefill_tokens + s.row.decode_tokens)
        .sum();
    let once: usize = requests.iter().map(|r| r.prompt.len() + 40 - 1).sum();
    assert_eq!(computed, once);
}

#[test]
fn a_full_swap_pool_falls_back_to_recomputation() {
    let requests = crowd();
    let mut engine = toy(pressed(Preemption::Swap, 6));
    let outcome = run(&mut engine, &requests);
    assert_expected(&outcome, &requests);
    assert_idle(&engine);
    assert!(engine.counters().swap_full > 0);
}

/// Report 33 (SGLang #14939, #9989, #19881, #16103): retraction under every policy and cache.
#[test]
fn retraction_under_every_policy_changes_no_token() {
    let requests = crowd();
    let kinds = [
        PrefixCacheKind::None,
        PrefixCacheKind::HashChain,
        PrefixCacheKind::Radix,
    ];
    for cache in kinds {
        for policy in [
            PolicyKind::Monolithic,
            PolicyKind::PrefillFirst,
            PolicyKind::DecodePriorityMonolithic,
            PolicyKind::TokenBudget,
            PolicyKind::AdaptiveLoad,
            PolicyKind::Shrinking,
            PolicyKind::TimeBudget,
        ] {
            for reserved in [false, true] {
                if reserved && policy != PolicyKind::PrefillFirst {
                    continue;
                }
                let mut config = pressed(Preemption::Recompute, 0);
                config.prefix_cache = cache;
                config.scheduling.policy = policy;
                config.scheduling.reserved_decode.enabled = reserved;
                // A small ratio, so that requests are admitted that do not fit to their end.
                config.scheduling.reserved_decode.conservativeness = 0.1;
                if matches!(
                    policy,
                    PolicyKind::Monolithic | PolicyKind::DecodePriorityMonolithic
                ) {
                    config.chunked = false;
                    config.max_batched_tokens = MAX_LEN;
                }
                let mut engine = toy(config);
                let outcome = run(&mut engine, &requests);
                assert_expected(&outcome, &requests);
                assert_idle(&engine);
                let preemptions = engine.counters().preemptions;
                assert!(preemptions > 0, "{policy:?} {cache:?} was not pressed");
            }
        }
    }
}

/// Row 20 and report 24 (vLLM #9945): draws do not depend on the number of chunks.
#[test]
fn seeded_text_is_the_same_for_every_chunk_size() {
    let request = seeded(0, &prompt("chunks", 50), 20, 5);
    let want = expected(&request);
    for budget in [1, 3, 4, 7, 16, 49, 50, 64] {
        let mut config = config(4, 64);
        config.max_batched_tokens = budget;
        let outcome = run(&mut toy(config), std::slice::from_ref(&request));
        assert_eq!(outcome.tokens[&RequestId(0)], want, "chunks of {budget}");
        assert_eq!(outcome.tokens[&RequestId(0)].len(), 20);
    }
}

/// The planted fault that draws for chunks that end no prompt is found by the same comparison.
#[test]
fn a_draw_for_a_partial_chunk_is_found() {
    let request = seeded(0, &prompt("chunks", 50), 20, 5);
    let mut config = config(4, 64);
    config.fault = Fault::RngDrawnOnPartialChunk;
    let outcome = run(&mut toy(config), std::slice::from_ref(&request));
    assert_ne!(outcome.tokens[&RequestId(0)], expected(&request));
}

/// Row 21, reports 43 and 44 (vLLM #8268, #42245): the same n - 1 entries, chunked, cached, plain.
#[test]
fn prompt_logprobs_do_not_depend_on_chunks_or_cache() {
    let mut wanted = greedy(1, &prompt("logprobs", 37), 3);
    wanted.sampling.prompt_logprobs = Some(2);
    let mut plain = config(4, 64);
    plain.max_batched_tokens = MAX_LEN;
    plain.prefix_cache = PrefixCacheKind::None;
    let plain = run(&mut toy(plain), std::slice::from_ref(&wanted));
    let entries = &plain.prompt_logprobs[&RequestId(1)];
    assert_eq!(entries.len(), 36);
    for (entry, &token) in entries.iter().zip(&wanted.prompt[1..]) {
        assert_eq!(entry.token, token);
        assert!(entry.logprob.is_finite() && entry.logprob < 0.0);
        assert_eq!(entry.top.len(), 2);
    }
    for budget in [1, 5, 16] {
        let mut config = config(4, 64);
        config.max_batched_tokens = budget;
        let mut engine = toy(config);
        // The prompt is in the cache already; it is computed again all the same.
        run(&mut engine, &[greedy(0, &wanted.prompt, 3)]);
        let outcome = run(&mut engine, std::slice::from_ref(&wanted));
        assert_eq!(&outcome.prompt_logprobs[&RequestId(1)], entries, "{budget}");
        assert_eq!(outcome.cached[&RequestId(1)], 0);
        assert_expected(&outcome, std::slice::from_ref(&wanted));
    }
}

/// Preempted in the middle of its prompt, a request still reports every position once.
#[test]
fn prompt_logprobs_survive_preemption() {
    for preemption in [Preemption::Recompute, Preemption::Swap] {
        let mut config = pressed(preemption, 64);
        config.max_batched_tokens = 6;
        let mut requests = crowd();
        for request in &mut requests {
            request.sampling.prompt_logprobs = Some(0);
        }
        let mut engine = toy(config);
        let outcome = run(&mut engine, &requests);
        assert!(engine.counters().preemptions > 0);
        assert_expected(&outcome, &requests);
        for request in &requests {
            let entries = &outcome.prompt_logprobs[&request.id];
            assert_eq!(entries.len(), request.prompt.len() - 1);
        }
    }
}

/// Report 15 (vLLM #7822): two equal prompts in one step give what each gives alone.
#[test]
fn equal_prompts_in_one_step_give_what_each_gives_alone() {
    for cache in [
        PrefixCacheKind::HashChain,
        PrefixCacheKind::Radix,
        PrefixCacheKind::Oracle,
    ] {
        let mut config = config(4, 64);
        config.prefix_cache = cache;
        config.max_batched_tokens = 64;
        let same = prompt("twins", 23);
        let requests = [greedy(0, &same, 9), seeded(1, &same, 9, 8)];
        let mut engine = toy(config);
        let outcome = run(&mut engine, &requests);
        assert_expected(&outcome, &requests);
        assert_idle(&engine);
    }
}

/// Adapters, salts and the base model use one pool and never each other's blocks (reports 6, 8).
#[test]
fn adapters_and_salts_share_no_block() {
    for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        let mut config = config(4, 128);
        config.prefix_cache = cache;
        let mut engine = toy(config);
        let same = prompt("scopes", 21);
        let scopes = [
            (None, None),
            (Some("a"), None),
            (Some("b"), None),
            (None, Some("a")),
            (Some("a"), Some("a")),
        ];
        let mut requests = Vec::new();
        for (i, (adapter, salt)) in scopes.into_iter().enumerate() {
            let mut request = greedy(i as u64, &same, 5);
            request.adapter = adapter.map(str::to_owned);
            request.cache_salt = salt.map(str::to_owned);
            let outcome = run(&mut engine, std::slice::from_ref(&request));
            assert_eq!(
                outcome.cached[&request.id], 0,
                "{cache:?} {adapter:?} {salt:?}"
            );
            assert_expected(&outcome, std::slice::from_ref(&request));
            requests.push(request);
        }
        for request in &mut requests {
            request.id = RequestId(request.id.0 + 100);
            let outcome = run(&mut engine, std::slice::from_ref(request));
            assert_eq!(outcome.cached[&request.id], 20, "{cache:?}");
            assert_expected(&outcome, std::slice::from_ref(request));
        }
    }
}
