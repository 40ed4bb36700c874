//! The f64 forward pass: plain loops, plain layout, one meaning per line.
//!
//! It judges the packed pass, so it shares none of its mask, position or layout code: keys and
//! values are stored token by token, gathered into contiguous rows for each sequence, and the
//! mask is the comparison of two absolute positions for every pair.

mod cache;

use std::sync::Arc;

use pb_contract::{BlockId, Clock, Fault, KvDtype};
use pb_kernels_cpu::Pool;
use pb_kernels_cpu::reference::{
    RefAttention, attention_f64, matmul_f64, rmsnorm_f64, rope_f64, silu_mul_f64,
};

use super::image::ImageError;
use super::judge::StoredKv;
use super::{
    Decoder, ForwardError, ForwardOptions, ForwardTiming, LogitRow, LogitSink, SeqInput, fault,
    timed, wanted_rows,
};
use crate::config::LlamaConfig;
use crate::lora::{AdapterSet, Projection, add_delta_f64};
use crate::weights::{LayerWeights, Matrix, Weights};
use cache::Cache;

/// Rows whose logits are computed at once.
const LOGIT_TILE: usize = 16;

/// The reference decoder.
pub(super) struct ReferenceDecoder {
    weights: Arc<Weights>,
    inv_freq: Vec<f64>,
    cache: Cache,
    adapters: Arc<AdapterSet>,
    pool: Pool,
}

impl ReferenceDecoder {
    pub(super) fn new(
        weights: Arc<Weights>,
        adapters: Arc<AdapterSet>,
        options: &ForwardOptions,
        pool: Pool,
    ) -> Self {
        let c = &weights.config;
        ReferenceDecoder {
            inv_freq: c.inv_freq(),
            cache: Cache::new(c, options),
            adapters,
            pool,
            weights,
        }
    }

    /// Largest magnitudes of keys and values of each layer.
    pub(super) fn magnitudes(&self) -> impl Iterator<Item = [f64; 2]> {
        self.cache.magnitudes()
    }

    /// Fills `block` from the image of a cache of `dtype`. From then on nothing is written to the
    /// cache; [`Self::judged`] tells how what would have been compares with what is there.
    pub(super) fn hold(
        &mut self,
        dtype: KvDtype,
        block: BlockId,
        image: &[u8],
    ) -> Result<(), ImageError> {
        self.cache.hold(dtype, block, image)
    }

    /// The comparison of all tokens computed since [`Self::hold`].
    pub(super) fn judged(&self) -> StoredKv {
        self.cache.judged()
    }
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
    adapters: &'a AdapterSet,
    layer: usize,
}

impl Run<'_> {
    /// Adds the adapters' changes of `projection`: row by row, `input` `[m][inputs]` to `out`
    /// `[m][outputs]`.
    fn adapt(&self, projection: Projection, input: &[f64], out: &mut [f64]) {
        let (inputs, outputs) = (input.len() / self.m, out.len() / self.m);
        let mut row = 0;
        for seq in self.batch {
            let adapter = seq.adapter.map(|index| self.adapters.at(index));
            let delta = adapter.and_then(|a| a.delta(self.layer, projection));
            for _ in seq.tokens {
                if let Some(delta) = delta {
                    let x = &input[row * inputs..(row + 1) * inputs];
                    add_delta_f64(delta, x, &mut out[row * outputs..(row + 1) * outputs]);
                }
                row += 1;
            }
        }
    }
}

impl ReferenceDecoder {
    fn attention_layer(
        weights: &LayerWeights,
        config: &LlamaConfig,
        pool: &Pool,
        cache: &mut Cache,
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
        run.adapt(Projection::Q, &normed, &mut q);
        run.adapt(Projection::K, &normed, &mut k);
        run.adapt(Projection::V, &normed, &mut v);
        bias_add(&mut q, &weights.q_bias);
        bias_add(&mut k, &weights.k_bias);
        bias_add(&mut v, &weights.v_bias);
        rope_f64(&mut q, config.q_heads, config.d_head, &run.angles);
        rope_f64(&mut k, config.kv_heads, config.d_head, &run.angles);
        let mut attended = vec![0.0; q.len()];
        let mut row = 0;
        for seq in run.batch {
            let rows = row..row + seq.tokens.len();
            cache.store(run.layer, seq, &k, &v, rows.start);
            let total = if seq.is_prefill {
                &mut run.timing.prefill_attention_ns
            } else {
                &mut run.timing.decode_attention_ns
            };
            timed(run.clock, total, || {
                let (keys, values) = cache.gather(run.layer, seq, seq.start + seq.tokens.len());
                let rows = rows.start * config.q_dim()..rows.end * config.q_dim();
                let (q, out) = (&q[rows.clone()], &mut attended[rows]);
                attend(seq, config, pool, q, [&keys, &values], out);
            });
            row = rows.end;
        }
        let mut out = timed(run.clock, &mut run.timing.gemm_ns, || {
            linear(pool, &attended, m, &weights.o)
        });
        run.adapt(Projection::O, &attended, &mut out);
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
        let (mut gate, mut up) = timed(run.clock, &mut run.timing.gemm_ns, || {
            let gate = linear(pool, &normed, m, &weights.gate);
            (gate, linear(pool, &normed, m, &weights.up))
        });
        run.adapt(Projection::Gate, &normed, &mut gate);
        run.adapt(Projection::Up, &normed, &mut up);
        let mut act = vec![0.0; gate.len()];
        silu_mul_f64(&gate, &up, &mut act);
        let mut out = timed(run.clock, &mut run.timing.gemm_ns, || {
            linear(pool, &act, m, &weights.down)
        });
        run.adapt(Projection::Down, &act, &mut out);
        accumulate(x, &out);
    }
}

/// Attention of `seq`'s new tokens, whose queries and outputs are given, over its whole context.
fn attend(
    seq: &SeqInput<'_>,
    config: &LlamaConfig,
    pool: &Pool,
    q: &[f64],
    [k, v]: [&[f64]; 2],
    out: &mut [f64],
) {
    let end = seq.start + seq.tokens.len();
    let key_pos: Vec<usize> = (0..end).collect();
    let query_pos: Vec<usize> = (seq.start..end).collect();
    let args = RefAttention {
        q,
        k,
        v,
        q_heads: config.q_heads,
        kv_heads: config.kv_heads,
        d_head: config.d_head,
        query_pos: &query_pos,
        key_pos: &key_pos,
    };
    attention_f64(pool, &args, out);
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
            inv_freq,
            cache,
            adapters,
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
                let position = (seq.start + i) as f64;
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
            adapters,
            layer: 0,
        };
        for (index, layer) in weights.layers.iter().enumerate() {
            run.layer = index;
            Self::attention_layer(layer, config, pool, cache, &mut x, &mut run);
            sink.layer_written(index, &cache.layer(index));
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
        self.cache.resize(block_size, num_blocks);
    }

    fn set_fault(&mut self, fault: Fault) -> Result<(), ForwardError> {
        match fault::numeric(fault) {
            Fault::None => Ok(()),
            fault => Err(ForwardError::FaultyReference { fault }),
        }
    }

    fn kv_bytes(&self) -> usize {
        self.cache.bytes()
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.cache.copy_block(from, to);
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        self.cache.read_block(block, out);
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), ImageError> {
        self.cache.write_block(block, image)
    }
}
