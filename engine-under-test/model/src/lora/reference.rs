//! The delta in f64, as its formula reads.

use super::LowRank;

/// `y += s B (A x)` for one row: `x` has the projection's inputs, `y` its outputs.
pub(crate) fn add_delta_f64(delta: &LowRank, x: &[f64], y: &mut [f64]) {
    let dot = |weights: &[f32], values: &[f64]| -> f64 {
        let pairs = weights.iter().zip(values);
        pairs.map(|(w, v)| f64::from(*w) * v).sum()
    };
    let inner: Vec<f64> = delta.a.chunks(x.len()).map(|row| dot(row, x)).collect();
    for (out, row) in y.iter_mut().zip(delta.b.chunks(delta.rank)) {
        *out += delta.scale * dot(row, &inner);
    }
}
