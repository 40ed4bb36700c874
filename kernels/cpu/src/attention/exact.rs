//! Exact attention: scores of a strip of rows with all visible keys, then softmax per row,
//! then one chain over the values per output element.

use std::ops::Range;

use super::micro::{Weights, add_values, exp_row, mask_and_max, scores};
use super::queries::Queries;
use super::source::{AnySource, Source};
use super::{MAX_STRIP, padded};
use crate::buffer::with_scratch;
use crate::isa::{Isa, Job};
use crate::kv::KvElem;
use crate::lanes::{LANES, Lanes};
use crate::math;

/// Computes the rows `rows` of `queries`.
pub(super) fn run<T: KvElem>(
    isa: Isa,
    queries: &Queries<'_>,
    rows: &Range<usize>,
    source: AnySource<'_, T>,
) {
    match source {
        AnySource::Direct(source) => run_on(isa, queries, rows, source),
        AnySource::Copied(source) => run_on(isa, queries, rows, source),
    }
}

fn run_on<T: KvElem>(isa: Isa, queries: &Queries<'_>, rows: &Range<usize>, source: Source<'_, T>) {
    if rows.is_empty() {
        return;
    }
    let lds = padded(queries.visible(rows.end - 1));
    let width = source.v_width;
    with_scratch(MAX_STRIP * (queries.d + width + lds), |scratch| {
        let (q, rest) = scratch.split_at_mut(MAX_STRIP * queries.d);
        let (acc, s) = rest.split_at_mut(MAX_STRIP * width);
        // SAFETY: the scratch has the sizes the job names, and the caller checked the table.
        unsafe {
            isa.dispatch(ExactJob {
                queries,
                rows: rows.clone(),
                source,
                q,
                acc,
                s,
                lds,
            })
        };
    });
}

/// Needs `q` of 8 rows of d, `acc` of 8 rows of `v_width`, `s` of 8 rows of `lds`, where `lds`
/// is a multiple of 16 that covers all visible keys; and a source that has those keys.
struct ExactJob<'a, T> {
    queries: &'a Queries<'a>,
    rows: Range<usize>,
    source: Source<'a, T>,
    q: &'a mut [f32],
    acc: &'a mut [f32],
    s: &'a mut [f32],
    lds: usize,
}

impl<T: KvElem> Job for ExactJob<'_, T> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        for first in self.rows.clone().step_by(L::ATTN_ROWS) {
            let rows = (self.rows.end - first).min(L::ATTN_ROWS);
            // SAFETY: the rows exist and the buffers have the sizes promised to this job.
            unsafe { self.strip::<L>(first, rows) };
        }
    }
}

impl<T: KvElem> ExactJob<'_, T> {
    #[inline(always)]
    unsafe fn strip<L: Lanes>(&mut self, first: usize, rows: usize) {
        let (queries, source, lds) = (self.queries, &self.source, self.lds);
        let (d, width) = (queries.d, source.v_width);
        let (q, acc, s) = (
            self.q.as_mut_ptr(),
            self.acc.as_mut_ptr(),
            self.s.as_mut_ptr(),
        );
        let fewest = queries.visible(first);
        let most = queries.visible(first + rows - 1);
        // SAFETY: rows <= 8 and all keys below `most` exist, so every access lies in the
        // buffers promised to this job.
        unsafe {
            for r in 0..rows {
                queries.load_scaled::<L>(first + r, q.add(r * d));
            }
            for tile in 0..most.div_ceil(LANES) {
                let keys = source.key_tile(tile);
                scores::<L, T>(rows, q, d, keys, s.add(tile * LANES), lds);
            }
            let mut sums = [0.0f32; MAX_STRIP];
            for (r, sum) in sums.iter_mut().enumerate().take(rows) {
                let (row, visible) = (s.add(r * lds), queries.visible(first + r));
                let shift = mask_and_max::<L>(row, visible);
                *sum = math::sum(exp_row::<L>(row, visible, shift));
            }
            std::ptr::write_bytes(acc, 0, rows * width);
            let weights = Weights {
                p: s,
                ldp: lds,
                first: 0,
            };
            add_values::<L, T>(rows, weights, source, 0..fewest, acc);
            for (r, sum) in sums.iter().enumerate().take(rows) {
                // Keys that only the later rows of the strip see, one row at a time.
                let (row, mine) = (s.add(r * lds), acc.add(r * width));
                let visible = queries.visible(first + r);
                if visible > fewest {
                    let weights = Weights { p: row, ..weights };
                    add_values::<L, T>(1, weights, source, fewest..visible, mine);
                }
                queries.store::<L>(first + r, mine, *sum);
            }
        }
    }
}
