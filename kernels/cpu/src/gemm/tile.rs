//! The register tile: a few rows of activations by 16 or 48 output columns.
//!
//! What the versions taught:
//! 1. On a core that retires one 512-bit multiply-add per cycle, 8 rows by 3 vectors (24
//!    accumulators) leave 11 loads per 24 multiply-adds, so activations need no packing and
//!    the panel can stream from the second-level cache. Splitting k to keep panels in the
//!    first level was rejected: it costs a store and reload of every accumulator.
//! 2. With one row a panel offers only three multiply-add chains, too few for a latency of
//!    four; cutting k into parts with accumulators of their own gives 12.
//! 3. Widening a bf16 panel to f32 scratch before many rows use it was slower than widening in
//!    registers: the multiply-add pipes are the limit, and widening runs beside them.

use super::step::Step;
use crate::lanes::{LANES, Lanes, store_partial};
use crate::packed::PANEL_WIDTH;

/// How far ahead of the reads a panel is prefetched.
const PREFETCH_BYTES: usize = 1024;

/// Operands of one tile: `a[rows][k]`, `w[ceil(k / ACTS)][48]`, `c[rows][ldc]`.
pub(super) struct Tile<A, W> {
    pub(super) a: *const A,
    pub(super) k: usize,
    pub(super) w: *const W,
    pub(super) c: *mut f32,
    pub(super) ldc: usize,
}

/// All `width` columns of a panel for `rows <= L::GEMM_ROWS` rows.
///
/// # Safety
/// The operands must be valid for `rows` rows, `k` inputs and `width` columns.
#[inline(always)]
pub(super) unsafe fn panel_rows<L: Lanes, S: Step<L>>(
    t: Tile<S::Act, S::Word>,
    rows: usize,
    width: usize,
) {
    // SAFETY: the column passes stay inside the 48 columns of the panel, and store only the
    // columns that exist.
    unsafe {
        if L::GEMM_VECS == 3 {
            by_rows::<L, S, 3>(&t, rows, width);
        } else {
            for col in (0..width).step_by(LANES) {
                let pass = Tile {
                    w: t.w.add(col),
                    c: t.c.add(col),
                    ..t
                };
                by_rows::<L, S, 1>(&pass, rows, width - col);
            }
        }
    }
}

/// Chooses the tile with exactly `rows` rows and, when the sum may be cut, as many parts of k as the
/// registers hold accumulators for.
#[inline(always)]
unsafe fn by_rows<L: Lanes, S: Step<L>, const NV: usize>(
    t: &Tile<S::Act, S::Word>,
    rows: usize,
    width: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match rows {
            1 if S::SPLIT => tile::<L, S, 1, NV, 4>(t, width),
            2 if S::SPLIT && L::GEMM_ROWS > 6 => tile::<L, S, 2, NV, 4>(t, width),
            2 if S::SPLIT => tile::<L, S, 2, NV, 2>(t, width),
            3 if S::SPLIT && L::GEMM_ROWS > 6 => tile::<L, S, 3, NV, 2>(t, width),
            4 if S::SPLIT && L::GEMM_ROWS > 6 => tile::<L, S, 4, NV, 2>(t, width),
            1 => tile::<L, S, 1, NV, 1>(t, width),
            2 => tile::<L, S, 2, NV, 1>(t, width),
            3 => tile::<L, S, 3, NV, 1>(t, width),
            4 => tile::<L, S, 4, NV, 1>(t, width),
            5 if L::GEMM_ROWS > 4 => tile::<L, S, 5, NV, 1>(t, width),
            6 if L::GEMM_ROWS > 4 => tile::<L, S, 6, NV, 1>(t, width),
            7 if L::GEMM_ROWS > 6 => tile::<L, S, 7, NV, 1>(t, width),
            8 if L::GEMM_ROWS > 6 => tile::<L, S, 8, NV, 1>(t, width),
            _ => unreachable!("a tile of {rows} rows"),
        }
    }
}

/// `MR` rows by `NV` vectors, with step `i` joining chain `i % KS` (what is left after the last
/// `KS` steps joins chain 0). One chain when `KS` is 1.
#[inline(always)]
unsafe fn tile<L: Lanes, S: Step<L>, const MR: usize, const NV: usize, const KS: usize>(
    t: &Tile<S::Act, S::Word>,
    width: usize,
) {
    // SAFETY: the caller promises MR rows of a and c and all words of the panel. Prefetching
    // past the end of the panel is harmless.
    unsafe {
        let mut chains = [[[L::splat(0.0); NV]; MR]; KS];
        let (mut a, mut w) = (t.a, t.w);
        let steps = t.k / S::ACTS;
        for _ in 0..steps / KS {
            for line in 0..(KS * PANEL_WIDTH * size_of::<S::Word>()).div_ceil(64) {
                L::prefetch(w.cast::<u8>().wrapping_add(PREFETCH_BYTES + line * 64));
            }
            for acc in &mut chains {
                S::step(acc, a, t.k, w);
                a = a.add(S::ACTS);
                w = w.add(PANEL_WIDTH);
            }
        }
        for _ in 0..steps % KS {
            S::step(&mut chains[0], a, t.k, w);
            a = a.add(S::ACTS);
            w = w.add(PANEL_WIDTH);
        }
        if !t.k.is_multiple_of(S::ACTS) {
            S::tail(&mut chains[0], a, t.k, w);
        }
        let (total, parts) = chains.split_at_mut(1);
        for part in parts {
            for (t, p) in total[0].iter_mut().flatten().zip(part.iter().flatten()) {
                *t = L::add(*t, *p);
            }
        }
        for (r, acc) in total[0].iter().enumerate() {
            store_row::<L, NV>(acc, t.c.add(r * t.ldc), width);
        }
    }
}

/// Stores one row of a tile, only the first `width` columns.
///
/// # Safety
/// `c` must be valid for `min(width, 16 * NV)` writes.
#[inline(always)]
unsafe fn store_row<L: Lanes, const NV: usize>(acc: &[L; NV], c: *mut f32, width: usize) {
    for (v, x) in acc.iter().enumerate() {
        let left = width.saturating_sub(v * LANES);
        // SAFETY: stores whole vectors only where 16 columns are left.
        unsafe {
            if left >= LANES {
                L::store(*x, c.add(v * LANES));
            } else if left > 0 {
                store_partial(*x, c.add(v * LANES), left);
            }
        }
    }
}
