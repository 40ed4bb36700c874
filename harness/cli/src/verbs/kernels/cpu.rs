//! The CPU's kernels: against f64 within the bounds derived for them, and timed.
//!
//! They compute in f32, so there is no lower precision to be naive in: the rule is the bound.

use std::path::Path;

use anyhow::Result;
use half::bf16;
use pb_kernels_cpu::bounds::{
    AttentionTerms, F32_UNIT_ROUNDOFF, attention_bound, bf16_dot_bound, gemm_bound, rmsnorm_bound,
    rope_bound, silu_mul_bound,
};
use pb_kernels_cpu::reference::{RefAttention, attention_f64};
use pb_kernels_cpu::{
    AttnSeq, Dot, Isa, KvElem, KvLayerMut, KvLayerView, KvShape, KvSlot, PackedBf16, PackedF32,
    Pool, RopeTable, Rows, RowsMut, add_rmsnorm, attention_exact, attention_fast, gemm_exact,
    gemm_fast, kv_write, rmsnorm, rope_apply, silu_mul_fused,
};
use pb_kernels_cuda::check::{Expected, Judged, Rng, judge};

use super::Findings;
use super::torch::Comparison;
use crate::progress::Progress;

/// Sizes of SmolLM2-135M: hidden, feed-forward, query and key/value heads of 64.
pub(super) const HIDDEN: usize = 576;
pub(super) const FFN: usize = 1536;
pub(super) const Q_HEADS: usize = 9;
pub(super) const KV: KvShape = KvShape {
    block_size: 16,
    kv_heads: 3,
    d_head: 64,
};

pub(super) struct Cpu<'a> {
    pub(super) isa: Isa,
    pub(super) pool: Pool,
    pub(super) findings: &'a mut Findings,
}

/// Validates the kernels, times them if `time`, and compares attention with PyTorch's under
/// `python`, if one is named.
pub(super) fn run(
    threads: usize,
    time: bool,
    python: Option<&Path>,
    findings: &mut Findings,
    progress: &Progress,
) -> Result<()> {
    let isa = Isa::detect();
    findings.device = format!("cpu: {}, {threads} threads", isa.name());
    let mut cpu = Cpu {
        isa,
        pool: Pool::new(threads)?,
        findings,
    };
    progress.phase("validating every kernel");
    for [m, n, k] in [[1, 960, 576], [17, 33, 72], [64, 576, 1536]] {
        cpu.check_products(m, n, k);
    }
    for rows in [1, 5] {
        cpu.check_rows(rows);
    }
    for (len, prefix) in [(1, 40), (17, 33), (40, 0)] {
        cpu.check_attention::<f32>("f32", len, prefix);
        cpu.check_attention::<bf16>("bf16", len, prefix);
    }
    if time {
        progress.phase("timing");
        cpu.time();
    }
    let Some(python) = python else { return Ok(()) };
    progress.phase("attention in turns with PyTorch's");
    let comparison = Comparison::of(python, "cpu", threads, &mut |torch, to| {
        cpu.beside_torch(torch, to)
    })?;
    cpu.findings.torch = Some(comparison);
    Ok(())
}

/// A value that must be within `bound`.
fn within(exact: f64, bound: f64) -> Expected {
    Expected {
        exact,
        naive: exact,
        f32_bound: bound,
        bound,
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

pub(super) fn low(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// Keys and values of one sequence, and where they lie in a store.
pub(super) struct Store<T> {
    k: Vec<T>,
    v: Vec<T>,
    pub(super) table: Vec<u32>,
    /// Keys and values, token by token.
    pub(super) rows: [Vec<f32>; 2],
}

impl<T: KvElem> Store<T> {
    /// `len` tokens, their blocks in falling order.
    pub(super) fn new(len: usize) -> Self {
        let (width, mut rng) = (KV.kv_heads * KV.d_head, Rng(11));
        let blocks = len.div_ceil(KV.block_size);
        let table: Vec<u32> = (0..blocks as u32).rev().collect();
        // What the type keeps: the reference starts from the stored numbers.
        let mut values = || -> Vec<f32> {
            rng.values(len * width, 1.0)
                .iter()
                .map(|x| low(*x))
                .collect()
        };
        let rows = [values(), values()];
        let blank = vec![T::from_f32(0.0); blocks * KV.block_elems()];
        let mut store = Store {
            k: blank.clone(),
            v: blank,
            table,
            rows,
        };
        let slot = |p: usize| KvSlot {
            block: store.table[p / KV.block_size],
            slot: (p % KV.block_size) as u32,
        };
        let slots: Vec<KvSlot> = (0..len).map(slot).collect();
        let mut kv = KvLayerMut {
            k: &mut store.k,
            v: &mut store.v,
            k_scales: &mut [],
            v_scales: &mut [],
            shape: KV,
        };
        let [k, v] = &store.rows;
        kv_write(Rows::new(k, width), Rows::new(v, width), &slots, &mut kv);
        store
    }

    pub(super) fn view(&self) -> KvLayerView<'_, T> {
        KvLayerView::unscaled(&self.k, &self.v, KV)
    }
}

impl Cpu<'_> {
    fn judged(&mut self, kernel: &str, shape: String, got: &[f32], want: &[Expected]) {
        self.findings.judged.push(Judged {
            kernel: kernel.to_owned(),
            shape,
            outputs: got.len(),
            outcome: Ok(judge(&wide(got), want)),
        });
    }

    fn check_products(&mut self, m: usize, n: usize, k: usize) {
        let (isa, mut rng) = (self.isa, Rng((m * n + k) as u64));
        let (a, w) = (rng.values(m * k, 2.0), rng.values(n * k, 1.0));
        let shape = format!("{m}x{n}x{k}");
        let low_a: Vec<f32> = a.iter().map(|x| low(*x)).collect();
        let low_w: Vec<f32> = w.iter().map(|x| low(*x)).collect();
        let expect = |a: &[f32], w: &[f32], of_bf16: bool| -> Vec<Expected> {
            let largest = a
                .iter()
                .chain(w)
                .map(|x| f64::from(x.abs()))
                .fold(0.0, f64::max);
            let one = |i: usize| {
                let (row, column) = (&a[i / n * k..][..k], &w[i % n * k..][..k]);
                let terms = row
                    .iter()
                    .zip(column)
                    .map(|(a, w)| f64::from(*a) * f64::from(*w));
                let (exact, abs) = terms.fold((0.0, 0.0), |(s, t), x: f64| (s + x, t + x.abs()));
                let bound = match of_bf16 {
                    true => bf16_dot_bound(k, abs, largest),
                    false => gemm_bound(k, F32_UNIT_ROUNDOFF, abs),
                };
                within(exact, bound)
            };
            (0..m * n).map(one).collect()
        };
        let mut out = vec![0.0; m * n];
        gemm_exact(isa, &self.pool, &a, m, &PackedF32::pack(&w, n, k), &mut out);
        self.judged("gemm exact", shape.clone(), &out, &expect(&a, &w, false));
        let packed = PackedBf16::pack(&w, n, k);
        gemm_fast(isa, &self.pool, Dot::F32, &a, m, &packed, &mut out);
        self.judged(
            "gemm fast f32",
            shape.clone(),
            &out,
            &expect(&a, &low_w, false),
        );
        gemm_fast(isa, &self.pool, Dot::Bf16, &a, m, &packed, &mut out);
        self.judged("gemm fast bf16", shape, &out, &expect(&low_a, &low_w, true));
    }

    fn check_rows(&mut self, rows: usize) {
        let (isa, eps, mut rng) = (self.isa, 1e-5f32, Rng(rows as u64));
        let (x, delta) = (
            rng.values(rows * HIDDEN, 4.0),
            rng.values(rows * HIDDEN, 2.0),
        );
        let weight = rng.values(HIDDEN, 1.0);
        let norms = |x: &[f32]| -> Vec<Expected> {
            let row = |row: &[f32]| -> Vec<Expected> {
                let squares: f64 = wide(row).iter().map(|v| v * v).sum();
                let root = (squares / HIDDEN as f64 + f64::from(eps)).sqrt();
                let one = |(x, w): (&f32, &f32)| {
                    let y = f64::from(*x) / root * f64::from(*w);
                    within(y, rmsnorm_bound(HIDDEN, y))
                };
                row.iter().zip(&weight).map(one).collect()
            };
            x.chunks_exact(HIDDEN).flat_map(row).collect()
        };
        let mut out = vec![0.0; rows * HIDDEN];
        rmsnorm(isa, &self.pool, &x, &weight, eps, &mut out);
        self.judged("rmsnorm", format!("{rows}x{HIDDEN}"), &out, &norms(&x));
        let mut residual = x.clone();
        add_rmsnorm(
            isa,
            &self.pool,
            &mut residual,
            &delta,
            &weight,
            eps,
            &mut out,
        );
        let sums: Vec<f32> = x.iter().zip(&delta).map(|(x, d)| x + d).collect();
        let mut want: Vec<Expected> = wide(&sums).iter().map(|x| within(*x, 0.0)).collect();
        want.extend(norms(&sums));
        let got = [residual, out].concat();
        self.judged("add_rmsnorm", format!("{rows}x{HIDDEN}"), &got, &want);
        let gate_up = rng.values(rows * 2 * FFN, 9.0);
        let mut out = vec![0.0; rows * FFN];
        silu_mul_fused(isa, &self.pool, &gate_up, FFN, &mut out);
        let gated = |row: &[f32]| -> Vec<Expected> {
            let one = |(g, u): (&f32, &f32)| {
                let y = f64::from(*g) / (1.0 + (-f64::from(*g)).exp()) * f64::from(*u);
                within(y, silu_mul_bound(y))
            };
            row[..FFN].iter().zip(&row[FFN..]).map(one).collect()
        };
        let want: Vec<Expected> = gate_up.chunks_exact(2 * FFN).flat_map(gated).collect();
        self.judged("silu_mul", format!("{rows}x{FFN}"), &out, &want);
        self.check_rotation(rows);
    }

    fn check_rotation(&mut self, rows: usize) {
        let (d, half) = (KV.d_head, KV.d_head / 2);
        let positions: Vec<u32> = (0..rows as u32).map(|i| i * 511).collect();
        let angle = |p: usize, i: usize| p as f64 * 1e5f64.powf(-(2.0 * i as f64) / d as f64);
        let known = positions.iter().max().map_or(1, |p| *p as usize + 1);
        let table = |f: fn(f64) -> f64| -> Vec<f32> {
            let row = |p: usize| (0..half).map(move |i| f(angle(p, i)) as f32);
            (0..known).flat_map(row).collect()
        };
        let (cos, sin) = (table(f64::cos), table(f64::sin));
        let host = Rng(21).values(rows * Q_HEADS * d, 2.0);
        let mut x = host.clone();
        let tables = RopeTable {
            cos: &cos,
            sin: &sin,
            half,
        };
        let there = RowsMut::new(&mut x, Q_HEADS * d);
        rope_apply(self.isa, &self.pool, there, Q_HEADS, &tables, &positions);
        let one = |i: usize| {
            let (row, dim) = (i / (Q_HEADS * d), i % d);
            let pair = dim % half;
            let first = i - dim + pair;
            let (a, b) = (f64::from(host[first]), f64::from(host[first + half]));
            let (sin, cos) = angle(positions[row] as usize, pair).sin_cos();
            let (p, q) = if dim < half {
                (a * cos, -b * sin)
            } else {
                (b * cos, a * sin)
            };
            within(p + q, rope_bound(p.abs() + q.abs()))
        };
        let want: Vec<Expected> = (0..host.len()).map(one).collect();
        self.judged("rope", format!("{rows}x{Q_HEADS} heads"), &x, &want);
    }

    fn check_attention<T: KvElem>(&mut self, name: &str, len: usize, prefix: usize) {
        let (isa, width) = (self.isa, Q_HEADS * KV.d_head);
        let store = Store::<T>::new(prefix + len);
        let q = Rng(12).values(len * width, 3.0);
        let want = attention_expected(&self.pool, &store, &wide(&q), prefix);
        let seqs = [AttnSeq {
            q_row: 0,
            q_len: len,
            start_pos: prefix,
            block_table: &store.table,
        }];
        let shape = format!("{name} {len}@{prefix}");
        let (rows, mut out) = (Rows::new(&q, width), vec![0.0; len * width]);
        let view = store.view();
        attention_exact(isa, &self.pool, rows, Q_HEADS, view, &seqs, &mut out);
        self.judged("attention exact", shape.clone(), &out, &want);
        attention_fast(isa, &self.pool, rows, Q_HEADS, view, &seqs, &mut out);
        self.judged("attention fast", shape, &out, &want);
    }
}

/// Attention of the queries `q` after `prefix` tokens, with the bound of every element.
fn attention_expected<T>(pool: &Pool, store: &Store<T>, q: &[f64], prefix: usize) -> Vec<Expected> {
    let (d, width, kv_width) = (KV.d_head, Q_HEADS * KV.d_head, KV.kv_heads * KV.d_head);
    let total = prefix + q.len() / width;
    let [k, v] = [wide(&store.rows[0]), wide(&store.rows[1])];
    let abs_v: Vec<f64> = v.iter().map(|x| x.abs()).collect();
    let (query_pos, key_pos): (Vec<usize>, Vec<usize>) =
        ((prefix..total).collect(), (0..total).collect());
    let of = |v: &[f64]| {
        let mut out = vec![0.0; q.len()];
        let args = RefAttention {
            q,
            k: &k,
            v,
            q_heads: Q_HEADS,
            kv_heads: KV.kv_heads,
            d_head: d,
            query_pos: &query_pos,
            key_pos: &key_pos,
        };
        attention_f64(pool, &args, &mut out);
        out
    };
    // The same sums with |v| in place of v, for the bound.
    let (exact, weighted) = (of(&v), of(&abs_v));
    let largest = abs_v.iter().copied().fold(0.0, f64::max);
    let one = |i: usize| {
        let (row, head) = (i / width, i % width / d);
        let query = &q[row * width + head * d..][..d];
        let first = head / (Q_HEADS / KV.kv_heads) * d;
        let abs_score = |j: usize| -> f64 {
            let key = &k[j * kv_width + first..][..d];
            query.iter().zip(key).map(|(a, b)| (a * b).abs()).sum()
        };
        let keys = prefix + row + 1;
        let bound = attention_bound(&AttentionTerms {
            d_head: d,
            keys,
            max_abs_score: (0..keys).map(abs_score).fold(0.0, f64::max) / (d as f64).sqrt(),
            weighted_abs_value: weighted[i],
            max_abs_value: largest,
        });
        within(exact[i], bound)
    };
    (0..q.len()).map(one).collect()
}
