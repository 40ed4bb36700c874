//! What an engine is asked to be. Part of the manifest of every run.

mod cache;
mod fault;
mod preset;
mod scheduling;

use serde::{Deserialize, Serialize};

pub use cache::{CacheOptions, Eviction, FreePlacement, HashAlgorithm, TierOptions};
pub use fault::{Fault, FaultClass};
pub use preset::Preset;
pub use scheduling::{
    AdaptiveLoadOptions, PolicyKind, Preemption, QueueOrder, ReservedDecodeOptions, RunningOrder,
    Scheduling, ShrinkingOptions, TimeBudgetOptions,
};

/// The arithmetic of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Numerics {
    /// Reference arithmetic: f64 throughout on f32 weights.
    F64,
    /// f32, batch-invariant: every output row is reduced in one fixed order, so the bits do not
    /// depend on chunking, batch, block order, block size or thread count.
    Exact,
    /// The fastest kernels: bf16 weights, f32 accumulation, order depends on the shape.
    Fast,
}

/// The element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvDtype {
    /// 8 bytes an element; only with [`Numerics::F64`].
    F64,
    /// 4 bytes an element.
    F32,
    /// 2 bytes an element: 8 bits of mantissa precision, the range of f32.
    Bf16,
    /// 2 bytes an element: 11 bits of mantissa precision.
    F16,
    /// 1 byte an element (OCP E4M3, largest value 448), one f32 scale a layer and KV side.
    Fp8E4m3,
    /// 1 byte an element (OCP E5M2, largest finite value 57,344), scales as for E4M3.
    Fp8E5m2,
    /// 1 byte an element, symmetric, one f32 scale for each token and KV head.
    Int8,
}

impl KvDtype {
    /// Bytes of one element, scales aside.
    pub const fn bytes(self) -> usize {
        match self {
            KvDtype::F64 => 8,
            KvDtype::F32 => 4,
            KvDtype::Bf16 | KvDtype::F16 => 2,
            KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2 | KvDtype::Int8 => 1,
        }
    }
}

/// Which prefix cache the engine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefixCacheKind {
    /// Nothing is ever reused.
    None,
    /// Full blocks found by a chain of block hashes, as vLLM V1 does.
    HashChain,
    /// Pages found in a tree of token runs, as SGLang's RadixAttention does.
    Radix,
    /// Brute force over everything ever kept: slow, obviously right, for judging the others.
    Oracle,
}

/// The complete configuration of one engine instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Arithmetic of the forward pass.
    pub numerics: Numerics,
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Compute threads.
    pub threads: usize,
    /// Whether a prompt may be cut into chunks.
    pub chunked: bool,
    /// Token budget of a step: decodes first, then prompt tokens.
    pub max_batched_tokens: usize,
    /// Sequences that may run at once.
    pub max_num_seqs: usize,
    /// Prefix cache.
    pub prefix_cache: PrefixCacheKind,
    /// Tokens in a KV block.
    pub block_size: usize,
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Longest prompt plus output, in tokens.
    pub max_model_len: usize,
    /// Seed for sampling where a request names none.
    pub seed: u64,
    /// What runs next, beyond the limits above.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// Details of the prefix cache.
    #[serde(default)]
    pub cache: CacheOptions,
    /// Where evicted blocks go.
    #[serde(default)]
    pub tiers: TierOptions,
    /// Planted fault.
    #[serde(default)]
    pub fault: Fault,
}

impl EngineConfig {
    /// Checks the values against each other.
    ///
    /// # Errors
    /// A sentence that names the key, its value and the fix.
    pub fn validate(&self) -> Result<(), String> {
        let positive = [
            ("threads", self.threads),
            ("max_batched_tokens", self.max_batched_tokens),
            ("max_num_seqs", self.max_num_seqs),
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("max_model_len", self.max_model_len),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(format!("{key} = 0: must be at least 1"));
            }
        }
        if !self.chunked && self.max_batched_tokens < self.max_model_len {
            return Err(format!(
                "max_batched_tokens = {} is below max_model_len = {} with chunking off: a longer \
                 prompt could never be scheduled; raise max_batched_tokens or turn chunking on",
                self.max_batched_tokens, self.max_model_len
            ));
        }
        if (self.kv_dtype == KvDtype::F64) != (self.numerics == Numerics::F64) {
            return Err(format!(
                "kv_dtype = {:?} does not go with numerics = {:?}: f64 goes with f64 only",
                self.kv_dtype, self.numerics
            ));
        }
        Ok(())
    }
}
