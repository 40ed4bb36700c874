//! The paged store of a layer, and what writes to it.

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::device::{Buffer, Device};
use crate::elem::{Elem, StoreElem};
use crate::error::{KernelError, require};

/// Sizes of a store. A block of keys is `[kv_head][d][slot]`, one of values `[kv_head][slot][d]`,
/// as in the CPU engine.
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
    /// Elements of the keys (and as many of the values) of a block.
    pub fn block_elems(&self) -> usize {
        self.block_size * self.kv_heads * self.d_head
    }
}

/// Keys and values of one layer.
#[derive(Clone, Copy, Debug)]
pub struct KvPool<S> {
    /// Keys.
    pub k: Buffer<S>,
    /// Values.
    pub v: Buffer<S>,
    /// Layout.
    pub shape: KvShape,
    /// What stored keys are multiples of; 1 unless the elements are scaled.
    pub k_scale: f32,
    /// Likewise of values.
    pub v_scale: f32,
}

impl<S> KvPool<S> {
    /// Checks the pool; returns its number of blocks.
    pub(super) fn check<T: Elem>(&self, op: &'static str) -> Result<usize, KernelError>
    where
        S: StoreElem<T>,
    {
        let (shape, k, v) = (self.shape, self.k.len(), self.v.len());
        let some = shape.block_elems() > 0 && shape.d_head.is_multiple_of(2);
        require(
            some,
            op,
            "shape",
            shape,
            "sizes above 0, an even head dimension",
        )?;
        let whole = k == v && k.is_multiple_of(shape.block_elems());
        require(
            whole,
            op,
            "keys and values",
            (k, v),
            format!("whole blocks of {shape:?}"),
        )?;
        for scale in [self.k_scale, self.v_scale] {
            let good = if S::SCALED {
                scale > 0.0 && scale.is_finite()
            } else {
                scale == 1.0
            };
            require(
                good,
                op,
                "scale",
                scale,
                "above 0; 1 where elements have none",
            )?;
        }
        Ok(k / shape.block_elems())
    }
}

/// In place of a block and slot: a row that only fills up a batch, whose keys and values are not
/// kept.
pub const NO_SLOT: [u32; 2] = [u32::MAX, 0];

/// Where keys and values of a batch go, and at which angles.
#[derive(Clone, Copy, Debug)]
pub struct RopeKv<'a> {
    /// Query heads.
    pub q_heads: usize,
    /// Cosines, `[positions][d_head / 2]`.
    pub cos: &'a Buffer<f32>,
    /// Sines, likewise.
    pub sin: &'a Buffer<f32>,
    /// Position of every row.
    pub positions: &'a [u32],
    /// Block and slot of every row, or [`NO_SLOT`].
    pub slots: &'a [[u32; 2]],
    /// `positions` and `slots`, on the device.
    pub on_device: (&'a Buffer<u32>, &'a Buffer<[u32; 2]>),
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RopeKvParams {
    qkv: u64,
    cos: u64,
    sin: u64,
    positions: u64,
    slots: u64,
    k: u64,
    v: u64,
    q_heads: u32,
    kv_heads: u32,
    d_head: u32,
    block_size: u32,
    k_scale: f32,
    v_scale: f32,
}

impl RopeKv<'_> {
    /// Checks the rows against the tables and a pool, as [`rope_kv`] does.
    ///
    /// # Errors
    /// When shapes disagree, or a position or slot does not exist.
    pub fn check<T: Elem, S: StoreElem<T>>(&self, pool: &KvPool<S>) -> Result<(), KernelError> {
        let op = "rope_kv";
        let (blocks, shape, rows) = (pool.check::<T>(op)?, pool.shape, self.positions.len());
        let (positions, slots) = (self.on_device.0.len(), self.on_device.1.len());
        let given = (self.slots.len(), positions, slots);
        let wanted = format!("{rows} rows");
        require(given == (rows, rows, rows), op, "slots", given, wanted)?;
        let half = shape.d_head / 2;
        let sines = self.sin.len();
        require(
            self.cos.len() == sines,
            op,
            "sines",
            sines,
            "as many as cosines",
        )?;
        let known = self.cos.len() / half;
        if let Some(at) = self.positions.iter().find(|p| **p as usize >= known) {
            require(false, op, "position", at, format!("below {known}"))?;
        }
        let outside = |s: &&[u32; 2]| s[0] as usize >= blocks || s[1] as usize >= shape.block_size;
        let mut kept = self.slots.iter().filter(|s| **s != NO_SLOT);
        match kept.find(outside) {
            Some(slot) => {
                let wanted = format!("in {blocks} blocks of {}", shape.block_size);
                require(false, op, "slot", slot, wanted)
            }
            None => Ok(()),
        }
    }
}

/// Rotates queries of `qkv` (`[rows][(q_heads + 2 kv_heads) d]`) in place, and writes rotated
/// keys and values to the pool.
///
/// # Errors
/// When shapes disagree, or a position or slot does not exist.
pub fn rope_kv<T: Elem, S: StoreElem<T>>(
    device: &(impl Device + ?Sized),
    qkv: &Buffer<T>,
    args: &RopeKv<'_>,
    pool: &KvPool<S>,
) -> Result<(), KernelError> {
    args.check(pool)?;
    let (shape, rows) = (pool.shape, args.positions.len());
    let width = (args.q_heads + 2 * shape.kv_heads) * shape.d_head;
    let (found, wanted) = (qkv.len(), rows * width);
    require(found == wanted, "rope_kv", "qkv", found, wanted.to_string())?;
    let params = RopeKvParams {
        qkv: qkv.address(),
        cos: args.cos.address(),
        sin: args.sin.address(),
        positions: args.on_device.0.address(),
        slots: args.on_device.1.address(),
        k: pool.k.address(),
        v: pool.v.address(),
        q_heads: args.q_heads as u32,
        kv_heads: shape.kv_heads as u32,
        d_head: shape.d_head as u32,
        block_size: shape.block_size as u32,
        k_scale: pool.k_scale,
        v_scale: pool.v_scale,
    };
    let kernel = format!("rope_kv_{}{}", T::NAME, S::SUFFIX);
    launch(device, &kernel, [rows as u32, 1, 1], 128, 0, &params)
}
