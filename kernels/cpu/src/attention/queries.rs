//! The query rows of one sequence and one key/value head, wherever they lie in the batch.

use crate::lanes::{LANES, Lanes, load_partial, store_partial};
use crate::pool::SharedMut;
use crate::rows::Rows;

/// Query rows that share keys and values. Row `r` is token `r / group`, head `r % group`.
pub(super) struct Queries<'a> {
    pub(super) q: Rows<'a>,
    pub(super) q_row: usize,
    pub(super) start_pos: usize,
    pub(super) group: usize,
    pub(super) first_head: usize,
    pub(super) d: usize,
    pub(super) out: SharedMut<f32>,
    pub(super) out_stride: usize,
}

impl Queries<'_> {
    /// Keys that row `r` sees: its own position and all before it.
    #[inline(always)]
    pub(super) fn visible(&self, r: usize) -> usize {
        self.start_pos + r / self.group + 1
    }

    /// Copies row `r`, times `1 / sqrt(d)`, to `to[..d]`.
    ///
    /// # Safety
    /// `to` must be valid for `d` writes.
    #[inline(always)]
    pub(super) unsafe fn load_scaled<L: Lanes>(&self, r: usize, to: *mut f32) {
        let start = (self.q_row + r / self.group) * self.q.stride;
        let head = (self.first_head + r % self.group) * self.d;
        let row = &self.q.data[start + head..][..self.d];
        let whole = self.d / LANES * LANES;
        // SAFETY: row and to hold d values each and every access is below d.
        unsafe {
            let scale = L::splat(1.0 / (self.d as f32).sqrt());
            for i in (0..whole).step_by(LANES) {
                L::store(L::mul(L::load(row.as_ptr().add(i)), scale), to.add(i));
            }
            let rest = self.d - whole;
            let tail = load_partial(row.as_ptr().add(whole), rest);
            store_partial::<L>(L::mul(tail, scale), to.add(whole), rest);
        }
    }

    /// Writes `acc[..d] / sum` as the output of row `r`, as a product with the inverse.
    ///
    /// # Safety
    /// `acc` must be valid for `d` reads, and no other task may write this row and head.
    #[inline(always)]
    pub(super) unsafe fn store<L: Lanes>(&self, r: usize, acc: *const f32, sum: f32) {
        let start = (self.q_row + r / self.group) * self.out_stride;
        let head = (self.first_head + r % self.group) * self.d;
        let whole = self.d / LANES * LANES;
        // SAFETY: the call checked that all rows lie in the output; accesses stay below d.
        unsafe {
            let to = self.out.at(start + head);
            let inverse = L::splat(1.0 / sum);
            for i in (0..whole).step_by(LANES) {
                L::store(L::mul(L::load(acc.add(i)), inverse), to.add(i));
            }
            let rest = self.d - whole;
            let tail = L::mul(load_partial(acc.add(whole), rest), inverse);
            store_partial(tail, to.add(whole), rest);
        }
    }
}
