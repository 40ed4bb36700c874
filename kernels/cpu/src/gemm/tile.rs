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

use crate::lanes::{LANES, Lanes, load_elem, store_partial};
use crate::packed::PANEL_WIDTH;

/// How far ahead of the reads a panel is prefetched.
const PREFETCH_BYTES: usize = 4096;

/// Operands of one tile: `a[rows][k]`, `w[k][48]`, `c[rows][ldc]`.
pub(super) struct Tile<T> {
    pub(super) a: *const f32,
    pub(super) k: usize,
    pub(super) w: *const T,
    pub(super) c: *mut f32,
    pub(super) ldc: usize,
}

/// All `width` columns of a panel for `rows <= L::GEMM_ROWS` rows.
///
/// # Safety
/// The operands must be valid for `rows` rows, `k` inputs and `width` columns.
#[inline(always)]
pub(super) unsafe fn panel_rows<L: Lanes, T, const SPLIT: bool>(
    t: Tile<T>,
    rows: usize,
    width: usize,
) {
    // SAFETY: the column passes stay inside the 48 columns of the panel, and store only the
    // columns that exist.
    unsafe {
        if L::GEMM_VECS == 3 {
            by_rows::<L, T, SPLIT, 3>(&t, rows, width);
        } else {
            for col in (0..width).step_by(LANES) {
                let pass = Tile {
                    w: t.w.add(col),
                    c: t.c.add(col),
                    ..t
                };
                by_rows::<L, T, SPLIT, 1>(&pass, rows, width - col);
            }
        }
    }
}

/// Chooses the tile with exactly `rows` rows and, when `SPLIT`, as many parts of k as the
/// registers hold accumulators for.
#[inline(always)]
unsafe fn by_rows<L: Lanes, T, const SPLIT: bool, const NV: usize>(
    t: &Tile<T>,
    rows: usize,
    width: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        match rows {
            1 if SPLIT => tile::<L, T, 1, NV, 4>(t, width),
            2 if SPLIT && L::GEMM_ROWS > 6 => tile::<L, T, 2, NV, 4>(t, width),
            2 if SPLIT => tile::<L, T, 2, NV, 2>(t, width),
            3 if SPLIT && L::GEMM_ROWS > 6 => tile::<L, T, 3, NV, 2>(t, width),
            4 if SPLIT && L::GEMM_ROWS > 6 => tile::<L, T, 4, NV, 2>(t, width),
            1 => tile::<L, T, 1, NV, 1>(t, width),
            2 => tile::<L, T, 2, NV, 1>(t, width),
            3 => tile::<L, T, 3, NV, 1>(t, width),
            4 => tile::<L, T, 4, NV, 1>(t, width),
            5 if L::GEMM_ROWS > 4 => tile::<L, T, 5, NV, 1>(t, width),
            6 if L::GEMM_ROWS > 4 => tile::<L, T, 6, NV, 1>(t, width),
            7 if L::GEMM_ROWS > 6 => tile::<L, T, 7, NV, 1>(t, width),
            8 if L::GEMM_ROWS > 6 => tile::<L, T, 8, NV, 1>(t, width),
            _ => unreachable!("a tile of {rows} rows"),
        }
    }
}

/// `MR` rows by `NV` vectors, with input `i` joining chain `i % KS` (the last `k % KS` inputs
/// join chain 0). One chain when `KS` is 1.
#[inline(always)]
unsafe fn tile<L: Lanes, T, const MR: usize, const NV: usize, const KS: usize>(
    t: &Tile<T>,
    width: usize,
) {
    // SAFETY: the caller promises MR rows of a and c and k rows of the panel. Prefetching past
    // the end of the panel is harmless.
    unsafe {
        let mut chains = [[[L::splat(0.0); NV]; MR]; KS];
        let mut w = t.w;
        let whole = t.k / KS * KS;
        for i in (0..whole).step_by(KS) {
            for line in 0..(KS * PANEL_WIDTH * size_of::<T>()).div_ceil(64) {
                L::prefetch(w.cast::<u8>().wrapping_add(PREFETCH_BYTES + line * 64));
            }
            for (s, acc) in chains.iter_mut().enumerate() {
                step(acc, t.a.add(i + s), t.k, w.add(s * PANEL_WIDTH));
            }
            w = w.add(KS * PANEL_WIDTH);
        }
        for i in whole..t.k {
            step(&mut chains[0], t.a.add(i), t.k, w);
            w = w.add(PANEL_WIDTH);
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

/// One input of a tile, added to the chains `acc`.
#[inline(always)]
unsafe fn step<L: Lanes, T, const MR: usize, const NV: usize>(
    acc: &mut [[L; NV]; MR],
    a: *const f32,
    lda: usize,
    w: *const T,
) {
    // SAFETY: the caller promises MR rows at a and 16 * NV weights at w.
    unsafe {
        let mut b = [L::splat(0.0); NV];
        for (v, b) in b.iter_mut().enumerate() {
            *b = load_elem::<L, T>(w.add(v * LANES));
        }
        for (r, acc) in acc.iter_mut().enumerate() {
            let x = L::splat(*a.add(r * lda));
            for (acc, b) in acc.iter_mut().zip(b) {
                *acc = L::fma(x, b, *acc);
            }
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
