//! The KV pool in device memory, and block images.

use pb_kernels_cuda::ops::{self, KvPool, KvShape, Stores};
use pb_kernels_cuda::{Device, DeviceExt, Elem, KernelError, Purpose, StoreElem};
use pb_model::config::LlamaConfig;
use pb_model::forward::{ImageError, ImageShape, KvScales, layer_scales};

use crate::mover::{Mover, Staging};

/// Keys and values of every layer.
pub(crate) struct Pool<S> {
    pub(crate) layers: Vec<KvPool<S>>,
    /// Keys, then values, layer by layer: the order of an image.
    stores: Stores,
    mover: Mover,
    pub(crate) image: ImageShape,
    pub(crate) num_blocks: usize,
}

/// Why an image did not get into a block.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlockError {
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Device(#[from] KernelError),
}

impl<S: bytemuck::Pod> Pool<S> {
    pub(crate) fn new(
        device: &impl Device,
        config: &LlamaConfig,
        image: ImageShape,
        num_blocks: usize,
        scales: Option<&KvScales>,
        staging: &mut Option<Staging>,
    ) -> Result<Self, KernelError> {
        let shape = KvShape {
            block_size: image.block_size,
            kv_heads: config.kv_heads,
            d_head: config.d_head,
        };
        let len = shape.block_elems() * num_blocks;
        let layer = |layer| {
            let [k_scale, v_scale] = layer_scales(scales, layer);
            Ok(KvPool {
                // Slots that nothing was written to are loaded beside others, and masked.
                k: device.zeroed("keys", len)?,
                v: device.zeroed("values", len)?,
                shape,
                k_scale,
                v_scale,
            })
        };
        let layers: Vec<KvPool<S>> = device.for_purpose(Purpose::KvPool, || {
            let layers = (0..config.layers).map(layer);
            layers.collect::<Result<_, KernelError>>()
        })?;
        let sides: Vec<_> = layers.iter().flat_map(|l| [l.k, l.v]).collect();
        let block_bytes = shape.block_elems() * size_of::<S>();
        let stores =
            device.for_purpose(Purpose::Plans, || Stores::new(device, &sides, block_bytes))?;
        let mover = device.for_purpose(Purpose::Staging, || {
            Mover::new(device, staging, stores.staged_bytes())
        })?;
        Ok(Pool {
            layers,
            mover,
            stores,
            image,
            num_blocks,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.num_blocks * self.stores.staged_bytes()
    }

    /// Lets the compute lane wait for `blocks` that are still on their way.
    pub(crate) fn settle(
        &self,
        device: &impl Device,
        blocks: impl Iterator<Item = u32>,
    ) -> Result<(), KernelError> {
        self.mover.settle(device, blocks)
    }

    /// Lets the compute lane, in which memory is given back, wait for all that is on its way.
    pub(crate) fn settle_all(&self, device: &impl Device) -> Result<(), KernelError> {
        self.mover.settle_all(device)
    }

    pub(crate) fn copy(&self, device: &impl Device, from: u32, to: u32) -> Result<(), KernelError> {
        self.settle(device, [from, to].into_iter())?;
        ops::block_copy(device, &self.stores, &[[from, to]])
    }

    /// Appends the image of a block to `out`.
    pub(crate) fn read<T: Elem>(
        &self,
        device: &impl Device,
        block: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), KernelError>
    where
        S: StoreElem<T>,
    {
        let bytes = self.mover.read(device, &self.stores, block)?;
        self.image.push_header(out);
        let sides = bytes.chunks_exact(bytes.len() / (2 * self.layers.len()));
        let scales = self.layers.iter().flat_map(|l| [l.k_scale, l.v_scale]);
        for (side, scale) in sides.zip(scales) {
            if S::SCALED {
                out.extend(scale.to_le_bytes());
            }
            out.extend_from_slice(side);
        }
        Ok(())
    }

    /// Sets a block to an image; a refused one leaves the block as it was. The copy goes on when
    /// this returns.
    pub(crate) fn write<T: Elem>(
        &self,
        device: &impl Device,
        block: u32,
        image: &[u8],
    ) -> Result<(), BlockError>
    where
        S: StoreElem<T>,
    {
        let sides = self.image.layers(image)?;
        let mut parts = Vec::with_capacity(2 * self.layers.len());
        for (index, (layer, [k, v])) in self.layers.iter().zip(sides).enumerate() {
            let expected = [layer.k_scale, layer.v_scale];
            let found = if S::SCALED {
                [k.scale(0), v.scale(0)]
            } else {
                expected
            };
            if found != expected {
                return Err(BlockError::Image(ImageError::Scales {
                    layer: index,
                    found,
                    expected,
                }));
            }
            parts.extend([k.elems, v.elems]);
        }
        self.mover.write(device, &self.stores, block, &parts)?;
        Ok(())
    }
}
