//! Engines over the toy model, and what its tokens must be.

use std::collections::BTreeMap;

use pb_contract::{
    BlockId, CacheOptions, Clock, EngineConfig, EngineEvent, EngineRequest, Fault, FinishReason,
    KvDtype, Nanos, Numerics, PrefixCacheKind, RequestId, SamplingParams, Scheduling, Stream,
    TierOptions, TokenId, TokenLogprobs, VirtualClock,
};
use pb_core::sample::sample;
use pb_core::{AdapterInfo, Chunk, Engine, EngineSpec, Executor, StepOutput, ToyExecutor};
use pb_model::forward::{LogitRow, LogitRows, LogitSink};

/// Tokens that the toy knows.
pub(crate) const VOCAB: usize = 61;

/// Longest context of the test engines.
pub(crate) const MAX_LEN: usize = 256;

/// Small blocks, chunks of at most 16 tokens, a hash-chain cache.
pub(crate) fn config(block_size: usize, num_blocks: usize) -> EngineConfig {
    EngineConfig {
        numerics: Numerics::Exact,
        kv_dtype: KvDtype::F32,
        threads: 1,
        chunked: true,
        max_batched_tokens: 16,
        max_num_seqs: 8,
        prefix_cache: PrefixCacheKind::HashChain,
        block_size,
        num_blocks,
        max_model_len: MAX_LEN,
        seed: 3,
        scheduling: Scheduling::default(),
        cache: CacheOptions::default(),
        tiers: TierOptions::default(),
        fault: Fault::None,
    }
}

/// A specification with two adapters, `a` and `b`.
pub(crate) fn spec() -> EngineSpec {
    let adapter = |name: &str, byte| AdapterInfo {
        name: name.to_owned(),
        digest: [byte; 32],
    };
    EngineSpec {
        adapters: vec![adapter("a", 1), adapter("b", 2)],
        ..EngineSpec::simulated(VOCAB, MAX_LEN)
    }
}

/// The toy of these tests.
pub(crate) fn layered() -> ToyExecutor {
    ToyExecutor::layered(VOCAB, crate::LAYERS)
}

/// A toy engine; planted faults are allowed.
pub(crate) fn toy(config: EngineConfig) -> Engine {
    Engine::new_under_test(config, spec(), Box::new(layered())).unwrap()
}

/// A greedy request that stops by length only.
pub(crate) fn greedy(id: u64, prompt: &[TokenId], max_tokens: u32) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        prompt: prompt.to_vec(),
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens,
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

/// A request that draws its tokens, with a seed of its own.
pub(crate) fn seeded(id: u64, prompt: &[TokenId], max_tokens: u32, seed: u64) -> EngineRequest {
    let mut request = greedy(id, prompt, max_tokens);
    request.sampling.temperature = 0.8;
    request.sampling.seed = Some(seed);
    request
}

/// `n` tokens drawn from a stream of their own.
pub(crate) fn prompt(label: &str, n: usize) -> Vec<TokenId> {
    let mut stream = Stream::new(17, label);
    (0..n)
        .map(|_| stream.below(VOCAB as u64) as TokenId)
        .collect()
}

/// The tokens that `request` must give, found without an engine: the toy runs alone, one token at
/// a time, in blocks of its own.
pub(crate) fn expected(request: &EngineRequest) -> Vec<TokenId> {
    let p = &request.sampling;
    let mut toy = layered();
    toy.resize_kv(1, MAX_LEN);
    let table: Vec<BlockId> = (0..MAX_LEN as u32).map(BlockId).collect();
    let seed = p.seed.unwrap_or(0);
    let mut stream = Stream::new(seed, "sampling");
    let adapter = request.adapter.as_deref().map(|name| match name {
        "a" => 0,
        _ => 1,
    });
    let mut tokens = request.prompt.clone();
    for position in 0.. {
        let chunk = Chunk {
            id: request.id,
            tokens: &tokens[position..=position],
            start: position,
            block_table: &table,
            rows: LogitRows::Last,
            is_prefill: true,
            is_last: position + 1 == tokens.len(),
            adapter,
        };
        let mut row = LastRow(Vec::new());
        toy.execute(&[chunk], &VirtualClock::new(), &mut row)
            .unwrap();
        if position + 1 < tokens.len() {
            continue;
        }
        tokens.push(sample(&row.0, p, &[], &mut stream));
        let generated = tokens.len() - request.prompt.len();
        if generated == p.max_tokens as usize || tokens.len() == MAX_LEN {
            break;
        }
    }
    tokens.split_off(request.prompt.len())
}

struct LastRow(Vec<f64>);

impl LogitSink for LastRow {
    fn row(&mut self, _seq: usize, _position: usize, logits: LogitRow<'_>) {
        self.0 = logits.to_f64();
    }

    fn token(&mut self, _seq: usize, _token: TokenId) {}
}

/// What an engine told of its requests.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) tokens: BTreeMap<RequestId, Vec<TokenId>>,
    pub(crate) cached: BTreeMap<RequestId, usize>,
    pub(crate) finished: BTreeMap<RequestId, FinishReason>,
    pub(crate) prompt_logprobs: BTreeMap<RequestId, Vec<TokenLogprobs>>,
    pub(crate) steps: Vec<StepOutput>,
}

impl Outcome {
    /// Takes a step's events in.
    pub(crate) fn take(&mut self, step: StepOutput) {
        for event in &step.events {
            match event.clone() {
                EngineEvent::Token { id, token, .. } => {
                    self.tokens.entry(id).or_default().push(token);
                }
                EngineEvent::Admitted { id, cached_tokens } => {
                    let before = self.cached.insert(id, cached_tokens);
                    assert_eq!(before, None, "request {id} was admitted twice");
                }
                EngineEvent::Finished { id, reason, .. } => {
                    self.finished.insert(id, reason);
                }
                EngineEvent::PromptLogprobs { id, first, entries } => {
                    let all = self.prompt_logprobs.entry(id).or_default();
                    assert_eq!(first, all.len() + 1, "request {id} left positions out");
                    all.extend(entries);
                }
            }
        }
        self.steps.push(step);
    }
}

/// Steps once under a clock that stands still, and checks every law.
pub(crate) fn step(engine: &mut Engine, outcome: &mut Outcome) {
    step_with(engine, outcome, &VirtualClock::new());
}

/// As [`step`] with a given clock.
pub(crate) fn step_with(engine: &mut Engine, outcome: &mut Outcome, clock: &dyn Clock) {
    let output = engine.step(clock).unwrap();
    outcome.take(output);
    if let Err(law) = engine.check() {
        panic!("after step {}: {law}", outcome.steps.len());
    }
}

/// Steps until nothing is left, at most `limit` times.
pub(crate) fn drain(engine: &mut Engine, outcome: &mut Outcome, limit: usize) {
    let mut left = limit;
    while engine.has_work() {
        assert!(left > 0, "not idle after {limit} steps");
        left -= 1;
        step(engine, outcome);
    }
}

/// Adds all requests at once and runs them to their end.
pub(crate) fn run(engine: &mut Engine, requests: &[EngineRequest]) -> Outcome {
    for request in requests {
        engine.add(request.clone()).unwrap();
    }
    let mut outcome = Outcome::default();
    drain(engine, &mut outcome, 5_000);
    outcome
}

/// Asserts that every request gave what the toy gives alone.
pub(crate) fn assert_expected(outcome: &Outcome, requests: &[EngineRequest]) {
    for request in requests {
        let got = outcome.tokens.get(&request.id);
        assert_eq!(
            got,
            Some(&expected(request)),
            "tokens of request {}",
            request.id
        );
    }
}

/// Asserts that no block is referenced and no request known.
pub(crate) fn assert_idle(engine: &Engine) {
    let counters = engine.counters();
    assert_eq!((counters.running, counters.waiting), (0, 0));
    assert_eq!(counters.swapped_blocks, 0);
    assert_eq!(engine.buckets().active, 0, "blocks are still referenced");
    assert_eq!(engine.buckets().total(), engine.kv().usable_blocks());
    engine.check().unwrap();
}
