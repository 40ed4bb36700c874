//! Attention: the exact form against its definition and itself under every way of cutting the
//! work; the fast form against f64 within the derived bound.

mod common;

use common::{Problem, Store, bits, f64s, to_bf16};
use half::bf16;
use pb_kernels_cpu::bounds::{AttentionTerms, attention_bound};
use pb_kernels_cpu::reference::{RefAttention, attention_f64};
use pb_kernels_cpu::{Isa, KvElem, Pool, Rows, attention_exact, attention_fast};

/// Exact attention of the queries `chunk`, as one call.
fn exact<T: KvElem>(
    isa: Isa,
    pool: &Pool,
    p: &Problem,
    store: &Store<T>,
    chunk: std::ops::Range<usize>,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; chunk.len() * p.q_width()];
    let q = Rows::new(p.q_rows(chunk.clone()), p.q_width());
    let seqs = [store.seq(0, chunk.start, chunk.len())];
    attention_exact(isa, pool, q, p.q_heads, store.view(), &seqs, &mut out);
    out
}

fn oracle(p: &Problem) -> Vec<f32> {
    let rows = (0..p.len).flat_map(|i| (0..p.q_heads).map(move |h| (i, h)));
    rows.flat_map(|(i, h)| p.oracle(i, h)).collect()
}

#[test]
fn exact_attention_is_its_definition_on_every_isa_and_layout() {
    let shapes = [
        (9, 3, 64, 37),
        (4, 4, 16, 40),
        (4, 1, 32, 21),
        (6, 2, 8, 18),
        (2, 1, 24, 50),
    ];
    for (q_heads, kv_heads, d, len) in shapes {
        let p = Problem::new((q_heads * d) as u64, q_heads, kv_heads, d, len);
        let want = bits(&oracle(&p));
        for isa in Isa::supported() {
            for block_size in [1, 3, 8, 16, 32] {
                for seed in [0, 77] {
                    let store = Store::<f32>::new(&p, block_size, seed);
                    let pool = Pool::new(1 + block_size % 2).unwrap();
                    let got = exact(isa, &pool, &p, &store, 0..len);
                    let what = format!("d {d}, block {block_size}, {}", isa.name());
                    assert_eq!(bits(&got), want, "{what}");
                }
            }
        }
    }
}

#[test]
fn exact_attention_of_bf16_is_that_of_the_rounded_values() {
    let mut p = Problem::new(3, 6, 2, 32, 45);
    (p.k, p.v) = (to_bf16(&p.k), to_bf16(&p.v));
    let want = bits(&oracle(&p));
    for isa in Isa::supported() {
        for block_size in [8, 16, 32] {
            let store = Store::<bf16>::new(&p, block_size, 9);
            let got = exact(isa, &Pool::new(2).unwrap(), &p, &store, 0..p.len);
            assert_eq!(bits(&got), want, "block {block_size}, {}", isa.name());
        }
    }
}

#[test]
fn chunked_equals_monolithic_and_batched_equals_alone() {
    let (p, other) = (
        Problem::new(1, 9, 3, 64, 150),
        Problem::new(2, 9, 3, 64, 150),
    );
    let store = Store::<f32>::new(&p, 16, 4);
    let (isa, pool) = (Isa::detect(), Pool::new(2).unwrap());
    let whole = exact(isa, &pool, &p, &store, 0..p.len);
    for chunk in [1, 2, 7, 15, 16, 17, 64, 149] {
        let mut parts = Vec::new();
        for start in (0..p.len).step_by(chunk) {
            let end = (start + chunk).min(p.len);
            parts.extend(exact(isa, &pool, &p, &store, start..end));
        }
        assert_eq!(bits(&parts), bits(&whole), "chunk {chunk}");
    }
    // Two sequences in one store and one batch: the second's blocks follow the first's.
    let second = Store::<f32>::new(&other, 16, 8);
    let (mut joint, shift) = (Store::<f32>::new(&p, 16, 4), 13);
    assert_eq!(joint.k.len() / joint.shape.block_elems(), shift as usize);
    joint.k.extend(&second.k);
    joint.v.extend(&second.v);
    let table: Vec<u32> = second.table.iter().map(|b| b + shift).collect();
    let mut q = other.q_rows(100..101).to_vec();
    q.extend(p.q_rows(60..150));
    let width = p.q_width();
    let mut seqs = [joint.seq(1, 60, 90), joint.seq(0, 100, 1)];
    seqs[1].block_table = &table;
    let mut out = vec![f32::NAN; q.len()];
    attention_exact(
        isa,
        &pool,
        Rows::new(&q, width),
        9,
        joint.view(),
        &seqs,
        &mut out,
    );
    assert_eq!(bits(&out[width..]), bits(&whole[60 * width..]));
    let alone = exact(isa, &pool, &other, &second, 100..101);
    assert_eq!(bits(&out[..width]), bits(&alone));
}

#[test]
fn queries_may_be_strided_and_rows_outside_are_left_alone() {
    let p = Problem::new(21, 4, 2, 16, 20);
    let store = Store::<f32>::new(&p, 16, 0);
    let (isa, pool, width) = (Isa::detect(), Pool::new(2).unwrap(), p.q_width());
    let want = exact(isa, &pool, &p, &store, 10..20);
    let mut q = vec![f32::NAN; 12 * (width + 5)];
    for (i, row) in p.q_rows(10..20).chunks_exact(width).enumerate() {
        q[(i + 1) * (width + 5)..][..width].copy_from_slice(row);
    }
    let mut out = vec![42.0; 12 * width];
    let (rows, seqs) = (Rows::new(&q, width + 5), [store.seq(1, 10, 10)]);
    attention_exact(isa, &pool, rows, 4, store.view(), &seqs, &mut out);
    assert_eq!(bits(&out[width..11 * width]), bits(&want));
    assert!(
        out[..width]
            .iter()
            .chain(&out[11 * width..])
            .all(|x| *x == 42.0)
    );
}

/// Largest error of `got` (queries `chunk`) as a share of the bound.
fn worst_share(p: &Problem, chunk: std::ops::Range<usize>, got: &[f32]) -> f64 {
    let positions: Vec<usize> = chunk.clone().collect();
    let all: Vec<usize> = (0..p.len).collect();
    let (q, k, v) = (f64s(p.q_rows(chunk)), f64s(&p.k), f64s(&p.v));
    let v_abs: Vec<f64> = v.iter().map(|x| x.abs()).collect();
    let mut args = RefAttention {
        q: &q,
        k: &k,
        v: &v,
        q_heads: p.q_heads,
        kv_heads: p.kv_heads,
        d_head: p.d,
        query_pos: &positions,
        key_pos: &all,
    };
    let pool = Pool::new(1).unwrap();
    let (mut want, mut weighted) = (vec![0.0; q.len()], vec![0.0; q.len()]);
    attention_f64(&pool, &args, &mut want);
    args.v = &v_abs;
    attention_f64(&pool, &args, &mut weighted);
    let (group, mut worst) = (p.q_heads / p.kv_heads, 0.0f64);
    for (i, row) in q.chunks_exact(p.d).enumerate() {
        let (query, head) = (i / p.q_heads, i % p.q_heads);
        let keys = positions[query] + 1;
        let abs_score = |j: usize| {
            let key = &k[j * p.kv_width() + head / group * p.d..][..p.d];
            let dot: f64 = row.iter().zip(key).map(|(a, b)| (a * b).abs()).sum();
            dot / (p.d as f64).sqrt()
        };
        let max_abs_score = (0..keys).map(abs_score).fold(0.0, f64::max);
        for c in i * p.d..(i + 1) * p.d {
            let bound = attention_bound(&AttentionTerms {
                d_head: p.d,
                keys,
                max_abs_score,
                weighted_abs_value: weighted[c],
                max_abs_value: 1.0,
            });
            // A NaN must not vanish in a maximum.
            assert!(got[c].is_finite());
            worst = worst.max((f64::from(got[c]) - want[c]).abs() / bound);
        }
    }
    worst
}

fn fast<T: KvElem>(
    isa: Isa,
    threads: usize,
    p: &Problem,
    store: &Store<T>,
    chunk: std::ops::Range<usize>,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; chunk.len() * p.q_width()];
    let q = Rows::new(p.q_rows(chunk.clone()), p.q_width());
    let seqs = [store.seq(0, chunk.start, chunk.len())];
    let pool = Pool::new(threads).unwrap();
    attention_fast(isa, &pool, q, p.q_heads, store.view(), &seqs, &mut out);
    out
}

#[test]
fn both_forms_stay_within_the_derived_bound() {
    let mut p = Problem::new(31, 9, 3, 64, 620);
    (p.k, p.v) = (to_bf16(&p.k), to_bf16(&p.v));
    let mut worst = 0.0f64;
    // A prefill, a chunk at an odd place, and decode steps with and without split keys.
    for chunk in [0..140, 133..270, 99..100, 511..512, 619..620, 600..603] {
        for isa in Isa::supported() {
            for block_size in [8, 16, 32] {
                let store = Store::<f32>::new(&p, block_size, 5);
                let store_bf16 = Store::<bf16>::new(&p, block_size, 6);
                let got = fast(isa, 1, &p, &store, chunk.clone());
                let got_bf16 = fast(isa, 2, &p, &store_bf16, chunk.clone());
                assert_eq!(bits(&got), bits(&got_bf16), "{chunk:?}, block {block_size}");
                worst = worst.max(worst_share(&p, chunk.clone(), &got));
                assert!(
                    worst <= 1.0,
                    "{worst} of the bound, {chunk:?}, {}",
                    isa.name()
                );
            }
        }
        let store = Store::<f32>::new(&p, 16, 5);
        let exact = exact(
            Isa::detect(),
            &Pool::new(1).unwrap(),
            &p,
            &store,
            chunk.clone(),
        );
        worst = worst.max(worst_share(&p, chunk.clone(), &exact));
        assert!(worst <= 1.0, "{worst} of the bound, {chunk:?}, exact");
    }
    println!("worst attention error: {:.1} % of the bound", 100.0 * worst);
}

#[test]
fn planted_faults_exceed_the_bound() {
    let p = Problem::new(41, 9, 3, 64, 300);
    let store = Store::<f32>::new(&p, 16, 5);
    let isa = Isa::detect();
    // Every query misses itself: the positions are one too low.
    let q = Rows::new(p.q_rows(200..230), p.q_width());
    let seqs = [store.seq(0, 199, 30)];
    let mut out = vec![0.0; 30 * p.q_width()];
    let pool = Pool::new(1).unwrap();
    attention_fast(isa, &pool, q, 9, store.view(), &seqs, &mut out);
    assert!(worst_share(&p, 200..230, &out) > 100.0);
    // Two logical blocks change places for the keys only.
    let mut swapped = Store::<f32>::new(&p, 16, 5);
    let size = swapped.shape.block_elems();
    let (a, b) = (
        swapped.table[2] as usize * size,
        swapped.table[9] as usize * size,
    );
    for i in 0..size {
        swapped.k.swap(a + i, b + i);
    }
    let got = fast(isa, 1, &p, &swapped, 299..300);
    assert!(worst_share(&p, 299..300, &got) > 100.0);
}

#[test]
#[should_panic(expected = "sequences share rows")]
fn overlapping_sequences_are_refused() {
    let p = Problem::new(51, 2, 1, 16, 8);
    let store = Store::<f32>::new(&p, 16, 0);
    let mut out = vec![0.0; 8 * p.q_width()];
    let (q, seqs) = (
        Rows::new(&p.q, p.q_width()),
        [store.seq(0, 0, 4), store.seq(3, 0, 2)],
    );
    let pool = Pool::new(1).unwrap();
    attention_exact(Isa::detect(), &pool, q, 2, store.view(), &seqs, &mut out);
}
