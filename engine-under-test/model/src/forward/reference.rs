//! The f64 forward pass: plain loops, plain layout, one meaning per line.
//!
//! It judges the packed pass, so it shares none of its mask, position or layout code: keys and
//! values are stored token by token, gathered into contiguous rows for each sequence, and the
//! mask is the comparison of two absolute positions for every pair.

use std::sync::Arc;

use pb_contract::Clock;
use pb_kernels_cpu::Pool;
use pb_kernels_cpu::reference::{
    RefAttention, attention_f64, matmul_f64, rmsnorm_f64, rope_f64, silu_mul_f64,
};

use super::{
    Decoder, ForwardOptions, ForwardTiming, LogitRow, LogitSink, SeqInput, timed, wanted_rows,
};
use crate::config::LlamaConfig;
use crate::weights::{LayerWeights, Matrix, Weights};

/// Rows whose logits are computed at once.
const LOGIT_TILE: usize = 16;

/// One layer's cache: token slot `s` holds `kv_dim` values at `s * kv_dim`, where
/// `s = block * block_size + offset`.
struct KvLayer {
    k: Vec<f64>,
    v: Vec<f64>,
}

/// The reference decoder.
pub(super) struct ReferenceDecoder {
    weights: Arc<Weights>,
    block_size: usize,
    inv_freq: Vec<f64>,
    kv: Vec<KvLayer>,
    pool: Pool,
}

impl ReferenceDecoder {
    pub(super) fn new(weights: Arc<Weights>, options: ForwardOptions, pool: Pool) -> Self {
        let c = &weights.config;
        ReferenceDecoder {
            block_size: options.block_size,
            inv_freq: c.inv_freq(),
            kv: kv_pool(c, options.num_blocks * options.block_size),
            pool,
            weights,
        }
    }
}

/// An empty cache of `slots` tokens for every layer.
fn kv_pool(c: &LlamaConfig, slots: usize) -> Vec<KvLayer> {
    let values = slots * c.kv_dim();
    let layer = |_| KvLayer {
        k: vec![0.0; values],
        v: vec![0.0; values],
    };
    (0..c.layers).map(layer).collect()
}

/// `x @ w^T`, a new `[m][rows]` buffer.
fn linear(pool: &Pool, x: &[f64], m: usize, w: &Matrix) -> Vec<f64> {
    let mut out = vec![0.0; m * w.rows];
    matmul_f64(pool, x, m, &w.data, w.rows, w.cols, &mut out);
    out
}

/// Adds `bias` to every row.
fn bias_add(x: &mut [f64], bias: &Option<Vec<f32>>) {
    if let Some(bias) = bias {
        for row in x.chunks_exact_mut(bias.len()) {
            row.iter_mut()
                .zip(bias)
                .for_each(|(v, b)| *v += f64::from(*b));
        }
    }
}

/// `rmsnorm` of every row.
fn norm(x: &[f64], weight: &[f32], eps: f64) -> Vec<f64> {
    let mut out = vec![0.0; x.len()];
    rmsnorm_f64(x, weight, eps, &mut out);
    out
}

fn accumulate(x: &mut [f64], delta: &[f64]) {
    x.iter_mut().zip(delta).for_each(|(a, b)| *a += b);
}

/// What one call carries through the layers.
struct Run<'a> {
    clock: &'a dyn Clock,
    timing: ForwardTiming,
    batch: &'a [SeqInput<'a>],
    m: usize,
    angles: Vec<f64>,
}

impl ReferenceDecoder {
    fn attention_layer(
        weights: &LayerWeights,
        config: &LlamaConfig,
        block_size: usize,
        pool: &Pool,
        kv: &mut KvLayer,
        x: &mut [f64],
        run: &mut Run<'_>,
    ) {
        let normed = norm(x, &weights.attn_norm, config.rms_eps);
        let m = run.m;
        let (mut q, mut k, mut v) = timed(run.clock, &mut run.timing.gemm_ns, || {
            let q = linear(pool, &normed, m, &weights.q);
            let k = linear(pool, &normed, m, &weights.k);
            (q, k, linear(pool, &normed, m, &weights.v))
        });
        bias_add(&mut q, &weights.q_bias);
        bias_add(&mut k, &weights.k_bias);
        bias_add(&mut v, &weights.v_bias);
        rope_f64(&mut q, config.q_heads, config.d_head, &run.angles);
        rope_f64(&mut k, config.kv_heads, config.d_head, &run.angles);
        let mut attended = vec![0.0; q.len()];
        let mut row = 0;
        for seq in run.batch {
            let rows = row..row + seq.tokens.len();
            store(kv, seq, block_size, config.kv_dim(), &k, &v, rows.start);
            let total = if seq.is_prefill {
                &mut run.timing.prefill_attention_ns
            } else {
                &mut run.timing.decode_attention_ns
            };
            timed(run.clock, total, || {
                attend(
                    kv,
                    seq,
                    block_size,
                    config,
                    pool,
                    &q,
                    &mut attended,
                    rows.start,
                );
            });
            row = rows.end;
        }
        let out = timed(run.clock, &mut run.timing.gemm_ns, || {
            linear(pool, &attended, m, &weights.o)
        });
        accumulate(x, &out);
    }

    fn mlp_layer(
        weights: &LayerWeights,
        config: &LlamaConfig,
        pool: &Pool,
        x: &mut [f64],
        run: &mut Run<'_>,
    ) {
        let normed = norm(x, &weights.mlp_norm, config.rms_eps);
        let m = run.m;
        let out = timed(run.clock, &mut run.timing.gemm_ns, || {
            let gate = linear(pool, &normed, m, &weights.gate);
            let up = linear(pool, &normed, m, &weights.up);
            let mut act = vec![0.0; gate.len()];
            silu_mul_f64(&gate, &up, &mut act);
            linear(pool, &act, m, &weights.down)
        });
        accumulate(x, &out);
    }
}

/// Slot of absolute position `p` of `seq`.
fn slot(seq: &SeqInput<'_>, block_size: usize, p: usize) -> usize {
    seq.block_table[p / block_size].0 as usize * block_size + p % block_size
}

/// Writes the keys and values of `seq`'s new tokens, rows from `row` on, into the cache.
fn store(
    kv: &mut KvLayer,
    seq: &SeqInput<'_>,
    block_size: usize,
    kv_dim: usize,
    k: &[f64],
    v: &[f64],
    row: usize,
) {
    for i in 0..seq.tokens.len() {
        let to = slot(seq, block_size, seq.start + i) * kv_dim;
        let from = (row + i) * kv_dim;
        kv.k[to..to + kv_dim].copy_from_slice(&k[from..from + kv_dim]);
        kv.v[to..to + kv_dim].copy_from_slice(&v[from..from + kv_dim]);
    }
}

/// Attention of `seq`'s new tokens over its whole context.
#[expect(
    clippy::too_many_arguments,
    reason = "one flat list reads better than a struct used once"
)]
fn attend(
    kv: &KvLayer,
    seq: &SeqInput<'_>,
    block_size: usize,
    config: &LlamaConfig,
    pool: &Pool,
    q: &[f64],
    attended: &mut [f64],
    row: usize,
) {
    let kv_dim = config.kv_dim();
    let end = seq.start + seq.tokens.len();
    let gather = |store: &[f64]| -> Vec<f64> {
        (0..end)
            .flat_map(|p| {
                let at = slot(seq, block_size, p) * kv_dim;
                store[at..at + kv_dim].iter().copied()
            })
            .collect()
    };
    let key_pos: Vec<usize> = (0..end).collect();
    let query_pos: Vec<usize> = (seq.start..end).collect();
    let q_dim = config.q_dim();
    let rows = row * q_dim..(row + seq.tokens.len()) * q_dim;
    let args = RefAttention {
        q: &q[rows.clone()],
        k: &gather(&kv.k),
        v: &gather(&kv.v),
        q_heads: config.q_heads,
        kv_heads: config.kv_heads,
        d_head: config.d_head,
        query_pos: &query_pos,
        key_pos: &key_pos,
    };
    attention_f64(pool, &args, &mut attended[rows]);
}

impl Decoder for ReferenceDecoder {
    fn forward(
        &mut self,
        batch: &[SeqInput<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> ForwardTiming {
        let ReferenceDecoder {
            weights,
            block_size,
            inv_freq,
            kv,
            pool,
        } = self;
        let config = &weights.config;
        let mut x = Vec::new();
        let mut angles = Vec::new();
        for seq in batch {
            for (i, &token) in seq.tokens.iter().enumerate() {
                x.extend(
                    weights
                        .embed
                        .row(token as usize)
                        .iter()
                        .map(|&v| f64::from(v)),
                );
                let position = (seq.start + i + seq.rope_offset) as f64;
                angles.extend(inv_freq.iter().map(|f| position * f));
            }
        }
        let m = x.len() / config.hidden;
        let timing = ForwardTiming::default();
        let mut run = Run {
            clock,
            timing,
            batch,
            m,
            angles,
        };
        for (layer, kv) in weights.layers.iter().zip(kv.iter_mut()) {
            Self::attention_layer(layer, config, *block_size, pool, kv, &mut x, &mut run);
            Self::mlp_layer(layer, config, pool, &mut x, &mut run);
        }
        let normed = norm(&x, &weights.final_norm, config.rms_eps);
        let wanted = wanted_rows(batch);
        let h = config.hidden;
        for tile in wanted.chunks(LOGIT_TILE) {
            let rows: Vec<f64> = tile
                .iter()
                .flat_map(|w| normed[w.row * h..(w.row + 1) * h].to_vec())
                .collect();
            let logits = timed(clock, &mut run.timing.gemm_ns, || {
                linear(pool, &rows, tile.len(), weights.head())
            });
            timed(clock, &mut run.timing.sink_ns, || {
                for (w, row) in tile.iter().zip(logits.chunks_exact(config.vocab)) {
                    sink.row(w.seq, w.position, LogitRow::F64(row));
                }
            });
        }
        run.timing
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        self.block_size = block_size;
        self.kv = kv_pool(&self.weights.config, num_blocks * block_size);
    }

    fn kv_bytes(&self) -> usize {
        self.kv.iter().map(|l| (l.k.len() + l.v.len()) * 8).sum()
    }
}
