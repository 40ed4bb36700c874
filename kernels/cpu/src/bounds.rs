//! Error bounds derived from the arithmetic, so that no tolerance is ever set by hand.
//!
//! All follow the standard model: every operation returns its exact result times `1 + e` with
//! `|e| <= u`, and a chain of k roundings is off by a factor within `1 ± gamma(k)`,
//! `gamma(k) = k u / (1 - k u)`. Bounds are worst cases; real errors are usually below a tenth
//! of them, so a test should print the worst share of the bound that it saw. Underflow is not
//! covered: the operands of interest are far from it.

/// Unit roundoff of f32 (half the distance from 1 to the next number), 2^-24.
pub const F32_UNIT_ROUNDOFF: f64 = 1.0 / 16_777_216.0;
/// Unit roundoff of bf16, 2^-8.
pub const BF16_UNIT_ROUNDOFF: f64 = 1.0 / 256.0;
/// Relative error of the kernels' exponential in unit roundoffs: its test holds it to 1.5
/// units in the last place, each at most two unit roundoffs, and this rounds up.
const EXP_ROUNDOFFS: usize = 4;
/// The fast attention rescales its sums at most once per this many keys.
const RESCALE_KEYS: usize = 128;

/// Largest relative error after `k` roundings; infinite when `k u >= 1`.
pub fn gamma(k: usize, unit_roundoff: f64) -> f64 {
    let ku = k as f64 * unit_roundoff;
    if ku < 1.0 {
        ku / (1.0 - ku)
    } else {
        f64::INFINITY
    }
}

/// Bound on a dot product of `k` terms in any summation order, fused or not, where
/// `abs_dot = sum |a| |w|` over the terms.
pub fn gemm_bound(k: usize, unit_roundoff: f64, abs_dot: f64) -> f64 {
    gamma(k, unit_roundoff) * abs_dot
}

/// Bound on a dot product of `k` pairs of bf16 numbers summed in f32, against the exact dot
/// product of those same numbers (so the rounding to bf16 is not part of it).
///
/// The dot-product instruction adds the two products of a pair one after the other to the sum,
/// each fused and rounded once: `k` roundings, as in [`gemm_bound`], which also covers an
/// instruction that rounds once per pair. It takes subnormal operands and results as zero.
/// A lost operand takes at most `2^-126 * max_abs` with it, where `max_abs` is the
/// largest magnitude among the operands, and a lost result at most `2^-126`; each can happen
/// once per term, and later roundings scale it by no more than 2.
pub fn bf16_dot_bound(k: usize, abs_dot: f64, max_abs: f64) -> f64 {
    let flushed = f64::from(f32::MIN_POSITIVE) * (max_abs + 1.0);
    gemm_bound(k, F32_UNIT_ROUNDOFF, abs_dot) + 2.0 * k as f64 * flushed
}

/// Bound on one output `y` of the f32 RMS norm over `h` values.
///
/// The sum of squares takes at most `h / 16 + 1` chained and 4 tree roundings, all of positive
/// terms. The mean, adding eps, root and inverse add one rounding each, the two products two.
/// (Taking the root halves what came before it; that is given away.)
pub fn rmsnorm_bound(h: usize, y: f64) -> f64 {
    gamma(h / 16 + 1 + 4 + 6, F32_UNIT_ROUNDOFF) * y.abs()
}

/// Bound on `y = silu(gate) * up` in f32: exponential, sum, quotient and product.
pub fn silu_mul_bound(y: f64) -> f64 {
    gamma(EXP_ROUNDOFFS + 3, F32_UNIT_ROUNDOFF) * y.abs()
}

/// Bound on a rotated value `a cos - b sin` in f32, where `abs_terms = |a cos| + |b sin|`.
///
/// Two roundings for the arithmetic and one for each table entry.
pub fn rope_bound(abs_terms: f64) -> f64 {
    gamma(3, F32_UNIT_ROUNDOFF) * abs_terms
}

/// What the attention bound depends on, for one query and head, in exact arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct AttentionTerms {
    /// Dimension of a head.
    pub d_head: usize,
    /// Visible keys.
    pub keys: usize,
    /// Largest over the visible keys of `sum |q| |k| / sqrt(d)`.
    pub max_abs_score: f64,
    /// `sum p |v|` with the softmax weights `p`, for the output element in question.
    pub weighted_abs_value: f64,
    /// Largest `|v|` among visible keys, for what flushed weights may hide.
    pub max_abs_value: f64,
}

/// Bound on one output element of f32 attention, exact or fast.
///
/// A score is off by at most `s = gamma(d + 3) * max_abs_score` (chain, scale factor, scaling).
/// Its distance to the maximum, at most `r = 2 * max_abs_score`, is rounded once, and once more
/// in total over all online rescalings, so every weight is off by a factor within
/// `e^±(s + 2 u r)`, times exponential and rescaling errors. Numerator and denominator are each
/// a sum of up to `keys` such terms, and their quotient takes two more roundings.
/// Weights below `e^-87` are flushed to zero.
pub fn attention_bound(t: &AttentionTerms) -> f64 {
    let u = F32_UNIT_ROUNDOFF;
    let score = gamma(t.d_head + 3, u) * t.max_abs_score;
    let distance = 2.0 * u * (2.0 * t.max_abs_score);
    // One rescaling per tile and one in a merge of splits, each an exponential and a product.
    let rescalings = t.keys / RESCALE_KEYS + 2;
    let roundings = t.keys + (EXP_ROUNDOFFS + 1) * rescalings + EXP_ROUNDOFFS + 2;
    let factor = score + distance + gamma(roundings, u);
    let flushed = t.keys as f64 * (-86.0f64).exp() * t.max_abs_value;
    (2.0 * factor).exp_m1() * t.weighted_abs_value + 2.0 * flushed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_of_small_cases() {
        assert_eq!(gamma(0, 0.25), 0.0);
        assert_eq!(gamma(1, 0.25), 0.25 / 0.75);
        assert_eq!(gamma(4, 0.25), f64::INFINITY);
        assert_eq!(F32_UNIT_ROUNDOFF, f64::from(f32::EPSILON) / 2.0);
    }

    #[test]
    fn the_gemm_bound_is_attained_to_first_order_by_its_worst_case() {
        // 1 + u (ties to even back to 1), again and again: every add loses u.
        let (k, u) = (1000, F32_UNIT_ROUNDOFF);
        let mut sum = 1.0f32;
        for _ in 1..k {
            sum += u as f32;
        }
        let exact = 1.0 + (k - 1) as f64 * u;
        let error = (f64::from(sum) - exact).abs();
        let bound = gemm_bound(k, u, exact);
        assert!(error <= bound && error > 0.99 * bound, "{error} of {bound}");
    }
}
