//! Products: the exact one against its definition, bit for bit; the fast one, with either kind
//! of activations, against f64 within the derived bound.

mod common;

use common::{Rng, bits, chain_gemm, f64s, to_bf16};
use pb_kernels_cpu::bounds::bf16_dot_bound;
use pb_kernels_cpu::reference::matmul_f64;
use pb_kernels_cpu::{Dot, Isa, PackedBf16, PackedF32, Pool, gemm_exact, gemm_fast};

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

/// The activations that a product with `dot` multiplies, rounded by the half crate.
fn seen(dot: Dot, a: &[f32]) -> Vec<f32> {
    match dot {
        Dot::F32 => a.to_vec(),
        Dot::Bf16 => to_bf16(a),
    }
}

fn fast(isa: Isa, threads: usize, dot: Dot, a: &[f32], m: usize, w: &PackedBf16) -> Vec<f32> {
    let mut c = vec![f32::NAN; m * w.n()];
    gemm_fast(isa, &Pool::new(threads).unwrap(), dot, a, m, w, &mut c);
    c
}

/// The f64 product and the error bound of every element.
fn truth(a: &[f32], m: usize, w: &[f32], n: usize, k: usize) -> (Vec<f64>, Vec<f64>) {
    let abs = |x: &[f32]| x.iter().map(|v| v.abs()).collect::<Vec<_>>();
    let pool = Pool::new(1).unwrap();
    let (mut want, mut scale) = (vec![0.0; m * n], vec![0.0; m * n]);
    matmul_f64(&pool, &f64s(a), m, w, n, k, &mut want);
    matmul_f64(&pool, &f64s(&abs(a)), m, &abs(w), n, k, &mut scale);
    let max_abs = a.iter().chain(w).fold(0.0f32, |x, y| x.max(y.abs()));
    for s in &mut scale {
        *s = bf16_dot_bound(k, *s, f64::from(max_abs));
    }
    (want, scale)
}

/// Largest error of `got` as a share of the bound.
fn worst_share(got: &[f32], (want, bound): &(Vec<f64>, Vec<f64>)) -> f64 {
    let share = |i: usize| (f64::from(got[i]) - want[i]).abs() / bound[i];
    let shares = (0..got.len()).map(share);
    // A NaN is no small error, and max() would skip it.
    shares.fold(0.0, |x, y| if y <= x { x } else { y })
}

#[test]
fn all_products_stay_within_the_derived_bound() {
    let mut worst = [0.0f64; 3];
    for k in [203, 204] {
        let n = 100;
        let mut rng = Rng(11);
        let w = rng.values(n * k, 0.1);
        let rounded = to_bf16(&w);
        let (narrow, wide) = (PackedBf16::pack(&w, n, k), PackedF32::pack(&w, n, k));
        let pool = Pool::new(2).unwrap();
        for m in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 144, 145] {
            let a = rng.values(m * k, 2.0);
            let exact = truth(&a, m, &w, n, k);
            for isa in Isa::supported() {
                let mut c = vec![f32::NAN; m * n];
                gemm_exact(isa, &pool, &a, m, &wide, &mut c);
                worst[0] = worst[0].max(worst_share(&c, &exact));
                for (i, dot) in [(1, Dot::F32), (2, Dot::Bf16)] {
                    let c = fast(isa, 2, dot, &a, m, &narrow);
                    let share = worst_share(&c, &truth(&seen(dot, &a), m, &rounded, n, k));
                    worst[i] = worst[i].max(share);
                }
                assert!(
                    worst.iter().all(|x| *x <= 1.0),
                    "{worst:?}, {m} rows, {isa:?}"
                );
            }
        }
    }
    let [exact, f32, bf16] = worst.map(|x| 100.0 * x);
    println!("worst error in % of the bound: exact {exact:.1}, f32 {f32:.1}, bf16 {bf16:.1}");
}

#[test]
fn instruction_and_emulation_agree_within_twice_the_bound() {
    let (n, k) = (100, 577);
    let mut rng = Rng(21);
    let w = to_bf16(&rng.values(n * k, 0.1));
    let packed = PackedBf16::pack(&w, n, k);
    for m in [1, 2, 3, 4, 5, 6, 7, 8, 9, 144, 145] {
        let a = rng.values(m * k, 2.0);
        let (_, bound) = truth(&to_bf16(&a), m, &w, n, k);
        let emulated = f64s(&fast(Isa::portable(), 1, Dot::Bf16, &a, m, &packed));
        let twice = (emulated, bound.iter().map(|b| 2.0 * b).collect());
        for isa in Isa::supported() {
            let share = worst_share(&fast(isa, 1, Dot::Bf16, &a, m, &packed), &twice);
            assert!(
                share <= 1.0,
                "{share} of twice the bound, {m} rows, {isa:?}"
            );
        }
    }
}

#[test]
fn bf16_activations_are_the_f32_product_of_rounded_ones() {
    // Bit for bit where the tiles sum in the same order. The instruction is defined as two
    // multiply-adds, second of the pair first, and so is the f32 kernel; with an even k both
    // cut their chains at the same places.
    let (n, k) = (100, 576);
    let mut rng = Rng(22);
    let packed = PackedBf16::pack(&rng.values(n * k, 0.1), n, k);
    for m in [1, 2, 3, 4, 5, 6, 7, 8, 9, 145] {
        let a = rng.values(m * k, 2.0);
        for isa in Isa::supported() {
            let got = fast(isa, 2, Dot::Bf16, &a, m, &packed);
            let want = fast(isa, 1, Dot::F32, &to_bf16(&a), m, &packed);
            assert_eq!(bits(&got), bits(&want), "{m} rows, {isa:?}");
        }
    }
}

#[test]
fn tiny_numbers_stay_within_the_bound_for_flushing() {
    // Activations near 2^-128 are subnormal: the instruction reads them as zero.
    let (m, n, k) = (9, 48, 16);
    let mut rng = Rng(23);
    let (a, w) = (
        rng.values(m * k, 2f32.powi(-126)),
        to_bf16(&rng.values(n * k, 1.0)),
    );
    let packed = PackedBf16::pack(&w, n, k);
    let exact = truth(&to_bf16(&a), m, &w, n, k);
    for isa in Isa::supported() {
        let share = worst_share(&fast(isa, 1, Dot::Bf16, &a, m, &packed), &exact);
        assert!(share <= 1.0, "{share} of the bound on {isa:?}");
    }
}

#[test]
fn a_lost_pair_exceeds_the_bound() {
    // The bound would be useless if it let a real fault pass: drop one pair of 576 inputs.
    let (m, n, k) = (12, 96, 576);
    let mut rng = Rng(12);
    let (a, w) = (rng.values(m * k, 1.0), to_bf16(&rng.values(n * k, 0.1)));
    let packed = PackedBf16::pack(&w, n, k);
    let mut faulty = a.clone();
    for row in faulty.chunks_exact_mut(k) {
        row[300..302].fill(0.0);
    }
    for dot in [Dot::F32, Dot::Bf16] {
        let c = fast(Isa::detect(), 1, dot, &faulty, m, &packed);
        let share = worst_share(&c, &truth(&seen(dot, &a), m, &w, n, k));
        println!("with {dot:?} a lost pair is {share:.0} times the bound");
        assert!(share > 10.0, "{share} with {dot:?}");
    }
}

#[test]
fn fast_bits_do_not_depend_on_threads_but_may_on_rows() {
    let (n, k) = (200, 577);
    let packed = PackedBf16::pack(&Rng(13).values(n * k, 1.0), n, k);
    let isa = Isa::detect();
    for dot in [Dot::F32, Dot::Bf16] {
        let mut first_rows = Vec::new();
        for m in [1, 8, 145, 150] {
            let a = Rng(14).values(m * k, 1.0);
            let want = fast(isa, 1, dot, &a, m, &packed);
            for threads in [2, 3] {
                let got = fast(isa, threads, dot, &a, m, &packed);
                assert_eq!(
                    bits(&got),
                    bits(&want),
                    "{m} rows, {threads} threads, {dot:?}"
                );
            }
            first_rows.push(bits(&want[..n]));
        }
        // The statistical tests need a subject: one row really sums in another order than many.
        assert_ne!(first_rows[0], first_rows[3], "{dot:?}");
    }
}

#[test]
fn products_without_inputs_are_zero() {
    let packed = PackedBf16::pack(&[], 50, 0);
    for isa in Isa::supported() {
        for dot in [Dot::F32, Dot::Bf16] {
            assert_eq!(fast(isa, 2, dot, &[], 3, &packed), vec![0.0; 150]);
        }
    }
}
