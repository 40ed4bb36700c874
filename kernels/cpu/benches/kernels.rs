//! Throughput of the kernels at the shapes of a 135M-parameter Llama (hidden 576, 9 query and
//! 3 key/value heads of 64, feed-forward 1536, vocabulary 49152), per thread count.
//!
//! Read the element rate of the products as FLOP/s, of skinny products (1 row) as bytes/s.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use pb_kernels_cpu::{
    AlignedBuf, AttnSeq, Dot, Fp8E4m3, Fp8E5m2, Isa, KvElem, KvLayerMut, KvLayerView, KvShape,
    KvSlot, PackedBf16, PackedF32, Pool, Rows, attention_exact, attention_fast, gemm_exact,
    gemm_fast, kv_write, reference, silu_mul,
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

/// A store of 64 blocks of 16 tokens, all written.
struct Store<T> {
    k: Vec<T>,
    v: Vec<T>,
    k_scales: Vec<f32>,
    v_scales: Vec<f32>,
}

const SHAPE: KvShape = KvShape {
    block_size: 16,
    kv_heads: 3,
    d_head: 64,
};

impl<T: KvElem> Store<T> {
    fn new() -> Self {
        let (blocks, width) = (64u32, SHAPE.kv_heads * SHAPE.d_head);
        let elems = vec![T::from_f32(0.0); blocks as usize * SHAPE.block_elems()];
        let scales = vec![1.0; T::SCALING.scales(SHAPE, blocks as usize)];
        let mut store = Store {
            k: elems.clone(),
            v: elems,
            k_scales: scales.clone(),
            v_scales: scales,
        };
        let slots: Vec<KvSlot> = (0..blocks)
            .flat_map(|block| (0..16).map(move |slot| KvSlot { block, slot }))
            .collect();
        let rows = values(slots.len() * width);
        let rows = Rows::new(&rows, width);
        let mut kv = KvLayerMut {
            k: &mut store.k,
            v: &mut store.v,
            k_scales: &mut store.k_scales,
            v_scales: &mut store.v_scales,
            shape: SHAPE,
        };
        kv_write(rows, rows, &slots, &mut kv);
        store
    }

    fn view(&self) -> KvLayerView<'_, T> {
        KvLayerView {
            k: &self.k,
            v: &self.v,
            k_scales: &self.k_scales,
            v_scales: &self.v_scales,
            shape: SHAPE,
        }
    }
}

type Attention<T> = fn(Isa, &Pool, Rows<'_>, usize, KvLayerView<'_, T>, &[AttnSeq<'_>], &mut [f32]);

/// Both forms of attention on elements of type `T`, at prefill and decode shapes.
fn attention_on<T: KvElem>(c: &mut Criterion, pool: &Pool, suffix: &str) {
    let (isa, heads) = (Isa::detect(), 9);
    let width = heads * SHAPE.d_head;
    let (store, table): (_, Vec<u32>) = (Store::<T>::new(), (0..64).rev().collect());
    let mut group = c.benchmark_group(format!("attention/{}t", pool.threads()));
    for (q_len, start_pos) in [(512usize, 0usize), (128, 512), (1, 511), (1, 1023)] {
        let q = values(q_len * width);
        let q = Rows::new(&q, width);
        let mut out = vec![0.0; q_len * width];
        let seqs = [AttnSeq {
            q_row: 0,
            q_len,
            start_pos,
            block_table: &table,
        }];
        let pairs: usize = (0..q_len).map(|i| start_pos + i + 1).sum();
        group.throughput(Throughput::Elements((4 * pairs * width) as u64));
        let name = format!("{q_len}@{start_pos}");
        for (form, run) in [
            ("fast", attention_fast::<T> as Attention<T>),
            ("exact", attention_exact::<T>),
        ] {
            group.bench_function(BenchmarkId::new(format!("{form}{suffix}"), &name), |b| {
                b.iter(|| {
                    pool.install(|| run(isa, pool, q, heads, store.view(), &seqs, &mut out));
                });
            });
        }
    }
    group.finish();
}

fn attention(c: &mut Criterion) {
    for pool in pools() {
        attention_on::<f32>(c, &pool, "");
        attention_on::<bf16>(c, &pool, "_bf16");
        attention_on::<f16>(c, &pool, "_f16");
        attention_on::<Fp8E4m3>(c, &pool, "_e4m3");
        attention_on::<Fp8E5m2>(c, &pool, "_e5m2");
        attention_on::<i8>(c, &pool, "_int8");
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
