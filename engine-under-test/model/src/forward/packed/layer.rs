//! One decoder layer and the output head, on the scratch of a call.

use pb_contract::Fault;
use pb_kernels_cpu as kernels;
use pb_kernels_cpu::{KvElem, Pool, RopeTable, Rows, RowsMut};

use super::kv::KvLayer;
use super::layout::Layout;
use super::weights::{On, Packed};
use super::{LOGIT_TILE, Parts, Run, Scratch};
use crate::forward::fault::{self, Attention};
use crate::forward::{LogitRow, SeqInput, timed, wanted_rows};
use crate::lora::{self, Target};

/// A fused matrix product of a decoder layer. Its output columns are those of its parts, side
/// by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Projection {
    /// Queries, keys, values.
    Qkv,
    /// Attention output.
    O,
    /// Gate and up of the feed-forward part.
    GateUp,
    /// Down of the feed-forward part.
    Down,
}

impl<W: Packed> Parts<W> {
    fn on<'a>(&self, pool: &'a Pool) -> On<'a> {
        On {
            isa: self.isa,
            pool,
            dot: self.dot,
        }
    }

    pub(super) fn embed(&self, batch: &[SeqInput<'_>], x: &mut [f32]) {
        let h = self.config.hidden;
        let tokens = batch.iter().flat_map(|s| s.tokens);
        for (row, &token) in x.chunks_exact_mut(h).zip(tokens) {
            let at = token as usize * h;
            row.copy_from_slice(&self.embed[at..at + h]);
        }
    }

    /// One decoder layer: `s.x` in, `s.x + s.delta` is the layer's output (the sum is formed by
    /// the next norm).
    pub(super) fn layer<T: KvElem>(
        &self,
        index: usize,
        kv: &mut KvLayer<T>,
        layout: &Layout<'_>,
        s: &mut Scratch,
        run: &mut Run<'_>,
    ) {
        let (c, l, isa) = (&self.config, &self.layers[index], self.isa);
        let pool = run.pool;
        if index == 0 {
            let eps = c.rms_eps as f32;
            kernels::rmsnorm(isa, pool, &s.x, &l.attn_norm, eps, &mut s.normed);
        } else {
            self.add_norm(pool, &l.attn_norm, s);
        }
        self.project(index, Projection::Qkv, layout, &s.normed, &mut s.qkv, run);
        if let Some(bias) = &l.qkv_bias {
            kernels::add_bias(isa, pool, &mut s.qkv, bias);
        }
        self.rope_and_store(pool, kv, layout, s);
        run.sink.layer_written(index, &*kv);
        self.attention(index, kv, layout, s, run);
        self.project(index, Projection::O, layout, &s.attn, &mut s.delta, run);
        self.add_norm(pool, &l.mlp_norm, s);
        self.project(
            index,
            Projection::GateUp,
            layout,
            &s.normed,
            &mut s.gate_up,
            run,
        );
        kernels::silu_mul_fused(isa, pool, &s.gate_up, c.ffn, &mut s.act);
        self.project(index, Projection::Down, layout, &s.act, &mut s.delta, run);
    }

    /// One product of layer `index` for all rows of the batch, adapters included: `input` to
    /// `out`, both dense.
    fn project(
        &self,
        index: usize,
        which: Projection,
        layout: &Layout<'_>,
        input: &[f32],
        out: &mut [f32],
        run: &mut Run<'_>,
    ) {
        let l = &self.layers[index];
        let weights = match which {
            Projection::Qkv => &l.qkv,
            Projection::O => &l.o,
            Projection::GateUp => &l.gate_up,
            Projection::Down => &l.down,
        };
        let (on, m) = (self.on(run.pool), layout.positions.len());
        timed(run.clock, &mut run.timing.gemm_ns, || {
            weights.gemm(on, input, m, out);
            if layout.batch.iter().any(|s| s.adapter.is_some()) {
                let place = lora::Place {
                    layer: index,
                    targets: &self.lora_targets(which),
                };
                let on = (self.isa, run.pool);
                self.adapters
                    .add(on, layout.batch, place, input, out, run.lora);
            }
        });
    }

    /// The parts of a fused product that an adapter may change, with their first columns.
    fn lora_targets(&self, which: Projection) -> Vec<Target> {
        use lora::Projection as Part;
        let c = &self.config;
        let target = |(projection, column)| Target { projection, column };
        let parts = match which {
            Projection::Qkv => vec![
                (Part::Q, 0),
                (Part::K, c.q_dim()),
                (Part::V, c.q_dim() + c.kv_dim()),
            ],
            Projection::O => vec![(Part::O, 0)],
            Projection::GateUp => vec![(Part::Gate, 0), (Part::Up, c.ffn)],
            Projection::Down => vec![(Part::Down, 0)],
        };
        parts.into_iter().map(target).collect()
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
        if self.fault == Fault::KvMantissaCut {
            for row in s.qkv.chunks_exact_mut(stride) {
                let kv = row[c.q_dim()..].iter_mut();
                kv.for_each(|x| *x = fault::cut_mantissa(*x));
            }
        }
        let k = Rows::new(&s.qkv[c.q_dim()..], stride);
        let v = Rows::new(&s.qkv[c.q_dim() + c.kv_dim()..], stride);
        kernels::kv_write(k, v, &layout.slots, &mut kv.view_mut());
    }

    fn attention<T: KvElem>(
        &self,
        index: usize,
        kv: &KvLayer<T>,
        layout: &Layout<'_>,
        s: &mut Scratch,
        run: &mut Run<'_>,
    ) {
        let c = &self.config;
        let stride = c.q_dim() + 2 * c.kv_dim();
        let view = kv.view();
        for prefill in [true, false] {
            let (faulty, seqs): (Vec<_>, Vec<_>) =
                layout.attention_seqs(prefill).into_iter().partition(|seq| {
                    fault::touches_attention(self.fault, seq.start_pos, index, c.layers)
                });
            if seqs.is_empty() && faulty.is_empty() {
                continue;
            }
            let total = if prefill {
                &mut run.timing.prefill_attention_ns
            } else {
                &mut run.timing.decode_attention_ns
            };
            timed(run.clock, total, || {
                let q = Rows::new(&s.qkv, stride);
                if !seqs.is_empty() {
                    W::attention(self.isa, run.pool, q, c.q_heads, view, &seqs, &mut s.attn);
                }
                for seq in faulty {
                    let one = Attention {
                        isa: self.isa,
                        pool: run.pool,
                        q,
                        q_heads: c.q_heads,
                        kv: view,
                        seq,
                    };
                    one.run::<W>(self.fault, &mut s.attn);
                }
            });
        }
    }

    pub(super) fn head(&self, batch: &[SeqInput<'_>], s: &mut Scratch, run: &mut Run<'_>) {
        let h = self.config.hidden;
        let vocab = self.config.vocab;
        let wanted = wanted_rows(batch);
        if wanted.is_empty() {
            return;
        }
        self.add_norm(run.pool, &self.final_norm, s);
        for tile in wanted.chunks(LOGIT_TILE) {
            for (out, w) in s.head_in.chunks_exact_mut(h).zip(tile) {
                let row = fault::logits_row(self.fault, batch[w.seq].start, w.row);
                out.copy_from_slice(&s.normed[row * h..(row + 1) * h]);
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
