//! Operations by their definitions: in f64, and naively in the low precision, where every step
//! is rounded. Nothing here knows of blocks, tiles or threads.

use pb_kernels_cpu::bounds::F32_UNIT_ROUNDOFF as U32;

use super::judge::{Expected, gamma};
use super::values::{Value, rounded};

/// Queries of one head against the keys and values that they may see, in order.
pub struct Head<'a> {
    /// The query.
    pub q: &'a [f64],
    /// Keys.
    pub k: &'a [Vec<f64>],
    /// Values.
    pub v: &'a [Vec<f64>],
}

/// Attention of one query over all given keys.
///
/// Derivation of the bounds, with `W = sum p |v|`, `u` of f32 and `t` of the low precision. A
/// score is a sum of d products in f32; a tensor core may cut instead of round, so each addition
/// counts twice. Scaling, subtraction and exponential add roundings relative to the scores'
/// size. Weights are off by `e^(2 s)`; sums over keys add `2 n` roundings, rescaling and merging
/// a few dozen. Weights are rounded to the low precision before they meet values: `t W`, and
/// what underflows. The result is rounded: `t |y|`.
pub fn attention<T: Value>(head: &Head<'_>) -> Vec<Expected> {
    let (d, n) = (head.q.len(), head.k.len());
    let scale = 1.0 / (d as f64).sqrt();
    let dots = dots(head.q, head.k);
    let scores: Vec<f64> = dots.iter().map(|s| s.exact * scale).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let largest = dots.iter().map(|s| s.abs * scale).fold(0.0, f64::max);
    let score_error = gamma(2 * d + 4) * largest + 8.0 * U32 * (2.0 * largest + 1.0);
    let f32_factor = (2.0 * score_error).exp_m1() + 2.0 * gamma(2 * n + 64);

    let naive_weights = naive_weights::<T>(&dots, scale);
    let mut sums = vec![Sums::default(); d];
    for ((v, p), low) in head.v.iter().zip(&weights).zip(&naive_weights) {
        for (s, v) in sums.iter_mut().zip(v) {
            s.exact += p * v;
            s.weighted += p * v.abs();
            s.naive += low * v;
            s.abs += v.abs();
        }
    }
    let of = |s: &Sums| {
        let (exact, weighted) = (s.exact / total, s.weighted / total);
        let f32_bound = f32_factor * weighted;
        let low = T::ROUNDOFF * weighted + s.abs * T::UNDERFLOW;
        Expected {
            exact,
            naive: T::of(s.naive as f32).f64(),
            f32_bound,
            bound: (f32_bound + low) * (1.0 + T::ROUNDOFF)
                + T::ROUNDOFF * exact.abs()
                + T::UNDERFLOW,
        }
    };
    sums.iter().map(of).collect()
}

/// Sums over keys for one output.
#[derive(Clone, Copy, Default)]
struct Sums {
    exact: f64,
    weighted: f64,
    naive: f64,
    abs: f64,
}

/// Products of the query with a key.
#[derive(Clone, Copy, Default)]
struct Dot {
    exact: f64,
    abs: f64,
    /// Summed in f32.
    naive: f32,
}

/// The products with every key, each summed from its first term to its last. Four keys go on
/// side by side: one sum alone would wait for each of its additions.
fn dots(q: &[f64], keys: &[Vec<f64>]) -> Vec<Dot> {
    const ABREAST: usize = 4;
    let mut out = Vec::with_capacity(keys.len());
    for group in keys.chunks(ABREAST) {
        let mut sums = [Dot::default(); ABREAST];
        // A short last group repeats a key, and drops what comes of it.
        let rows: [&[f64]; ABREAST] =
            std::array::from_fn(|j| &group[j.min(group.len() - 1)][..q.len()]);
        for (i, a) in q.iter().enumerate() {
            for (s, row) in sums.iter_mut().zip(rows) {
                let term = a * row[i];
                s.exact += term;
                s.abs += term.abs();
                s.naive += term as f32;
            }
        }
        out.extend_from_slice(&sums[..group.len()]);
    }
    out
}

/// Softmax weights as an unfused implementation in the low precision has them: scores, scaled
/// scores and weights are each rounded, sums are in f32.
fn naive_weights<T: Value>(dots: &[Dot], scale: f64) -> Vec<f64> {
    let score = |s: &Dot| rounded::<T>(rounded::<T>(s.naive) * scale as f32);
    let scores: Vec<f32> = dots.iter().map(score).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f32 = weights.iter().sum();
    weights.iter().map(|w| T::of(w / total).f64()).collect()
}

/// RMS norm of one row. Bounds: a thread chains `ceil(h / 1024) * 4` fused steps, then 5 + 8
/// additions; mean, eps, root, inverse and two products are one rounding each.
pub fn rmsnorm<T: Value>(x: &[f64], weight: &[f64], eps: f64) -> Vec<Expected> {
    let h = x.len();
    let root = (x.iter().map(|v| v * v).sum::<f64>() / h as f64 + eps).sqrt();
    let naive_squares = x
        .iter()
        .fold(0.0f32, |s, v| s + rounded::<T>((v * v) as f32));
    let naive_root = rounded::<T>((naive_squares / h as f32 + eps as f32).sqrt());
    let roundings = h.div_ceil(1024) * 4 + 5 + 8 + 6;
    x.iter()
        .zip(weight)
        .map(|(x, w)| {
            let exact = x / root * w;
            let normed = rounded::<T>(*x as f32 / naive_root);
            expected::<T>(
                exact,
                T::of(normed * *w as f32).f64(),
                gamma(roundings) * exact.abs(),
            )
        })
        .collect()
}

/// `silu(gate) * up`. Bounds: the exponential is good to 2 units in the last place, four
/// roundings, and sum, quotient and product are three more.
pub fn silu_mul<T: Value>(gate: f64, up: f64) -> Expected {
    let exact = gate / (1.0 + (-gate).exp()) * up;
    let low = rounded::<T>(gate as f32 / (1.0 + rounded::<T>((-gate as f32).exp())));
    expected::<T>(exact, T::of(low * up as f32).f64(), gamma(7) * exact.abs())
}

/// Rotation of the pair `(a, b)`: two values. Bounds: two roundings, and one of each table
/// entry, relative to the terms.
pub fn rotate<T: Value>(a: f64, b: f64, angle: f64) -> [Expected; 2] {
    let (sin, cos) = angle.sin_cos();
    let low = |x: f64| rounded::<T>(x as f32);
    let one = |x: f64, y: f64, sign: f64| {
        let exact = x * cos - sign * y * sin;
        let naive = low(x * f64::from(low(cos))) - sign as f32 * low(y * f64::from(low(sin)));
        let terms = (x * cos).abs() + (y * sin).abs();
        expected::<T>(exact, T::of(naive).f64(), gamma(3) * terms)
    };
    [one(a, b, 1.0), one(b, a, -1.0)]
}

/// One output of a matrix product, rounded to the low precision unless `out_f32`. Bounds: products
/// of 16-bit numbers are exact in f32; a tensor core may cut instead of round, so each addition
/// counts twice.
pub fn product<T: Value>(a: &[f64], w: &[f64], bias: f64, out_f32: bool) -> Expected {
    let terms = || a.iter().zip(w).map(|(a, b)| a * b);
    let exact = terms().sum::<f64>() + bias;
    let abs = terms().map(f64::abs).sum::<f64>() + bias.abs();
    let f32_bound = gamma(2 * a.len() + 2) * abs;
    let naive = terms().fold(0.0f32, |s, term| s + rounded::<T>(term as f32)) + bias as f32;
    if out_f32 {
        return Expected {
            exact,
            naive: f64::from(naive),
            f32_bound,
            bound: f32_bound,
        };
    }
    expected::<T>(exact, T::of(naive).f64(), f32_bound)
}

/// One value between the two products of an adapter: `scale` times a product, rounded to the low
/// precision. Bounds: as [`product`]; the scale is one rounding more.
pub fn scaled_product<T: Value>(a: &[f64], w: &[f64], scale: f64) -> Expected {
    let sum = product::<T>(a, w, 0.0, true);
    let naive = rounded::<T>(sum.naive as f32) * scale as f32;
    let abs: f64 = a.iter().zip(w).map(|(a, b)| (a * b).abs()).sum();
    let f32_bound = gamma(2 * a.len() + 3) * abs * scale.abs();
    expected::<T>(sum.exact * scale, T::of(naive).f64(), f32_bound)
}

/// A row of codes with a scale.
#[derive(Clone, Copy)]
pub struct ScaledRow<'a> {
    /// What the codes stand for, without the scale.
    pub codes: &'a [f64],
    /// With the scale, rounded to the low precision.
    pub low: &'a [f64],
    /// Factor of the row.
    pub scale: f64,
}

/// One output of a product of E4M3 rows, as [`product`]. Naively both rows are first turned into
/// the low precision. Bounds: a product of two codes has 8 significant bits, so it is exact; sums
/// are those of [`product`], and the scales are two roundings more. `lost` is the share of the sum
/// of magnitudes that the device may lose besides, 0 where it adds in f32.
pub fn scaled_codes<T: Value>(
    a: ScaledRow<'_>,
    w: ScaledRow<'_>,
    lost: f64,
    out_f32: bool,
) -> Expected {
    let naive = product::<T>(a.low, w.low, 0.0, out_f32).naive;
    let terms = || a.codes.iter().zip(w.codes).map(|(a, b)| a * b);
    let scale = a.scale * w.scale;
    let exact = terms().sum::<f64>() * scale;
    let abs = terms().map(f64::abs).sum::<f64>() * scale;
    let f32_bound = (gamma(2 * a.codes.len() + 4) + lost) * abs;
    if out_f32 {
        return Expected {
            exact,
            naive,
            f32_bound,
            bound: f32_bound,
        };
    }
    expected::<T>(exact, naive, f32_bound)
}

fn expected<T: Value>(exact: f64, naive: f64, f32_bound: f64) -> Expected {
    let low = T::ROUNDOFF * exact.abs() + T::UNDERFLOW;
    Expected {
        exact,
        naive,
        f32_bound,
        bound: f32_bound * (1.0 + T::ROUNDOFF) + low,
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn cases_worked_by_hand() {
        // Scores 0 and ln 3 give weights 1/4 and 3/4.
        let (k, v) = ([vec![0.0], vec![3f64.ln()]], [vec![4.0], vec![8.0]]);
        let head = Head {
            q: &[1.0],
            k: &k,
            v: &v,
        };
        assert!((attention::<bf16>(&head)[0].exact - 7.0).abs() < 1e-14);
        // Mean of squares 12.5, with eps 3.5 the root is 4.
        let normed = rmsnorm::<bf16>(&[3.0, 4.0], &[1.0, 2.0], 3.5);
        assert_eq!((normed[0].exact, normed[1].exact), (0.75, 2.0));
        // silu(ln 3) = ln 3 / (1 + 1/3).
        let gated = silu_mul::<bf16>(3f64.ln(), 2.0);
        assert!((gated.exact - 1.5 * 3f64.ln()).abs() < 1e-15);
        // 1 * 3 + 2 * 5 + 0.5, and in f32 nothing is rounded.
        let sum = product::<bf16>(&[1.0, 2.0], &[3.0, 5.0], 0.5, true);
        assert_eq!((sum.exact, sum.naive), (13.5, 13.5));
        let scaled = scaled_product::<bf16>(&[1.0, 2.0], &[3.0, 5.0], 0.5);
        assert_eq!((scaled.exact, scaled.naive), (6.5, 6.5));
        // (1 * 3 + 2 * 5) * 0.5 * 0.25, of which half may be lost.
        let row = |codes, low, scale| ScaledRow { codes, low, scale };
        let codes = scaled_codes::<bf16>(
            row(&[1.0, 2.0], &[0.5, 1.0], 0.5),
            row(&[3.0, 5.0], &[0.75, 1.25], 0.25),
            0.5,
            true,
        );
        assert_eq!((codes.exact, codes.naive), (1.625, 1.625));
        assert!(codes.bound > 0.5 * 1.625 && codes.bound < 0.51 * 1.625);
        // A quarter turn takes (a, b) to (-b, a).
        let [a, b] = rotate::<bf16>(1.0, 2.0, std::f64::consts::FRAC_PI_2);
        assert!((a.exact + 2.0).abs() < 1e-15 && (b.exact - 1.0).abs() < 1e-15);
    }
}
