//! Activations rounded to bf16, in a scratch that the calling thread keeps between calls.
//!
//! All tasks of a product read the same rounded activations, so they are made once, in a
//! parallel region of their own, rather than by every task that needs them.

use half::bf16;

use crate::buffer::with_scratch;
use crate::isa::{Isa, Job};
use crate::lanes::Lanes;
use crate::pool::{Pool, SharedMut};

/// Values per task: some 10 µs of work.
const VALUES_PER_TASK: usize = 1 << 14;

/// Lends `f` the rows of `a[m][k]` as `[m][ceil(k / 2)]` pairs, an odd `k` filled up with zero.
pub(super) fn with_pairs(
    isa: Isa,
    pool: &Pool,
    a: &[f32],
    (m, k): (usize, usize),
    f: impl FnOnce(&[[bf16; 2]]),
) {
    let width = k.next_multiple_of(2);
    with_scratch(m * width / 2, |scratch| {
        let narrow: &mut [bf16] = bytemuck::cast_slice_mut(scratch);
        let out = SharedMut::new(narrow);
        rows_in_parallel(pool, (m, k), |row, rows| {
            // SAFETY: rows row..row + rows exist on both sides, and only this task writes them.
            let dst = unsafe { std::slice::from_raw_parts_mut(out.at(row * width), rows * width) };
            let src = &a[row * k..][..rows * k];
            // SAFETY: the job has no promises of its own to keep.
            unsafe { isa.dispatch(Narrow { src, k, dst }) };
        });
        f(bytemuck::cast_slice(narrow));
    });
}

/// Lends `f` the values of `a`, each rounded to a bf16 number but kept as f32.
pub(super) fn with_rounded(isa: Isa, pool: &Pool, a: &[f32], f: impl FnOnce(&[f32])) {
    with_scratch(a.len(), |scratch| {
        let out = SharedMut::new(scratch);
        rows_in_parallel(pool, (a.len(), 1), |first, n| {
            // SAFETY: values first..first + n exist, and only this task writes them.
            let dst = unsafe { std::slice::from_raw_parts_mut(out.at(first), n) };
            let src = &a[first..][..n];
            // SAFETY: the job has no promises of its own to keep.
            unsafe { isa.dispatch(Round { src, dst }) };
        });
        f(scratch);
    });
}

/// Calls `f(first row, rows)` for all of `m` rows of `k` values.
fn rows_in_parallel(pool: &Pool, (m, k): (usize, usize), f: impl Fn(usize, usize) + Sync) {
    let step = (VALUES_PER_TASK / k.max(1)).max(1);
    pool.run(m.div_ceil(step), |task| {
        f(task * step, step.min(m - task * step));
    });
}

struct Narrow<'a> {
    src: &'a [f32],
    k: usize,
    dst: &'a mut [bf16],
}

impl Job for Narrow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let k = self.k.max(1);
        let rows = self.dst.chunks_exact_mut(k.next_multiple_of(2));
        for (dst, src) in rows.zip(self.src.chunks_exact(k)) {
            let (dst, padding) = dst.split_at_mut(k);
            for (d, s) in dst.iter_mut().zip(src) {
                *d = bf16::from_bits((round_bits(s.to_bits()) >> 16) as u16);
            }
            padding.fill(bf16::ZERO);
        }
    }
}

struct Round<'a> {
    src: &'a [f32],
    dst: &'a mut [f32],
}

impl Job for Round<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for (d, s) in self.dst.iter_mut().zip(self.src) {
            *d = f32::from_bits(round_bits(s.to_bits()));
        }
    }
}

/// Rounds the bits of an f32 to the nearest bf16, ties to even; a NaN stays one. Without a
/// branch, so that it compiles to vector code.
#[inline(always)]
fn round_bits(x: u32) -> u32 {
    // Adding just under half a step, or half a step when the kept part is odd, carries into
    // the kept part exactly when it has to be rounded up.
    let nearest = x.wrapping_add(0x7fff + ((x >> 16) & 1));
    let quiet_nan = x | 0x0040_0000;
    let is_nan = x & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { quiet_nan } else { nearest }) & 0xffff_0000
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{round_bits, with_pairs, with_rounded};
    use crate::{Isa, Pool};

    #[test]
    fn rounding_agrees_with_the_half_crate_on_every_kind_of_number() {
        // Every exponent and sign, with dropped parts around zero, half and one.
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = u32::from(upper) << 16 | lower;
                let want = bf16::from_f32(f32::from_bits(x)).to_bits();
                assert_eq!(round_bits(x), u32::from(want) << 16, "{x:08x}");
            }
        }
    }

    #[test]
    fn both_forms_hold_the_same_numbers_and_odd_rows_are_padded() {
        for (m, k) in [(3, 5), (2, 4), (70, 577), (4, 0), (0, 3), (2, 1)] {
            let a: Vec<f32> = (0..m * k).map(|i| 1.0 + i as f32 / 4099.0).collect();
            for isa in Isa::supported() {
                for threads in [1, 2] {
                    let pool = Pool::new(threads).unwrap();
                    with_rounded(isa, &pool, &a, |rounded| {
                        let want: Vec<f32> =
                            a.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
                        assert_eq!(rounded, want);
                    });
                    with_pairs(isa, &pool, &a, (m, k), |pairs| {
                        assert_eq!(pairs.len(), m * k.div_ceil(2));
                        for (i, pair) in pairs.iter().enumerate() {
                            let (row, col) = (i / k.div_ceil(2), i % k.div_ceil(2) * 2);
                            let x = |c: usize| if c < k { a[row * k + c] } else { 0.0 };
                            let want = [x(col), x(col + 1)].map(bf16::from_f32);
                            assert_eq!(*pair, want, "{m} x {k}, pair {i}");
                        }
                    });
                }
            }
        }
    }
}
