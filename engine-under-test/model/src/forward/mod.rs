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

mod fault;
mod image;
mod judge;
mod packed;
mod reference;
mod rope;
mod rounding;
mod scales;

use std::sync::Arc;

use pb_contract::{BlockId, Clock, Fault, KvDtype, Nanos, Numerics, TokenId};
use pb_kernels_cpu::{Dot, Isa, PackedBf16, PackedF32, Pool};

use crate::lora::AdapterSet;
use crate::weights::Weights;
pub use fault::numeric as numeric_fault;
pub use image::{
    HEADER_BYTES as IMAGE_HEADER_BYTES, ImageError, ImageShape, LayerKv, Side, block_image_bytes,
};
pub use judge::{StoredKv, judge_stored_kv};
pub use rope::RopeTables;
pub use scales::{KvScales, layer_scales};

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
    /// Index of its adapter among those that the decoder was built with; `None` for the base
    /// model.
    pub adapter: Option<usize>,
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

/// Where results go as they come: logits one position at a time, so that a long prompt needs no
/// large buffer, and keys and values one layer at a time.
pub trait LogitSink: Send {
    /// Takes the logits at absolute `position` of batch entry `seq`. Rows come in batch order
    /// and ascending position.
    fn row(&mut self, seq: usize, position: usize, logits: LogitRow<'_>);

    /// Takes the token that a backend without logits (a simulation) chose for the last position
    /// of batch entry `seq`.
    fn token(&mut self, seq: usize, token: TokenId);

    /// What becomes of the logits at `position` of batch entry `seq`. A backend that can choose
    /// tokens itself asks, before it hands over anything of the step, and may then give
    /// [`LogitSink::chosen`] in place of a row; it may as well give the row.
    fn row_use(&self, _seq: usize, _position: usize) -> RowUse {
        RowUse::Logits
    }

    /// Takes the token that a backend chose by the rule that [`LogitSink::row_use`] gave.
    fn chosen(&mut self, seq: usize, token: TokenId) {
        self.token(seq, token);
    }

    /// Keys and values of `layer` are written for the whole batch, and the pass changes them no
    /// more. Told once for each layer, in order, before the layers above are computed; or never, by
    /// a backend that does not compute layer by layer or would have to wait for it.
    fn layer_written(&mut self, _layer: usize, _kv: &dyn LayerKv) {}
}

/// What a row of logits is for.
#[derive(Clone, Debug, PartialEq)]
pub enum RowUse {
    /// Its values are wanted.
    Logits,
    /// Nothing but one token, chosen by this rule.
    Token(TokenRule),
    /// Nothing.
    Nothing,
}

/// How a token is chosen from logits: mask, temperature, top-k, top-p, draw, as
/// `pb_core::sample` does it.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRule {
    /// 0 is greedy: the largest logit, ties to the lower id, and nothing is drawn.
    pub temperature: f64,
    /// Draw among the most likely `top_k`; 0 is off.
    pub top_k: u32,
    /// Draw among the fewest whose probability reaches this; 1 is off.
    pub top_p: f64,
    /// Never chosen.
    pub forbidden: Vec<TokenId>,
    /// Key of the request's ChaCha8 keystream.
    pub key: [u8; 32],
    /// Which 64-bit word of it is drawn.
    pub draw: u64,
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
    /// When a block table does not cover its run, a token id is not below the vocabulary size or
    /// an adapter's index is not among those built with: the engine core checks all three.
    fn forward(
        &mut self,
        batch: &[SeqInput<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> ForwardTiming;

    /// Replaces the KV pool by one of another shape; its contents are lost.
    fn resize_kv(&mut self, block_size: usize, num_blocks: usize);

    /// Plants a fault of the forward pass, or removes it: a fault of another class is none here.
    ///
    /// # Errors
    /// [`ForwardError::FaultyReference`] from the f64 reference, which judges the others.
    fn set_fault(&mut self, fault: Fault) -> Result<(), ForwardError>;

    /// Size of the KV pool in bytes.
    fn kv_bytes(&self) -> usize;

    /// Copies the keys and values of block `from`, all layers, to block `to`.
    ///
    /// # Panics
    /// When a block is not in the pool; so do the next two.
    fn copy_block(&mut self, from: BlockId, to: BlockId);

    /// Appends the image of a block, all layers, to `out`: a header and the bytes of keys, values
    /// and scales, [`block_image_bytes`] in all. Equal contents have equal images.
    fn read_block(&self, block: BlockId, out: &mut Vec<u8>);

    /// Sets a block to an image that [`Decoder::read_block`] of this or another decoder of the
    /// same model, KV element type, scales and block size made.
    ///
    /// # Errors
    /// [`ImageError`] when the image is of another kind; the block is then unchanged.
    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), ImageError>;
}

/// What a [`Decoder`] is built for.
#[derive(Clone, Debug)]
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
    /// What the f64 reference rounds keys and values to before it stores them, by rules of its
    /// own; f64 leaves them. A quantised cache is judged against the reference that rounds as it
    /// does. The other numerics round to `kv_dtype` and take f64 only.
    pub kv_rounding: KvDtype,
    /// Scales of an fp8 cache or rounding; `None` is 1 everywhere.
    pub kv_scales: Option<Arc<KvScales>>,
    /// A planted fault; those of other parts of the engine do nothing here.
    pub fault: Fault,
}

impl Default for ForwardOptions {
    /// `exact` with an f32 cache, one thread, and a pool of 64 blocks of 16 tokens.
    fn default() -> Self {
        ForwardOptions {
            numerics: Numerics::Exact,
            kv_dtype: KvDtype::F32,
            threads: 1,
            block_size: 16,
            num_blocks: 64,
            isa: None,
            dot: None,
            kv_rounding: KvDtype::F64,
            kv_scales: None,
            fault: Fault::None,
        }
    }
}

impl ForwardOptions {
    /// Checks rounding and scales for a model of `layers` layers.
    fn check_kv(&self, layers: usize) -> Result<(), ForwardError> {
        let (numerics, kv_rounding) = (self.numerics, self.kv_rounding);
        if numerics != Numerics::F64 && kv_rounding != KvDtype::F64 {
            return Err(ForwardError::Rounding {
                kv_rounding,
                numerics,
            });
        }
        let scaled = match numerics {
            Numerics::F64 => kv_rounding,
            Numerics::Exact | Numerics::Fast => self.kv_dtype,
        };
        let scales = self.kv_scales.as_ref();
        scales.map_or(Ok(()), |s| s.check(scaled, layers))
    }
}

/// Why a decoder could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The reference is the judge of planted faults and has none itself.
    #[error("fault {fault:?} with numerics F64: use Exact or Fast, or no fault")]
    FaultyReference {
        /// Requested fault.
        fault: Fault,
    },
    /// An adapter was loaded for a model of another shape.
    #[error(transparent)]
    Adapter(#[from] crate::error::ModelError),
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
    /// Only the reference rounds apart from its element type.
    #[error(
        "kv_rounding = {kv_rounding:?} with numerics {numerics:?}: only F64 rounds; set kv_dtype"
    )]
    Rounding {
        /// Requested rounding.
        kv_rounding: KvDtype,
        /// Requested arithmetic.
        numerics: Numerics,
    },
    /// Scales were given to a type that has none, or that makes its own.
    #[error("kv_scales with KV dtype {kv_dtype:?}: only Fp8E4m3 and Fp8E5m2 take scales")]
    NoScales {
        /// Element type.
        kv_dtype: KvDtype,
    },
    /// The scales are those of another model.
    #[error("kv_scales.{side} has {found} scales, the model has {layers} layers: give one each")]
    ScaleCount {
        /// `k` or `v`.
        side: &'static str,
        /// Scales given.
        found: usize,
        /// Scales needed.
        layers: usize,
    },
    /// A scale that divides into nothing sensible.
    #[error("kv_scales.{side}[{layer}] = {value}: must be positive and finite")]
    Scale {
        /// `k` or `v`.
        side: &'static str,
        /// Layer.
        layer: usize,
        /// The scale.
        value: f32,
    },
    /// Nothing to find scales on, or to judge.
    #[error("the sample has no tokens: give at least one")]
    EmptySample,
    /// A block image does not fit the cache that is judged.
    #[error(transparent)]
    Image(#[from] ImageError),
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

/// Bytes of KV cache for one token: `2 * layers * kv_heads * d_head * bytes_per_element`, and the
/// f32 scales of int8, `2 * layers * kv_heads * 4`. (The scales of fp8 are the layer's.)
pub fn kv_bytes_per_token(config: &crate::config::LlamaConfig, dtype: KvDtype) -> usize {
    let scale_bytes = match dtype {
        KvDtype::Int8 => config.kv_heads * size_of::<f32>(),
        _ => 0,
    };
    2 * config.layers * (config.kv_dim() * dtype.bytes() + scale_bytes)
}

/// Builds the decoder for `options`, serving `adapters` by their index.
///
/// # Errors
/// [`ForwardError`] when the options cannot be satisfied.
pub fn build(
    weights: &Arc<Weights>,
    adapters: &Arc<AdapterSet>,
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
    adapters
        .iter()
        .try_for_each(|a| a.check_fits(&weights.config))?;
    let pool = Pool::new(options.threads).map_err(|e| ForwardError::Threads {
        threads: options.threads,
        problem: e.to_string(),
    })?;
    options.check_kv(weights.config.layers)?;
    match options.numerics {
        Numerics::F64 if fault::numeric(options.fault) != Fault::None => {
            Err(ForwardError::FaultyReference {
                fault: options.fault,
            })
        }
        Numerics::F64 if options.kv_dtype == KvDtype::F64 => {
            Ok(Box::new(reference::ReferenceDecoder::new(
                Arc::clone(weights),
                Arc::clone(adapters),
                &options,
                pool,
            )))
        }
        Numerics::F64 => Err(ForwardError::Dtype {
            numerics: options.numerics,
            kv_dtype: options.kv_dtype,
        }),
        Numerics::Exact => packed::build::<PackedF32>(weights, adapters, &options, pool),
        Numerics::Fast => packed::build::<PackedBf16>(weights, adapters, &options, pool),
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

/// One batch row that needs logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedRow {
    /// Entry of the batch.
    pub seq: usize,
    /// Absolute position in its sequence.
    pub position: usize,
    /// Row among the rows of all entries.
    pub row: usize,
}

/// Lists the rows of `batch` that need logits, in batch order.
pub fn wanted_rows(batch: &[SeqInput<'_>]) -> Vec<WantedRow> {
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
