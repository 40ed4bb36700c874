//! Where the register tiles find keys and values.
//!
//! With a block size and a head dimension that are multiples of 16 they read the store itself.
//! Any other shape is first copied to scratch as f32 with blocks of 16: slower, but the tiles
//! see the same values in the same order, so the bits are the same.

use super::padded;
use crate::buffer::with_scratch;
use crate::kv::{KvElem, KvLayerView, KvScaling, decode};
use crate::lanes::LANES;

/// Keys and values of one head, in blocks whose size is a multiple of 16.
#[derive(Clone, Copy)]
pub(super) struct Source<'a, T> {
    k: *const T,
    v: *const T,
    k_scales: *const f32,
    v_scales: *const f32,
    /// Physical blocks, or `None` when logical and physical block are the same.
    table: Option<&'a [u32]>,
    block_size: usize,
    k_block: usize,
    v_block: usize,
    /// Distance between the scales of two blocks; unused unless the element has one per token.
    scale_block: usize,
    /// Values per key, padding included: a multiple of 16.
    pub(super) v_width: usize,
}

/// The same dimension of 16 keys lies together, dimension 0 at `first`.
#[derive(Clone, Copy)]
pub(super) struct KeyTile<T> {
    pub(super) first: *const T,
    /// Distance between dimensions.
    pub(super) stride: usize,
    /// Scales of the 16 keys, or the one scale of all keys.
    pub(super) scales: *const f32,
}

/// The values of some adjacent keys.
#[derive(Clone, Copy)]
pub(super) struct ValueRun<T> {
    pub(super) first: *const T,
    /// Number of keys.
    pub(super) adjacent: usize,
    /// Scale of each key, or the one scale of all keys.
    pub(super) scales: *const f32,
}

impl<T: KvElem> Source<'_, T> {
    #[inline(always)]
    fn block(&self, logical: usize) -> usize {
        self.table.map_or(logical, |t| t[logical] as usize)
    }

    /// The scale of `slot` in the physical block `block`, or that of the layer.
    ///
    /// # Safety
    /// The slot must exist.
    #[inline(always)]
    unsafe fn scale(&self, scales: *const f32, block: usize, slot: usize) -> *const f32 {
        match T::SCALING {
            KvScaling::None | KvScaling::PerLayer => scales,
            // SAFETY: every slot has a scale.
            KvScaling::PerToken => unsafe { scales.add(block * self.scale_block + slot) },
        }
    }

    /// Keys `16 * tile..16 * tile + 16`.
    ///
    /// # Safety
    /// The tile must begin before the last key.
    #[inline(always)]
    pub(super) unsafe fn key_tile(&self, tile: usize) -> KeyTile<T> {
        let first = tile * LANES;
        let (block, slot) = (self.block(first / self.block_size), first % self.block_size);
        // SAFETY: the block exists, and 16 divides the block size, so the tile lies in it.
        unsafe {
            KeyTile {
                first: self.k.add(block * self.k_block + slot),
                stride: self.block_size,
                scales: self.scale(self.k_scales, block, slot),
            }
        }
    }

    /// The values of `key` and of the keys adjacent to it.
    ///
    /// # Safety
    /// The key must exist.
    #[inline(always)]
    pub(super) unsafe fn value_run(&self, key: usize) -> ValueRun<T> {
        let (block, slot) = (self.block(key / self.block_size), key % self.block_size);
        // SAFETY: the block exists and slot is below its size.
        unsafe {
            ValueRun {
                first: self.v.add(block * self.v_block + slot * self.v_width),
                adjacent: self.block_size - slot,
                scales: self.scale(self.v_scales, block, slot),
            }
        }
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
    let scale_offset = match T::SCALING {
        KvScaling::None | KvScaling::PerLayer => 0,
        KvScaling::PerToken => head * bs,
    };
    if bs % LANES == 0 && d % LANES == 0 {
        return f(AnySource::Direct(Source {
            k: kv.k[head_offset..].as_ptr(),
            v: kv.v[head_offset..].as_ptr(),
            k_scales: kv.k_scales[scale_offset..].as_ptr(),
            v_scales: kv.v_scales[scale_offset..].as_ptr(),
            table: Some(table),
            block_size: bs,
            k_block: shape.block_elems(),
            v_block: shape.block_elems(),
            scale_block: shape.block_size * shape.kv_heads,
            v_width: d,
        }));
    }
    let (keys_padded, v_width) = (padded(keys), padded(d));
    with_scratch(keys_padded * (d + v_width), |scratch| {
        let (k, v) = scratch.split_at_mut(keys_padded * d);
        k.fill(0.0);
        v.fill(0.0);
        for key in 0..keys {
            let (block, slot) = (table[key / bs] as usize, key % bs);
            let base = block * shape.block_elems() + head_offset;
            let scale_at = shape.scale_index(block, head, slot);
            for i in 0..d {
                k[key / LANES * LANES * d + i * LANES + key % LANES] =
                    decode(kv.k[base + i * bs + slot], kv.k_scales, scale_at);
                v[key * v_width + i] = decode(kv.v[base + slot * d + i], kv.v_scales, scale_at);
            }
        }
        f(AnySource::Copied(Source {
            k: k.as_ptr(),
            v: v.as_ptr(),
            // Not read: the copy holds scaled values.
            k_scales: std::ptr::null(),
            v_scales: std::ptr::null(),
            table: None,
            block_size: LANES,
            k_block: d * LANES,
            v_block: v_width * LANES,
            scale_block: 0,
            v_width,
        }));
    });
}
