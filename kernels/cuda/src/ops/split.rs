//! Prefill with the keys of a tile in ranges.

use bytemuck::{Pod, Zeroable};

use super::attention::{PlacedPrefill, PrefillArgs, PrefillParams, place_prefill};
use super::launch;
use super::partials::Partials;
use super::plan::PrefillSplitPlan;
use super::prefill_by::PrefillBy;
use crate::device::{Device, DeviceExt};
use crate::elem::{Elem, StoreElem};
use crate::error::KernelError;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PrefillSplitParams {
    whole: PrefillParams,
    ranges: u64,
    partial_o: u64,
    partial_max_sum: u64,
    first_partial: u64,
    split: u32,
    padding: u32,
}

/// A plan of prefill with split keys on a device.
#[derive(Debug)]
pub struct PlacedPrefillSplit<'a> {
    plan: &'a PrefillSplitPlan,
    whole: PlacedPrefill<'a>,
    ranges: u64,
    first_partial: u64,
    tokens: u64,
}

/// Copies a plan to the device.
///
/// # Errors
/// When the device has no room.
pub fn place_prefill_split<'a>(
    device: &(impl Device + ?Sized),
    plan: &'a PrefillSplitPlan,
) -> Result<PlacedPrefillSplit<'a>, KernelError> {
    Ok(PlacedPrefillSplit {
        plan,
        whole: place_prefill(device, plan.whole())?,
        ranges: device.input("ranges", &plan.ranges)?.address(),
        first_partial: device
            .input("first partials", &plan.first_partial)?
            .address(),
        tokens: device.input("tokens", &plan.tokens)?.address(),
    })
}

/// As [`prefill`], with the keys of every tile in ranges that are computed side by side and then
/// merged. `partials` has room for [`PrefillSplitPlan::partials`] items.
///
/// # Errors
/// As [`prefill`]; and when the room for partial results is too small.
pub fn prefill_split_placed<T: Elem, S: StoreElem<T>>(
    device: &(impl Device + ?Sized),
    placed: &PlacedPrefillSplit<'_>,
    args: &PrefillArgs<'_, T, S>,
    partials: &Partials,
) -> Result<(), KernelError> {
    let (op, c) = ("prefill_split", args.check("prefill_split")?);
    let (plan, shape) = (placed.plan, args.pool.shape);
    plan.whole()
        .check(shape.block_size, c.blocks, c.rows, c.group)?;
    partials.check(op, plan.partials() * args.q_heads, shape.d_head)?;
    let params = PrefillSplitParams {
        whole: args.prefill_params(&c, &placed.whole),
        ranges: placed.ranges,
        partial_o: partials.o.address(),
        partial_max_sum: partials.max_sum.address(),
        first_partial: placed.first_partial,
        split: plan.split as u32,
        padding: 0,
    };
    let grid = [plan.ranges.len() as u32, shape.kv_heads as u32, 1];
    let kernel = args.name("prefill_split");
    launch(
        device,
        &kernel,
        grid,
        128,
        PrefillBy::Mma.shared_bytes(shape.d_head),
        &params,
    )?;
    let each = [placed.tokens, placed.first_partial];
    args.merge(device, &c, partials, each, plan.tokens.len())
}
