//! Throughput of the kernels at the shapes of a 135M-parameter Llama (hidden 576, 9 query and
//! 3 key/value heads of 64, feed-forward 1536, vocabulary 49152), per thread count.
//!
//! Read the element rate of the products as FLOP/s, of skinny products (1 row) as bytes/s.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use pb_kernels_cpu::{
    AlignedBuf, AttnSeq, Dot, Isa, KvLayerView, KvShape, PackedBf16, PackedF32, Pool, Rows,
    attention_exact, attention_fast, gemm_exact, gemm_fast, reference, silu_mul,
};

/// Outputs and inputs of the products of one layer (q+k+v, o, gate+up, down).
const SHAPES: [(usize, usize); 4] = [(960, 576), (576, 576), (3072, 576), (576, 1536)];

/// The fast product's two kinds of activations.
const DOTS: [(&str, Dot); 2] = [("fast_f32", Dot::F32), ("fast_bf16", Dot::Bf16)];

fn values(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 7919) % 1021) as f32 / 1021.0 - 0.5)
        .collect()
}

fn pools() -> Vec<Pool> {
    // OK because a benchmark without its threads has nothing to measure.
    [1, 2].map(|t| Pool::new(t).expect("threads")).into()
}

fn gemm(c: &mut Criterion) {
    let isa = Isa::detect();
    for pool in pools() {
        let mut group = c.benchmark_group(format!("gemm/{}t", pool.threads()));
        for (n, k) in SHAPES {
            let w = values(n * k);
            let (exact, fast) = (PackedF32::pack(&w, n, k), PackedBf16::pack(&w, n, k));
            for m in [1usize, 8, 128, 512] {
                let a = values(m * k);
                let mut out = AlignedBuf::<f32>::zeroed(m * n);
                let flops = 2 * m * n * k;
                let work = if m == 1 { fast.bytes() } else { flops };
                group.throughput(Throughput::Elements(work as u64));
                let shape = format!("{m}x{n}x{k}");
                for (name, dot) in DOTS {
                    group.bench_function(BenchmarkId::new(name, &shape), |b| {
                        b.iter(|| {
                            pool.install(|| gemm_fast(isa, &pool, dot, &a, m, &fast, &mut out));
                        });
                    });
                }
                group.bench_function(BenchmarkId::new("exact", &shape), |b| {
                    b.iter(|| pool.install(|| gemm_exact(isa, &pool, &a, m, &exact, &mut out)));
                });
            }
        }
        group.finish();
    }
}

/// The output matrix: too large for any cache, so this is the memory bandwidth.
fn lm_head(c: &mut Criterion) {
    let (isa, n, k) = (Isa::detect(), 49152, 576);
    let fast = PackedBf16::pack(&values(n * k), n, k);
    for pool in pools() {
        let mut group = c.benchmark_group(format!("lm_head/{}t", pool.threads()));
        group.throughput(Throughput::Bytes(fast.bytes() as u64));
        let (a, mut out) = (values(k), AlignedBuf::<f32>::zeroed(n));
        for (name, dot) in DOTS {
            group.bench_function(BenchmarkId::new(name, 1), |b| {
                b.iter(|| pool.install(|| gemm_fast(isa, &pool, dot, &a, 1, &fast, &mut out)));
            });
        }
        group.finish();
    }
}

fn attention(c: &mut Criterion) {
    let (isa, heads, d) = (Isa::detect(), 9, 64);
    let shape = KvShape {
        block_size: 16,
        kv_heads: 3,
        d_head: d,
    };
    let len = 64 * shape.block_elems();
    let (k, v) = (values(len), values(len));
    let narrow = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
    let (kb, vb) = (narrow(&k), narrow(&v));
    let table: Vec<u32> = (0..64).rev().collect();
    let kv = KvLayerView {
        k: &k,
        v: &v,
        shape,
    };
    let kv_bf16 = KvLayerView {
        k: &kb,
        v: &vb,
        shape,
    };
    for pool in pools() {
        let mut group = c.benchmark_group(format!("attention/{}t", pool.threads()));
        for (q_len, start_pos) in [(512usize, 0usize), (128, 512), (1, 511), (1, 1023)] {
            let q = values(q_len * heads * d);
            let q = Rows::new(&q, heads * d);
            let mut out = vec![0.0; q_len * heads * d];
            let seqs = [AttnSeq {
                q_row: 0,
                q_len,
                start_pos,
                block_table: &table,
            }];
            let pairs: usize = (0..q_len).map(|i| start_pos + i + 1).sum();
            group.throughput(Throughput::Elements((4 * pairs * heads * d) as u64));
            let name = format!("{q_len}@{start_pos}");
            group.bench_function(BenchmarkId::new("fast", &name), |b| {
                b.iter(|| {
                    pool.install(|| attention_fast(isa, &pool, q, heads, kv, &seqs, &mut out));
                });
            });
            group.bench_function(BenchmarkId::new("fast_bf16", &name), |b| {
                b.iter(|| {
                    pool.install(|| attention_fast(isa, &pool, q, heads, kv_bf16, &seqs, &mut out));
                });
            });
            group.bench_function(BenchmarkId::new("exact", &name), |b| {
                b.iter(|| {
                    pool.install(|| attention_exact(isa, &pool, q, heads, kv, &seqs, &mut out));
                });
            });
        }
        group.finish();
    }
}

fn others(c: &mut Criterion) {
    // OK because a benchmark without its threads has nothing to measure.
    let (isa, pool) = (Isa::detect(), Pool::new(1).expect("threads"));
    let mut group = c.benchmark_group("others/1t");
    let n = 128 * 1536;
    let (gate, up, mut out) = (values(n), values(n), vec![0.0; n]);
    group.throughput(Throughput::Elements(n as u64));
    group.bench_function("silu_mul", |b| {
        b.iter(|| silu_mul(isa, &pool, &gate, &up, &mut out));
    });
    let (m, n, k) = (128, 576, 576);
    let a: Vec<f64> = values(m * k).into_iter().map(f64::from).collect();
    let (w, mut out) = (values(n * k), vec![0.0; m * n]);
    group.throughput(Throughput::Elements((2 * m * n * k) as u64));
    group.bench_function("matmul_f64", |b| {
        b.iter(|| reference::matmul_f64(&pool, &a, m, &w, n, k, &mut out));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(600));
    targets = gemm, lm_head, attention, others
}
criterion_main!(benches);
