//! How fast the engine core simulates a trace.
//!
//! `sim_speed TRACE.jsonl [BLOCKS]` replays a trace in Mooncake's format at its own arrivals, in
//! virtual time, through a pool of `BLOCKS` blocks of 16 tokens (default: 131,072, which is 2
//! million tokens), and prints one JSON line.

use std::path::Path;
use std::sync::Arc;

use pb_contract::{
    CacheOptions, Clock, EngineConfig, EngineRequest, Fault, KvDtype, Nanos, Numerics,
    PrefixCacheKind, RequestId, SamplingParams, Scheduling, TierOptions, VirtualClock, WallClock,
};
use pb_core::{CostModel, Engine, EngineSpec, SimExecutor};
use pb_workloads::trace::{PromptTokens, TraceFormat, TraceReader, TraceRow};

const VOCAB: u32 = 128_000;
const MAX_LEN: usize = 1 << 18;

fn config(num_blocks: usize) -> EngineConfig {
    EngineConfig {
        numerics: Numerics::Fast,
        kv_dtype: KvDtype::Bf16,
        threads: 1,
        chunked: true,
        max_batched_tokens: 8192,
        max_num_seqs: 256,
        prefix_cache: PrefixCacheKind::HashChain,
        block_size: 16,
        num_blocks,
        max_model_len: MAX_LEN,
        seed: 0,
        scheduling: Scheduling::default(),
        cache: CacheOptions::default(),
        tiers: TierOptions::default(),
        fault: Fault::None,
    }
}

fn request(id: u64, row: &TraceRow, prompts: &PromptTokens) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        prompt: prompts.realise(row),
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: row.output_tokens.max(1) as u32,
            ignore_eos: true,
            ..SamplingParams::default()
        },
        cache_salt: None,
        adapter: None,
        priority: 0,
        fork_of: None,
        arrival: row.arrival_ns,
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let Some(path) = args.get(1) else {
        eprintln!("usage: sim_speed TRACE.jsonl [BLOCKS]");
        std::process::exit(2);
    };
    let num_blocks = args.get(2).map_or(131_072, |n| n.parse().expect("blocks"));
    let reader = TraceReader::open(Path::new(path), TraceFormat::Mooncake).expect("a trace");
    let rows: Vec<TraceRow> = reader.collect::<Result<_, _>>().expect("a readable trace");
    let prompts = PromptTokens::new(0..VOCAB, 1).expect("a vocabulary");
    let clock = Arc::new(VirtualClock::new());
    let cost = CostModel::builtin("llama31-8b-rtxpro6000").expect("a cost model");
    let executor = SimExecutor::new(cost, Arc::clone(&clock), VOCAB as usize);
    let spec = EngineSpec::simulated(VOCAB as usize, MAX_LEN);
    let mut engine =
        Engine::new(config(num_blocks), spec, Box::new(executor)).expect("a valid configuration");
    let start = WallClock.now();
    let (mut steps, mut refused) = (0_u64, 0_u64);
    let mut arriving = rows.iter().enumerate().peekable();
    while engine.has_work() || arriving.peek().is_some() {
        if let Some((_, row)) = arriving.peek().filter(|_| !engine.has_work()) {
            clock.advance_to(row.arrival_ns.max(clock.now()));
        }
        while let Some((id, row)) = arriving.next_if(|(_, r)| r.arrival_ns <= clock.now()) {
            let added = engine.add(request(id as u64, row, &prompts));
            refused += u64::from(added.is_err());
        }
        engine.step(&*clock).expect("a step");
        steps += 1;
    }
    let wall: Nanos = WallClock.now() - start;
    let c = engine.counters();
    println!(
        "{{\"requests\": {}, \"refused\": {refused}, \"steps\": {steps}, \"wall_s\": {:.2}, \
         \"virtual_s\": {:.0}, \"prompt_tokens\": {}, \"output_tokens\": {}, \"hit_tokens\": {}, \
         \"preemptions\": {}}}",
        rows.len(),
        wall.as_secs_f64(),
        clock.now().as_secs_f64(),
        c.prompt_tokens,
        c.generation_tokens,
        c.hit_tokens,
        c.preemptions
    );
}
