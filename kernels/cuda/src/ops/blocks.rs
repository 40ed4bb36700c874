//! Moving blocks, and proving that they arrived.

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::device::{Buffer, Device, DeviceExt};
use crate::error::{KernelError, require};

/// Stores with blocks of one size: keys and values of every layer.
#[derive(Clone, Debug)]
pub struct Stores {
    addresses: Buffer<u64>,
    block_bytes: usize,
    blocks: usize,
}

impl Stores {
    /// Stores of equal length that hold blocks of `block_bytes` bytes.
    ///
    /// # Errors
    /// When they differ, are empty, or blocks are no multiple of 16 bytes.
    pub fn new<S: Pod>(
        device: &(impl Device + ?Sized),
        stores: &[Buffer<S>],
        block_bytes: usize,
    ) -> Result<Self, KernelError> {
        let op = "stores";
        let fits = block_bytes > 0 && block_bytes.is_multiple_of(16) && block_bytes < 1 << 32;
        require(
            fits,
            op,
            "block bytes",
            block_bytes,
            "a multiple of 16, below 2^32",
        )?;
        let bytes = stores.first().map_or(0, Buffer::len) * size_of::<S>();
        let whole = bytes > 0 && bytes.is_multiple_of(block_bytes);
        require(
            whole,
            op,
            "bytes of a store",
            bytes,
            format!("blocks of {block_bytes}"),
        )?;
        let equal = stores.iter().all(|s| s.len() * size_of::<S>() == bytes);
        require(equal, op, "lengths of stores", "different", "one length")?;
        require(
            stores.len() <= 65_535,
            op,
            "stores",
            stores.len(),
            "at most 65535",
        )?;
        let addresses: Vec<u64> = stores.iter().map(Buffer::address).collect();
        Ok(Stores {
            addresses: device.input("stores", &addresses)?,
            block_bytes,
            blocks: bytes / block_bytes,
        })
    }

    /// Bytes of one block in all stores: the staging that it needs.
    pub fn staged_bytes(&self) -> usize {
        self.addresses.len() * self.block_bytes
    }

    fn check(
        &self,
        op: &'static str,
        mut blocks: impl Iterator<Item = u32>,
    ) -> Result<(), KernelError> {
        match blocks.find(|b| *b as usize >= self.blocks) {
            Some(block) => require(false, op, "block", block, format!("below {}", self.blocks)),
            None => Ok(()),
        }
    }

    fn params(&self, blocks: u64, staging: u64) -> BlocksParams {
        BlocksParams {
            stores: self.addresses.address(),
            blocks,
            staging,
            block_bytes: self.block_bytes as u32,
            pad: 0,
        }
    }

    fn grid(&self, blocks: usize) -> [u32; 3] {
        [blocks as u32, self.addresses.len() as u32, 1]
    }
}

/// `BlocksParams` of `blocks.cu`, and `ChecksumParams` of `checksum.cu`, which is the same.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlocksParams {
    stores: u64,
    blocks: u64,
    staging: u64,
    block_bytes: u32,
    pad: u32,
}

/// Whether no value occurs twice.
fn distinct(mut ids: Vec<u32>) -> bool {
    ids.sort_unstable();
    ids.windows(2).all(|w| w[0] != w[1])
}

/// Copies block `from` to block `to` in every store, for each pair `[from, to]`.
///
/// # Errors
/// When a block does not exist, is written twice, or both read and written: pairs are copied at
/// the same time.
pub fn block_copy(
    device: &(impl Device + ?Sized),
    stores: &Stores,
    pairs: &[[u32; 2]],
) -> Result<(), KernelError> {
    let op = "block_copy";
    stores.check(op, pairs.iter().flatten().copied())?;
    let to: Vec<u32> = pairs.iter().map(|p| p[1]).collect();
    require(distinct(to.clone()), op, "targets", &to, "different blocks")?;
    let apart = pairs.iter().all(|p| !to.contains(&p[0]));
    require(apart, op, "pairs", pairs, "no block read that is written")?;
    let params = stores.params(device.input("pairs", pairs)?.address(), 0);
    launch(device, op, stores.grid(pairs.len()), 256, 0, &params)
}

/// Copies `blocks` of every store to `staging`, `[blocks][stores][block bytes]`.
///
/// # Errors
/// When a block does not exist or the staging has another size.
pub fn block_gather(
    device: &(impl Device + ?Sized),
    stores: &Stores,
    blocks: &[u32],
    staging: &Buffer<u8>,
) -> Result<(), KernelError> {
    let list = device.input("blocks", blocks)?;
    block_gather_placed(device, stores, (blocks, &list), staging)
}

/// As [`block_gather`], with the list on the device too.
///
/// # Errors
/// As [`block_gather`].
pub fn block_gather_placed(
    device: &(impl Device + ?Sized),
    stores: &Stores,
    blocks: (&[u32], &Buffer<u32>),
    staging: &Buffer<u8>,
) -> Result<(), KernelError> {
    moved(device, "block_gather", stores, blocks, staging)
}

/// Copies `staging` back to `blocks`.
///
/// # Errors
/// As [`block_gather`]; and when a block is written twice.
pub fn block_scatter(
    device: &(impl Device + ?Sized),
    stores: &Stores,
    blocks: &[u32],
    staging: &Buffer<u8>,
) -> Result<(), KernelError> {
    let list = device.input("blocks", blocks)?;
    block_scatter_placed(device, stores, (blocks, &list), staging)
}

/// As [`block_scatter`], with the list on the device too.
///
/// # Errors
/// As [`block_scatter`].
pub fn block_scatter_placed(
    device: &(impl Device + ?Sized),
    stores: &Stores,
    blocks: (&[u32], &Buffer<u32>),
    staging: &Buffer<u8>,
) -> Result<(), KernelError> {
    let (op, wanted) = ("block_scatter", "different blocks");
    require(distinct(blocks.0.to_vec()), op, "blocks", blocks.0, wanted)?;
    moved(device, op, stores, blocks, staging)
}

fn moved(
    device: &(impl Device + ?Sized),
    op: &'static str,
    stores: &Stores,
    (blocks, list): (&[u32], &Buffer<u32>),
    staging: &Buffer<u8>,
) -> Result<(), KernelError> {
    stores.check(op, blocks.iter().copied())?;
    let (listed, named) = (list.len(), blocks.len());
    require(listed == named, op, "list", listed, named.to_string())?;
    let wanted = blocks.len() * stores.staged_bytes();
    require(
        staging.len() == wanted,
        op,
        "staging",
        staging.len(),
        wanted.to_string(),
    )?;
    let params = stores.params(list.address(), staging.address());
    launch(device, op, stores.grid(blocks.len()), 256, 0, &params)
}

/// The checksum of every block of `blocks` in every store, `[blocks][stores]`, as
/// [`checksum`](crate::checksum) defines it.
///
/// # Errors
/// When a block does not exist or `out` has another size.
pub fn block_checksum(
    device: &(impl Device + ?Sized),
    stores: &Stores,
    blocks: &[u32],
    out: &Buffer<u64>,
) -> Result<(), KernelError> {
    let op = "block_checksum";
    stores.check(op, blocks.iter().copied())?;
    let wanted = blocks.len() * stores.addresses.len();
    require(
        out.len() == wanted,
        op,
        "out",
        out.len(),
        wanted.to_string(),
    )?;
    let list = device.input("blocks", blocks)?;
    let params = stores.params(list.address(), out.address());
    launch(device, op, stores.grid(blocks.len()), 256, 64, &params)
}
