//! Rotary position embedding, half-split form: dimension `i` is paired with `i + d/2`.
//!
//! Angles are not computed here. The caller passes cosines and sines made in f64, so exact and
//! fast paths and every CPU see the same table.

use crate::isa::{Isa, Job};
use crate::lanes::{LANES, Lanes, load_partial, store_partial};
use crate::pool::{Pool, SharedMut};
use crate::rows::RowsMut;

/// Rows per task.
const ROWS_PER_TASK: usize = 32;

/// Cosines and sines of all positions, each `[positions][half]`.
#[derive(Clone, Copy, Debug)]
pub struct RopeTable<'a> {
    /// Cosine of position p and pair i at `p * half + i`.
    pub cos: &'a [f32],
    /// Sine of position p and pair i at `p * half + i`.
    pub sin: &'a [f32],
    /// Half the head dimension: the number of pairs.
    pub half: usize,
}

/// Rotates the first `heads` heads of every row of `x` by the angle of the row's position.
///
/// Row `i` holds `heads` heads of `2 * half` values and stands at `positions[i]`. Where q and
/// k heads are adjacent one call with `heads = q + kv` rotates both.
///
/// # Panics
/// When a position is outside the table, or `x` is too short.
pub fn rope_apply(
    isa: Isa,
    pool: &Pool,
    x: RowsMut<'_>,
    heads: usize,
    table: &RopeTable<'_>,
    positions: &[u32],
) {
    let half = table.half;
    assert_eq!(table.cos.len(), table.sin.len(), "cosines and sines");
    x.check(positions.len(), heads * 2 * half, "rope input");
    let stride = x.stride;
    let shared = SharedMut::new(x.data);
    pool.run(positions.len().div_ceil(ROWS_PER_TASK), |task| {
        let first = task * ROWS_PER_TASK;
        for (i, position) in positions.iter().enumerate().skip(first).take(ROWS_PER_TASK) {
            let angle = *position as usize * half;
            let cos = &table.cos[angle..][..half];
            let sin = &table.sin[angle..][..half];
            // SAFETY: check() proved that this row exists, and tasks own disjoint rows.
            unsafe {
                isa.dispatch(RopeJob {
                    x: shared.at(i * stride),
                    heads,
                    cos,
                    sin,
                })
            };
        }
    });
}

/// Rotates one row; `x` must be valid for `heads * 2 * cos.len()` values.
struct RopeJob<'a> {
    x: *mut f32,
    heads: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Job for RopeJob<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let half = self.cos.len();
        assert_eq!(half, self.sin.len());
        let (cos, sin) = (self.cos.as_ptr(), self.sin.as_ptr());
        // SAFETY: all offsets stay below half in the table and below a head in x.
        unsafe {
            for head in 0..self.heads {
                let lo = self.x.add(head * 2 * half);
                let hi = lo.add(half);
                let whole = half / LANES * LANES;
                for i in (0..whole).step_by(LANES) {
                    let (c, s) = (L::load(cos.add(i)), L::load(sin.add(i)));
                    let (a, b) = rotate(L::load(lo.add(i)), L::load(hi.add(i)), c, s);
                    L::store(a, lo.add(i));
                    L::store(b, hi.add(i));
                }
                let rest = half - whole;
                if rest > 0 {
                    let c = load_partial::<L>(cos.add(whole), rest);
                    let s = load_partial(sin.add(whole), rest);
                    let (a, b) = (lo.add(whole), hi.add(whole));
                    let (x, y) = rotate(load_partial(a, rest), load_partial(b, rest), c, s);
                    store_partial(x, a, rest);
                    store_partial(y, b, rest);
                }
            }
        }
    }
}

/// `(a cos - b sin, b cos + a sin)`; the sine product is rounded on its own.
#[inline(always)]
unsafe fn rotate<L: Lanes>(a: L, b: L, cos: L, sin: L) -> (L, L) {
    // SAFETY: register arithmetic only; the caller promises the instruction set.
    unsafe {
        let minus_bs = L::sub(L::splat(0.0), L::mul(b, sin));
        (L::fma(a, cos, minus_bs), L::fma(b, cos, L::mul(a, sin)))
    }
}
