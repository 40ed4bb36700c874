//! Packed weights of the two modes, and the kernels that go with them.

use pb_kernels_cpu as kernels;
use pb_kernels_cpu::{AttnSeq, Dot, Isa, KvElem, KvLayerView, PackedBf16, PackedF32, Pool, Rows};

use crate::weights::LayerWeights;

/// Where and how a product is computed.
#[derive(Clone, Copy)]
pub(in crate::forward) struct On<'a> {
    pub(super) isa: Isa,
    pub(super) pool: &'a Pool,
    pub(super) dot: Dot,
}

/// Packed weights of one type with the kernels that go with them.
pub(in crate::forward) trait Packed: Send + Sync + Sized {
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
pub(super) struct Layer<W> {
    pub(super) attn_norm: Vec<f32>,
    pub(super) qkv: W,
    pub(super) qkv_bias: Option<Vec<f32>>,
    pub(super) o: W,
    pub(super) mlp_norm: Vec<f32>,
    pub(super) gate_up: W,
    pub(super) down: W,
}

impl<W: Packed> Layer<W> {
    pub(super) fn new(l: &LayerWeights) -> Self {
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
