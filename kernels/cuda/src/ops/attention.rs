//! Attention over the paged store.

use bytemuck::{Pod, Zeroable};

use super::launch;
use super::partials::Partials;
use super::plan::{DecodePlan, PrefillPlan, SeqWords};
use super::prefill_by::PrefillBy;
use super::rope::KvPool;
use crate::device::{Buffer, Device, DeviceExt};
use crate::elem::{Elem, StoreElem};
use crate::error::{KernelError, require};

/// `PagedKv` of `paged.cuh`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PagedKv {
    k: u64,
    v: u64,
    tables: u64,
    kv_heads: u32,
    log2_block: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PrefillParams {
    q: u64,
    out: u64,
    seqs: u64,
    tiles: u64,
    kv: PagedKv,
    q_stride: u32,
    q_heads: u32,
    scale_log2: f32,
    v_scale: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DecodeParams {
    q: u64,
    partial_o: u64,
    partial_max_sum: u64,
    seqs: u64,
    items: u64,
    kv: PagedKv,
    q_stride: u32,
    q_heads: u32,
    split: u32,
    scale_log2: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct MergeParams {
    partial_o: u64,
    partial_max_sum: u64,
    seqs: u64,
    first_item: u64,
    out: u64,
    q_heads: u32,
    d_head: u32,
    scale_log2: f32,
    v_scale: f32,
}

/// Queries, store and output of an attention call.
#[derive(Debug)]
pub struct PrefillArgs<'a, T, S> {
    /// Rows of `q_stride` values; the first `q_heads * d_head` of each are queries.
    pub q: &'a Buffer<T>,
    /// Distance of rows of `q`.
    pub q_stride: usize,
    /// Query heads.
    pub q_heads: usize,
    /// The store.
    pub pool: &'a KvPool<S>,
    /// `[rows][q_heads * d_head]`; rows outside all sequences are left alone.
    pub out: &'a Buffer<T>,
}

/// What all attention calls derive from their arguments.
pub(super) struct Checked {
    kv: PagedKv,
    pub(super) blocks: usize,
    pub(super) rows: usize,
    pub(super) group: usize,
    scale_log2: f32,
}

impl<T: Elem, S: StoreElem<T>> PrefillArgs<'_, T, S> {
    pub(super) fn check(&self, op: &'static str) -> Result<Checked, KernelError> {
        let (blocks, shape) = (self.pool.check::<T>(op)?, self.pool.shape);
        let (d, width) = (shape.d_head, self.q_heads * shape.d_head);
        require([64, 128].contains(&d), op, "d_head", d, "64 or 128")?;
        let size = shape.block_size;
        require(
            [8, 16, 32, 64].contains(&size),
            op,
            "block size",
            size,
            "8, 16, 32 or 64",
        )?;
        let group = self.q_heads / shape.kv_heads;
        let even = group > 0 && self.q_heads.is_multiple_of(shape.kv_heads);
        require(
            even,
            op,
            "q_heads",
            self.q_heads,
            format!("a multiple of {}", shape.kv_heads),
        )?;
        let stride = self.q_stride;
        let good = stride >= width && stride.is_multiple_of(8);
        require(
            good,
            op,
            "q_stride",
            stride,
            format!("a multiple of 8, at least {width}"),
        )?;
        require(
            self.out.len().is_multiple_of(width),
            op,
            "out",
            self.out.len(),
            "whole rows",
        )?;
        let rows = self.out.len() / width;
        let enough = rows == 0 || self.q.len() >= (rows - 1) * stride + width;
        require(enough, op, "q", self.q.len(), format!("{rows} rows"))?;
        // In f64, and rounded once.
        let scale = std::f64::consts::LOG2_E / (d as f64).sqrt();
        Ok(Checked {
            kv: PagedKv {
                k: self.pool.k.address(),
                v: self.pool.v.address(),
                tables: 0,
                kv_heads: shape.kv_heads as u32,
                log2_block: size.ilog2(),
            },
            blocks,
            rows,
            group,
            scale_log2: (scale * f64::from(self.pool.k_scale)) as f32,
        })
    }

    pub(super) fn name(&self, op: &str) -> String {
        format!("{op}_{}{}_d{}", T::NAME, S::SUFFIX, self.pool.shape.d_head)
    }
}

/// A prefill plan on a device, for as many layers as the batch goes through.
#[derive(Debug)]
pub struct PlacedPrefill<'a> {
    pub(super) plan: &'a PrefillPlan,
    seqs: u64,
    tiles: u64,
    tables: u64,
}

/// Copies a plan to the device.
///
/// # Errors
/// When the device has no room.
pub fn place_prefill<'a>(
    device: &(impl Device + ?Sized),
    plan: &'a PrefillPlan,
) -> Result<PlacedPrefill<'a>, KernelError> {
    Ok(PlacedPrefill {
        plan,
        seqs: device.input("sequences", plan.seqs())?.address(),
        tiles: device.input("tiles", &plan.tiles)?.address(),
        tables: device.input("block tables", plan.tables())?.address(),
    })
}

impl<'a> PlacedPrefill<'a> {
    /// A plan whose words lie, or will lie when the launch runs, in memory of the caller's:
    /// sequences, tiles, block tables.
    ///
    /// # Errors
    /// When there is less room than the plan has words.
    pub fn at(
        plan: &'a PrefillPlan,
        (seqs, tiles, tables): (&Buffer<SeqWords>, &Buffer<[u32; 2]>, &Buffer<u32>),
    ) -> Result<Self, KernelError> {
        let room = [seqs.len(), tiles.len(), tables.len()];
        let words = [plan.seqs().len(), plan.tiles().len(), plan.tables().len()];
        enough_room("prefill", room, words)?;
        Ok(PlacedPrefill {
            plan,
            seqs: seqs.address(),
            tiles: tiles.address(),
            tables: tables.address(),
        })
    }
}

fn enough_room<const N: usize>(
    op: &'static str,
    room: [usize; N],
    words: [usize; N],
) -> Result<(), KernelError> {
    let enough = room.iter().zip(words).all(|(room, words)| *room >= words);
    require(enough, op, "room for the plan", room, format!("{words:?}"))
}

/// Causal attention of every sequence of the plan. A store of [`E4m3`](crate::E4m3) goes with
/// bf16 activations; for f16 there is no such kernel.
///
/// # Errors
/// When shapes disagree, the head dimension is not 64 or 128, the block size not 8, 16, 32 or 64,
/// or a block table is too short or names a block that does not exist.
pub fn prefill<T: Elem, S: StoreElem<T>>(
    device: &(impl Device + ?Sized),
    plan: &PrefillPlan,
    args: &PrefillArgs<'_, T, S>,
) -> Result<(), KernelError> {
    prefill_placed(device, &place_prefill(device, plan)?, args)
}

/// As [`prefill`], with a plan that is on the device.
///
/// # Errors
/// As [`prefill`].
pub fn prefill_placed<T: Elem, S: StoreElem<T>>(
    device: &(impl Device + ?Sized),
    placed: &PlacedPrefill<'_>,
    args: &PrefillArgs<'_, T, S>,
) -> Result<(), KernelError> {
    let by = match PrefillBy::Wgmma.takes::<T, S>() {
        true => device.prefill_by(),
        false => PrefillBy::Mma,
    };
    prefill_placed_by(device, by, placed, args)
}

/// As [`prefill_placed`], by the kernel that is asked for.
///
/// # Errors
/// As [`prefill`]; and when the kernel has not these types, or the device not the kernel.
pub fn prefill_placed_by<T: Elem, S: StoreElem<T>>(
    device: &(impl Device + ?Sized),
    by: PrefillBy,
    placed: &PlacedPrefill<'_>,
    args: &PrefillArgs<'_, T, S>,
) -> Result<(), KernelError> {
    let c = args.check("prefill")?;
    require(by.takes::<T, S>(), "prefill", "store", S::SUFFIX, "16 bits")?;
    let (plan, d_head) = (placed.plan, args.pool.shape.d_head);
    plan.check(args.pool.shape.block_size, c.blocks, c.rows, c.group)?;
    let params = args.prefill_params(&c, placed);
    let grid = [plan.tiles.len() as u32, args.pool.shape.kv_heads as u32, 1];
    let kernel = args.name(by.name());
    let (threads, shared) = (by.threads(), by.shared_bytes(d_head));
    launch(device, &kernel, grid, threads, shared, &params)
}

impl<T: Elem, S: StoreElem<T>> PrefillArgs<'_, T, S> {
    pub(super) fn prefill_params(&self, c: &Checked, placed: &PlacedPrefill<'_>) -> PrefillParams {
        PrefillParams {
            q: self.q.address(),
            out: self.out.address(),
            seqs: placed.seqs,
            tiles: placed.tiles,
            kv: PagedKv {
                tables: placed.tables,
                ..c.kv
            },
            q_stride: self.q_stride as u32,
            q_heads: self.q_heads as u32,
            scale_log2: c.scale_log2,
            v_scale: self.pool.v_scale,
        }
    }
}

/// A decode plan on a device.
#[derive(Debug)]
pub struct PlacedDecode<'a> {
    plan: &'a DecodePlan,
    seqs: u64,
    items: u64,
    first_item: u64,
    tables: u64,
}

/// Copies a plan to the device.
///
/// # Errors
/// When the device has no room.
pub fn place_decode<'a>(
    device: &(impl Device + ?Sized),
    plan: &'a DecodePlan,
) -> Result<PlacedDecode<'a>, KernelError> {
    Ok(PlacedDecode {
        plan,
        seqs: device.input("sequences", plan.seqs())?.address(),
        items: device.input("items", &plan.items)?.address(),
        first_item: device.input("first items", &plan.first_item)?.address(),
        tables: device.input("block tables", plan.tables())?.address(),
    })
}

impl<'a> PlacedDecode<'a> {
    /// As [`PlacedPrefill::at`]: sequences, items, first items, block tables.
    ///
    /// # Errors
    /// When there is less room than the plan has words.
    pub fn at(
        plan: &'a DecodePlan,
        (seqs, items): (&Buffer<SeqWords>, &Buffer<[u32; 2]>),
        (first_item, tables): (&Buffer<u32>, &Buffer<u32>),
    ) -> Result<Self, KernelError> {
        let room = [seqs.len(), items.len(), first_item.len(), tables.len()];
        let (items_used, firsts) = (plan.items(), plan.first_items().len());
        let words = [plan.seqs().len(), items_used, firsts, plan.tables().len()];
        enough_room("decode", room, words)?;
        Ok(PlacedDecode {
            plan,
            seqs: seqs.address(),
            items: items.address(),
            first_item: first_item.address(),
            tables: tables.address(),
        })
    }
}

/// Attention of one query per sequence of the plan; groups of at most 16 query heads.
///
/// # Errors
/// As [`prefill`]; and when a group is larger, or the room for partial results too small.
pub fn decode<T: Elem, S: StoreElem<T>>(
    device: &(impl Device + ?Sized),
    plan: &DecodePlan,
    args: &PrefillArgs<'_, T, S>,
    partials: &Partials,
) -> Result<(), KernelError> {
    decode_placed(device, &place_decode(device, plan)?, args, partials)
}

/// As [`decode`], with a plan that is on the device.
///
/// # Errors
/// As [`decode`].
pub fn decode_placed<T: Elem, S: StoreElem<T>>(
    device: &(impl Device + ?Sized),
    placed: &PlacedDecode<'_>,
    args: &PrefillArgs<'_, T, S>,
    partials: &Partials,
) -> Result<(), KernelError> {
    let (op, c) = ("decode", args.check("decode")?);
    let (plan, shape) = (placed.plan, args.pool.shape);
    plan.check(shape.block_size, c.blocks, c.rows)?;
    require(c.group <= 16, op, "heads of a group", c.group, "at most 16")?;
    partials.check(op, plan.items() * args.q_heads, shape.d_head)?;
    let params = DecodeParams {
        q: args.q.address(),
        partial_o: partials.o.address(),
        partial_max_sum: partials.max_sum.address(),
        seqs: placed.seqs,
        items: placed.items,
        kv: PagedKv {
            tables: placed.tables,
            ..c.kv
        },
        q_stride: args.q_stride as u32,
        q_heads: args.q_heads as u32,
        split: plan.split as u32,
        scale_log2: c.scale_log2,
    };
    let grid = [plan.items() as u32, shape.kv_heads as u32, 1];
    let shared = (16 + 4 * 64) * shape.d_head * 2;
    launch(
        device,
        &args.name("decode_split"),
        grid,
        128,
        shared as u32,
        &params,
    )?;
    let each = [placed.seqs, placed.first_item];
    args.merge(device, &c, partials, each, plan.seqs().len())
}

impl<T: Elem, S: StoreElem<T>> PrefillArgs<'_, T, S> {
    /// Merges the partial results of `count` queries: addresses of their sequences and of the
    /// first partial result of each.
    pub(super) fn merge(
        &self,
        device: &(impl Device + ?Sized),
        c: &Checked,
        partials: &Partials,
        [seqs, first_item]: [u64; 2],
        count: usize,
    ) -> Result<(), KernelError> {
        let d_head = self.pool.shape.d_head as u32;
        let params = MergeParams {
            partial_o: partials.o.address(),
            partial_max_sum: partials.max_sum.address(),
            seqs,
            first_item,
            out: self.out.address(),
            q_heads: self.q_heads as u32,
            d_head,
            scale_log2: c.scale_log2,
            v_scale: self.pool.v_scale,
        };
        let grid = [count as u32, self.q_heads as u32, 1];
        let kernel = format!("decode_merge_{}", T::NAME);
        launch(device, &kernel, grid, d_head, 0, &params)
    }
}
