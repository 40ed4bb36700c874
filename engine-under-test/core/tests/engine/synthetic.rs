//! A real forward pass under the same pressure: the generated model in exact mode.

use std::sync::Arc;

use pb_contract::{EngineConfig, EngineRequest, KvDtype, Preemption, PrefixCacheKind, RequestId};
use pb_core::{AdmitError, Engine, EngineParts};
use pb_model::lora;
use pb_model::synth::{self, Kind, Size};

use crate::common::*;

fn parts() -> EngineParts {
    let model = synth::model(Kind::Sharp, Size::Tiny, 3).unwrap();
    EngineParts::new(Arc::new(model.weights), [3; 32])
}

fn build(parts: &EngineParts, num_blocks: usize, cache: PrefixCacheKind) -> Engine {
    build_from(parts, config(8, num_blocks), cache)
}

fn build_from(parts: &EngineParts, config: EngineConfig, cache: PrefixCacheKind) -> Engine {
    let config = EngineConfig {
        prefix_cache: cache,
        ..config
    };
    parts.build(config).unwrap()
}

/// Greedy and seeded requests, two of them with a common prefix and two forks.
fn requests() -> Vec<EngineRequest> {
    let mut all: Vec<EngineRequest> = (0..4)
        .map(|i| {
            let mut tokens = prompt("synthetic", 10);
            tokens.extend(prompt(&format!("synthetic {i}"), 6 + 5 * i as usize));
            match i % 2 {
                0 => greedy(i, &tokens, 24),
                _ => seeded(i, &tokens, 24, i),
            }
        })
        .collect();
    for i in 4..6 {
        all.push(EngineRequest {
            id: RequestId(i),
            fork_of: Some(RequestId(3)),
            ..seeded(i, &all[3].prompt, 24, i)
        });
    }
    all
}

/// What each request gives alone, monolithic and without a cache.
fn alone(parts: &EngineParts, requests: &[EngineRequest]) -> Outcome {
    let mut all = Outcome::default();
    for request in requests {
        let mut config = config(8, 64);
        config.max_batched_tokens = MAX_LEN;
        let mut engine = build_from(parts, config, PrefixCacheKind::None);
        let mut request = request.clone();
        request.fork_of = None;
        let one = run(&mut engine, std::slice::from_ref(&request));
        all.tokens.extend(one.tokens);
        all.prompt_logprobs.extend(one.prompt_logprobs);
    }
    all
}

/// Row 19: greedy and seeded outputs with and without forced preemption.
#[test]
fn preemption_swap_and_tiers_change_no_token() {
    let parts = parts();
    let requests = requests();
    let want = alone(&parts, &requests);
    for cache in [
        PrefixCacheKind::None,
        PrefixCacheKind::HashChain,
        PrefixCacheKind::Radix,
    ] {
        for preemption in [Preemption::Recompute, Preemption::Swap] {
            let mut config = config(8, 12);
            config.scheduling.preemption = preemption;
            config.scheduling.swap_blocks = 9;
            config.tiers.host_bytes = 1 << 22;
            let mut engine = build_from(&parts, config, cache);
            let got = run(&mut engine, &requests);
            assert!(engine.counters().preemptions > 0);
            assert_eq!(got.tokens, want.tokens, "{cache:?} {preemption:?}");
            assert_idle(&engine);
        }
    }
}

/// Row 21: chunked, cached and plain give the same entries, bit for bit in exact mode.
#[test]
fn prompt_logprobs_are_the_same_for_every_chunk_size() {
    let parts = parts();
    let mut request = greedy(0, &prompt("synthetic logprobs", 45), 3);
    request.sampling.prompt_logprobs = Some(1);
    let want = alone(&parts, std::slice::from_ref(&request));
    assert_eq!(want.prompt_logprobs[&RequestId(0)].len(), 44);
    for budget in [1, 7, 8, 16, 44] {
        let mut config = config(8, 64);
        config.max_batched_tokens = budget;
        let mut engine = build_from(&parts, config, PrefixCacheKind::HashChain);
        run(&mut engine, &[greedy(9, &request.prompt, 2)]);
        let got = run(&mut engine, std::slice::from_ref(&request));
        assert_eq!(
            got.prompt_logprobs, want.prompt_logprobs,
            "chunks of {budget}"
        );
        assert_eq!(got.tokens, want.tokens);
    }
}

/// Blocks on disk are another engine's when its numbers are stored or computed in another way.
#[test]
fn the_identity_covers_kv_type() {
    let parts = parts();
    let dir = tempfile::tempdir().unwrap();
    let start = |kv_dtype| {
        let mut config = config(8, 11);
        config.kv_dtype = kv_dtype;
        config.tiers.disk_dir = Some(dir.path().to_str().unwrap().to_owned());
        config.tiers.disk_bytes = 1 << 24;
        build_from(&parts, config, PrefixCacheKind::HashChain)
    };
    let request = |id| greedy(id, &prompt("identity", 41), 4);
    let mut engine = start(KvDtype::F32);
    run(&mut engine, &[request(0)]);
    run(&mut engine, &[greedy(1, &prompt("identity 2", 80), 4)]);
    drop(engine);
    let mut other = start(KvDtype::Bf16);
    let outcome = run(&mut other, &[request(2)]);
    assert_eq!(outcome.cached[&RequestId(2)], 0);
    drop(other);
    let mut same = start(KvDtype::F32);
    let outcome = run(&mut same, &[request(3)]);
    assert_eq!(outcome.cached[&RequestId(3)], 40);
    assert_eq!(same.counters().disk_hit_tokens, 40);
}

/// A loaded adapter changes the output, shares no block, and an unknown one is refused.
#[test]
fn adapters_reach_the_forward_pass() {
    let mut parts = parts();
    let adapter = lora::synth::adapter("poet", &parts.weights.config, 4, 16.0, 9);
    parts.adapters = Arc::new(lora::AdapterSet::new(vec![adapter]).unwrap());
    let mut engine = build(&parts, 64, PrefixCacheKind::HashChain);
    let base = greedy(0, &prompt("poem", 33), 12);
    let mut poem = greedy(1, &base.prompt, 12);
    poem.adapter = Some("poet".to_owned());
    let both = run(&mut engine, &[base.clone(), poem.clone()]);
    assert_ne!(both.tokens[&RequestId(0)], both.tokens[&RequestId(1)]);
    assert_eq!(
        (both.cached[&RequestId(0)], both.cached[&RequestId(1)]),
        (0, 0)
    );
    let solo = alone(&parts, &[base, poem.clone()]);
    assert_eq!(both.tokens, solo.tokens);
    poem.adapter = Some("prose".to_owned());
    poem.id = RequestId(2);
    assert!(matches!(
        engine.add(poem).unwrap_err(),
        AdmitError::UnknownAdapter { .. }
    ));
}
