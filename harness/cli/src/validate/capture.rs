//! Logits of every prompt position, taken from a running engine core.
//!
//! The engine is used in this process and not over HTTP because no wire format carries a whole
//! row of the vocabulary for every position. It is the same core, scheduler, block manager and
//! forward pass that the server runs.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use pb_contract::{
    CacheOptions, EngineConfig, EngineRequest, Fault, KvDtype, Nanos, Numerics, PrefixCacheKind,
    RequestId, SamplingParams, Scheduling, TierOptions, TokenId, WallClock,
};
use pb_core::{Engine, EngineParts, Executor, LogitTap, build_executor};
use pb_model::forward::LogitRow;

/// Tokens in a KV block.
pub(crate) const BLOCK_SIZE: usize = 16;

/// How a prompt is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// In one step.
    Monolithic,
    /// In chunks of at most this many tokens.
    Chunk(usize),
    /// In one step, after the same prompt has filled the prefix cache.
    Cached,
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Variant::Monolithic => write!(f, "monolithic"),
            Variant::Chunk(tokens) => write!(f, "chunk {tokens}"),
            Variant::Cached => write!(f, "cached"),
        }
    }
}

/// Logits of one prompt by position; `None` where the engine did not compute the position.
pub(crate) struct Captured<T> {
    /// One row a position, `[vocab]`.
    pub(crate) rows: Vec<Option<Vec<T>>>,
}

/// A float type that logits are kept in.
pub(crate) trait Kept: Copy + Send + 'static {
    /// Copies a row.
    fn copy(row: LogitRow<'_>) -> Vec<Self>;
}

impl Kept for f32 {
    fn copy(row: LogitRow<'_>) -> Vec<f32> {
        match row {
            LogitRow::F32(x) => x.to_vec(),
            LogitRow::F64(x) => x.iter().map(|&v| v as f32).collect(),
        }
    }
}

impl Kept for f64 {
    fn copy(row: LogitRow<'_>) -> Vec<f64> {
        row.to_f64()
    }
}

/// Keeps the rows of one request.
struct Tap<T> {
    request: RequestId,
    rows: Arc<Mutex<Vec<Option<Vec<T>>>>>,
}

impl<T: Kept> LogitTap for Tap<T> {
    fn row(&mut self, id: RequestId, position: usize, logits: LogitRow<'_>) {
        if id != self.request {
            return;
        }
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = rows.get_mut(position) {
            *slot = Some(T::copy(logits));
        }
    }
}

/// Weights packed once, run under many configurations.
pub(crate) struct Subject {
    parts: EngineParts,
    numerics: Numerics,
    threads: usize,
    executor: Option<Box<dyn Executor>>,
}

impl Subject {
    /// Packs the weights for one arithmetic.
    pub(crate) fn new(parts: EngineParts, numerics: Numerics, threads: usize) -> Result<Self> {
        let mut subject = Subject {
            parts,
            numerics,
            threads,
            executor: None,
        };
        let config = subject.config(BLOCK_SIZE, Variant::Monolithic, Fault::None);
        subject.executor = Some(build_executor(&subject.parts, &config)?);
        Ok(subject)
    }

    fn config(&self, prompt_len: usize, variant: Variant, fault: Fault) -> EngineConfig {
        let max_model_len = prompt_len + 2;
        EngineConfig {
            numerics: self.numerics,
            kv_dtype: match self.numerics {
                Numerics::F64 => KvDtype::F64,
                Numerics::Exact | Numerics::Fast => KvDtype::F32,
            },
            threads: self.threads,
            chunked: matches!(variant, Variant::Chunk(_)),
            max_batched_tokens: match variant {
                Variant::Chunk(tokens) => tokens,
                Variant::Monolithic | Variant::Cached => max_model_len,
            },
            max_num_seqs: 1,
            prefix_cache: match variant {
                Variant::Cached => PrefixCacheKind::HashChain,
                Variant::Monolithic | Variant::Chunk(_) => PrefixCacheKind::None,
            },
            block_size: BLOCK_SIZE,
            num_blocks: 2 * max_model_len.div_ceil(BLOCK_SIZE),
            max_model_len,
            seed: 0,
            scheduling: Scheduling::default(),
            cache: CacheOptions::default(),
            tiers: TierOptions::default(),
            fault,
        }
    }

    /// Computes one prompt and keeps the logits of its positions.
    pub(crate) fn logits<T: Kept>(
        &mut self,
        prompt: &[TokenId],
        variant: Variant,
        fault: Fault,
    ) -> Result<Captured<T>> {
        // OK because the executor is always put back below; an error ends the validation.
        let executor = self
            .executor
            .take()
            .expect("the executor was lost to an earlier error");
        let config = self.config(prompt.len(), variant, fault);
        let mut engine =
            Engine::new_under_test(config, self.parts.spec(), executor).map_err(|e| anyhow!(e))?;
        let runs = if variant == Variant::Cached { 2 } else { 1 };
        let rows = Arc::new(Mutex::new(Vec::new()));
        for run in 0..runs {
            let id = RequestId(run);
            *rows.lock().unwrap_or_else(PoisonError::into_inner) =
                (0..prompt.len()).map(|_| None).collect();
            engine.set_tap(Some(Box::new(Tap::<T> {
                request: id,
                rows: Arc::clone(&rows),
            })));
            engine.add(request(id, prompt))?;
            while engine.has_work() {
                engine.step(&WallClock)?;
            }
        }
        engine.set_tap(None);
        self.executor = Some(engine.into_executor());
        let rows = std::mem::take(&mut *rows.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Captured { rows })
    }
}

/// A request for one greedy token after `prompt`.
fn request(id: RequestId, prompt: &[TokenId]) -> EngineRequest {
    EngineRequest {
        id,
        prompt: prompt.to_vec(),
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: 1,
            ..Default::default()
        },
        cache_salt: None,
        adapter: None,
        priority: 0,
        fork_of: None,
        arrival: Nanos::ZERO,
    }
}
