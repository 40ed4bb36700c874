//! Engines over the toy model, and what its tokens must be.

use pb_contract::{
    BlockId, EngineConfig, EngineRequest, Fault, Numerics, PrefixCacheKind, Stream, TokenId,
    VirtualClock,
};
use pb_core::sample::sample;
use pb_core::{AdapterInfo, Chunk, Engine, EngineSpec, Executor, ToyExecutor};
use pb_model::forward::{LogitRow, LogitRows, LogitSink};

pub use crate::engine::greedy;

/// Tokens that the toy knows.
pub const VOCAB: usize = 61;

/// Longest context.
pub const MAX_LEN: usize = 256;

/// Names of the adapters, in their order.
pub const ADAPTERS: [&str; 2] = ["a", "b"];

/// Chunks of at most 16 tokens over a hash-chain cache.
pub fn config(block_size: usize, num_blocks: usize, fault: Fault) -> EngineConfig {
    EngineConfig {
        chunked: true,
        max_batched_tokens: 16,
        max_num_seqs: 8,
        prefix_cache: PrefixCacheKind::HashChain,
        block_size,
        fault,
        ..crate::engine::config(Numerics::Exact, num_blocks, MAX_LEN)
    }
}

/// An engine over the toy; planted faults are allowed.
///
/// # Errors
/// The setting at fault.
pub fn engine(config: EngineConfig) -> Result<Engine, String> {
    let adapter = |(i, name): (usize, &&str)| AdapterInfo {
        name: (*name).to_owned(),
        digest: [i as u8 + 1; 32],
    };
    let spec = EngineSpec {
        adapters: ADAPTERS.iter().enumerate().map(adapter).collect(),
        ..EngineSpec::simulated(VOCAB, MAX_LEN)
    };
    Engine::new_under_test(config, spec, Box::new(ToyExecutor::new(VOCAB)))
}

/// A request that draws its tokens, with a seed of its own.
pub fn seeded(id: u64, prompt: &[TokenId], max_tokens: u32, seed: u64) -> EngineRequest {
    let mut request = greedy(id, prompt, max_tokens);
    request.sampling.temperature = 0.8;
    request.sampling.seed = Some(seed);
    request
}

/// `n` tokens drawn from a stream of their own.
pub fn prompt(label: &str, n: usize) -> Vec<TokenId> {
    let mut stream = Stream::new(17, label);
    let token = |_| stream.below(VOCAB as u64) as TokenId;
    (0..n).map(token).collect()
}

/// The tokens that `request` must give, found without an engine: the toy runs alone, one token at
/// a time, in blocks of its own.
///
/// # Errors
/// The toy's message.
pub fn alone(request: &EngineRequest) -> Result<Vec<TokenId>, String> {
    let params = &request.sampling;
    let mut toy = ToyExecutor::new(VOCAB);
    toy.resize_kv(1, MAX_LEN);
    let table: Vec<BlockId> = (0..MAX_LEN as u32).map(BlockId).collect();
    let mut stream = Stream::new(params.seed.unwrap_or(0), "sampling");
    let name = request.adapter.as_deref();
    let adapter = name.and_then(|name| ADAPTERS.iter().position(|a| *a == name));
    let mut tokens = request.prompt.clone();
    let end = (tokens.len() + params.max_tokens as usize).min(MAX_LEN);
    for position in 0..end - 1 {
        let is_last = position + 1 == tokens.len();
        let chunk = Chunk {
            id: request.id,
            tokens: &tokens[position..=position],
            start: position,
            block_table: &table,
            rows: if is_last {
                LogitRows::Last
            } else {
                LogitRows::None
            },
            is_prefill: true,
            is_last,
            adapter,
        };
        let mut row = LastRow(Vec::new());
        toy.execute(&[chunk], &VirtualClock::new(), &mut row)?;
        if is_last {
            tokens.push(sample(&row.0, params, &[], &mut stream));
        }
    }
    Ok(tokens.split_off(request.prompt.len()))
}

struct LastRow(Vec<f64>);

impl LogitSink for LastRow {
    fn row(&mut self, _seq: usize, _position: usize, logits: LogitRow<'_>) {
        self.0 = logits.to_f64();
    }

    fn token(&mut self, _seq: usize, _token: TokenId) {}
}
