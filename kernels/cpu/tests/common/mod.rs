//! What the test files share: seeded values and plain scalar oracles.
#![allow(dead_code)] // Each test file uses its own part.

pub(crate) mod fp8_table;

use half::bf16;
use pb_kernels_cpu::{
    AttnSeq, KvElem, KvLayerMut, KvLayerView, KvScaling, KvShape, KvSlot, Rows, exp_f32, kv_write,
};

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (-scale, scale).
    pub(crate) fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        let unit = |x: u64| (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        (0..n).map(|_| unit(self.next_u64()) * scale).collect()
    }

    pub(crate) fn shuffle(&mut self, x: &mut [u32]) {
        for i in (1..x.len()).rev() {
            x.swap(i, self.next_u64() as usize % (i + 1));
        }
    }
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

pub(crate) fn f64s(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

pub(crate) fn to_bf16(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| bf16::from_f32(*v).to_f32()).collect()
}

/// The definition of the exact product: one multiply-add chain per element.
pub(crate) fn chain_gemm(a: &[f32], m: usize, w: &[f32], n: usize, k: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(m * n);
    for r in 0..m {
        for c in 0..n {
            let chain = |acc: f32, i: usize| a[r * k + i].mul_add(w[c * k + i], acc);
            out.push((0..k).fold(0.0, chain));
        }
    }
    out
}

/// One sequence: queries, keys and values of every position, row-major.
pub(crate) struct Problem {
    pub(crate) q_heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) d: usize,
    pub(crate) len: usize,
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
}

impl Problem {
    pub(crate) fn new(seed: u64, q_heads: usize, kv_heads: usize, d: usize, len: usize) -> Self {
        let mut rng = Rng(seed);
        Problem {
            q_heads,
            kv_heads,
            d,
            len,
            q: rng.values(len * q_heads * d, 3.0),
            k: rng.values(len * kv_heads * d, 1.0),
            v: rng.values(len * kv_heads * d, 1.0),
        }
    }

    pub(crate) fn q_width(&self) -> usize {
        self.q_heads * self.d
    }

    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.d
    }

    /// The queries at `positions`.
    pub(crate) fn q_rows(&self, positions: std::ops::Range<usize>) -> &[f32] {
        &self.q[positions.start * self.q_width()..positions.end * self.q_width()]
    }

    /// Exact attention by its definition, in scalar code over contiguous arrays: every
    /// multiply-add chain and the 16 partial sums written out.
    pub(crate) fn oracle(&self, position: usize, head: usize) -> Vec<f32> {
        let (d, width) = (self.d, self.kv_width());
        let kv_head = head * self.kv_heads / self.q_heads;
        let scale = 1.0 / (d as f32).sqrt();
        let q = &self.q[position * self.q_width() + head * d..][..d];
        let at = |j: usize, i: usize| j * width + kv_head * d + i;
        let score = |j: usize| {
            (0..d).fold(0.0f32, |acc, i| {
                (q[i] * scale).mul_add(self.k[at(j, i)], acc)
            })
        };
        let mut p: Vec<f32> = (0..=position).map(score).collect();
        let max = p.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut lanes = [0.0f32; 16];
        for (j, p) in p.iter_mut().enumerate() {
            *p = exp_f32(*p - max);
            lanes[j % 16] += *p;
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        let inverse = 1.0 / lanes[0];
        let sum = |i: usize| {
            p.iter()
                .enumerate()
                .fold(0.0f32, |acc, (j, p)| p.mul_add(self.v[at(j, i)], acc))
        };
        (0..d).map(|i| sum(i) * inverse).collect()
    }
}

/// Scales of keys and values in a [`Store`] whose element has one per layer.
pub(crate) const LAYER_SCALES: [f32; 2] = [0.013, 0.71];

/// A paged store that holds one problem's keys and values, in a block order of its own, with
/// every unwritten element poisoned (its scale, where an integer has no poison).
pub(crate) struct Store<T> {
    pub(crate) k: Vec<T>,
    pub(crate) v: Vec<T>,
    pub(crate) k_scales: Vec<f32>,
    pub(crate) v_scales: Vec<f32>,
    pub(crate) shape: KvShape,
    pub(crate) table: Vec<u32>,
}

impl<T: KvElem> Store<T> {
    pub(crate) fn new(p: &Problem, block_size: usize, seed: u64) -> Self {
        let shape = KvShape {
            block_size,
            kv_heads: p.kv_heads,
            d_head: p.d,
        };
        let used = p.len.div_ceil(block_size);
        let mut table: Vec<u32> = (0..used as u32 + 3).collect();
        if seed != 0 {
            Rng(seed).shuffle(&mut table);
        }
        let elems = table.len() * shape.block_elems();
        let scales = |layer: f32| match T::SCALING {
            KvScaling::PerLayer => vec![layer],
            scaling => vec![f32::NAN; scaling.scales(shape, table.len())],
        };
        let mut store = Store {
            k: vec![T::from_f32(f32::NAN); elems],
            v: vec![T::from_f32(f32::NAN); elems],
            k_scales: scales(LAYER_SCALES[0]),
            v_scales: scales(LAYER_SCALES[1]),
            shape,
            table: Vec::new(),
        };
        let slots: Vec<_> = (0..p.len)
            .map(|i| KvSlot {
                block: table[i / block_size],
                slot: (i % block_size) as u32,
            })
            .collect();
        let (rows_k, rows_v) = (Rows::new(&p.k, p.kv_width()), Rows::new(&p.v, p.kv_width()));
        let mut kv = KvLayerMut {
            k: &mut store.k,
            v: &mut store.v,
            k_scales: &mut store.k_scales,
            v_scales: &mut store.v_scales,
            shape,
        };
        kv_write(rows_k, rows_v, &slots, &mut kv);
        table.truncate(used);
        store.table = table;
        store
    }

    pub(crate) fn view(&self) -> KvLayerView<'_, T> {
        KvLayerView {
            k: &self.k,
            v: &self.v,
            k_scales: &self.k_scales,
            v_scales: &self.v_scales,
            shape: self.shape,
        }
    }

    pub(crate) fn seq(&self, q_row: usize, start_pos: usize, q_len: usize) -> AttnSeq<'_> {
        AttnSeq {
            q_row,
            q_len,
            start_pos,
            block_table: &self.table,
        }
    }
}
