//! Element-by-element operations. Each output depends on its own inputs only, so these serve
//! the exact and the fast path alike, and are cut into tasks by size.

use crate::isa::{Isa, Job};
use crate::lanes::{LANES, Lanes, load_partial, store_partial};
use crate::math;
use crate::pool::{Pool, SharedMut};

/// Elements per task: below this a task costs more than it saves.
const ELEMS_PER_TASK: usize = 16 * 1024;

/// `x += y`.
///
/// # Panics
/// When the lengths differ.
pub fn add(isa: Isa, pool: &Pool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "lengths of the two addends");
    by_chunks(pool, x, |first, x| {
        let y = &y[first..][..x.len()];
        // SAFETY: AddJob states no promise beyond the equal lengths of its slices.
        unsafe { isa.dispatch(AddJob { x, y }) };
    });
}

/// Adds `bias[n]` to every row of `c[m][n]`.
///
/// # Panics
/// When `c` is not a whole number of rows.
pub fn add_bias(isa: Isa, pool: &Pool, c: &mut [f32], bias: &[f32]) {
    by_rows(pool, c, bias.len(), |_, rows| {
        for x in rows.chunks_exact_mut(bias.len()) {
            // SAFETY: AddJob states no promise beyond the equal lengths of its slices.
            unsafe { isa.dispatch(AddJob { x, y: bias }) };
        }
    });
}

/// `out = silu(gate) * up`, with `silu(x) = x / (1 + e^-x)`.
///
/// # Panics
/// When the lengths differ.
pub fn silu_mul(isa: Isa, pool: &Pool, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(gate.len(), out.len(), "gate and output");
    assert_eq!(up.len(), out.len(), "up and output");
    by_chunks(pool, out, |first, out| {
        let (gate, up) = (&gate[first..][..out.len()], &up[first..][..out.len()]);
        // SAFETY: SiluJob states no promise beyond the equal lengths of its slices.
        unsafe { isa.dispatch(SiluJob { gate, up, out }) };
    });
}

/// Like [`silu_mul`] on rows `[gate | up]` of one fused projection: `gate_up` is
/// `[m][2 * ffn]`, `out` is `[m][ffn]`.
///
/// # Panics
/// When the lengths do not match.
pub fn silu_mul_fused(isa: Isa, pool: &Pool, gate_up: &[f32], ffn: usize, out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len(), "gate and up for every output");
    by_rows(pool, out, ffn, |row, rows| {
        for (i, out) in rows.chunks_exact_mut(ffn).enumerate() {
            let (gate, up) = gate_up[(row + i) * 2 * ffn..][..2 * ffn].split_at(ffn);
            // SAFETY: SiluJob states no promise beyond the equal lengths of its slices.
            unsafe { isa.dispatch(SiluJob { gate, up, out }) };
        }
    });
}

/// Calls `f(first element, chunk)` for disjoint chunks of `x`, in parallel.
fn by_chunks(pool: &Pool, x: &mut [f32], f: impl Fn(usize, &mut [f32]) + Sync) {
    by_rows(pool, x, 1, f);
}

/// Calls `f(first row, rows)` for disjoint groups of whole rows of `x`, in parallel.
pub(crate) fn by_rows(
    pool: &Pool,
    x: &mut [f32],
    width: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) {
    if x.is_empty() {
        return;
    }
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "{} values in rows of {width}",
        x.len()
    );
    let rows = x.len() / width;
    let per_task = (ELEMS_PER_TASK / width).max(1);
    let shared = SharedMut::new(x);
    pool.run(rows.div_ceil(per_task), |task| {
        let first = task * per_task;
        let count = per_task.min(rows - first);
        // SAFETY: tasks own disjoint ranges of rows inside x, which outlives the region.
        let part =
            unsafe { std::slice::from_raw_parts_mut(shared.at(first * width), count * width) };
        f(first, part);
    });
}

/// `x += y`; the slices must be of equal length.
struct AddJob<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Job for AddJob<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let len = self.x.len();
        assert_eq!(len, self.y.len());
        let (x, y) = (self.x.as_mut_ptr(), self.y.as_ptr());
        let whole = len / LANES * LANES;
        // SAFETY: both slices hold len values and every access is below it.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                L::store(L::add(L::load(x.add(i)), L::load(y.add(i))), x.add(i));
            }
            let rest = len - whole;
            let sum = L::add(
                load_partial(x.add(whole), rest),
                load_partial(y.add(whole), rest),
            );
            store_partial::<L>(sum, x.add(whole), rest);
        }
    }
}

/// `out = silu(gate) * up`; the slices must be of equal length.
struct SiluJob<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Job for SiluJob<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let len = self.out.len();
        assert!(self.gate.len() == len && self.up.len() == len);
        let (gate, up) = (self.gate.as_ptr(), self.up.as_ptr());
        let out = self.out.as_mut_ptr();
        let whole = len / LANES * LANES;
        // SAFETY: all slices hold len values and every access is below it.
        unsafe {
            for i in (0..whole).step_by(LANES) {
                let y = L::mul(math::silu(L::load(gate.add(i))), L::load(up.add(i)));
                L::store(y, out.add(i));
            }
            let rest = len - whole;
            let g = math::silu::<L>(load_partial(gate.add(whole), rest));
            let y = L::mul(g, load_partial(up.add(whole), rest));
            store_partial(y, out.add(whole), rest);
        }
    }
}
