//! Speed of the fast mode alone, for a comparison side by side with another program.
//!
//! `speed MODEL THREADS REPETITIONS` prints one JSON line: tokens per second of a 512-token
//! prefill (last position's logits only) and of a 64-token decode from one prompt token, for
//! every repetition.

use std::sync::Arc;

use pb_contract::{
    CacheOptions, Clock, EngineConfig, EngineRequest, Fault, KvDtype, Nanos, Numerics,
    PrefixCacheKind, RequestId, SamplingParams, Scheduling, Stream, TierOptions, WallClock,
};
use pb_core::{Engine, EngineParts};

const PREFILL_TOKENS: usize = 512;
const DECODE_TOKENS: usize = 64;

fn config(threads: usize) -> EngineConfig {
    EngineConfig {
        numerics: Numerics::Fast,
        kv_dtype: KvDtype::Bf16,
        threads,
        chunked: false,
        max_batched_tokens: 1024,
        max_num_seqs: 1,
        prefix_cache: PrefixCacheKind::None,
        block_size: 16,
        num_blocks: 64,
        max_model_len: 1024,
        seed: 0,
        scheduling: Scheduling::default(),
        cache: CacheOptions::default(),
        tiers: TierOptions::default(),
        fault: Fault::None,
    }
}

/// Seconds from adding a request of `prompt` tokens to the end of its `output`-th token, and the
/// seconds of its first step.
fn run(engine: &mut Engine, id: u64, prompt: Vec<u32>, output: usize) -> (f64, f64) {
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens: output as u32,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let request = EngineRequest {
        id: RequestId(id),
        prompt,
        sampling,
        cache_salt: None,
        adapter: None,
        priority: 0,
        fork_of: None,
        arrival: Nanos::ZERO,
    };
    engine.add(request).expect("an admissible request");
    let start = WallClock.now();
    let mut first = None;
    while engine.has_work() {
        engine.step(&WallClock).expect("a step");
        first.get_or_insert_with(|| (WallClock.now() - start).as_secs_f64());
    }
    (
        (WallClock.now() - start).as_secs_f64(),
        first.unwrap_or(0.0),
    )
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, model, threads, repetitions] = args.as_slice() else {
        eprintln!("usage: speed MODEL THREADS REPETITIONS");
        std::process::exit(2);
    };
    let model = pb_model::load(std::path::Path::new(model)).expect("a readable model");
    let vocab = model.config.vocab as u64;
    let parts = EngineParts::new(Arc::new(model.weights), [0; 32]);
    let threads = threads.parse().expect("a number of threads");
    let repetitions: u64 = repetitions.parse().expect("a number of repetitions");
    let mut engine = parts.build(config(threads)).expect("a valid configuration");
    let mut stream = Stream::new(1, "prompt");
    let mut prompt = |n: usize| {
        (0..n)
            .map(|_| stream.below(vocab) as u32)
            .collect::<Vec<_>>()
    };
    let (warm_prompt, warm_token) = (prompt(PREFILL_TOKENS), prompt(1));
    run(&mut engine, 0, warm_prompt, 1);
    run(&mut engine, 1, warm_token, 8);
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for r in 0..repetitions {
        let tokens = prompt(PREFILL_TOKENS);
        prefill.push(PREFILL_TOKENS as f64 / run(&mut engine, 2 + 2 * r, tokens, 1).0);
        let token = prompt(1);
        let (total, first) = run(&mut engine, 3 + 2 * r, token, DECODE_TOKENS + 1);
        decode.push(DECODE_TOKENS as f64 / (total - first));
    }
    println!("{{\"pp512_tps\": {prefill:?}, \"tg64_tps\": {decode:?}}}");
}
