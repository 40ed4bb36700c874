//! Memory traffic without a kernel: what a kernel's bytes a second are to be compared with.
//!
//! Reading and copying are two ceilings. Either may move more bytes a second: memory takes reads
//! and writes side by side, while a line that is written may have to be fetched first. A kernel
//! that only reads, as a product with one row does, is to be compared with reading.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::isa::{Isa, Job};
use crate::lanes::Lanes;
use crate::pool::{Pool, SharedMut};

struct SumJob<'a>(&'a [u64]);

impl Job for SumJob<'_> {
    type Out = u64;

    // The compiler makes vectors of this; their width is what the dispatch is for.
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) -> u64 {
        self.0.iter().fold(0, |sum, x| sum.wrapping_add(*x))
    }
}

/// Reads all of `from` with the widest loads of this processor, an equal part on every thread of
/// `pool`, and gives the sum (wrapping).
pub fn read_all(pool: &Pool, from: &[u64]) -> u64 {
    let (isa, sum) = (Isa::detect(), AtomicU64::new(0));
    let part = from.len().div_ceil(pool.threads()).max(1);
    pool.run(from.len().div_ceil(part), |task| {
        let mine = &from[task * part..];
        let mine = &mine[..part.min(mine.len())];
        // SAFETY: SumJob states no promise.
        let of_part = unsafe { isa.dispatch(SumJob(mine)) };
        sum.fetch_add(of_part, Ordering::Relaxed);
    });
    sum.into_inner()
}

/// Copies all of `from` to `to`, an equal part on every thread of `pool`.
///
/// # Panics
/// When the lengths differ.
pub fn copy_all(pool: &Pool, from: &[u64], to: &mut [u64]) {
    assert_eq!(from.len(), to.len(), "values to copy");
    let part = from.len().div_ceil(pool.threads()).max(1);
    let there = SharedMut::new(to);
    pool.run(from.len().div_ceil(part), |task| {
        let first = task * part;
        let mine = &from[first..(first + part).min(from.len())];
        // SAFETY: each task writes the places of its own part, which lie inside `to`, and
        // nothing else reaches `to` while the region runs.
        unsafe { std::ptr::copy_nonoverlapping(mine.as_ptr(), there.at(first), mine.len()) };
    });
}

#[cfg(test)]
mod tests {
    use super::{copy_all, read_all};
    use crate::Pool;

    #[test]
    fn every_value_is_read_once_and_copied_to_its_place() {
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads).unwrap();
            for n in [0usize, 1, 2, 7, 1000] {
                // Powers of two and a large value: a part twice, or left out, changes the sum.
                let from: Vec<u64> = (0..n).map(|i| (1 << (i % 60)) ^ (i as u64) << 33).collect();
                let mut want = 0u64;
                for x in &from {
                    want = want.wrapping_add(*x);
                }
                assert_eq!(
                    read_all(&pool, &from),
                    want,
                    "{n} values, {threads} threads"
                );
                let mut to = vec![u64::MAX; n];
                copy_all(&pool, &from, &mut to);
                assert!(to == from, "{n} values, {threads} threads");
            }
        }
    }
}
