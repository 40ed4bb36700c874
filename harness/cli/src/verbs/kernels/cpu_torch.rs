//! The CPU's attention beside PyTorch's.

use anyhow::Result;
use half::{bf16, f16};
use pb_contract::{Clock, WallClock};
use pb_kernels_cpu::{AttnSeq, KvElem, Rows, attention_fast};
use pb_kernels_cuda::check::formulas::{Head, attention};
use pb_kernels_cuda::check::{Expected, Rng, Value};

use super::cpu::{Cpu, KV, Q_HEADS, Store, low};
use super::cpu_time::{ATTENTION, Scrub};
use super::torch::{Comparison, Problem, Torch};

impl Cpu<'_> {
    /// Compares prefill and decode at the shapes that are timed, in f32 and with keys and values
    /// in bf16. Our queries are f32 in both; PyTorch wants one type for all.
    pub(super) fn beside_torch(&mut self, torch: &mut Torch, to: &mut Comparison) -> Result<()> {
        for (len, prefix) in ATTENTION {
            // Bounds of a lower type than f32: how PyTorch sums and takes exponentials is not ours
            // to bound, while a wrong mask or head is off by thousands of them.
            self.beside::<f32, f16>(torch, to, ["float32", "f32"], [len, prefix])?;
            self.beside::<bf16, bf16>(torch, to, ["bfloat16", "bf16"], [len, prefix])?;
        }
        Ok(())
    }

    fn beside<E: KvElem, T: Value>(
        &mut self,
        torch: &mut Torch,
        to: &mut Comparison,
        [dtype, name]: [&'static str; 2],
        [len, prefix]: [usize; 2],
    ) -> Result<()> {
        let (isa, pool, width) = (self.isa, &self.pool, Q_HEADS * KV.d_head);
        let store = Store::<E>::new(prefix + len);
        let q: Vec<f32> = Rng(41)
            .values(len * width, 3.0)
            .into_iter()
            .map(low)
            .collect();
        let expected = expected::<E, T>(&store, &q, prefix);
        let problem = Problem {
            dtype,
            q_heads: Q_HEADS,
            kv_heads: KV.kv_heads,
            d: KV.d_head,
            len,
            prefix,
            q: &q,
            k: &store.rows[0],
            v: &store.rows[1],
            expected: &expected,
        };
        let seqs = [AttnSeq {
            q_row: 0,
            q_len: len,
            start_pos: prefix,
            block_table: &store.table,
        }];
        let (mut out, mut scrub) = (vec![0.0; len * width], Scrub::new());
        let mut ours = || {
            scrub.run(pool);
            let (rows, view, out) = (Rows::new(&q, width), store.view(), &mut out);
            let before = WallClock.now();
            pool.install(|| attention_fast(isa, pool, rows, Q_HEADS, view, &seqs, out));
            Ok((WallClock.now() - before).0)
        };
        let shape = format!("{name} {len}@{prefix}");
        to.add(torch, ("attention fast", shape), &problem, &mut ours)
    }
}

/// Every output by the formula, with the bounds of `T`.
fn expected<E, T: Value>(store: &Store<E>, q: &[f32], prefix: usize) -> Vec<Expected> {
    let (d, width) = (KV.d_head, Q_HEADS * KV.d_head);
    // Token by token and head by head.
    let heads = |side: usize| -> Vec<Vec<Vec<f64>>> {
        let one = |head: usize| {
            let rows = store.rows[side].chunks_exact(KV.kv_heads * d);
            let wide = |row: &[f32]| row[head * d..][..d].iter().map(|x| f64::from(*x)).collect();
            rows.map(wide).collect()
        };
        (0..KV.kv_heads).map(one).collect()
    };
    let (k, v) = (heads(0), heads(1));
    let of = |(row, q): (usize, &[f32])| -> Vec<Expected> {
        let per_head = q.chunks_exact(d).enumerate().flat_map(|(head, q)| {
            let (kv, visible) = (head / (Q_HEADS / KV.kv_heads), prefix + row + 1);
            let q: Vec<f64> = q.iter().map(|x| f64::from(*x)).collect();
            attention::<T>(&Head {
                q: &q,
                k: &k[kv][..visible],
                v: &v[kv][..visible],
            })
        });
        per_head.collect()
    };
    q.chunks_exact(width).enumerate().flat_map(of).collect()
}
