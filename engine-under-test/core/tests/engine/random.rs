//! Random loads over random configurations. After every step every law holds, and every request
//! gives the tokens that it gives alone (report 21, vLLM #9532: no slot of another request is
//! ever read or written, or its tokens would differ).

use std::collections::BTreeMap;

use crate::common::*;
use pb_contract::{
    EngineConfig, EngineRequest, FreePlacement, PolicyKind, Preemption, PrefixCacheKind,
    QueueOrder, RequestId, RunningOrder, Stream,
};

fn pick<T: Copy>(stream: &mut Stream, items: &[T]) -> T {
    items[stream.below(items.len() as u64) as usize]
}

fn draw_config(stream: &mut Stream) -> EngineConfig {
    let mut config = config(pick(stream, &[1, 2, 4, 5, 8]), 0);
    config.num_blocks = pick(stream, &[70, 90, 140]) / config.block_size + 2;
    config.prefix_cache = pick(
        stream,
        &[
            PrefixCacheKind::None,
            PrefixCacheKind::HashChain,
            PrefixCacheKind::HashChain,
            PrefixCacheKind::Radix,
            PrefixCacheKind::Radix,
            PrefixCacheKind::Oracle,
        ],
    );
    config.max_batched_tokens = pick(stream, &[3, 8, 16, 64]);
    config.max_num_seqs = pick(stream, &[3, 5, 8]);
    config.cache.null_block = stream.below(4) == 0;
    config.cache.verify_tokens = stream.below(2) == 0;
    config.cache.placement = pick(
        stream,
        &[FreePlacement::Append, FreePlacement::UnhashedToHead],
    );
    let s = &mut config.scheduling;
    s.policy = pick(
        stream,
        &[
            PolicyKind::TokenBudget,
            PolicyKind::TokenBudget,
            PolicyKind::PrefillFirst,
            PolicyKind::AdaptiveLoad,
            PolicyKind::Shrinking,
            PolicyKind::TimeBudget,
            PolicyKind::Monolithic,
            PolicyKind::DecodePriorityMonolithic,
        ],
    );
    s.queue = pick(
        stream,
        &[
            QueueOrder::Fcfs,
            QueueOrder::Priority,
            QueueOrder::Lpm,
            QueueOrder::DfsWeight,
        ],
    );
    s.running_order = pick(
        stream,
        &[RunningOrder::DecodeFirst, RunningOrder::ListOrder],
    );
    s.preemption = pick(stream, &[Preemption::Recompute, Preemption::Swap]);
    s.swap_blocks = pick(stream, &[0, 8, 100]);
    if s.policy == PolicyKind::PrefillFirst {
        s.mixed_chunk = stream.below(2) == 0;
        s.reserved_decode.enabled = stream.below(2) == 0;
        s.reserved_decode.conservativeness = 0.2;
        // Chunks are whole blocks there.
        config.max_batched_tokens = config.max_batched_tokens.max(config.block_size);
    }
    if matches!(
        s.policy,
        PolicyKind::Monolithic | PolicyKind::DecodePriorityMonolithic
    ) {
        config.chunked = false;
        config.max_batched_tokens = MAX_LEN;
    }
    config.tiers.host_bytes = pick(stream, &[0, 4000, 1 << 20]);
    config
}

/// A request that often shares a prefix, and sometimes forks from the one before it.
fn draw_request(stream: &mut Stream, id: u64, before: Option<&EngineRequest>) -> EngineRequest {
    let mut tokens = prompt(&format!("shared {}", stream.below(3)), 24);
    tokens.truncate(stream.below(25) as usize);
    let own = 1 + stream.below(20) as usize;
    tokens.extend((0..own).map(|_| stream.below(VOCAB as u64) as u32));
    let max_tokens = 1 + stream.below(24) as u32;
    let mut request = match stream.below(2) {
        0 => greedy(id, &tokens, max_tokens),
        _ => seeded(id, &tokens, max_tokens, id),
    };
    request.priority = stream.below(3) as i64;
    request.adapter = pick(stream, &[None, None, Some("a"), Some("b")]).map(str::to_owned);
    request.cache_salt = pick(stream, &[None, None, Some("s")]).map(str::to_owned);
    if stream.below(6) == 0 {
        request.sampling.prompt_logprobs = Some(1);
    }
    if let Some(before) = before.filter(|_| stream.below(3) == 0) {
        request.prompt = before.prompt.clone();
        request.adapter = before.adapter.clone();
        request.cache_salt = before.cache_salt.clone();
        request.fork_of = Some(before.id);
    }
    request
}

fn one_load(seed: u64) {
    let mut stream = Stream::new(seed, "random load");
    let config = draw_config(&mut stream);
    let mut engine = toy(config.clone());
    let mut outcome = Outcome::default();
    let mut live: BTreeMap<RequestId, EngineRequest> = BTreeMap::new();
    let mut before = None;
    let mut next = 0;
    let mut steps = 0;
    while next < 30 || engine.has_work() {
        if next < 30 && stream.below(3) > 0 {
            let request = draw_request(&mut stream, next, before.as_ref());
            next += 1;
            if engine.add(request.clone()).is_ok() {
                live.insert(request.id, request.clone());
                before = Some(request);
            }
        }
        if stream.below(12) == 0 && !live.is_empty() {
            let at = stream.below(live.len() as u64) as usize;
            // OK because the index is below the length.
            let id = *live.keys().nth(at).unwrap();
            engine.abort(id);
            live.remove(&id);
        }
        if stream.below(20) == 0 {
            engine.reset_prefix_cache();
        }
        if let Err(law) = engine.check() {
            panic!("seed {seed}: between steps: {law}\n{config:?}");
        }
        let output = engine.step(&pb_contract::VirtualClock::new()).unwrap();
        outcome.take(output);
        if let Err(law) = engine.check() {
            panic!("seed {seed}: after step {steps}: {law}\n{config:?}");
        }
        steps += 1;
        assert!(steps < 5_000, "seed {seed}: does not end\n{config:?}");
    }
    for request in live.values() {
        let got = &outcome.tokens[&request.id];
        let want = expected(request);
        assert_eq!(
            *got, want,
            "seed {seed}: request {}\n{config:?}",
            request.id
        );
        if request.sampling.prompt_logprobs.is_some() {
            let entries = outcome.prompt_logprobs.get(&request.id);
            let n = request.prompt.len() - 1;
            assert_eq!(entries.map_or(0, Vec::len), n, "seed {seed}");
        }
    }
    assert_idle(&engine);
}

#[test]
fn random_loads_keep_every_law_and_every_token() {
    // More with PB_RANDOM_LOADS=10000.
    let loads = std::env::var("PB_RANDOM_LOADS").ok();
    let loads = loads.and_then(|n| n.parse().ok()).unwrap_or(300);
    (0..loads).for_each(one_load);
}
