//! The paged key/value store of one layer, as the attention kernels read it.
//!
//! Keys are stored transposed within a block (`[kv_head][d][slot]`), so that vector lanes run
//! over keys and one load fetches the same dimension of 16 keys. Values keep their natural
//! order (`[kv_head][slot][d]`), because there lanes run over the dimension. Rows as written
//! by the projections would need a transposition per attention call; here it is paid once per
//! token, when it is written. Scales of elements that have them lie `[kv_head][slot]` in a block,
//! so that the scales of 16 keys are adjacent too.

mod elem;
mod fp8;

use crate::rows::Rows;

pub(crate) use elem::decode;
pub use elem::{KvElem, KvFormat, KvScaling};
pub use fp8::{Fp8E4m3, Fp8E5m2};

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

    /// Where a scale per token lies.
    pub(crate) fn scale_index(&self, block: usize, head: usize, slot: usize) -> usize {
        (block * self.kv_heads + head) * self.block_size + slot
    }

    /// Checks the lengths of a store with elements of type `T`; returns its number of blocks.
    fn check<T: KvElem>(&self, elems: [usize; 2], scales: [usize; 2]) -> usize {
        assert!(
            self.block_size > 0 && self.kv_heads > 0 && self.d_head > 0,
            "{self:?}"
        );
        assert_eq!(elems[0], elems[1], "key and value stores");
        assert_eq!(elems[0] % self.block_elems(), 0, "whole blocks of {self:?}");
        let blocks = elems[0] / self.block_elems();
        let wanted = T::SCALING.scales(*self, blocks);
        assert_eq!(scales, [wanted; 2], "key and value scales of {self:?}");
        blocks
    }
}

/// One layer's keys and values, to read. Block `b` starts at `b * shape.block_elems()`.
#[derive(Debug)]
pub struct KvLayerView<'a, T> {
    /// Keys, each block `[kv_head][d][slot]`.
    pub k: &'a [T],
    /// Values, each block `[kv_head][slot][d]`.
    pub v: &'a [T],
    /// Scales of the keys, as many as [`KvScaling::scales`] says; per token, each block
    /// `[kv_head][slot]`.
    pub k_scales: &'a [f32],
    /// Scales of the values, likewise.
    pub v_scales: &'a [f32],
    /// The layout.
    pub shape: KvShape,
}

impl<T> Clone for KvLayerView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for KvLayerView<'_, T> {}

impl<'a, T: KvElem> KvLayerView<'a, T> {
    /// A store of elements without scales.
    pub fn unscaled(k: &'a [T], v: &'a [T], shape: KvShape) -> Self {
        KvLayerView {
            k,
            v,
            k_scales: &[],
            v_scales: &[],
            shape,
        }
    }

    /// Number of blocks, after checking that both stores are whole blocks.
    pub(crate) fn blocks(&self) -> usize {
        let scales = [self.k_scales.len(), self.v_scales.len()];
        self.shape.check::<T>([self.k.len(), self.v.len()], scales)
    }
}

/// One layer's keys and values, to write.
#[derive(Debug)]
pub struct KvLayerMut<'a, T> {
    /// Keys, each block `[kv_head][d][slot]`.
    pub k: &'a mut [T],
    /// Values, each block `[kv_head][slot][d]`.
    pub v: &'a mut [T],
    /// Scales of the keys, as many as [`KvScaling::scales`] says; per token, each block
    /// `[kv_head][slot]`.
    pub k_scales: &'a mut [f32],
    /// Scales of the values, likewise.
    pub v_scales: &'a mut [f32],
    /// The layout.
    pub shape: KvShape,
}

impl<T> KvLayerMut<'_, T> {
    /// The same store, to read.
    pub fn view(&self) -> KvLayerView<'_, T> {
        KvLayerView {
            k: self.k,
            v: self.v,
            k_scales: self.k_scales,
            v_scales: self.v_scales,
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
/// Scales per layer are read, scales per token are set.
///
/// # Panics
/// When a slot lies outside the store, or the rows are too short.
pub fn kv_write<T: KvElem>(k: Rows<'_>, v: Rows<'_>, slots: &[KvSlot], kv: &mut KvLayerMut<'_, T>) {
    let shape = kv.shape;
    kv.view().blocks();
    let (d, bs) = (shape.d_head, shape.block_size);
    k.check(slots.len(), shape.head_elems_per_slot(), "keys to write");
    v.check(slots.len(), shape.head_elems_per_slot(), "values to write");
    for (i, at) in slots.iter().enumerate() {
        let slot = at.slot as usize;
        assert!(slot < bs, "slot {slot} of blocks of {bs}");
        for head in 0..shape.kv_heads {
            let base = at.block as usize * shape.block_elems() + head * d * bs;
            let scale_at = shape.scale_index(at.block as usize, head, slot);
            let row = &k.data[i * k.stride + head * d..][..d];
            let encode = encoder::<T>(row, kv.k_scales, scale_at);
            let keys = &mut kv.k[base..][..d * bs];
            for (column, x) in keys.chunks_exact_mut(bs).zip(row) {
                column[slot] = encode(*x);
            }
            let row = &v.data[i * v.stride + head * d..][..d];
            let encode = encoder::<T>(row, kv.v_scales, scale_at);
            let values = &mut kv.v[base + slot * d..][..d];
            for (o, x) in values.iter_mut().zip(row) {
                *o = encode(*x);
            }
        }
    }
}

/// How the values of `head` are stored; a scale per token is set at `scale_at` first.
fn encoder<T: KvElem>(head: &[f32], scales: &mut [f32], scale_at: usize) -> impl Fn(f32) -> T {
    let scale = match T::SCALING {
        KvScaling::None => 1.0,
        KvScaling::PerLayer => scales[0],
        KvScaling::PerToken => {
            scales[scale_at] = elem::token_scale(head);
            scales[scale_at]
        }
    };
    move |x| match T::SCALING {
        KvScaling::None => T::from_f32(x),
        KvScaling::PerLayer | KvScaling::PerToken => T::from_f32(elem::unscaled(x, scale)),
    }
}

/// Reads back what [`kv_write`] wrote: one row of keys and one of values, dense, per slot, with
/// the scales applied.
///
/// # Panics
/// When a slot lies outside the store, or the outputs do not hold one row per slot.
pub fn kv_read<T: KvElem>(kv: &KvLayerView<'_, T>, slots: &[KvSlot], k: &mut [f32], v: &mut [f32]) {
    let shape = kv.shape;
    kv.blocks();
    let (d, bs, width) = (shape.d_head, shape.block_size, shape.head_elems_per_slot());
    assert_eq!([k.len(), v.len()], [slots.len() * width; 2], "rows to read");
    let rows = k.chunks_exact_mut(width).zip(v.chunks_exact_mut(width));
    for (at, (k, v)) in slots.iter().zip(rows) {
        let slot = at.slot as usize;
        assert!(slot < bs, "slot {slot} of blocks of {bs}");
        for head in 0..shape.kv_heads {
            let base = at.block as usize * shape.block_elems() + head * d * bs;
            let scale_at = shape.scale_index(at.block as usize, head, slot);
            for i in 0..d {
                let (key, value) = (kv.k[base + i * bs + slot], kv.v[base + slot * d + i]);
                k[head * d + i] = decode(key, kv.k_scales, scale_at);
                v[head * d + i] = decode(value, kv.v_scales, scale_at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KvLayerMut, KvLayerView, KvShape, KvSlot, kv_read, kv_write};
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
            k_scales: &mut [],
            v_scales: &mut [],
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
        // Read back in the other order, the rows are those written.
        let view = KvLayerView::unscaled(&k, &v, shape);
        let (mut keys, mut values) = (vec![0.0; 32], vec![0.0; 32]);
        kv_read(&view, &[slots[1], slots[0]], &mut keys, &mut values);
        assert_eq!(keys[..16], rows[20..36]);
        assert_eq!(keys[16..], rows[..16]);
        assert_eq!(values, keys);
    }

    #[test]
    fn int8_scales_belong_to_a_token_and_head() {
        let shape = KvShape {
            block_size: 2,
            kv_heads: 2,
            d_head: 4,
        };
        let (mut k, mut v) = (vec![0i8; 16], vec![0i8; 16]);
        let (mut k_scales, mut v_scales) = (vec![0.0; 4], vec![0.0; 4]);
        let mut kv = KvLayerMut {
            k: &mut k,
            v: &mut v,
            k_scales: &mut k_scales,
            v_scales: &mut v_scales,
            shape,
        };
        // Scales 2 and 1/127; 3 is a tie between 1 and 2, 5 one between 2 and 3.
        let keys = [254.0, -254.0, 3.0, 5.0, 0.5, 1.0, -0.25, 0.0];
        let values = [0.0, 0.0, 0.0, 0.0, 1.0, f32::NAN, 1.0, 1.0];
        let at = [KvSlot { block: 0, slot: 1 }];
        kv_write(Rows::new(&keys, 8), Rows::new(&values, 8), &at, &mut kv);
        let (mut read_k, mut read_v) = ([0.0; 8], [0.0; 8]);
        kv_read(&kv.view(), &at, &mut read_k, &mut read_v);
        assert_eq!(k_scales, [0.0, 2.0, 0.0, 1.0 / 127.0]);
        let column = |head: usize| (0..4).map(|i| k[head * 8 + i * 2 + 1]).collect::<Vec<_>>();
        assert_eq!(column(0), [127, -127, 2, 2]);
        assert_eq!(column(1), [64, 127, -32, 0]);
        assert_eq!(read_k[..4], [254.0, -254.0, 4.0, 4.0]);
        assert_eq!((v_scales[1], &v[4..8]), (0.0, &[0i8; 4][..]));
        assert!(v_scales[3].is_nan(), "a NaN must not vanish");
        assert!(read_v[4..].iter().all(|x| x.is_nan()) && read_v[..4] == [0.0; 4]);
    }
}
