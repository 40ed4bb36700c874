//! The paged key/value store of one layer, as the attention kernels read it.
//!
//! Keys are stored transposed within a block (`[kv_head][d][slot]`), so that vector lanes run
//! over keys and one load fetches the same dimension of 16 keys. Values keep their natural
//! order (`[kv_head][slot][d]`), because there lanes run over the dimension. Rows as written
//! by the projections would need a transposition per attention call; here it is paid once per
//! token, when it is written.

use bytemuck::Pod;
use half::bf16;

use crate::rows::Rows;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
}

/// Element type of a key/value store: `f32` or `bf16`. bf16 is rounded to nearest even on
/// write and widened exactly on read.
pub trait KvElem: Pod + Send + Sync + sealed::Sealed {
    /// Rounds to the element type.
    fn from_f32(x: f32) -> Self;
    /// Widens exactly.
    fn to_f32(self) -> f32;
}

impl KvElem for f32 {
    fn from_f32(x: f32) -> Self {
        x
    }

    fn to_f32(self) -> f32 {
        self
    }
}

impl KvElem for bf16 {
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }

    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
}

/// Sizes that define the layout of a key/value store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvShape {
    /// Tokens per block.
    pub block_size: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub d_head: usize,
}

impl KvShape {
    /// Elements of keys (and as many of values) per block.
    pub fn block_elems(&self) -> usize {
        self.block_size * self.head_elems_per_slot()
    }

    fn head_elems_per_slot(&self) -> usize {
        self.kv_heads * self.d_head
    }

    fn check(&self, k: usize, v: usize) {
        assert!(
            self.block_size > 0 && self.kv_heads > 0 && self.d_head > 0,
            "{self:?}"
        );
        assert_eq!(k, v, "key and value stores");
        assert_eq!(k % self.block_elems(), 0, "whole blocks of {self:?}");
    }
}

/// One layer's keys and values, to read. Block `b` starts at `b * shape.block_elems()`.
#[derive(Debug)]
pub struct KvLayerView<'a, T> {
    /// Keys, each block `[kv_head][d][slot]`.
    pub k: &'a [T],
    /// Values, each block `[kv_head][slot][d]`.
    pub v: &'a [T],
    /// The layout.
    pub shape: KvShape,
}

impl<T> Clone for KvLayerView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for KvLayerView<'_, T> {}

impl<T> KvLayerView<'_, T> {
    /// Number of blocks, after checking that both stores are whole blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.shape.check(self.k.len(), self.v.len());
        self.k.len() / self.shape.block_elems()
    }
}

/// One layer's keys and values, to write.
#[derive(Debug)]
pub struct KvLayerMut<'a, T> {
    /// Keys, each block `[kv_head][d][slot]`.
    pub k: &'a mut [T],
    /// Values, each block `[kv_head][slot][d]`.
    pub v: &'a mut [T],
    /// The layout.
    pub shape: KvShape,
}

impl<T> KvLayerMut<'_, T> {
    /// The same store, to read.
    pub fn view(&self) -> KvLayerView<'_, T> {
        KvLayerView {
            k: self.k,
            v: self.v,
            shape: self.shape,
        }
    }
}

/// Where one token's keys and values go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvSlot {
    /// Physical block.
    pub block: u32,
    /// Slot inside the block, below the block size.
    pub slot: u32,
}

/// Writes one row of keys and one of values (`kv_heads * d_head` values each) per slot.
///
/// # Panics
/// When a slot lies outside the store, or the rows are too short.
pub fn kv_write<T: KvElem>(k: Rows<'_>, v: Rows<'_>, slots: &[KvSlot], kv: &mut KvLayerMut<'_, T>) {
    let shape = kv.shape;
    shape.check(kv.k.len(), kv.v.len());
    let (d, bs) = (shape.d_head, shape.block_size);
    k.check(slots.len(), shape.head_elems_per_slot(), "keys to write");
    v.check(slots.len(), shape.head_elems_per_slot(), "values to write");
    for (i, at) in slots.iter().enumerate() {
        let slot = at.slot as usize;
        assert!(slot < bs, "slot {slot} of blocks of {bs}");
        for head in 0..shape.kv_heads {
            let base = at.block as usize * shape.block_elems() + head * d * bs;
            let keys = &mut kv.k[base..][..d * bs];
            let row = &k.data[i * k.stride + head * d..][..d];
            for (column, x) in keys.chunks_exact_mut(bs).zip(row) {
                column[slot] = T::from_f32(*x);
            }
            let values = &mut kv.v[base + slot * d..][..d];
            let row = &v.data[i * v.stride + head * d..][..d];
            for (o, x) in values.iter_mut().zip(row) {
                *o = T::from_f32(*x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KvLayerMut, KvShape, KvSlot, kv_write};
    use crate::rows::Rows;

    #[test]
    fn keys_are_transposed_and_values_are_not() {
        let shape = KvShape {
            block_size: 4,
            kv_heads: 2,
            d_head: 8,
        };
        let mut k = vec![0.0f32; 3 * shape.block_elems()];
        let mut v = k.clone();
        // Rows are 20 apart but 16 wide.
        let rows: Vec<f32> = (0..40).map(|i| i as f32).collect();
        let slots = [KvSlot { block: 2, slot: 3 }, KvSlot { block: 0, slot: 1 }];
        let mut kv = KvLayerMut {
            k: &mut k,
            v: &mut v,
            shape,
        };
        kv_write(Rows::new(&rows, 20), Rows::new(&rows, 20), &slots, &mut kv);
        // Token 1, head 1, dimension 5 has the value 20 + 8 + 5.
        assert_eq!(k[8 * 4 + 5 * 4 + 1], 33.0);
        assert_eq!(v[8 * 4 + 8 + 5], 33.0);
        // Token 0, head 0, dimension 2, in block 2 slot 3.
        assert_eq!(k[2 * 64 + 2 * 4 + 3], 2.0);
        assert_eq!(v[2 * 64 + 3 * 8 + 2], 2.0);
        assert_eq!(k.iter().filter(|x| **x != 0.0).count(), 31);
    }
}
