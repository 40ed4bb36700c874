//! Where the register tiles find keys and values.
//!
//! With a block size and a head dimension that are multiples of 16 they read the store itself.
//! Any other shape is first copied to scratch as f32 with blocks of 16: slower, but the tiles
//! see the same values in the same order, so the bits are the same.

use super::padded;
use crate::buffer::with_scratch;
use crate::kv::{KvElem, KvLayerView};
use crate::lanes::LANES;

/// Keys and values of one head, in blocks whose size is a multiple of 16.
#[derive(Clone, Copy)]
pub(super) struct Source<'a, T> {
    k: *const T,
    v: *const T,
    /// Physical blocks, or `None` when logical and physical block are the same.
    table: Option<&'a [u32]>,
    block_size: usize,
    k_block: usize,
    v_block: usize,
    /// Values per key, padding included: a multiple of 16.
    pub(super) v_width: usize,
}

impl<T> Source<'_, T> {
    #[inline(always)]
    fn block(&self, logical: usize) -> usize {
        self.table.map_or(logical, |t| t[logical] as usize)
    }

    /// Pointer to dimension 0 of keys `16 * tile..16 * tile + 16`, and the distance between
    /// dimensions.
    ///
    /// # Safety
    /// The tile must begin before the last key.
    #[inline(always)]
    pub(super) unsafe fn key_tile(&self, tile: usize) -> (*const T, usize) {
        let first = tile * LANES;
        let (block, slot) = (first / self.block_size, first % self.block_size);
        // SAFETY: the block exists, and 16 divides the block size, so the tile lies in it.
        let p = unsafe { self.k.add(self.block(block) * self.k_block + slot) };
        (p, self.block_size)
    }

    /// Pointer to the values of `key`, and the number of keys from it on that are adjacent.
    ///
    /// # Safety
    /// The key must exist.
    #[inline(always)]
    pub(super) unsafe fn value_run(&self, key: usize) -> (*const T, usize) {
        let (block, slot) = (key / self.block_size, key % self.block_size);
        // SAFETY: the block exists and slot is below its size.
        let p = unsafe {
            self.v
                .add(self.block(block) * self.v_block + slot * self.v_width)
        };
        (p, self.block_size - slot)
    }
}

/// A source of the store's own element type, or of f32 after a copy.
pub(super) enum AnySource<'a, T> {
    /// The store itself.
    Direct(Source<'a, T>),
    /// A copy in f32.
    Copied(Source<'a, f32>),
}

/// Calls `f` with the first `keys` keys and values of one head.
pub(super) fn with_source<T: KvElem>(
    kv: &KvLayerView<'_, T>,
    head: usize,
    table: &[u32],
    keys: usize,
    f: impl FnOnce(AnySource<'_, T>),
) {
    let shape = kv.shape;
    let (d, bs) = (shape.d_head, shape.block_size);
    let head_offset = head * d * bs;
    if bs % LANES == 0 && d % LANES == 0 {
        return f(AnySource::Direct(Source {
            k: kv.k[head_offset..].as_ptr(),
            v: kv.v[head_offset..].as_ptr(),
            table: Some(table),
            block_size: bs,
            k_block: shape.block_elems(),
            v_block: shape.block_elems(),
            v_width: d,
        }));
    }
    let (keys_padded, v_width) = (padded(keys), padded(d));
    with_scratch(keys_padded * (d + v_width), |scratch| {
        let (k, v) = scratch.split_at_mut(keys_padded * d);
        k.fill(0.0);
        v.fill(0.0);
        for key in 0..keys {
            let base = table[key / bs] as usize * shape.block_elems() + head_offset;
            let slot = key % bs;
            for i in 0..d {
                k[key / LANES * LANES * d + i * LANES + key % LANES] =
                    kv.k[base + i * bs + slot].to_f32();
                v[key * v_width + i] = kv.v[base + slot * d + i].to_f32();
            }
        }
        f(AnySource::Copied(Source {
            k: k.as_ptr(),
            v: v.as_ptr(),
            table: None,
            block_size: LANES,
            k_block: d * LANES,
            v_block: v_width * LANES,
            v_width,
        }));
    });
}
