//! Step rows with the arm and the block that they belong to.
//!
//! A server knows neither arm nor block, so the harness adds both. CSV has no nesting: the table
//! is flat, its columns are `arm, block` and the fields of [`StepRow`] in their order.
//! Columns that came later read as zero from an older table.

use pb_contract::{Nanos, StepRow};
use serde::{Deserialize, Serialize};

/// One engine step of one arm in one block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRecord {
    /// Arm of the experiment.
    pub arm: String,
    /// Matched block of the experiment.
    pub block: u32,
    /// The step.
    pub row: StepRow,
}

/// Defines the flat row once and both conversions with it, so that no column can be forgotten.
macro_rules! flat_step {
    ($($(#[$meta:meta])* $field:ident: $kind:ty),* $(,)?) => {
        /// The row as it stands in the table.
        #[derive(Debug, Serialize, Deserialize)]
        pub(crate) struct FlatStep {
            arm: String,
            block: u32,
            $($(#[$meta])* $field: $kind,)*
        }

        impl FlatStep {
            pub(crate) fn new(arm: &str, block: u32, row: &StepRow) -> Self {
                FlatStep { arm: arm.to_owned(), block, $($field: row.$field,)* }
            }
        }

        impl From<FlatStep> for StepRecord {
            fn from(flat: FlatStep) -> StepRecord {
                let row = StepRow { $($field: flat.$field,)* };
                StepRecord { arm: flat.arm, block: flat.block, row }
            }
        }

        /// Columns of `steps.csv`.
        pub(crate) const STEP_COLUMNS: &[&str] = &["arm", "block", $(stringify!($field),)*];
    };
}

flat_step! {
    step: u64,
    start_ns: Nanos,
    duration_ns: Nanos,
    schedule_ns: Nanos,
    prefill_gemm_ns: Nanos,
    decode_gemm_ns: Nanos,
    prefill_attention_ns: Nanos,
    decode_attention_ns: Nanos,
    sampling_ns: Nanos,
    other_ns: Nanos,
    prefill_tokens: usize,
    decode_tokens: usize,
    prefill_seqs: usize,
    decode_seqs: usize,
    context_tokens: usize,
    running: usize,
    waiting: usize,
    preempted: usize,
    queried_tokens: usize,
    hit_tokens: usize,
    evicted_blocks: usize,
    active_blocks: usize,
    reclaimable_blocks: usize,
    free_blocks: usize,
    #[serde(default)]
    lookup_ns: Nanos,
    #[serde(default)]
    allocate_ns: Nanos,
    #[serde(default)]
    plan_ns: Nanos,
    #[serde(default)]
    dispatch_ns: Nanos,
    #[serde(default)]
    lock_wait_ns: Nanos,
    #[serde(default)]
    host_hit_tokens: usize,
    #[serde(default)]
    disk_hit_tokens: usize,
    #[serde(default)]
    remote_hit_tokens: usize,
    #[serde(default)]
    swapped_in_tokens: usize,
    #[serde(default)]
    pinned_blocks: usize,
    #[serde(default)]
    in_transfer_blocks: usize,
    #[serde(default)]
    swapped_blocks: usize,
    #[serde(default)]
    host_blocks: usize,
    #[serde(default)]
    disk_blocks: usize,
    #[serde(default)]
    remote_blocks: usize,
}
