//! The KV pool of the packed pass: one store of every block for each layer.

use std::ops::Range;

use pb_contract::BlockId;
use pb_kernels_cpu::{AlignedBuf, KvElem, KvLayerMut, KvLayerView, KvScaling, KvShape};

use crate::config::LlamaConfig;
use crate::forward::image::{ImageError, LayerKv, Side};
use crate::forward::scales::{KvScales, layer_scales};

/// Keys or values of one layer, every block of the pool, with their scales.
struct Store<T> {
    elems: AlignedBuf<T>,
    scales: AlignedBuf<f32>,
}

/// Keys and values of one layer, every block of the pool.
pub(super) struct KvLayer<T> {
    k: Store<T>,
    v: Store<T>,
    shape: KvShape,
}

/// The shape of one block of one layer.
pub(super) fn kv_shape(config: &LlamaConfig, block_size: usize) -> KvShape {
    KvShape {
        block_size,
        kv_heads: config.kv_heads,
        d_head: config.d_head,
    }
}

/// An empty pool of `num_blocks` blocks for every layer.
pub(super) fn kv_pool<T: KvElem>(
    c: &LlamaConfig,
    shape: KvShape,
    num_blocks: usize,
    scales: Option<&KvScales>,
) -> Vec<KvLayer<T>> {
    let layer = |layer| {
        let [k, v] = layer_scales(scales, layer);
        KvLayer {
            k: Store::new(shape, num_blocks, k),
            v: Store::new(shape, num_blocks, v),
            shape,
        }
    };
    (0..c.layers).map(layer).collect()
}

impl<T: KvElem> Store<T> {
    /// `scale` is used by elements with one for each layer.
    fn new(shape: KvShape, num_blocks: usize, scale: f32) -> Self {
        let mut scales = AlignedBuf::zeroed(T::SCALING.scales(shape, num_blocks));
        if T::SCALING == KvScaling::PerLayer {
            scales.fill(scale);
        }
        Store {
            elems: AlignedBuf::zeroed(shape.block_elems() * num_blocks),
            scales,
        }
    }

    /// Where the elements and the scales of `block` lie: the one scale of a layer is part of
    /// every block.
    fn ranges(shape: KvShape, block: usize) -> (Range<usize>, Range<usize>) {
        let scales = match T::SCALING {
            KvScaling::PerLayer => 0..1,
            KvScaling::None | KvScaling::PerToken => {
                of_block(block, T::SCALING.block_scales(shape))
            }
        };
        (of_block(block, shape.block_elems()), scales)
    }

    fn copy(&mut self, shape: KvShape, from: usize, to: usize) {
        let ((elems, scales), (to_elems, to_scales)) =
            (Self::ranges(shape, from), Self::ranges(shape, to));
        self.elems.copy_within(elems, to_elems.start);
        self.scales.copy_within(scales, to_scales.start);
    }

    fn read(&self, shape: KvShape, block: usize, out: &mut Vec<u8>) {
        let (elems, scales) = Self::ranges(shape, block);
        out.extend_from_slice(bytemuck::cast_slice(&self.scales[scales]));
        out.extend_from_slice(bytemuck::cast_slice(&self.elems[elems]));
    }

    fn write(&mut self, shape: KvShape, block: usize, side: Side<'_>) {
        let (elems, scales) = Self::ranges(shape, block);
        bytemuck::cast_slice_mut(&mut self.scales[scales]).copy_from_slice(side.scales);
        bytemuck::cast_slice_mut(&mut self.elems[elems]).copy_from_slice(side.elems);
    }
}

/// The part of a store that belongs to `block`.
fn of_block(block: usize, len: usize) -> Range<usize> {
    block * len..(block + 1) * len
}

impl<T: KvElem> KvLayer<T> {
    /// To read.
    pub(super) fn view(&self) -> KvLayerView<'_, T> {
        KvLayerView {
            k: &self.k.elems,
            v: &self.v.elems,
            k_scales: &self.k.scales,
            v_scales: &self.v.scales,
            shape: self.shape,
        }
    }

    /// To write.
    pub(super) fn view_mut(&mut self) -> KvLayerMut<'_, T> {
        KvLayerMut {
            k: &mut self.k.elems,
            v: &mut self.v.elems,
            k_scales: &mut self.k.scales,
            v_scales: &mut self.v.scales,
            shape: self.shape,
        }
    }

    /// Blocks in the pool.
    pub(super) fn blocks(&self) -> usize {
        self.k.elems.len() / self.shape.block_elems()
    }

    /// Bytes of elements and scales; the one scale of a layer is a setting, not content.
    pub(super) fn bytes(&self) -> usize {
        let scales = self.blocks() * T::SCALING.block_scales(self.shape);
        2 * (self.k.elems.len() * size_of::<T>() + scales * size_of::<f32>())
    }

    /// Copies block `from` to block `to`.
    pub(super) fn copy_block(&mut self, from: usize, to: usize) {
        self.k.copy(self.shape, from, to);
        self.v.copy(self.shape, from, to);
    }

    /// Appends this layer's part of the image of `block`.
    pub(super) fn read_block(&self, block: usize, out: &mut Vec<u8>) {
        self.k.read(self.shape, block, out);
        self.v.read(self.shape, block, out);
    }

    /// Refuses sides whose scale of the layer is another.
    pub(super) fn check_block(&self, layer: usize, sides: [Side<'_>; 2]) -> Result<(), ImageError> {
        if T::SCALING != KvScaling::PerLayer {
            return Ok(());
        }
        let found = sides.map(|side| side.scale(0));
        let expected = [self.k.scales[0], self.v.scales[0]];
        if found == expected {
            return Ok(());
        }
        Err(ImageError::Scales {
            layer,
            found,
            expected,
        })
    }

    /// Sets `block` to this layer's part of an image.
    pub(super) fn write_block(&mut self, block: usize, [k, v]: [Side<'_>; 2]) {
        self.k.write(self.shape, block, k);
        self.v.write(self.shape, block, v);
    }
}

impl<T: KvElem> LayerKv for KvLayer<T> {
    fn read(&self, block: BlockId, out: &mut Vec<u8>) {
        self.read_block(block.0 as usize, out);
    }
}
