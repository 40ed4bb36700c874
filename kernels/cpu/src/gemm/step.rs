//! The inner step of a tile, for each combination of operand types.

use half::bf16;

use crate::lanes::{DotLanes, LANES, Lanes};

/// How one word of weights per column joins the sums of a tile.
///
/// # Safety
/// All methods need `MR` rows of `a` that lie `lda` elements apart, and `16 * NV` words at `w`,
/// which is on a 64-byte boundary.
pub(super) trait Step<L: Lanes> {
    /// Element of the activations.
    type Act: Copy;
    /// Word of the panel, for one column.
    type Word: Copy;
    /// Activations per step.
    const ACTS: usize;
    /// Whether the sum may be cut into parts when rows are few.
    const SPLIT: bool;

    /// Adds `ACTS` activations times one word to the sums.
    unsafe fn step<const MR: usize, const NV: usize>(
        acc: &mut [[L; NV]; MR],
        a: *const Self::Act,
        lda: usize,
        w: *const Self::Word,
    );

    /// Adds the activations after the last whole step, of which there are fewer than `ACTS`.
    unsafe fn tail<const MR: usize, const NV: usize>(
        acc: &mut [[L; NV]; MR],
        a: *const Self::Act,
        lda: usize,
        w: *const Self::Word,
    ) {
        let _ = (acc, a, lda, w);
        unreachable!("a step of {} activations has no part", Self::ACTS);
    }
}

/// f32 by f32, one chain in the order of the inputs: the exact product.
pub(super) struct Exact;

/// f32 by widened bf16.
pub(super) struct Widened;

/// Pairs of bf16 by pairs of bf16.
pub(super) struct Paired;

impl<L: Lanes> Step<L> for Exact {
    type Act = f32;
    type Word = f32;
    const ACTS: usize = 1;
    const SPLIT: bool = false;

    #[inline(always)]
    unsafe fn step<const MR: usize, const NV: usize>(
        acc: &mut [[L; NV]; MR],
        a: *const f32,
        lda: usize,
        w: *const f32,
    ) {
        // SAFETY: as the trait demands.
        unsafe { rank_one(acc, a, lda, |v| L::load(w.add(v * LANES))) }
    }
}

impl<L: Lanes> Step<L> for Widened {
    type Act = f32;
    type Word = [bf16; 2];
    const ACTS: usize = 2;
    const SPLIT: bool = true;

    /// The second of a pair goes first, as in the dot-product instruction, so that the two
    /// agree to the bit wherever they sum in the same tiles.
    #[inline(always)]
    unsafe fn step<const MR: usize, const NV: usize>(
        acc: &mut [[L; NV]; MR],
        a: *const f32,
        lda: usize,
        w: *const [bf16; 2],
    ) {
        // SAFETY: as the trait demands.
        unsafe {
            rank_one(acc, a.add(1), lda, |v| L::load_second(w.add(v * LANES)));
            rank_one(acc, a, lda, |v| L::load_first(w.add(v * LANES)));
        }
    }

    #[inline(always)]
    unsafe fn tail<const MR: usize, const NV: usize>(
        acc: &mut [[L; NV]; MR],
        a: *const f32,
        lda: usize,
        w: *const [bf16; 2],
    ) {
        // SAFETY: as the trait demands.
        unsafe { rank_one(acc, a, lda, |v| L::load_first(w.add(v * LANES))) }
    }
}

impl<L: DotLanes> Step<L> for Paired {
    type Act = [bf16; 2];
    type Word = [bf16; 2];
    const ACTS: usize = 1;
    const SPLIT: bool = true;

    #[inline(always)]
    unsafe fn step<const MR: usize, const NV: usize>(
        acc: &mut [[L; NV]; MR],
        a: *const [bf16; 2],
        lda: usize,
        w: *const [bf16; 2],
    ) {
        // SAFETY: as the trait demands.
        unsafe {
            let b: [L::Pairs; NV] = std::array::from_fn(|v| L::load_pairs(w.add(v * LANES)));
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = L::splat_pair(a.add(r * lda));
                for (acc, b) in acc.iter_mut().zip(b) {
                    *acc = L::dot(*acc, x, b);
                }
            }
        }
    }
}

/// One input times one weight per column; `weights(v)` loads vector `v` of the columns.
#[inline(always)]
unsafe fn rank_one<L: Lanes, const MR: usize, const NV: usize>(
    acc: &mut [[L; NV]; MR],
    a: *const f32,
    lda: usize,
    weights: impl Fn(usize) -> L,
) {
    // SAFETY: the caller promises MR rows at a, and that this CPU has L's instructions.
    unsafe {
        let mut b = [L::splat(0.0); NV];
        for (v, b) in b.iter_mut().enumerate() {
            *b = weights(v);
        }
        for (r, acc) in acc.iter_mut().enumerate() {
            let x = L::splat(*a.add(r * lda));
            for (acc, b) in acc.iter_mut().zip(b) {
                *acc = L::fma(x, b, *acc);
            }
        }
    }
}
