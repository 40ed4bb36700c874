//! The f32 forward pass over packed weights: modes `exact` and `fast`.
//!
//! Both modes run this one sequence of operations. They differ in the weights' type (f32 or
//! bf16) and in the kernels behind two names, matrix product and attention: in `exact` every
//! output element is reduced in one fixed order, in `fast` the order follows the shape.

use pb_contract::{BlockId, Clock};
use pb_kernels_cpu as kernels;
use pb_kernels_cpu::{
    AlignedBuf, AttnSeq, Dot, Isa, KvElem, KvLayerMut, KvLayerView, KvShape, KvSlot, PackedBf16,
    PackedF32, Pool, RopeTable, Rows, RowsMut,
};

use super::rope::RopeTables;
use super::{
    Decoder, ForwardOptions, ForwardTiming, LogitRow, LogitSink, SeqInput, timed, wanted_rows,
};
use crate::config::LlamaConfig;
use crate::weights::{LayerWeights, Weights};

/// Rows whose logits are computed at once: bounds the buffer at `LOGIT_TILE * vocab` floats.
const LOGIT_TILE: usize = 32;

/// Where and how a product is computed.
#[derive(Clone, Copy)]
pub(super) struct On<'a> {
    isa: Isa,
    pool: &'a Pool,
    dot: Dot,
}

/// Packed weights of one type with the kernels that go with them.
pub(super) trait Packed: Send + Sync + Sized {
    fn pack(parts: &[&[f32]], k: usize) -> Self;
    fn gemm(&self, on: On<'_>, a: &[f32], m: usize, c: &mut [f32]);
    /// The value that a weight has after packing.
    fn rounded(value: f32) -> f32;
    fn attention<T: KvElem>(
        isa: Isa,
        pool: &Pool,
        q: Rows<'_>,
        q_heads: usize,
        kv: KvLayerView<'_, T>,
        seqs: &[AttnSeq<'_>],
        out: &mut [f32],
    );
}

impl Packed for PackedF32 {
    fn pack(parts: &[&[f32]], k: usize) -> Self {
        PackedF32::pack_parts(parts, k)
    }
    fn gemm(&self, on: On<'_>, a: &[f32], m: usize, c: &mut [f32]) {
        kernels::gemm_exact(on.isa, on.pool, a, m, self, c);
    }
    fn rounded(value: f32) -> f32 {
        value
    }
    fn attention<T: KvElem>(
        isa: Isa,
        pool: &Pool,
        q: Rows<'_>,
        q_heads: usize,
        kv: KvLayerView<'_, T>,
        seqs: &[AttnSeq<'_>],
        out: &mut [f32],
    ) {
        kernels::attention_exact(isa, pool, q, q_heads, kv, seqs, out);
    }
}

impl Packed for PackedBf16 {
    fn pack(parts: &[&[f32]], k: usize) -> Self {
        PackedBf16::pack_parts(parts, k)
    }
    fn gemm(&self, on: On<'_>, a: &[f32], m: usize, c: &mut [f32]) {
        kernels::gemm_fast(on.isa, on.pool, on.dot, a, m, self, c);
    }
    fn rounded(value: f32) -> f32 {
        half::bf16::from_f32(value).to_f32()
    }
    fn attention<T: KvElem>(
        isa: Isa,
        pool: &Pool,
        q: Rows<'_>,
        q_heads: usize,
        kv: KvLayerView<'_, T>,
        seqs: &[AttnSeq<'_>],
        out: &mut [f32],
    ) {
        kernels::attention_fast(isa, pool, q, q_heads, kv, seqs, out);
    }
}

/// One layer's weights; q, k, v and gate, up are fused into one product each.
struct Layer<W> {
    attn_norm: Vec<f32>,
    qkv: W,
    qkv_bias: Option<Vec<f32>>,
    o: W,
    mlp_norm: Vec<f32>,
    gate_up: W,
    down: W,
}

impl<W: Packed> Layer<W> {
    fn new(l: &LayerWeights) -> Self {
        let bias = [&l.q_bias, &l.k_bias, &l.v_bias];
        let qkv_bias = bias.iter().any(|b| b.is_some()).then(|| {
            let parts = bias.iter().zip([&l.q, &l.k, &l.v]);
            parts
                .flat_map(|(b, m)| Option::clone(b).unwrap_or_else(|| vec![0.0; m.rows]))
                .collect()
        });
        Layer {
            attn_norm: l.attn_norm.clone(),
            qkv: W::pack(&[&l.q.data, &l.k.data, &l.v.data], l.q.cols),
            qkv_bias,
            o: W::pack(&[&l.o.data], l.o.cols),
            mlp_norm: l.mlp_norm.clone(),
            gate_up: W::pack(&[&l.gate.data, &l.up.data], l.gate.cols),
            down: W::pack(&[&l.down.data], l.down.cols),
        }
    }
}

/// Keys and values of one layer, every block of the pool.
struct KvLayer<T: bytemuck::Pod> {
    k: AlignedBuf<T>,
    v: AlignedBuf<T>,
}

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
pub(super) struct PackedDecoder<W, T: bytemuck::Pod> {
    parts: Parts<W>,
    kv: Vec<KvLayer<T>>,
    scratch: Scratch,
    pool: Pool,
}

/// Everything that a forward pass only reads.
struct Parts<W> {
    config: LlamaConfig,
    isa: Isa,
    dot: Dot,
    kv_shape: KvShape,
    rope: RopeTables,
    embed: Vec<f32>,
    layers: Vec<Layer<W>>,
    final_norm: Vec<f32>,
    head: W,
}

impl<W: Packed, T: KvElem> PackedDecoder<W, T> {
    pub(super) fn new(weights: &Weights, options: ForwardOptions, pool: Pool) -> Self {
        let config = weights.config.clone();
        let kv_shape = kv_shape(&config, options.block_size);
        let isa = options.isa.unwrap_or_else(Isa::detect);
        PackedDecoder {
            kv: kv_pool(&config, kv_shape, options.num_blocks),
            parts: Parts {
                isa,
                dot: options.dot.unwrap_or_else(|| isa.preferred_dot()),
                kv_shape,
                rope: RopeTables::new(&config),
                embed: weights.embed.data.iter().map(|&v| W::rounded(v)).collect(),
                layers: weights.layers.iter().map(Layer::new).collect(),
                final_norm: weights.final_norm.clone(),
                head: W::pack(&[&weights.head().data], config.hidden),
                config,
            },
            scratch: Scratch::default(),
            pool,
        }
    }
}

/// The shape of one block of one layer.
fn kv_shape(config: &LlamaConfig, block_size: usize) -> KvShape {
    KvShape {
        block_size,
        kv_heads: config.kv_heads,
        d_head: config.d_head,
    }
}

/// An empty pool of `num_blocks` blocks for every layer.
fn kv_pool<T: KvElem>(c: &LlamaConfig, shape: KvShape, num_blocks: usize) -> Vec<KvLayer<T>> {
    let elems = shape.block_elems() * num_blocks;
    let layer = |_| KvLayer {
        k: AlignedBuf::zeroed(elems),
        v: AlignedBuf::zeroed(elems),
    };
    (0..c.layers).map(layer).collect()
}

/// A batch resolved into rows.
struct Layout<'a> {
    positions: Vec<u32>,
    slots: Vec<KvSlot>,
    tables: Vec<Vec<u32>>,
    batch: &'a [SeqInput<'a>],
}

impl<'a> Layout<'a> {
    fn new(batch: &'a [SeqInput<'a>], shape: KvShape, num_blocks: usize) -> Self {
        let rows = batch.iter().map(|s| s.tokens.len()).sum();
        let mut layout = Layout {
            positions: Vec::with_capacity(rows),
            slots: Vec::with_capacity(rows),
            tables: Vec::with_capacity(batch.len()),
            batch,
        };
        for s in batch {
            let end = s.start + s.tokens.len();
            assert!(!s.tokens.is_empty(), "an empty run has nothing to compute");
            assert!(
                s.block_table.len() * shape.block_size >= end,
                "{} blocks of {} do not hold {end} tokens",
                s.block_table.len(),
                shape.block_size
            );
            layout
                .tables
                .push(s.block_table.iter().map(|b| b.0).collect());
            for position in s.start..end {
                let BlockId(block) = s.block_table[position / shape.block_size];
                assert!(
                    (block as usize) < num_blocks,
                    "block {block} is outside the pool"
                );
                let slot = (position % shape.block_size) as u32;
                layout.slots.push(KvSlot { block, slot });
                layout.positions.push((position + s.rope_offset) as u32);
            }
        }
        layout
    }

    /// Attention work of the prompt chunks (`prefill`) or of the decode rows.
    fn attention_seqs(&self, prefill: bool) -> Vec<AttnSeq<'_>> {
        let mut q_row = 0;
        let mut seqs = Vec::new();
        for (s, table) in self.batch.iter().zip(&self.tables) {
            let q_len = s.tokens.len();
            if s.is_prefill == prefill {
                seqs.push(AttnSeq {
                    q_row,
                    q_len,
                    start_pos: s.start,
                    block_table: table,
                });
            }
            q_row += q_len;
        }
        seqs
    }
}

impl<W: Packed> Parts<W> {
    fn on<'a>(&self, pool: &'a Pool) -> On<'a> {
        On {
            isa: self.isa,
            pool,
            dot: self.dot,
        }
    }

    fn embed(&self, batch: &[SeqInput<'_>], x: &mut [f32]) {
        let h = self.config.hidden;
        let tokens = batch.iter().flat_map(|s| s.tokens);
        for (row, &token) in x.chunks_exact_mut(h).zip(tokens) {
            let at = token as usize * h;
            row.copy_from_slice(&self.embed[at..at + h]);
        }
    }

    /// One decoder layer: `s.x` in, `s.x + s.delta` is the layer's output (the sum is formed by
    /// the next norm).
    fn layer<T: KvElem>(
        &self,
        index: usize,
        kv: &mut KvLayer<T>,
        layout: &Layout<'_>,
        s: &mut Scratch,
        run: &mut Run<'_>,
    ) {
        let (c, l, isa) = (&self.config, &self.layers[index], self.isa);
        let m = layout.positions.len();
        let (pool, clock) = (run.pool, run.clock);
        let on = self.on(pool);
        if index == 0 {
            let eps = c.rms_eps as f32;
            kernels::rmsnorm(isa, pool, &s.x, &l.attn_norm, eps, &mut s.normed);
        } else {
            self.add_norm(pool, &l.attn_norm, s);
        }
        timed(clock, &mut run.timing.gemm_ns, || {
            l.qkv.gemm(on, &s.normed, m, &mut s.qkv)
        });
        if let Some(bias) = &l.qkv_bias {
            kernels::add_bias(isa, pool, &mut s.qkv, bias);
        }
        self.rope_and_store(pool, kv, layout, s);
        self.attention(kv, layout, s, run);
        timed(clock, &mut run.timing.gemm_ns, || {
            l.o.gemm(on, &s.attn, m, &mut s.delta)
        });
        self.add_norm(pool, &l.mlp_norm, s);
        timed(clock, &mut run.timing.gemm_ns, || {
            l.gate_up.gemm(on, &s.normed, m, &mut s.gate_up)
        });
        kernels::silu_mul_fused(isa, pool, &s.gate_up, c.ffn, &mut s.act);
        timed(clock, &mut run.timing.gemm_ns, || {
            l.down.gemm(on, &s.act, m, &mut s.delta)
        });
    }

    fn add_norm(&self, pool: &Pool, weight: &[f32], s: &mut Scratch) {
        let eps = self.config.rms_eps as f32;
        kernels::add_rmsnorm(
            self.isa,
            pool,
            &mut s.x,
            &s.delta,
            weight,
            eps,
            &mut s.normed,
        );
    }

    fn rope_and_store<T: KvElem>(
        &self,
        pool: &Pool,
        kv: &mut KvLayer<T>,
        layout: &Layout<'_>,
        s: &mut Scratch,
    ) {
        let c = &self.config;
        let stride = c.q_dim() + 2 * c.kv_dim();
        let table = RopeTable {
            cos: &self.rope.cos,
            sin: &self.rope.sin,
            half: self.rope.half,
        };
        let heads = c.q_heads + c.kv_heads;
        let rows = RowsMut::new(&mut s.qkv, stride);
        kernels::rope_apply(self.isa, pool, rows, heads, &table, &layout.positions);
        let k = Rows::new(&s.qkv[c.q_dim()..], stride);
        let v = Rows::new(&s.qkv[c.q_dim() + c.kv_dim()..], stride);
        let mut view = KvLayerMut {
            k: &mut kv.k,
            v: &mut kv.v,
            shape: self.kv_shape,
        };
        kernels::kv_write(k, v, &layout.slots, &mut view);
    }

    fn attention<T: KvElem>(
        &self,
        kv: &KvLayer<T>,
        layout: &Layout<'_>,
        s: &mut Scratch,
        run: &mut Run<'_>,
    ) {
        let c = &self.config;
        let stride = c.q_dim() + 2 * c.kv_dim();
        let view = KvLayerView {
            k: &kv.k[..],
            v: &kv.v[..],
            shape: self.kv_shape,
        };
        for prefill in [true, false] {
            let seqs = layout.attention_seqs(prefill);
            if seqs.is_empty() {
                continue;
            }
            let total = if prefill {
                &mut run.timing.prefill_attention_ns
            } else {
                &mut run.timing.decode_attention_ns
            };
            timed(run.clock, total, || {
                let q = Rows::new(&s.qkv, stride);
                W::attention(self.isa, run.pool, q, c.q_heads, view, &seqs, &mut s.attn);
            });
        }
    }

    fn head(&self, batch: &[SeqInput<'_>], s: &mut Scratch, run: &mut Run<'_>) {
        let h = self.config.hidden;
        let vocab = self.config.vocab;
        let wanted = wanted_rows(batch);
        if wanted.is_empty() {
            return;
        }
        self.add_norm(run.pool, &self.final_norm, s);
        for tile in wanted.chunks(LOGIT_TILE) {
            for (out, w) in s.head_in.chunks_exact_mut(h).zip(tile) {
                out.copy_from_slice(&s.normed[w.row * h..(w.row + 1) * h]);
            }
            let (a, c) = (
                &s.head_in[..tile.len() * h],
                &mut s.logits[..tile.len() * vocab],
            );
            timed(run.clock, &mut run.timing.gemm_ns, || {
                self.head.gemm(self.on(run.pool), a, tile.len(), c);
            });
            let sink = &mut *run.sink;
            timed(run.clock, &mut run.timing.sink_ns, || {
                for (w, row) in tile.iter().zip(c.chunks_exact(vocab)) {
                    sink.row(w.seq, w.position, LogitRow::F32(row));
                }
            });
        }
    }
}

/// What one call carries through the layers.
struct Run<'a> {
    pool: &'a Pool,
    clock: &'a dyn Clock,
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
            pool,
        } = self;
        let shape = parts.kv_shape;
        let num_blocks = kv[0].k.len() / shape.block_elems();
        let layout = Layout::new(batch, shape, num_blocks);
        scratch.resize(layout.positions.len(), &parts.config);
        let pool = &*pool;
        pool.install(|| {
            let mut run = Run {
                pool,
                clock,
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
        self.parts.kv_shape = shape;
        self.kv = kv_pool(&self.parts.config, shape, num_blocks);
    }

    fn kv_bytes(&self) -> usize {
        let elems: usize = self.kv.iter().map(|l| l.k.len() + l.v.len()).sum();
        elems * std::mem::size_of::<T>()
    }
}
