//! The yardstick: straightforward f64 functions over row-major arrays.
//!
//! Nothing here knows of panels, blocks, tiles or sequences, and the mask is the plain
//! statement `key_pos <= query_pos` per pair. A fault in the kernels' position or layout code
//! can therefore not repeat itself here. Errors are about 1e-9 of the f32 kernels' own, so they
//! are taken as zero.

mod attention;
mod matmul;

pub use attention::{RefAttention, attention_f64};
pub use matmul::{RefWeight, matmul_f64};

/// `out[m][h] = x * weight / sqrt(mean(x^2) + eps)`, row by row of `h = weight.len()` values.
///
/// # Panics
/// When the lengths do not match.
pub fn rmsnorm_f64(x: &[f64], weight: &[f32], eps: f64, out: &mut [f64]) {
    let h = weight.len();
    assert!(
        h > 0 && x.len().is_multiple_of(h),
        "{} values in rows of {h}",
        x.len()
    );
    assert_eq!(x.len(), out.len(), "input and output");
    for (x, out) in x.chunks_exact(h).zip(out.chunks_exact_mut(h)) {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / h as f64;
        let root = (mean + eps).sqrt();
        for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
            *o = v / root * f64::from(*w);
        }
    }
}

/// `out = gate / (1 + e^-gate) * up`.
///
/// # Panics
/// When the lengths differ.
pub fn silu_mul_f64(gate: &[f64], up: &[f64], out: &mut [f64]) {
    assert!(
        gate.len() == out.len() && up.len() == out.len(),
        "lengths differ"
    );
    for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
        *o = g / (1.0 + (-g).exp()) * u;
    }
}

/// Rotates every head of `x[rows][heads * d]`, pairing dimension `i` with `i + d/2`, by
/// `angles[rows][d/2]` in radians.
///
/// # Panics
/// When the lengths do not match or `d` is odd.
pub fn rope_f64(x: &mut [f64], heads: usize, d: usize, angles: &[f64]) {
    assert!(
        d > 0 && d.is_multiple_of(2) && heads > 0,
        "{heads} heads of {d}"
    );
    let half = d / 2;
    assert_eq!(x.len() % (heads * d), 0, "rows of {heads} heads of {d}");
    assert_eq!(angles.len(), x.len() / (heads * d) * half, "angles");
    for (row, angles) in x.chunks_exact_mut(heads * d).zip(angles.chunks_exact(half)) {
        for head in row.chunks_exact_mut(d) {
            for (i, angle) in angles.iter().enumerate() {
                let (sin, cos) = angle.sin_cos();
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * cos - b * sin;
                head[i + half] = b * cos + a * sin;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{rmsnorm_f64, rope_f64, silu_mul_f64};

    #[test]
    fn small_cases_worked_by_hand() {
        let mut out = [0.0; 2];
        // mean of squares of (3, 4) is 12.5; with eps 3.5 the root is 4.
        rmsnorm_f64(&[3.0, 4.0], &[1.0, 2.0], 3.5, &mut out);
        assert_eq!(out, [0.75, 2.0]);
        silu_mul_f64(&[0.0, 3f64.ln()], &[5.0, 2.0], &mut out);
        // silu(ln 3) = ln 3 / (1 + 1/3).
        assert!((out[1] - 1.5 * 3f64.ln()).abs() < 1e-15 && out[0] == 0.0);
        // A quarter turn takes (a, b) to (-b, a).
        let mut x = [1.0, 2.0, 3.0, 4.0];
        rope_f64(&mut x, 1, 4, &[0.0, std::f64::consts::FRAC_PI_2]);
        for (got, want) in x.iter().zip([1.0, -4.0, 3.0, 2.0]) {
            assert!((got - want).abs() < 1e-15);
        }
    }
}
