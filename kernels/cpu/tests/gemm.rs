//! Products: the exact one against its definition, bit for bit; the fast one against f64
//! within the derived bound.

mod common;

use common::{Rng, bits, chain_gemm, f64s, to_bf16};
use pb_kernels_cpu::bounds::{F32_UNIT_ROUNDOFF, gemm_bound};
use pb_kernels_cpu::reference::matmul_f64;
use pb_kernels_cpu::{Isa, PackedBf16, PackedF32, Pool, gemm_exact, gemm_fast};

#[test]
fn exact_product_is_the_chain_on_every_isa_and_thread_count() {
    let shapes = [
        (1, 1, 1),
        (2, 16, 7),
        (3, 47, 64),
        (4, 48, 33),
        (5, 49, 20),
        (6, 100, 16),
        (7, 96, 5),
        (8, 10, 64),
        (9, 50, 31),
        (23, 64, 40),
        (150, 20, 24),
        (3, 5, 0),
    ];
    for (m, n, k) in shapes {
        let mut rng = Rng((m * 1000 + n) as u64);
        let (a, w) = (rng.values(m * k, 1.0), rng.values(n * k, 1.0));
        let want = bits(&chain_gemm(&a, m, &w, n, k));
        let packed = PackedF32::pack(&w, n, k);
        for isa in Isa::supported() {
            for threads in [1, 2, 3] {
                let pool = Pool::new(threads).unwrap();
                let mut c = vec![f32::NAN; m * n];
                gemm_exact(isa, &pool, &a, m, &packed, &mut c);
                assert_eq!(bits(&c), want, "{m} x {n} x {k}, {}, {threads}", isa.name());
            }
        }
    }
}

#[test]
fn exact_rows_do_not_depend_on_the_batch() {
    let (m, n, k) = (131, 60, 96);
    let mut rng = Rng(5);
    let (a, packed) = (
        rng.values(m * k, 1.0),
        PackedF32::pack(&rng.values(n * k, 1.0), n, k),
    );
    let pool = Pool::new(2).unwrap();
    let isa = Isa::detect();
    let mut whole = vec![0.0; m * n];
    gemm_exact(isa, &pool, &a, m, &packed, &mut whole);
    for step in [1, 3, 16, 50] {
        let mut parts = vec![0.0; m * n];
        for (a, c) in a.chunks(step * k).zip(parts.chunks_mut(step * n)) {
            gemm_exact(isa, &pool, a, a.len() / k, &packed, c);
        }
        assert_eq!(bits(&parts), bits(&whole), "in steps of {step} rows");
    }
}

/// Largest error of `got` as a share of the bound.
fn worst_share(a: &[f32], m: usize, w: &[f32], n: usize, k: usize, got: &[f32]) -> f64 {
    let abs = |x: &[f32]| x.iter().map(|v| v.abs()).collect::<Vec<_>>();
    let pool = Pool::new(1).unwrap();
    let (mut want, mut scale) = (vec![0.0; m * n], vec![0.0; m * n]);
    matmul_f64(&pool, &f64s(a), m, w, n, k, &mut want);
    matmul_f64(&pool, &f64s(&abs(a)), m, &abs(w), n, k, &mut scale);
    let share =
        |i: usize| (f64::from(got[i]) - want[i]).abs() / gemm_bound(k, F32_UNIT_ROUNDOFF, scale[i]);
    (0..m * n).map(share).fold(0.0, f64::max)
}

#[test]
fn both_products_stay_within_the_derived_bound() {
    let (n, k) = (100, 203);
    let mut rng = Rng(11);
    let w = rng.values(n * k, 0.1);
    let rounded = to_bf16(&w);
    let (fast, exact) = (PackedBf16::pack(&w, n, k), PackedF32::pack(&w, n, k));
    let pool = Pool::new(2).unwrap();
    let mut worst = 0.0f64;
    for isa in Isa::supported() {
        for m in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 130] {
            let a = rng.values(m * k, 2.0);
            let mut c = vec![f32::NAN; m * n];
            gemm_fast(isa, &pool, &a, m, &fast, &mut c);
            let share = worst_share(&a, m, &rounded, n, k, &c);
            gemm_exact(isa, &pool, &a, m, &exact, &mut c);
            worst = worst.max(share).max(worst_share(&a, m, &w, n, k, &c));
            assert!(
                worst <= 1.0,
                "{worst} of the bound at {m} rows on {}",
                isa.name()
            );
        }
    }
    println!("worst product error: {:.1} % of the bound", 100.0 * worst);
}

#[test]
fn a_lost_term_exceeds_the_bound() {
    // The bound would be useless if it let a real fault pass: drop one of 576 inputs.
    let (m, n, k) = (12, 96, 576);
    let mut rng = Rng(12);
    let (mut a, w) = (rng.values(m * k, 1.0), to_bf16(&rng.values(n * k, 0.1)));
    let (packed, truth) = (PackedBf16::pack(&w, n, k), a.clone());
    for row in a.chunks_exact_mut(k) {
        row[300] = 0.0;
    }
    let pool = Pool::new(1).unwrap();
    let mut c = vec![0.0; m * n];
    gemm_fast(Isa::detect(), &pool, &a, m, &packed, &mut c);
    let share = worst_share(&truth, m, &w, n, k, &c);
    println!("a lost term is {share:.0} times the bound");
    assert!(share > 10.0, "{share}");
}

#[test]
fn fast_bits_do_not_depend_on_threads_but_may_on_rows() {
    let (n, k) = (200, 577);
    let mut rng = Rng(13);
    let packed = PackedBf16::pack(&rng.values(n * k, 1.0), n, k);
    let isa = Isa::detect();
    let one = Pool::new(1).unwrap();
    let mut first_rows = Vec::new();
    for m in [1, 8, 150] {
        let a = Rng(14).values(m * k, 1.0);
        let mut want = vec![0.0; m * n];
        gemm_fast(isa, &one, &a, m, &packed, &mut want);
        for threads in [2, 3] {
            let mut got = vec![0.0; m * n];
            gemm_fast(isa, &Pool::new(threads).unwrap(), &a, m, &packed, &mut got);
            assert_eq!(bits(&got), bits(&want), "{m} rows, {threads} threads");
        }
        first_rows.push(bits(&want[..n]));
    }
    // The statistical tests need a subject: one row really sums in another order than many.
    assert_ne!(first_rows[0], first_rows[2]);
}
