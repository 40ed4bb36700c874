//! Root-mean-square normalisation with one fixed summation order: value `i` joins partial sum
//! `i % 16`, and the 16 sums meet in a fixed tree. Rows never depend on each other, so this is
//! batch invariant and serves both paths.

use crate::elementwise::by_rows;
use crate::isa::{Isa, Job};
use crate::lanes::{LANES, Lanes, load_partial, store_partial};
use crate::math;
use crate::pool::{Pool, SharedMut};

/// `out[m][h] = x * weight / sqrt(mean(x^2) + eps)`, row by row of `h = weight.len()` values.
///
/// # Panics
/// When the lengths do not match.
pub fn rmsnorm(isa: Isa, pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let h = weight.len();
    assert_eq!(x.len(), out.len(), "input and output");
    by_rows(pool, out, h, |row, rows| {
        for (i, out) in rows.chunks_exact_mut(h).enumerate() {
            let x = &x[(row + i) * h..][..h];
            // SAFETY: all three slices hold h values.
            unsafe {
                isa.dispatch(NormJob {
                    x,
                    weight,
                    eps,
                    out,
                })
            };
        }
    });
}

/// `residual += delta`, then `out = rmsnorm(residual)`: one pass instead of two over the
/// residual stream.
///
/// # Panics
/// When the lengths do not match.
pub fn add_rmsnorm(
    isa: Isa,
    pool: &Pool,
    residual: &mut [f32],
    delta: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    let h = weight.len();
    assert_eq!(residual.len(), out.len(), "residual and output");
    assert_eq!(residual.len(), delta.len(), "residual and delta");
    let shared = SharedMut::new(residual);
    by_rows(pool, out, h, |row, rows| {
        for (i, out) in rows.chunks_exact_mut(h).enumerate() {
            let start = (row + i) * h;
            // SAFETY: by_rows gives each task its own rows, so this row of the residual is
            // ours alone, and it lies inside: residual is as long as out.
            let residual = unsafe { std::slice::from_raw_parts_mut(shared.at(start), h) };
            let delta = &delta[start..][..h];
            // SAFETY: all slices hold h values.
            unsafe {
                isa.dispatch(AddNormJob {
                    residual,
                    delta,
                    weight,
                    eps,
                    out,
                })
            };
        }
    });
}

/// Norm of one row; all slices must be of equal length.
struct NormJob<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Job for NormJob<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let h = self.x.len();
        assert!(self.weight.len() == h && self.out.len() == h);
        // SAFETY: all slices hold h values.
        unsafe {
            let mut squares = L::splat(0.0);
            let x = self.x.as_ptr();
            let whole = h / LANES * LANES;
            for i in (0..whole).step_by(LANES) {
                let v = L::load(x.add(i));
                squares = L::fma(v, v, squares);
            }
            let v = load_partial::<L>(x.add(whole), h - whole);
            squares = L::fma(v, v, squares);
            scale_row::<L>(x, self.weight.as_ptr(), self.eps, squares, self.out);
        }
    }
}

/// Add and norm of one row; all slices must be of equal length.
struct AddNormJob<'a> {
    residual: &'a mut [f32],
    delta: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Job for AddNormJob<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let h = self.residual.len();
        assert!(self.delta.len() == h && self.weight.len() == h && self.out.len() == h);
        // SAFETY: all slices hold h values.
        unsafe {
            let mut squares = L::splat(0.0);
            let (x, d) = (self.residual.as_mut_ptr(), self.delta.as_ptr());
            let whole = h / LANES * LANES;
            for i in (0..whole).step_by(LANES) {
                let v = L::add(L::load(x.add(i)), L::load(d.add(i)));
                L::store(v, x.add(i));
                squares = L::fma(v, v, squares);
            }
            let rest = h - whole;
            let tail = load_partial::<L>(x.add(whole), rest);
            let v = L::add(tail, load_partial(d.add(whole), rest));
            store_partial(v, x.add(whole), rest);
            squares = L::fma(v, v, squares);
            scale_row::<L>(x, self.weight.as_ptr(), self.eps, squares, self.out);
        }
    }
}

/// `out = (x * inverse) * weight`, the inverse root taken from the 16 partial sums of squares.
#[inline(always)]
unsafe fn scale_row<L: Lanes>(
    x: *const f32,
    weight: *const f32,
    eps: f32,
    squares: L,
    out: &mut [f32],
) {
    let h = out.len();
    let o = out.as_mut_ptr();
    // SAFETY: the caller promises that x and weight hold as many values as out.
    unsafe {
        let mean = math::sum(squares) / h as f32;
        let inverse = L::splat(1.0 / (mean + eps).sqrt());
        let whole = h / LANES * LANES;
        for i in (0..whole).step_by(LANES) {
            let y = L::mul(L::load(x.add(i)), inverse);
            L::store(L::mul(y, L::load(weight.add(i))), o.add(i));
        }
        let rest = h - whole;
        let y = L::mul(load_partial(x.add(whole), rest), inverse);
        store_partial(
            L::mul(y, load_partial(weight.add(whole), rest)),
            o.add(whole),
            rest,
        );
    }
}
