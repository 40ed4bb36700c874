//! Exponential and reductions with one fixed sequence of operations.
//!
//! Library `expf` differs between machines, and vector libraries differ again; this one is a
//! written-out polynomial of correctly rounded operations, so every instruction set returns
//! the same bits.

use crate::lanes::portable::VArray;
use crate::lanes::{LANES, Lanes};

/// Below this the exponential is flushed to zero, which keeps denormals (slow, and treated
/// differently by some hardware modes) out of all results.
const EXP_MIN: f32 = -87.0;
/// Above this the exponential saturates, so that `2^n` stays representable.
const EXP_MAX: f32 = 88.0;
/// High and low part of ln 2: the high part has trailing zeros, so `n * LN2_HI` is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;
/// Coefficients of (e^r - 1 - r) / r^2 on |r| <= ln(2)/2, highest power first (Cephes expf).
const POLY: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    0.5,
];

/// `e^x` per lane within about one unit in the last place on `[-87, 88]`; zero below,
/// `e^88` above, NaN for NaN.
#[inline(always)]
pub(crate) unsafe fn exp<L: Lanes>(x: L) -> L {
    // SAFETY: register arithmetic only; the caller promises the instruction set.
    unsafe {
        let t = L::min(L::splat(EXP_MAX), x);
        let t = L::max(L::splat(EXP_MIN), t);
        let n = L::round(L::mul(t, L::splat(std::f32::consts::LOG2_E)));
        let r = L::fma(n, L::splat(-LN2_HI), t);
        let r = L::fma(n, L::splat(-LN2_LO), r);
        let mut p = L::splat(POLY[0]);
        for c in &POLY[1..] {
            p = L::fma(p, r, L::splat(*c));
        }
        let y = L::add(L::fma(p, L::mul(r, r), r), L::splat(1.0));
        L::zero_where_below(L::mul(y, L::pow2(n)), x, EXP_MIN)
    }
}

/// `x / (1 + e^-x)` per lane.
#[inline(always)]
pub(crate) unsafe fn silu<L: Lanes>(x: L) -> L {
    // SAFETY: register arithmetic only; the caller promises the instruction set.
    unsafe {
        let e = exp(L::sub(L::splat(0.0), x));
        L::div(x, L::add(L::splat(1.0), e))
    }
}

/// Sum of the lanes by a fixed tree: lane `i` meets lane `i + 8`, then 4, 2 and 1.
#[inline(always)]
pub(crate) unsafe fn sum<L: Lanes>(x: L) -> f32 {
    let mut t = [0.0f32; LANES];
    // SAFETY: t holds 16 values.
    unsafe { L::store(x, t.as_mut_ptr()) };
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            t[i] += t[i + half];
        }
        half /= 2;
    }
    t[0]
}

/// Largest lane (exact, so no order matters).
#[inline(always)]
pub(crate) unsafe fn max<L: Lanes>(x: L) -> f32 {
    let mut t = [0.0f32; LANES];
    // SAFETY: t holds 16 values.
    unsafe { L::store(x, t.as_mut_ptr()) };
    let mut best = t[0];
    for v in &t[1..] {
        best = if best > *v { best } else { *v };
    }
    best
}

/// The kernels' exponential for one value: within about one unit in the last place of `e^x`
/// on `[-87, 88]`, zero below, saturated at `e^88` above.
pub fn exp_f32(x: f32) -> f32 {
    let mut out = [0.0f32; LANES];
    // SAFETY: the array lanes run on every CPU; out holds 16 values.
    unsafe { VArray::store(exp(VArray::splat(x)), out.as_mut_ptr()) };
    out[0]
}

#[cfg(test)]
mod tests {
    use super::exp_f32;

    #[test]
    fn exp_is_within_two_ulp_of_the_f64_exponential() {
        let mut worst = 0.0f64;
        let steps = 200_000;
        for i in 0..=steps {
            let x = (-87.0 + 175.0 * f64::from(i) / f64::from(steps)) as f32;
            let exact = f64::from(x).exp();
            let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
            worst = worst.max((f64::from(exp_f32(x)) - exact).abs() / ulp);
        }
        println!("worst exp error: {worst:.3} ulp");
        assert!(worst < 1.5, "worst error {worst} ulp");
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(-0.0), 1.0);
        assert_eq!(exp_f32(-87.001), 0.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert!(exp_f32(f32::INFINITY).is_finite() && exp_f32(1000.0) > 1e38);
        assert!(exp_f32(f32::NAN).is_nan());
    }
}
