//! Attention of a sequence that a fault changes.
//!
//! The sequence's keys and values are read back, altered, and written to a private store, on which
//! the same kernel runs as without a fault. So no fault needs a kernel of its own, and the kernels
//! know of none. Slow, but only a faulty engine pays.

use pb_contract::Fault;
use pb_kernels_cpu::{
    AttnSeq, Isa, KvElem, KvLayerMut, KvLayerView, KvShape, KvSlot, Pool, Rows, kv_read, kv_write,
};

use super::super::packed::Packed;
use super::{Context, Span};

/// Tokens per block of the private store.
const BLOCK: usize = 16;

/// One sequence's attention.
pub(in crate::forward) struct Attention<'a, T> {
    pub(in crate::forward) isa: Isa,
    pub(in crate::forward) pool: &'a Pool,
    pub(in crate::forward) q: Rows<'a>,
    pub(in crate::forward) q_heads: usize,
    pub(in crate::forward) kv: KvLayerView<'a, T>,
    pub(in crate::forward) seq: AttnSeq<'a>,
}

impl<T: KvElem> Attention<'_, T> {
    /// Computes it under `fault` to the sequence's rows of `out`.
    pub(in crate::forward) fn run<W: Packed>(&self, fault: Fault, out: &mut [f32]) {
        let result = match fault {
            Fault::KvHeadModulo => self.head_modulo::<W>(),
            Fault::MergeBase2 => self.merged_with_base_2::<W>(),
            _ => self.over::<W>(&self.queries(), &Context::under(fault, self.span())),
        };
        out[self.seq.q_row * self.width()..][..result.len()].copy_from_slice(&result);
    }

    fn width(&self) -> usize {
        self.q_heads * self.kv.shape.d_head
    }

    fn kv_width(&self) -> usize {
        self.kv.shape.kv_heads * self.kv.shape.d_head
    }

    fn span(&self) -> Span {
        Span {
            start: self.seq.start_pos,
            len: self.seq.q_len,
            block_size: self.kv.shape.block_size,
        }
    }

    /// This sequence's queries, dense, `[q_len][q_heads * d_head]`.
    fn queries(&self) -> Vec<f32> {
        let rows = self.seq.q_row..self.seq.q_row + self.seq.q_len;
        rows.flat_map(|i| self.q.row(i, self.width()))
            .copied()
            .collect()
    }

    /// Keys and values of the whole sequence, dense rows.
    fn stored(&self) -> (Vec<f32>, Vec<f32>) {
        let size = self.kv.shape.block_size;
        let end = self.seq.start_pos + self.seq.q_len;
        let slot = |p: usize| KvSlot {
            block: self.seq.block_table[p / size],
            slot: (p % size) as u32,
        };
        let slots: Vec<KvSlot> = (0..end).map(slot).collect();
        let mut k = vec![0.0; end * self.kv_width()];
        let mut v = k.clone();
        kv_read(&self.kv, &slots, &mut k, &mut v);
        (k, v)
    }

    /// Attention of dense `queries` over a private store with `context`, dense.
    fn over<W: Packed>(&self, queries: &[f32], context: &Context) -> Vec<f32> {
        let (width, tokens) = (self.kv_width(), context.keys.len());
        let (k, v) = self.stored();
        let k = chosen(&k, width, &context.keys);
        let v = chosen(&v, width, &context.values);
        let shape = KvShape {
            block_size: BLOCK,
            ..self.kv.shape
        };
        let table: Vec<u32> = (0..tokens.div_ceil(BLOCK) as u32).collect();
        let slot = |p: usize| KvSlot {
            block: (p / BLOCK) as u32,
            slot: (p % BLOCK) as u32,
        };
        let slots: Vec<KvSlot> = (0..tokens).map(slot).collect();
        let mut keys = vec![0.0f32; table.len() * shape.block_elems()];
        let mut values = keys.clone();
        let mut store = KvLayerMut {
            k: &mut keys,
            v: &mut values,
            k_scales: &mut [],
            v_scales: &mut [],
            shape,
        };
        let (k, v) = (Rows::new(&k, width), Rows::new(&v, width));
        kv_write(k, v, &slots, &mut store);
        let whole = AttnSeq {
            q_row: 0,
            q_len: self.seq.q_len,
            start_pos: context.start,
            block_table: &table,
        };
        let seqs = if context.one_ahead {
            one_ahead(whole)
        } else {
            vec![whole]
        };
        self.kernel::<W, f32>(queries, store.view(), &seqs)
    }

    /// The kernel's output for dense `queries`.
    fn kernel<W: Packed, E: KvElem>(
        &self,
        queries: &[f32],
        kv: KvLayerView<'_, E>,
        seqs: &[AttnSeq<'_>],
    ) -> Vec<f32> {
        let mut out = vec![0.0; queries.len()];
        let q = Rows::new(queries, self.width());
        W::attention(self.isa, self.pool, q, self.q_heads, kv, seqs, &mut out);
        out
    }

    /// Query head `h` on key/value head `h mod kv_heads`. The kernel pairs by `h / group`, so
    /// queries trade places before and outputs after.
    fn head_modulo<W: Packed>(&self) -> Vec<f32> {
        let (d, kv_heads) = (self.kv.shape.d_head, self.kv.shape.kv_heads);
        let group = self.q_heads / kv_heads;
        let place = |h: usize| h % kv_heads * group + h / kv_heads;
        let queries = self.queries();
        let mut moved = vec![0.0; queries.len()];
        for head in 0..queries.len() / d {
            let to = head / self.q_heads * self.q_heads + place(head % self.q_heads);
            moved[to * d..][..d].copy_from_slice(&queries[head * d..][..d]);
        }
        let attended = self.over::<W>(&moved, &Context::under(Fault::None, self.span()));
        let heads = (0..queries.len() / d).flat_map(|head| {
            let from = head / self.q_heads * self.q_heads + place(head % self.q_heads);
            &attended[from * d..][..d]
        });
        heads.copied().collect()
    }

    /// Context and chunk apart, merged by their log-sum-exp in natural logarithms as if they were
    /// in base 2: weights `2^lse` for `e^lse`, as in vLLM #52796.
    fn merged_with_base_2<W: Packed>(&self) -> Vec<f32> {
        let (start, d) = (self.seq.start_pos, self.kv.shape.d_head);
        let group = self.q_heads / self.kv.shape.kv_heads;
        let queries = self.queries();
        let chunk = self.over::<W>(
            &queries,
            &Context::under(Fault::ContextIgnored, self.span()),
        );
        // One sequence a query: each sees every key of the context and no other.
        let single = |q_row: usize| AttnSeq {
            q_row,
            q_len: 1,
            start_pos: start - 1,
            block_table: self.seq.block_table,
        };
        let seqs: Vec<AttnSeq<'_>> = (0..self.seq.q_len).map(single).collect();
        let context = self.kernel::<W, T>(&queries, self.kv, &seqs);
        let (keys, _) = self.stored();
        let mut out = vec![0.0; queries.len()];
        for (i, head) in out.chunks_exact_mut(d).enumerate() {
            let (row, h) = (i / self.q_heads, i % self.q_heads);
            let key = |p: usize| &keys[p * self.kv_width() + h / group * d..][..d];
            let q = &queries[i * d..][..d];
            let before = log_sum_exp(q, (0..start).map(key));
            let within = log_sum_exp(q, (start..=start + row).map(key));
            let top = before.max(within);
            let (a, b) = (libm::exp2f(before - top), libm::exp2f(within - top));
            for (j, o) in head.iter_mut().enumerate() {
                *o = (a * context[i * d + j] + b * chunk[i * d + j]) / (a + b);
            }
        }
        out
    }
}

/// The queries of `seq` one key ahead; the last, beyond which there is no key, as it is.
fn one_ahead(seq: AttnSeq<'_>) -> Vec<AttnSeq<'_>> {
    let but_last = seq.q_len - 1;
    let first = AttnSeq {
        q_len: but_last,
        start_pos: seq.start_pos + 1,
        ..seq
    };
    let last = AttnSeq {
        q_row: seq.q_row + but_last,
        q_len: 1,
        start_pos: seq.start_pos + but_last,
        ..seq
    };
    let seqs = [first, last].into_iter();
    seqs.filter(|s| s.q_len > 0).collect()
}

/// The rows at `positions`, zeros for `None`.
fn chosen(rows: &[f32], width: usize, positions: &[Option<usize>]) -> Vec<f32> {
    let zeros = vec![0.0; width];
    let row = |p: &Option<usize>| p.map_or(&zeros[..], |p| &rows[p * width..(p + 1) * width]);
    positions.iter().flat_map(row).copied().collect()
}

/// `ln(sum(e^(q . k / sqrt(d))))` over `keys`.
fn log_sum_exp<'a>(q: &[f32], keys: impl Iterator<Item = &'a [f32]>) -> f32 {
    let scale = 1.0 / (q.len() as f32).sqrt();
    let score = |k: &[f32]| q.iter().zip(k).map(|(a, b)| a * b).sum::<f32>() * scale;
    let scores: Vec<f32> = keys.map(score).collect();
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = scores.iter().map(|s| libm::expf(s - top)).sum();
    top + libm::logf(sum)
}
