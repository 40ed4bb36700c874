//! Partial results of attention over ranges of keys.

use crate::device::{Buffer, Device, DeviceExt};
use crate::error::{KernelError, require};

/// Room for the partial results of a plan that splits keys.
#[derive(Clone, Copy, Debug)]
pub struct Partials {
    /// Sums of weighted values, `[items][q_heads][d_head]`.
    pub o: Buffer<f32>,
    /// Maximum of scores and sum of weights, `[items][q_heads]`.
    pub max_sum: Buffer<[f32; 2]>,
}

impl Partials {
    /// Room for `items` items.
    ///
    /// # Errors
    /// When the device has none.
    pub fn new(
        device: &(impl Device + ?Sized),
        items: usize,
        q_heads: usize,
        d_head: usize,
    ) -> Result<Self, KernelError> {
        Ok(Partials {
            o: device.empty("partial sums", items * q_heads * d_head)?,
            max_sum: device.empty("partial maxima", items * q_heads)?,
        })
    }

    /// Whether there is room for `wanted` results of one head each.
    pub(super) fn check(
        &self,
        op: &'static str,
        wanted: usize,
        d_head: usize,
    ) -> Result<(), KernelError> {
        let rooms = (self.o.len() / d_head, self.max_sum.len());
        let enough = rooms.0 >= wanted && rooms.1 >= wanted;
        require(enough, op, "partial results", rooms, wanted.to_string())
    }
}
