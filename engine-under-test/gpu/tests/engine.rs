//! Whole engines over the emulated device: scheduler, caches, swapping and sampling are the CPU
//! engine's own, and nothing of what they do may change a bit.

mod common;
#[path = "engine/graphs.rs"]
mod graphs;
#[path = "engine/lanes.rs"]
mod lanes;
#[path = "engine/memory.rs"]
mod memory;
#[path = "engine/sampling.rs"]
mod sampling;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{executor, options, prompt, weights};
use pb_contract::{
    CacheOptions, EngineConfig, EngineEvent, EngineRequest, Fault, KvDtype, Nanos, Numerics,
    Preemption, PrefixCacheKind, RequestId, SamplingParams, Scheduling, TierOptions, TokenId,
    VirtualClock,
};
use pb_core::{Engine, EngineParts, EngineSpec, LogitTap};
use pb_gpu::GpuOptions;
use pb_model::Weights;
use pb_model::forward::LogitRow;

/// Bits of the logits by request and position; a position computed twice must agree.
type Bits = BTreeMap<(RequestId, usize), Vec<u64>>;

#[derive(Clone, Default)]
struct Tap(Arc<Mutex<Bits>>);

impl LogitTap for Tap {
    fn row(&mut self, id: RequestId, position: usize, logits: LogitRow<'_>) {
        let bits: Vec<u64> = logits.to_f64().iter().map(|x| x.to_bits()).collect();
        let before = self.0.lock().unwrap().insert((id, position), bits.clone());
        let same = before.is_none_or(|b| b == bits);
        assert!(
            same,
            "request {id}, position {position}: computed again, and other bits"
        );
    }
}

fn config(num_blocks: usize, budget: usize) -> EngineConfig {
    EngineConfig {
        numerics: Numerics::Exact,
        kv_dtype: KvDtype::Bf16,
        threads: 1,
        chunked: true,
        max_batched_tokens: budget,
        max_num_seqs: 4,
        prefix_cache: PrefixCacheKind::HashChain,
        block_size: 8,
        num_blocks,
        max_model_len: 96,
        seed: 3,
        scheduling: Scheduling::default(),
        cache: CacheOptions::default(),
        tiers: TierOptions::default(),
        fault: Fault::None,
    }
}

fn engine(weights: &Weights, config: EngineConfig, tap: &Tap) -> Option<Engine> {
    let options = GpuOptions {
        block_size: config.block_size,
        num_blocks: config.num_blocks,
        ..options(config.numerics, config.kv_dtype)
    };
    let executor = executor(weights, &options)?;
    let parts = EngineParts::new(Arc::new(weights.clone()), [7; 32]);
    let spec = EngineSpec {
        backend: "emulated".to_owned(),
        ..parts.spec()
    };
    let mut engine = Engine::new(config, spec, executor).unwrap();
    engine.set_tap(Some(Box::new(tap.clone())));
    Some(engine)
}

fn request(id: u64, prompt: Vec<TokenId>) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        prompt,
        sampling: SamplingParams {
            temperature: if id.is_multiple_of(2) { 0.0 } else { 0.8 },
            seed: Some(id),
            max_tokens: 10,
            ignore_eos: true,
            ..SamplingParams::default()
        },
        cache_salt: None,
        adapter: None,
        priority: 0,
        fork_of: None,
        arrival: Nanos::ZERO,
    }
}

/// Greedy and seeded requests with a common beginning of two blocks and a bit.
fn requests() -> Vec<EngineRequest> {
    let one = |i: u64| {
        let mut tokens = prompt(10, 19);
        tokens.extend(prompt(20 + i, 6 + 5 * i as usize));
        request(i, tokens)
    };
    (0..4).map(one).collect()
}

/// Tokens of every request, and tokens that came from the prefix cache.
fn run(
    engine: &mut Engine,
    requests: &[EngineRequest],
) -> (BTreeMap<RequestId, Vec<TokenId>>, usize) {
    let (mut tokens, mut cached) = (BTreeMap::<_, Vec<_>>::new(), 0);
    for request in requests {
        engine.add(request.clone()).unwrap();
    }
    for step in 0.. {
        assert!(step < 2_000, "not idle after {step} steps");
        if !engine.has_work() {
            break;
        }
        let output = engine.step(&VirtualClock::new()).unwrap();
        engine.check().unwrap();
        for event in output.events {
            match event {
                EngineEvent::Token { id, token, .. } => tokens.entry(id).or_default().push(token),
                EngineEvent::Admitted { cached_tokens, .. } => cached += cached_tokens,
                _ => {}
            }
        }
    }
    (tokens, cached)
}

#[test]
fn chunked_cached_recomputed_and_swapped_runs_give_the_bits_of_a_request_alone() {
    let weights = weights();
    let alone = Tap::default();
    let mut want = BTreeMap::new();
    for request in requests() {
        let mut config = config(40, 96);
        config.prefix_cache = PrefixCacheKind::None;
        let Some(mut engine) = engine(&weights, config, &alone) else {
            return;
        };
        want.extend(run(&mut engine, &[request]).0);
    }
    let want_bits = alone.0.lock().unwrap().clone();
    let agree = |tap: &Tap, what: &str| {
        let got = tap.0.lock().unwrap();
        assert!(!got.is_empty());
        for (key, bits) in got.iter() {
            assert!(want_bits.get(key) == Some(bits), "{what}: {key:?}");
        }
    };
    // Short of blocks: four requests of up to 50 tokens want 28 of them.
    for preemption in [Preemption::Recompute, Preemption::Swap] {
        for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
            let tap = Tap::default();
            let mut config = config(13, 16);
            config.prefix_cache = cache;
            config.scheduling.preemption = preemption;
            config.scheduling.swap_blocks = 9;
            let mut engine = engine(&weights, config, &tap).unwrap();
            let (tokens, _) = run(&mut engine, &requests());
            let what = format!("{preemption:?} {cache:?}");
            assert_eq!(tokens, want, "{what}");
            let counters = engine.counters();
            assert!(counters.preemptions > 0, "{what}");
            assert_eq!(
                counters.swapped_out_blocks > 0,
                preemption == Preemption::Swap,
                "{what}"
            );
            agree(&tap, &what);
        }
    }
    // Room for all, the second time from the cache.
    let tap = Tap::default();
    let mut engine = engine(&weights, config(40, 17), &tap).unwrap();
    run(&mut engine, &requests());
    let again: Vec<EngineRequest> = requests();
    let (tokens, cached) = run(&mut engine, &again);
    assert_eq!(tokens, want);
    assert!(cached >= 4 * 16, "{cached} tokens from the cache");
    agree(&tap, "cached");
}
