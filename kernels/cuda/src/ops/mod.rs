//! One wrapper per operation: shapes are checked here, so that a kernel may rely on them.

mod attention;
mod blocks;
mod elementwise;
mod fp8;
mod gemm;
mod lora;
mod partials;
mod plan;
mod prefill_by;
mod rope;
mod sample;
mod split;

pub use attention::{
    PlacedDecode, PlacedPrefill, PrefillArgs, decode, decode_placed, place_decode, place_prefill,
    prefill, prefill_placed, prefill_placed_by,
};
pub use blocks::{
    Stores, block_checksum, block_copy, block_gather, block_gather_placed, block_scatter,
    block_scatter_placed,
};
pub use elementwise::{add_rmsnorm, check_tokens, embed, rmsnorm, silu_mul};
pub use fp8::{E4m3Rows, gemm_e4m3, quantize_rows, vendor_gemm_e4m3};
pub use gemm::{GemmBy, gather_rows, gemm};
pub use lora::{
    LoraColumns, LoraDelta, LoraPlan, LoraSite, PlacedLora, lora, lora_expand, lora_shrink,
    place_lora,
};
pub use partials::Partials;
pub use plan::{BatchSeq, DecodePlan, PrefillPlan, PrefillSplitPlan, SeqWords};
pub use prefill_by::PrefillBy;
pub use rope::{KvPool, KvShape, NO_SLOT, RopeKv, rope_kv};
pub use sample::{SAMPLE_VOCAB_MAX, SampleRow, sample};
pub use split::{PlacedPrefillSplit, place_prefill_split, prefill_split_placed};

use bytemuck::Pod;

use crate::device::{Device, Launch};
use crate::error::KernelError;

/// Launches `kernel` on `params`.
fn launch<P: Pod>(
    device: &(impl Device + ?Sized),
    kernel: &str,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    params: &P,
) -> Result<(), KernelError> {
    // A launch of nothing is an error on every device, and there is nothing to do.
    if grid.contains(&0) {
        return Ok(());
    }
    let launch = Launch {
        kernel,
        grid,
        block: [threads, 1, 1],
        shared_bytes,
    };
    device.launch(launch, bytemuck::bytes_of(params))
}
