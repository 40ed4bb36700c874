//! Element-wise kernels: equal bits on every instruction set and thread count, and f64
//! references within the derived bounds.

mod common;

use common::{Rng, bits, f64s};
use pb_kernels_cpu::reference::{rmsnorm_f64, rope_f64, silu_mul_f64};
use pb_kernels_cpu::{
    Isa, Pool, RopeTable, RowsMut, add, add_bias, add_rmsnorm, bounds, rmsnorm, rope_apply,
    silu_mul, silu_mul_fused,
};

/// Runs `f` on every instruction set with 1 and 2 threads, asserts equal bits, returns them.
fn everywhere(f: impl Fn(Isa, &Pool) -> Vec<f32>) -> Vec<f32> {
    let want = f(Isa::portable(), &Pool::new(1).unwrap());
    for isa in Isa::supported() {
        for threads in [1, 2] {
            let got = f(isa, &Pool::new(threads).unwrap());
            assert_eq!(bits(&got), bits(&want), "{}, {threads} threads", isa.name());
        }
    }
    want
}

fn assert_within(what: &str, got: &[f32], want: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len());
    let share = |i: usize| {
        let error = (f64::from(got[i]) - want[i]).abs();
        if error == 0.0 { 0.0 } else { error / bound(i) }
    };
    let worst = (0..got.len()).map(share).fold(0.0, f64::max);
    println!("{what}: worst error {:.1} % of the bound", 100.0 * worst);
    assert!(worst <= 1.0, "{what}: {worst} of the bound");
}

#[test]
fn rmsnorm_matches_f64_and_its_fused_form() {
    for (m, h) in [(1, 576), (5, 20), (70, 333), (3, 1)] {
        let mut rng = Rng(h as u64);
        let (x, delta) = (rng.values(m * h, 3.0), rng.values(m * h, 1.0));
        let weight = rng.values(h, 2.0);
        let sum: Vec<f32> = x.iter().zip(&delta).map(|(a, b)| a + b).collect();
        let plain = everywhere(|isa, pool| {
            let mut out = vec![0.0; m * h];
            rmsnorm(isa, pool, &sum, &weight, 1e-5, &mut out);
            out
        });
        let fused = everywhere(|isa, pool| {
            let (mut residual, mut out) = (x.clone(), vec![0.0; m * h]);
            add_rmsnorm(isa, pool, &mut residual, &delta, &weight, 1e-5, &mut out);
            assert_eq!(bits(&residual), bits(&sum));
            out
        });
        assert_eq!(bits(&plain), bits(&fused));
        let mut want = vec![0.0; m * h];
        rmsnorm_f64(&f64s(&sum), &weight, f64::from(1e-5f32), &mut want);
        assert_within("rmsnorm", &plain, &want, |i| {
            bounds::rmsnorm_bound(h, want[i])
        });
    }
}

#[test]
fn silu_matches_f64_and_its_fused_form() {
    let (m, ffn) = (33, 1037);
    let mut rng = Rng(2);
    let fused = rng.values(m * 2 * ffn, 20.0);
    let (mut gate, mut up) = (Vec::new(), Vec::new());
    for row in fused.chunks_exact(2 * ffn) {
        gate.extend(&row[..ffn]);
        up.extend(&row[ffn..]);
    }
    let apart = everywhere(|isa, pool| {
        let mut out = vec![0.0; m * ffn];
        silu_mul(isa, pool, &gate, &up, &mut out);
        out
    });
    let joined = everywhere(|isa, pool| {
        let mut out = vec![0.0; m * ffn];
        silu_mul_fused(isa, pool, &fused, ffn, &mut out);
        out
    });
    assert_eq!(bits(&apart), bits(&joined));
    let mut want = vec![0.0; m * ffn];
    silu_mul_f64(&f64s(&gate), &f64s(&up), &mut want);
    assert_within("silu", &apart, &want, |i| bounds::silu_mul_bound(want[i]));
}

#[test]
fn silu_of_extreme_gates_is_finite_and_zero_on_the_left() {
    let gate = [-1e30f32, -200.0, -90.0, 90.0, 1e30];
    let mut out = [0.0; 5];
    silu_mul(
        Isa::detect(),
        &Pool::new(1).unwrap(),
        &gate,
        &[1.0; 5],
        &mut out,
    );
    assert!(out[1].abs() < 1e-35 && out[2].abs() < 1e-35, "{out:?}");
    assert_eq!(out[3..], [90.0, 1e30]);
}

#[test]
fn rope_matches_f64_on_strided_rows() {
    for (heads, half) in [(4, 32), (2, 4), (3, 20)] {
        let (positions, rows) = ([0u32, 5, 3, 199], 4);
        let (width, stride) = (heads * 2 * half, heads * 2 * half + 7);
        let angle = |p: usize, i: usize| p as f64 * 100f64.powf(-(i as f64) / half as f64);
        let table: Vec<f64> = (0..200)
            .flat_map(|p| (0..half).map(move |i| angle(p, i)))
            .collect();
        let cos: Vec<f32> = table.iter().map(|a| a.cos() as f32).collect();
        let sin: Vec<f32> = table.iter().map(|a| a.sin() as f32).collect();
        let table = RopeTable {
            cos: &cos,
            sin: &sin,
            half,
        };
        let x = Rng(half as u64).values(rows * stride, 2.0);
        let got = everywhere(|isa, pool| {
            let mut x = x.clone();
            rope_apply(
                isa,
                pool,
                RowsMut::new(&mut x, stride),
                heads,
                &table,
                &positions,
            );
            x
        });
        let mut dense = Vec::new();
        let mut want: Vec<f64> = Vec::new();
        let mut angles = Vec::new();
        for (i, p) in positions.iter().enumerate() {
            dense.extend(&got[i * stride..][..width]);
            want.extend(f64s(&x[i * stride..][..width]));
            angles.extend((0..half).map(|j| angle(*p as usize, j)));
            let gap = i * stride + width..(i + 1) * stride;
            assert_eq!(bits(&got[gap.clone()]), bits(&x[gap]));
        }
        let before = want.clone();
        rope_f64(&mut want, heads, 2 * half, &angles);
        let partner = |i: usize| {
            if i % (2 * half) < half {
                i + half
            } else {
                i - half
            }
        };
        assert_within("rope", &dense, &want, |i| {
            let turn = angles[i / width * half + i % half];
            let (s, c) = turn.sin_cos();
            let terms = (before[i] * c).abs() + (before[partner(i)] * s).abs();
            // The table's own sine of a small angle is rounded relative to itself.
            bounds::rope_bound(terms)
        });
    }
}

#[test]
fn adding_rows_and_biases_is_plain_addition() {
    let (m, n) = (41, 1003);
    let mut rng = Rng(3);
    let (x, y, bias) = (
        rng.values(m * n, 1.0),
        rng.values(m * n, 1.0),
        rng.values(n, 1.0),
    );
    let sum = everywhere(|isa, pool| {
        let mut x = x.clone();
        add(isa, pool, &mut x, &y);
        x
    });
    assert!(sum.iter().zip(&x).zip(&y).all(|((s, a), b)| *s == a + b));
    let biased = everywhere(|isa, pool| {
        let mut x = x.clone();
        add_bias(isa, pool, &mut x, &bias);
        x
    });
    assert!((0..m * n).all(|i| biased[i] == x[i] + bias[i % n]));
}
