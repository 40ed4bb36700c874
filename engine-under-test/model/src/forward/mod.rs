//! The forward pass: a mixed batch of prompt chunks and decode tokens over a paged KV cache.
//!
//! One call computes any number of sequences, each a run of consecutive tokens at an absolute
//! start position. Whether such a run is a whole prompt, one chunk of it or a single decode
//! token makes no difference here; that is what makes chunked prefill possible at all. Keys and
//! values go to the blocks that the caller's block tables name, in any physical order.
//!
//! Two implementations exist on purpose. [`packed`] computes in f32 with the kernels of
//! `pb_kernels_cpu` (modes `exact` and `fast`). [`reference`] computes in f64 with plain loops
//! and shares neither mask nor position code with the first, so that it can judge it.

mod packed;
mod reference;
mod rope;

use std::sync::Arc;

use pb_contract::{BlockId, Clock, KvDtype, Nanos, Numerics, TokenId};
use pb_kernels_cpu::{Dot, Isa, PackedBf16, PackedF32, Pool};

use crate::weights::Weights;

/// Which positions of a run need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    /// None: a chunk that is not the prompt's last.
    None,
    /// The last position: the next token will be chosen from it.
    Last,
    /// Every position: prompt log-probabilities, numerical validation.
    All,
}

/// One sequence's part of a batch.
#[derive(Clone, Copy, Debug)]
pub struct SeqInput<'a> {
    /// Tokens to compute, at least one.
    pub tokens: &'a [TokenId],
    /// Absolute position of the first of them; everything before it is in the KV cache.
    pub start: usize,
    /// Blocks of the sequence; covers positions `0..start + tokens.len()`.
    pub block_table: &'a [BlockId],
    /// Positions that need logits.
    pub rows: LogitRows,
    /// Whether these are prompt tokens (for the split of attention time only).
    pub is_prefill: bool,
    /// Added to every rotary position; 0 except for a planted fault.
    pub rope_offset: usize,
}

/// Logits of one position, `[vocab]`, in the precision of the mode.
#[derive(Clone, Copy, Debug)]
pub enum LogitRow<'a> {
    /// From `exact` and `fast`.
    F32(&'a [f32]),
    /// From `f64`.
    F64(&'a [f64]),
}

impl LogitRow<'_> {
    /// Number of logits.
    pub fn len(&self) -> usize {
        match self {
            LogitRow::F32(x) => x.len(),
            LogitRow::F64(x) => x.len(),
        }
    }

    /// Whether there is no logit (never true for a loaded model).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As f64, exactly.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            LogitRow::F32(x) => x.iter().map(|&v| f64::from(v)).collect(),
            LogitRow::F64(x) => x.to_vec(),
        }
    }
}

/// Where logits go, one position at a time, so that a long prompt needs no large buffer.
pub trait LogitSink: Send {
    /// Takes the logits at absolute `position` of batch entry `seq`. Rows come in batch order
    /// and ascending position.
    fn row(&mut self, seq: usize, position: usize, logits: LogitRow<'_>);
}

/// How long the parts of a forward pass took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardTiming {
    /// Matrix products, the output head included.
    pub gemm_ns: Nanos,
    /// Attention of entries with `is_prefill`.
    pub prefill_attention_ns: Nanos,
    /// Attention of the other entries.
    pub decode_attention_ns: Nanos,
    /// Time spent in the sink.
    pub sink_ns: Nanos,
}

/// A model ready to compute, with its KV pool.
pub trait Decoder: Send {
    /// Computes `batch`, writes its keys and values and hands the wanted logits to `sink`.
    ///
    /// # Panics
    /// When a block table does not cover its run or a token id is not below the vocabulary size:
    /// the engine core checks both.
    fn forward(
        &mut self,
        batch: &[SeqInput<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> ForwardTiming;

    /// Replaces the KV pool by one of another shape; its contents are lost.
    fn resize_kv(&mut self, block_size: usize, num_blocks: usize);

    /// Size of the KV pool in bytes.
    fn kv_bytes(&self) -> usize;
}

/// What a [`Decoder`] is built for.
#[derive(Clone, Copy, Debug)]
pub struct ForwardOptions {
    /// Arithmetic.
    pub numerics: Numerics,
    /// KV element type.
    pub kv_dtype: KvDtype,
    /// Compute threads.
    pub threads: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Instruction set; `None` takes the best that the processor has.
    pub isa: Option<Isa>,
    /// How `fast` multiplies: with f32 activations, or with activations rounded to bf16; `None`
    /// takes what is faster on this processor.
    pub dot: Option<Dot>,
}

/// Why a decoder could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The thread pool could not be made.
    #[error("threads = {threads}: cannot start the compute threads: {problem}")]
    Threads {
        /// Requested number.
        threads: usize,
        /// The pool's message.
        problem: String,
    },
    /// The combination is not defined.
    #[error("numerics {numerics:?} with KV dtype {kv_dtype:?}: f64 goes with f64 only")]
    Dtype {
        /// Requested arithmetic.
        numerics: Numerics,
        /// Requested KV element type.
        kv_dtype: KvDtype,
    },
    /// The KV pool does not fit the address space.
    #[error("num_blocks = {num_blocks}: the KV pool would need more than {limit} bytes; lower it")]
    PoolTooLarge {
        /// Requested number of blocks.
        num_blocks: usize,
        /// Bytes allowed.
        limit: usize,
    },
}

/// Largest KV pool that is allocated without question.
const KV_POOL_LIMIT_BYTES: usize = 1 << 38;

/// Bytes of KV cache for one token: `2 * layers * kv_heads * d_head * bytes_per_element`.
pub fn kv_bytes_per_token(config: &crate::config::LlamaConfig, dtype: KvDtype) -> usize {
    2 * config.layers * config.kv_dim() * dtype.bytes()
}

/// Builds the decoder for `options`.
///
/// # Errors
/// [`ForwardError`] when the options cannot be satisfied.
pub fn build(
    weights: &Arc<Weights>,
    options: ForwardOptions,
) -> Result<Box<dyn Decoder>, ForwardError> {
    let per_block = kv_bytes_per_token(&weights.config, options.kv_dtype) * options.block_size;
    if per_block
        .checked_mul(options.num_blocks)
        .is_none_or(|bytes| bytes > KV_POOL_LIMIT_BYTES)
    {
        return Err(ForwardError::PoolTooLarge {
            num_blocks: options.num_blocks,
            limit: KV_POOL_LIMIT_BYTES,
        });
    }
    let pool = Pool::new(options.threads).map_err(|e| ForwardError::Threads {
        threads: options.threads,
        problem: e.to_string(),
    })?;
    let (w, o) = (weights, options);
    match (options.numerics, options.kv_dtype) {
        (Numerics::F64, KvDtype::F64) => Ok(Box::new(reference::ReferenceDecoder::new(
            Arc::clone(w),
            o,
            pool,
        ))),
        (Numerics::Exact, KvDtype::F32) => Ok(Box::new(
            packed::PackedDecoder::<PackedF32, f32>::new(w, o, pool),
        )),
        (Numerics::Exact, KvDtype::Bf16) => Ok(Box::new(packed::PackedDecoder::<
            PackedF32,
            half::bf16,
        >::new(w, o, pool))),
        (Numerics::Fast, KvDtype::F32) => Ok(Box::new(
            packed::PackedDecoder::<PackedBf16, f32>::new(w, o, pool),
        )),
        (Numerics::Fast, KvDtype::Bf16) => Ok(Box::new(packed::PackedDecoder::<
            PackedBf16,
            half::bf16,
        >::new(w, o, pool))),
        (numerics, kv_dtype) => Err(ForwardError::Dtype { numerics, kv_dtype }),
    }
}

/// The weights as the `fast` mode sees them: every matrix rounded to bf16, norms and biases
/// kept. A reference for `fast` must start from these, or it would judge the rounding of the
/// weights instead of the arithmetic.
pub fn round_matrices_to_bf16(weights: &Weights) -> Weights {
    let mut rounded = weights.clone();
    let round = |data: &mut Vec<f32>| {
        data.iter_mut()
            .for_each(|v| *v = half::bf16::from_f32(*v).to_f32());
    };
    round(&mut rounded.embed.data);
    if let Some(head) = &mut rounded.lm_head {
        round(&mut head.data);
    }
    for l in &mut rounded.layers {
        for m in [
            &mut l.q,
            &mut l.k,
            &mut l.v,
            &mut l.o,
            &mut l.gate,
            &mut l.up,
            &mut l.down,
        ] {
            round(&mut m.data);
        }
    }
    rounded
}

/// One batch row that needs logits: which entry, at which position, in which row.
#[derive(Clone, Copy)]
struct WantedRow {
    seq: usize,
    position: usize,
    row: usize,
}

/// Lists the rows of `batch` that need logits, in batch order.
fn wanted_rows(batch: &[SeqInput<'_>]) -> Vec<WantedRow> {
    let mut wanted = Vec::new();
    let mut first_row = 0;
    for (seq, input) in batch.iter().enumerate() {
        let n = input.tokens.len();
        let from = match input.rows {
            LogitRows::None => n,
            LogitRows::Last => n - 1,
            LogitRows::All => 0,
        };
        wanted.extend((from..n).map(|i| WantedRow {
            seq,
            position: input.start + i,
            row: first_row + i,
        }));
        first_row += n;
    }
    wanted
}

/// Runs `f` and adds its duration to `total`.
fn timed<R>(clock: &dyn Clock, total: &mut Nanos, f: impl FnOnce() -> R) -> R {
    let start = clock.now();
    let result = f();
    *total += clock.now() - start;
    result
}
