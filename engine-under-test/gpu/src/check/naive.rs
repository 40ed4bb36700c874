//! The model by its definition, every operation's result rounded to bf16: what an implementation
//! without fusion and without care gives. It is the yardstick of the rule, and shares no code with
//! the executor: rows are whole, keys and values lie token by token.

use half::bf16;
use pb_contract::TokenId;
use pb_kernels_cpu::Pool;
use pb_kernels_cpu::reference::{matmul_f64, rope_f64};
use pb_kernels_cuda::E4m3;
use pb_kernels_cuda::check::Stored;
use pb_kernels_cuda::check::formulas::{Head, attention, rmsnorm, silu_mul};
use pb_model::Weights;
use pb_model::lora::{LoraAdapter, Projection};
use pb_model::weights::{LayerWeights, Matrix};

/// What the cache keeps of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// All of a bf16.
    Bf16,
    /// E4M3 with scale 1.
    E4m3,
}

fn low(x: f64) -> f64 {
    bf16::from_f64(x).to_f64()
}

fn kept(cache: Cache, x: f64) -> f64 {
    match cache {
        Cache::Bf16 => low(x),
        Cache::E4m3 => {
            let code = <E4m3 as Stored<bf16>>::encode(x as f32, 1.0);
            <E4m3 as Stored<bf16>>::decode(code, 1.0)
        }
    }
}

struct Naive<'a> {
    weights: &'a Weights,
    adapter: Option<&'a LoraAdapter>,
    pool: &'a Pool,
    cache: Cache,
    rows: usize,
}

impl Naive<'_> {
    fn linear(&self, x: &[f64], w: &Matrix, bias: &Option<Vec<f32>>) -> Vec<f64> {
        let mut out = vec![0.0; self.rows * w.rows];
        matmul_f64(self.pool, x, self.rows, &w.data, w.rows, w.cols, &mut out);
        for (i, y) in out.iter_mut().enumerate() {
            let bias = bias.as_ref().map_or(0.0, |b| f64::from(b[i % w.rows]));
            *y = low(low(*y) + bias);
        }
        out
    }

    /// A projection with what the adapter changes of it: `A x`, its multiple, `B` times it and the
    /// sum are each rounded.
    fn projected(
        &self,
        x: &[f64],
        (layer, projection): (usize, Projection),
        w: &Matrix,
        bias: &Option<Vec<f32>>,
    ) -> Vec<f64> {
        let mut out = self.linear(x, w, bias);
        let delta = self.adapter.and_then(|a| a.delta(layer, projection));
        let Some(d) = delta else { return out };
        let matrix = |data: &Vec<f32>, rows, cols| Matrix {
            data: data.clone(),
            rows,
            cols,
        };
        let mut inner = self.linear(x, &matrix(&d.a, d.rank, w.cols), &None);
        inner.iter_mut().for_each(|v| *v = low(*v * d.scale));
        let change = self.linear(&inner, &matrix(&d.b, w.rows, d.rank), &None);
        for (y, c) in out.iter_mut().zip(change) {
            *y = low(*y + c);
        }
        out
    }

    fn norm(&self, x: &[f64], weight: &[f32]) -> Vec<f64> {
        let weight: Vec<f64> = weight.iter().map(|w| f64::from(*w)).collect();
        let eps = self.weights.config.rms_eps;
        x.chunks_exact(weight.len())
            .flat_map(|row| rmsnorm::<bf16>(row, &weight, eps))
            .map(|e| e.naive)
            .collect()
    }

    fn rotate(&self, x: &mut [f64], heads: usize) {
        let freqs = self.weights.config.inv_freq();
        let angles: Vec<f64> = (0..self.rows)
            .flat_map(|position| freqs.iter().map(move |f| position as f64 * f))
            .collect();
        rope_f64(x, heads, self.weights.config.d_head, &angles);
        x.iter_mut().for_each(|v| *v = low(*v));
    }

    /// What attention adds to the residual stream.
    fn attended(&self, x: &[f64], layer: usize, l: &LayerWeights) -> Vec<f64> {
        let c = &self.weights.config;
        let normed = self.norm(x, &l.attn_norm);
        let mut q = self.projected(&normed, (layer, Projection::Q), &l.q, &l.q_bias);
        let mut k = self.projected(&normed, (layer, Projection::K), &l.k, &l.k_bias);
        let mut v = self.projected(&normed, (layer, Projection::V), &l.v, &l.v_bias);
        self.rotate(&mut q, c.q_heads);
        self.rotate(&mut k, c.kv_heads);
        for x in k.iter_mut().chain(&mut v) {
            *x = kept(self.cache, *x);
        }
        let d = c.d_head;
        let head = |x: &[f64], row: usize, head: usize| -> Vec<f64> {
            x[row * c.kv_dim() + head * d..][..d].to_vec()
        };
        let mut out = Vec::with_capacity(q.len());
        for row in 0..self.rows {
            for h in 0..c.q_heads {
                let kv = h / c.group();
                let keys: Vec<_> = (0..=row).map(|r| head(&k, r, kv)).collect();
                let values: Vec<_> = (0..=row).map(|r| head(&v, r, kv)).collect();
                let one = attention::<bf16>(&Head {
                    q: &q[row * c.q_dim() + h * d..][..d],
                    k: &keys,
                    v: &values,
                });
                out.extend(one.iter().map(|e| e.naive));
            }
        }
        self.projected(&out, (layer, Projection::O), &l.o, &None)
    }

    /// What the feed-forward part adds.
    fn fed_forward(&self, x: &[f64], layer: usize, l: &LayerWeights) -> Vec<f64> {
        let normed = self.norm(x, &l.mlp_norm);
        let gate = self.projected(&normed, (layer, Projection::Gate), &l.gate, &None);
        let up = self.projected(&normed, (layer, Projection::Up), &l.up, &None);
        let gated = gate.iter().zip(&up);
        let act: Vec<f64> = gated.map(|(g, u)| silu_mul::<bf16>(*g, *u).naive).collect();
        self.projected(&act, (layer, Projection::Down), &l.down, &None)
    }
}

/// Logits of every position of `tokens`, with an adapter or without.
pub(super) fn logits(
    pool: &Pool,
    (weights, adapter): (&Weights, Option<&LoraAdapter>),
    tokens: &[TokenId],
    cache: Cache,
) -> Vec<Vec<f64>> {
    let naive = Naive {
        weights,
        adapter,
        pool,
        cache,
        rows: tokens.len(),
    };
    let row = |t: &TokenId| weights.embed.row(*t as usize).to_vec();
    let mut x: Vec<f64> = tokens.iter().flat_map(row).map(f64::from).collect();
    let add = |x: &mut [f64], delta: Vec<f64>| {
        x.iter_mut().zip(delta).for_each(|(x, d)| *x = low(*x + d));
    };
    for (layer, l) in weights.layers.iter().enumerate() {
        let delta = naive.attended(&x, layer, l);
        add(&mut x, delta);
        let delta = naive.fed_forward(&x, layer, l);
        add(&mut x, delta);
    }
    let normed = naive.norm(&x, &weights.final_norm);
    let all = naive.linear(&normed, weights.head(), &None);
    let vocab = weights.config.vocab;
    all.chunks_exact(vocab).map(<[f64]>::to_vec).collect()
}
