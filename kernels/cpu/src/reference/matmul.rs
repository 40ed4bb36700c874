//! f64 matrix product, row-major, fast enough to run a whole model as the yardstick.
//!
//! Plain Rust that the compiler vectorises: eight partial sums per dot product, four by four
//! dot products at a time so that loads are shared, compiled once per instruction set.

use crate::pool::{Pool, SharedMut};

/// Partial sums per dot product.
const LANES: usize = 8;
/// Rows per task.
const ROWS: usize = 32;
/// Outputs per task.
const COLS: usize = 64;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// Weight type of the reference product: `f32` or `f64`.
pub trait RefWeight: Copy + Send + Sync + sealed::Sealed {
    /// The exact value in f64.
    fn widen(self) -> f64;
}

impl RefWeight for f32 {
    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self)
    }
}

impl RefWeight for f64 {
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
}

/// `out[m][n] = sum over k of a[m][k] * w[n][k]`, all row-major.
///
/// # Panics
/// When the lengths do not match the shape.
pub fn matmul_f64<W: RefWeight>(
    pool: &Pool,
    a: &[f64],
    m: usize,
    w: &[W],
    n: usize,
    k: usize,
    out: &mut [f64],
) {
    assert_eq!(a.len(), m * k, "left matrix");
    assert_eq!(w.len(), n * k, "right matrix");
    assert_eq!(out.len(), m * n, "output");
    let shared = SharedMut::new(out);
    let col_tasks = n.div_ceil(COLS);
    pool.run(m.div_ceil(ROWS) * col_tasks, |task| {
        let (row, col) = (task / col_tasks * ROWS, task % col_tasks * COLS);
        let (rows, cols) = (ROWS.min(m - row), COLS.min(n - col));
        let mut block = [0.0f64; ROWS * COLS];
        let a = &a[row * k..][..rows * k];
        let w = &w[col * k..][..cols * k];
        block_product(a, w, k, &mut block);
        for r in 0..rows {
            // SAFETY: tasks own disjoint cells of the output, all of which exist.
            let to =
                unsafe { std::slice::from_raw_parts_mut(shared.at((row + r) * n + col), cols) };
            to.copy_from_slice(&block[r * COLS..][..cols]);
        }
    });
}

/// Product of up to 32 rows and 64 outputs into `block[row][64]`.
fn block_product<W: RefWeight>(a: &[f64], w: &[W], k: usize, block: &mut [f64; ROWS * COLS]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU has the feature.
            return unsafe { block_avx512(a, w, k, block) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the CPU has the features.
            return unsafe { block_avx2(a, w, k, block) };
        }
    }
    block_generic::<W, 2, 2, false>(a, w, k, block);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn block_avx512<W: RefWeight>(a: &[f64], w: &[W], k: usize, block: &mut [f64; ROWS * COLS]) {
    block_generic::<W, 4, 4, true>(a, w, k, block);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn block_avx2<W: RefWeight>(a: &[f64], w: &[W], k: usize, block: &mut [f64; ROWS * COLS]) {
    block_generic::<W, 2, 2, true>(a, w, k, block);
}

#[inline(always)]
fn block_generic<W: RefWeight, const R: usize, const C: usize, const FMA: bool>(
    a: &[f64],
    w: &[W],
    k: usize,
    block: &mut [f64; ROWS * COLS],
) {
    if k == 0 {
        return;
    }
    let (rows, cols) = (a.len() / k, w.len() / k);
    let mut col = 0;
    while col < cols {
        let c = if col + C <= cols { C } else { 1 };
        let mut row = 0;
        while row < rows {
            let r = if row + R <= rows { R } else { 1 };
            let (at, a, w) = (row * COLS + col, &a[row * k..], &w[col * k..]);
            match (r == R, c == C) {
                (true, true) => dots::<W, R, C, FMA>(a, w, k, &mut block[at..]),
                (true, false) => dots::<W, R, 1, FMA>(a, w, k, &mut block[at..]),
                (false, true) => dots::<W, 1, C, FMA>(a, w, k, &mut block[at..]),
                (false, false) => dots::<W, 1, 1, FMA>(a, w, k, &mut block[at..]),
            }
            row += r;
        }
        col += c;
    }
}

/// `out[r][c]` (rows 64 apart) for `R` rows and `C` outputs.
#[inline(always)]
fn dots<W: RefWeight, const R: usize, const C: usize, const FMA: bool>(
    a: &[f64],
    w: &[W],
    k: usize,
    out: &mut [f64],
) {
    let a: [&[f64]; R] = std::array::from_fn(|r| &a[r * k..][..k]);
    let w: [&[W]; C] = std::array::from_fn(|c| &w[c * k..][..k]);
    let mut acc = [[[0.0f64; LANES]; C]; R];
    let whole = k / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        let x: [[f64; LANES]; R] = std::array::from_fn(|r| std::array::from_fn(|l| a[r][i + l]));
        for c in 0..C {
            let y: [f64; LANES] = std::array::from_fn(|l| w[c][i + l].widen());
            for r in 0..R {
                for l in 0..LANES {
                    acc[r][c][l] = mul_add::<FMA>(x[r][l], y[l], acc[r][c][l]);
                }
            }
        }
    }
    for r in 0..R {
        for c in 0..C {
            let mut sum: f64 = acc[r][c].iter().sum();
            for i in whole..k {
                sum = mul_add::<FMA>(a[r][i], w[c][i].widen(), sum);
            }
            out[r * COLS + c] = sum;
        }
    }
}

/// Fused where the hardware does it; a library call otherwise would be slow.
#[inline(always)]
fn mul_add<const FMA: bool>(x: f64, y: f64, z: f64) -> f64 {
    if FMA { x.mul_add(y, z) } else { x * y + z }
}

#[cfg(test)]
mod tests {
    use super::matmul_f64;
    use crate::pool::Pool;

    #[test]
    fn integers_multiply_exactly_at_any_shape() {
        // Small integers: every sum is exact, so the plain triple loop is the oracle.
        for threads in [1, 2] {
            let pool = Pool::new(threads).unwrap();
            for (m, n, k) in [(1, 1, 1), (5, 70, 19), (33, 9, 64), (37, 130, 8), (2, 3, 0)] {
                let a: Vec<f64> = (0..m * k)
                    .map(|i| f64::from((i % 13) as u32) - 6.0)
                    .collect();
                let w: Vec<f32> = (0..n * k).map(|i| (i % 7) as f32 - 3.0).collect();
                let mut out = vec![f64::NAN; m * n];
                matmul_f64(&pool, &a, m, &w, n, k, &mut out);
                for r in 0..m {
                    for c in 0..n {
                        let dot: f64 = (0..k).map(|i| a[r * k + i] * f64::from(w[c * k + i])).sum();
                        assert_eq!(out[r * n + c], dot, "{m} x {n} x {k} at {r}, {c}");
                    }
                }
            }
        }
    }
}
