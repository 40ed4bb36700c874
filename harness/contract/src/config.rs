//! What an engine is asked to be. Part of the manifest of every run.

use serde::{Deserialize, Serialize};

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
    /// 2 bytes an element.
    Bf16,
}

impl KvDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            KvDtype::F64 => 8,
            KvDtype::F32 => 4,
            KvDtype::Bf16 => 2,
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
}

/// A fault planted on purpose, so that a check can prove that it would notice.
///
/// Off by default; an engine refuses to start with one unless it is told that it runs under test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// Rotary positions are one too high from the second chunk of a prompt on.
    RopePlusOneAfterFirstChunk,
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
