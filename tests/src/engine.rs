//! Running the engine core in a test.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use pb_contract::{
    CacheOptions, EngineConfig, EngineEvent, EngineRequest, Fault, KvDtype, Nanos, Numerics,
    PrefixCacheKind, RequestId, SamplingParams, Scheduling, TierOptions, TokenId, WallClock,
};
use pb_core::{Engine, LogitTap};
use pb_model::forward::LogitRow;

/// A configuration for tests: one thread, 16-token blocks, monolithic, no cache.
pub fn config(numerics: Numerics, num_blocks: usize, max_model_len: usize) -> EngineConfig {
    EngineConfig {
        numerics,
        kv_dtype: if numerics == Numerics::F64 {
            KvDtype::F64
        } else {
            KvDtype::F32
        },
        threads: 1,
        chunked: false,
        max_batched_tokens: max_model_len,
        max_num_seqs: 64,
        prefix_cache: PrefixCacheKind::None,
        block_size: 16,
        num_blocks,
        max_model_len,
        seed: 0,
        scheduling: Scheduling::default(),
        cache: CacheOptions::default(),
        tiers: TierOptions::default(),
        fault: Fault::None,
    }
}

/// A greedy request.
pub fn greedy(id: u64, prompt: &[TokenId], max_tokens: u32) -> EngineRequest {
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

/// Logits by request and position, as the bit patterns of f32 or the values of f64.
pub type Rows = BTreeMap<(RequestId, usize), Vec<f64>>;

/// Keeps every row that it sees.
#[derive(Clone, Default)]
pub struct Tap {
    rows: Arc<Mutex<Rows>>,
}

impl Tap {
    /// Takes what was seen so far.
    pub fn take(&self) -> Rows {
        std::mem::take(&mut *self.rows.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl LogitTap for Tap {
    fn row(&mut self, id: RequestId, position: usize, logits: LogitRow<'_>) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.insert((id, position), logits.to_f64());
    }
}

/// What a run produced.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Generated tokens by request.
    pub tokens: BTreeMap<RequestId, Vec<TokenId>>,
    /// Prompt tokens taken from the cache by request.
    pub cached: BTreeMap<RequestId, usize>,
    /// Steps taken.
    pub steps: usize,
}

/// Steps the engine until it is idle, checking its conservation laws after every step.
///
/// # Errors
/// A failed step, a broken law, or no end within `max_steps`.
pub fn drain(engine: &mut Engine, max_steps: usize) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    while engine.has_work() {
        if outcome.steps >= max_steps {
            return Err(anyhow!("not idle after {max_steps} steps"));
        }
        let step = engine.step(&WallClock)?;
        engine
            .check()
            .map_err(|e| anyhow!("after step {}: {e}", outcome.steps))?;
        outcome.steps += 1;
        for event in step.events {
            match event {
                EngineEvent::Token { id, token, .. } => {
                    outcome.tokens.entry(id).or_default().push(token);
                }
                EngineEvent::Admitted { id, cached_tokens } => {
                    outcome.cached.insert(id, cached_tokens);
                }
                EngineEvent::PromptLogprobs { .. } | EngineEvent::Finished { .. } => {}
            }
        }
    }
    Ok(outcome)
}
