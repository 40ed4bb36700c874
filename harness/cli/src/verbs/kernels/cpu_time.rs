//! How long the CPU's kernels take, inputs cold.

use half::bf16;
use pb_contract::{Clock, WallClock};
use pb_kernels_cpu::{
    AttnSeq, Dot, PackedBf16, PackedF32, Pool, Rows, attention_exact, attention_fast, copy_all,
    gemm_exact, gemm_fast, read_all, rmsnorm, silu_mul_fused,
};
use pb_kernels_cuda::check::{Ceilings, Rng, Timed};

use super::cpu::{Cpu, FFN, HIDDEN, KV, Q_HEADS, Store};

/// Runs of one measurement; the median counts.
const REPEATS: usize = 9;

/// Larger than the caches: copied to measure memory, and gone through between runs.
const LARGE_BYTES: usize = 256 << 20;

/// Attention that is timed: tokens of the chunk and before it.
pub(super) const ATTENTION: [(usize, usize); 3] = [(1, 1023), (128, 512), (512, 0)];

/// Memory that every thread goes through before a run, so that none has its inputs at hand.
pub(super) struct Scrub {
    from: Vec<u64>,
    to: Vec<u64>,
}

impl Scrub {
    pub(super) fn new() -> Self {
        let n = LARGE_BYTES / 2 / size_of::<u64>();
        Scrub {
            from: vec![1; n],
            to: vec![2; n],
        }
    }

    pub(super) fn run(&mut self, pool: &Pool) {
        copy_all(pool, &self.from, std::hint::black_box(&mut self.to));
    }
}

impl Cpu<'_> {
    /// Times `work`, cold, and reports it.
    fn report(
        &mut self,
        kernel: &'static str,
        shape: String,
        [read, written, flops]: [usize; 3],
        mut work: impl FnMut(&Pool),
    ) {
        let (clock, mut scrub) = (WallClock, Scrub::new());
        work(&self.pool);
        let mut times: Vec<u64> = (0..REPEATS)
            .map(|_| {
                scrub.run(&self.pool);
                let before = clock.now();
                work(&self.pool);
                (clock.now() - before).0
            })
            .collect();
        times.sort_unstable();
        self.findings.timed.push(Timed {
            kernel,
            shape,
            median_ns: times[REPEATS / 2],
            range_ns: [times[0], times[REPEATS - 1]],
            traffic: [read as u64, written as u64],
            flops: flops as u64,
        });
    }

    /// Times the kernels at the shapes of SmolLM2-135M.
    pub(super) fn time(&mut self) {
        let before = memory_rates(&self.pool);
        for m in [1, 128] {
            self.time_products(m);
        }
        self.time_rows(128);
        for (len, prefix) in ATTENTION {
            self.time_attention(len, prefix);
        }
        let products = self
            .findings
            .timed
            .iter()
            .filter(|t| t.kernel.starts_with("gemm"));
        let rates = products.map(|t| t.flops as f64 * 1e9 / t.median_ns.max(1) as f64);
        let gemm_flops_per_s = rates.fold(0.0, f64::max);
        let after = memory_rates(&self.pool);
        self.findings.ceilings = Some(Ceilings {
            read_bytes_per_s: before[0].max(after[0]),
            copy_bytes_per_s: before[1].max(after[1]),
            // There is no other product here: the fastest of ours.
            gemm_flops_per_s: Some(gemm_flops_per_s),
        });
    }

    fn time_products(&mut self, m: usize) {
        let (isa, mut rng) = (self.isa, Rng(31));
        // One layer: a single product of this size would stay in the cache.
        for (n, k) in [(960, HIDDEN), (2 * FFN, HIDDEN), (49_152, HIDDEN)] {
            if m > 1 && n > 10_000 {
                continue;
            }
            let (a, w) = (rng.values(m * k, 1.0), rng.values(n * k, 1.0));
            let (exact, fast) = (PackedF32::pack(&w, n, k), PackedBf16::pack(&w, n, k));
            let (mut out, flops) = (vec![0.0; m * n], 2 * m * n * k);
            let shape = || format!("{m}x{n}x{k}");
            let moved = |weights: usize| [4 * m * k + weights, 4 * m * n, flops];
            self.report("gemm exact", shape(), moved(4 * n * k), |pool| {
                pool.install(|| gemm_exact(isa, pool, &a, m, &exact, &mut out));
            });
            for (name, dot) in [("gemm fast f32", Dot::F32), ("gemm fast bf16", Dot::Bf16)] {
                self.report(name, shape(), moved(2 * n * k), |pool| {
                    pool.install(|| gemm_fast(isa, pool, dot, &a, m, &fast, &mut out));
                });
            }
        }
    }

    fn time_rows(&mut self, rows: usize) {
        let (isa, mut rng) = (self.isa, Rng(32));
        let (x, weight) = (rng.values(rows * HIDDEN, 4.0), rng.values(HIDDEN, 1.0));
        let (mut out, elems) = (vec![0.0; rows * HIDDEN], rows * HIDDEN);
        let shape = format!("{rows}x{HIDDEN}");
        self.report(
            "rmsnorm",
            shape,
            [4 * elems, 4 * elems, 4 * elems],
            |pool| {
                rmsnorm(isa, pool, &x, &weight, 1e-5, &mut out);
            },
        );
        let gate_up = rng.values(rows * 2 * FFN, 9.0);
        let (mut out, elems) = (vec![0.0; rows * FFN], rows * FFN);
        let shape = format!("{rows}x{FFN}");
        self.report(
            "silu_mul",
            shape,
            [8 * elems, 4 * elems, 5 * elems],
            |pool| {
                silu_mul_fused(isa, pool, &gate_up, FFN, &mut out);
            },
        );
    }

    fn time_attention(&mut self, len: usize, prefix: usize) {
        let (isa, d, width) = (self.isa, KV.d_head, Q_HEADS * KV.d_head);
        let store = Store::<bf16>::new(prefix + len);
        let q = Rng(33).values(len * width, 1.0);
        let (rows, mut out) = (Rows::new(&q, width), vec![0.0; len * width]);
        let seqs = [AttnSeq {
            q_row: 0,
            q_len: len,
            start_pos: prefix,
            block_table: &store.table,
        }];
        let pairs = len * prefix + len * (len + 1) / 2;
        let kv_bytes = 4 * (prefix + len) * KV.kv_heads * d;
        let rows_bytes = 4 * len * width;
        let work = [kv_bytes + rows_bytes, rows_bytes, 4 * pairs * width];
        let shape = || format!("bf16 {len}@{prefix}");
        self.report("attention exact", shape(), work, |pool| {
            let (view, out) = (store.view(), &mut out);
            pool.install(|| attention_exact(isa, pool, rows, Q_HEADS, view, &seqs, out));
        });
        self.report("attention fast", shape(), work, |pool| {
            let (view, out) = (store.view(), &mut out);
            pool.install(|| attention_fast(isa, pool, rows, Q_HEADS, view, &seqs, out));
        });
    }
}

/// Bytes a second that the threads of `pool` read and copy, each the best of several.
fn memory_rates(pool: &Pool) -> [f64; 2] {
    let n = LARGE_BYTES / size_of::<u64>();
    // Not zeros: pages that nothing was written to are all the same one.
    let (from, mut to) = (vec![1u64; n], vec![2u64; n]);
    let best = |work: &mut dyn FnMut()| -> f64 {
        let mut shortest = u64::MAX;
        for _ in 0..REPEATS {
            let before = WallClock.now();
            work();
            shortest = shortest.min((WallClock.now() - before).0);
        }
        LARGE_BYTES as f64 * 1e9 / shortest.max(1) as f64
    };
    let read = best(&mut || {
        std::hint::black_box(read_all(pool, std::hint::black_box(&from)));
    });
    let copied = best(&mut || copy_all(pool, &from, std::hint::black_box(&mut to)));
    [read, 2.0 * copied]
}
