//! The register tile: a few rows of activations by 16 or 48 output columns.
//!
//! What the versions taught:
//! 1. On a core that retires one 512-bit multiply-add per cycle, 8 rows by 3 vectors (24
//!    accumulators) leave 11 loads per 24 multiply-adds, so activations need no packing and
//!    the panel can stream from the second-level cache. Splitting k to keep panels in the
//!    first level was rejected: it costs a store and reload of every accumulator.
//! 2. With one row a panel offers only three chains of sums, too few for a latency of four to
//!    six; cutting k into parts with accumulators of their own gives 12, and so does cutting
//!    in two with two rows. Cutting further, until 18 or 24 accumulators, was slower: by up to
//!    80 % where widened weights need registers too.
//! 3. Widening a bf16 panel to f32 scratch before many rows use it was slower than widening in
//!    registers: the multiply-add pipes are the limit, and widening runs beside them.
//! 4. A panel is one forward stream, which the hardware prefetcher follows by itself. Prefetch
//!    instructions, at any distance from 256 bytes to 8 KiB, made one row over weights from
//!    memory a fifth slower, and changed nothing for many rows.

use super::step::Step;
use crate::lanes::{LANES, Lanes, store_partial};
use crate::packed::PANEL_WIDTH;

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

/// Chooses the tile with exactly `rows` rows and, when the sum may be cut, enough parts of k to
/// hide the latency of the sums.
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
            2 if S::SPLIT => tile::<L, S, 2, NV, 2>(t, width),
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

/// Parts that a sum over k is cut into where it may be cut. Few rows need them as chains side by
/// side, to hide latency; many rows take them one after the other. The order of summation then
/// follows the number of rows, but the size of its rounding error does not: a row is not less
/// accurate for having company.
const PARTS: usize = 4;

/// `MR` rows by `NV` vectors. The steps over k are cut into `PARTS / KS` runs one after the
/// other; one chain over all of k when the sum must not be cut.
#[inline(always)]
unsafe fn tile<L: Lanes, S: Step<L>, const MR: usize, const NV: usize, const KS: usize>(
    t: &Tile<S::Act, S::Word>,
    width: usize,
) {
    // SAFETY: the caller promises MR rows of a and c and all words of the panel.
    unsafe {
        let steps = t.k / S::ACTS;
        let runs = if S::SPLIT { PARTS / KS } else { 1 };
        let mut total = run_of::<L, S, MR, NV, KS>(t, 0, steps / runs, runs == 1);
        for run in 1..runs {
            let (from, to) = (steps * run / runs, steps * (run + 1) / runs);
            let part = run_of::<L, S, MR, NV, KS>(t, from, to, run + 1 == runs);
            total = sum(total, part);
        }
        for (r, acc) in total.iter().enumerate() {
            store_row::<L, NV>(acc, t.c.add(r * t.ldc), width);
        }
    }
}

/// The sum over steps `from..to`, and over the activations after the last step when this is the
/// last run. Step `i` of the run joins chain `i % KS` (what is left after the last `KS` steps
/// joins chain 0). By value throughout: an array that is only ever referred to as a whole stays
/// in registers.
#[inline(always)]
unsafe fn run_of<L: Lanes, S: Step<L>, const MR: usize, const NV: usize, const KS: usize>(
    t: &Tile<S::Act, S::Word>,
    from: usize,
    to: usize,
    last: bool,
) -> [[L; NV]; MR] {
    // SAFETY: as for the tile, of which these steps are a part.
    unsafe {
        let mut a = t.a.add(from * S::ACTS);
        let mut w = t.w.add(from * PANEL_WIDTH);
        let mut chains = [[[L::splat(0.0); NV]; MR]; KS];
        for _ in 0..(to - from) / KS {
            for acc in &mut chains {
                S::step(acc, a, t.k, w);
                a = a.add(S::ACTS);
                w = w.add(PANEL_WIDTH);
            }
        }
        for _ in 0..(to - from) % KS {
            S::step(&mut chains[0], a, t.k, w);
            a = a.add(S::ACTS);
            w = w.add(PANEL_WIDTH);
        }
        if last && !t.k.is_multiple_of(S::ACTS) {
            S::tail(&mut chains[0], a, t.k, w);
        }
        let mut total = chains[0];
        for chain in &chains[1..] {
            total = sum(total, *chain);
        }
        total
    }
}

/// Element by element.
///
/// # Safety
/// This CPU must have L's instructions.
#[inline(always)]
unsafe fn sum<L: Lanes, const MR: usize, const NV: usize>(
    mut x: [[L; NV]; MR],
    y: [[L; NV]; MR],
) -> [[L; NV]; MR] {
    for r in 0..MR {
        for v in 0..NV {
            // SAFETY: as promised by the caller.
            x[r][v] = unsafe { L::add(x[r][v], y[r][v]) };
        }
    }
    x
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
