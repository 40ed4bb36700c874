//! The f32 forward pass over packed weights: modes `exact` and `fast`.
//!
//! Both modes run this one sequence of operations. They differ in the weights' type (f32 or
//! bf16) and in the kernels behind two names, matrix product and attention: in `exact` every
//! output element is reduced in one fixed order, in `fast` the order follows the shape.

mod kv;
mod layer;
mod layout;
mod weights;

use std::sync::Arc;

use half::{bf16, f16};
use pb_contract::{BlockId, Clock, Fault, KvDtype};
use pb_kernels_cpu::{Dot, Fp8E4m3, Fp8E5m2, Isa, KvElem, Pool};

use super::fault;
use super::image::{ImageError, ImageShape};
use super::rope::RopeTables;
use super::scales::KvScales;
use super::{Decoder, ForwardError, ForwardOptions, ForwardTiming, LogitSink, SeqInput};
use crate::config::LlamaConfig;
use crate::lora::{AdapterSet, LoraScratch, PackedAdapters};
use crate::weights::Weights;
use kv::{KvLayer, kv_pool, kv_shape};
use layout::Layout;
use weights::Layer;
pub(super) use weights::Packed;

/// Rows whose logits are computed at once: bounds the buffer at `LOGIT_TILE * vocab` floats.
const LOGIT_TILE: usize = 32;

/// Activations, kept between calls so that a decode step allocates nothing.
#[derive(Default)]
struct Scratch {
    x: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    attn: Vec<f32>,
    delta: Vec<f32>,
    gate_up: Vec<f32>,
    act: Vec<f32>,
    head_in: Vec<f32>,
    logits: Vec<f32>,
}

impl Scratch {
    fn resize(&mut self, m: usize, c: &LlamaConfig) {
        self.x.resize(m * c.hidden, 0.0);
        self.normed.resize(m * c.hidden, 0.0);
        self.qkv.resize(m * (c.q_dim() + 2 * c.kv_dim()), 0.0);
        self.attn.resize(m * c.q_dim(), 0.0);
        self.delta.resize(m * c.hidden, 0.0);
        self.gate_up.resize(m * 2 * c.ffn, 0.0);
        self.act.resize(m * c.ffn, 0.0);
        self.head_in.resize(LOGIT_TILE * c.hidden, 0.0);
        self.logits.resize(LOGIT_TILE * c.vocab, 0.0);
    }
}

/// A model with packed weights of type `W` and a KV pool of element type `T`.
pub(super) struct PackedDecoder<W, T> {
    parts: Parts<W>,
    kv: Vec<KvLayer<T>>,
    scratch: Scratch,
    lora: LoraScratch,
    pool: Pool,
}

/// The decoder of weights `W` for the KV element type of `options`.
pub(super) fn build<W: Packed + 'static>(
    weights: &Weights,
    adapters: &AdapterSet,
    options: &ForwardOptions,
    pool: Pool,
) -> Result<Box<dyn Decoder>, ForwardError> {
    let boxed = match options.kv_dtype {
        KvDtype::F32 => PackedDecoder::<W, f32>::boxed,
        KvDtype::Bf16 => PackedDecoder::<W, bf16>::boxed,
        KvDtype::F16 => PackedDecoder::<W, f16>::boxed,
        KvDtype::Fp8E4m3 => PackedDecoder::<W, Fp8E4m3>::boxed,
        KvDtype::Fp8E5m2 => PackedDecoder::<W, Fp8E5m2>::boxed,
        KvDtype::Int8 => PackedDecoder::<W, i8>::boxed,
        KvDtype::F64 => {
            return Err(ForwardError::Dtype {
                numerics: options.numerics,
                kv_dtype: options.kv_dtype,
            });
        }
    };
    Ok(boxed(weights, adapters, options, pool))
}

/// Everything that a forward pass only reads.
struct Parts<W> {
    config: LlamaConfig,
    isa: Isa,
    dot: Dot,
    /// Identifies the images of this cache.
    image: ImageShape,
    kv_scales: Option<Arc<KvScales>>,
    rope: RopeTables,
    embed: Vec<f32>,
    layers: Vec<Layer<W>>,
    final_norm: Vec<f32>,
    head: W,
    adapters: PackedAdapters,
    fault: Fault,
}

impl<W: Packed, T: KvElem> PackedDecoder<W, T> {
    fn boxed(
        weights: &Weights,
        adapters: &AdapterSet,
        options: &ForwardOptions,
        pool: Pool,
    ) -> Box<dyn Decoder>
    where
        W: 'static,
        T: 'static,
    {
        Box::new(Self::new(weights, adapters, options, pool))
    }

    fn new(weights: &Weights, adapters: &AdapterSet, options: &ForwardOptions, pool: Pool) -> Self {
        let config = weights.config.clone();
        let shape = kv_shape(&config, options.block_size);
        let scales = options.kv_scales.clone();
        let isa = options.isa.unwrap_or_else(Isa::detect);
        PackedDecoder {
            kv: kv_pool(&config, shape, options.num_blocks, scales.as_deref()),
            parts: Parts {
                isa,
                dot: options.dot.unwrap_or_else(|| isa.preferred_dot()),
                image: ImageShape::new(&config, options.kv_dtype, options.block_size),
                kv_scales: scales,
                rope: RopeTables::new(&config),
                embed: weights.embed.data.iter().map(|&v| W::rounded(v)).collect(),
                layers: weights.layers.iter().map(Layer::new).collect(),
                final_norm: weights.final_norm.clone(),
                head: W::pack(&[&weights.head().data], config.hidden),
                adapters: PackedAdapters::new(adapters, &config),
                fault: fault::numeric(options.fault),
                config,
            },
            scratch: Scratch::default(),
            lora: LoraScratch::default(),
            pool,
        }
    }
}

/// What one call carries through the layers.
struct Run<'a> {
    pool: &'a Pool,
    clock: &'a dyn Clock,
    lora: &'a mut LoraScratch,
    sink: &'a mut dyn LogitSink,
    timing: ForwardTiming,
}

impl<W: Packed, T: KvElem> Decoder for PackedDecoder<W, T> {
    fn forward(
        &mut self,
        batch: &[SeqInput<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> ForwardTiming {
        let PackedDecoder {
            parts,
            kv,
            scratch,
            lora,
            pool,
        } = self;
        let shape = kv_shape(&parts.config, parts.image.block_size);
        let layout = Layout::new(batch, shape, kv[0].blocks(), parts.fault);
        scratch.resize(layout.positions.len(), &parts.config);
        let pool = &*pool;
        pool.install(|| {
            let mut run = Run {
                pool,
                clock,
                lora,
                sink,
                timing: ForwardTiming::default(),
            };
            parts.embed(batch, &mut scratch.x);
            for (index, layer_kv) in kv.iter_mut().enumerate() {
                parts.layer(index, layer_kv, &layout, scratch, &mut run);
            }
            parts.head(batch, scratch, &mut run);
            run.timing
        })
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        let shape = kv_shape(&self.parts.config, block_size);
        let scales = self.parts.kv_scales.as_deref();
        self.kv = kv_pool(&self.parts.config, shape, num_blocks, scales);
        self.parts.image.block_size = block_size;
    }

    fn set_fault(&mut self, fault: Fault) -> Result<(), ForwardError> {
        self.parts.fault = fault::numeric(fault);
        Ok(())
    }

    fn kv_bytes(&self) -> usize {
        self.kv.iter().map(KvLayer::bytes).sum()
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        for layer in &mut self.kv {
            layer.copy_block(from.0 as usize, to.0 as usize);
        }
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        self.parts.image.push_header(out);
        for layer in &self.kv {
            layer.read_block(block.0 as usize, out);
        }
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), ImageError> {
        let layers = self.parts.image.layers(image)?;
        // A refused image must leave the block as it was.
        for (index, (layer, sides)) in self.kv.iter().zip(&layers).enumerate() {
            layer.check_block(index, *sides)?;
        }
        for (layer, sides) in self.kv.iter_mut().zip(layers) {
            layer.write_block(block.0 as usize, sides);
        }
        Ok(())
    }
}
