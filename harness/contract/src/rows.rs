//! The rows that a run leaves behind. Aggregates are derived from them and never replace them.

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::fail::FailKind;
use crate::ids::RequestId;

/// The three disjoint buckets of the KV block pool. `active + reclaimable + free` is the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets {
    /// Blocks with at least one reference: never recycled.
    pub active: usize,
    /// Blocks without a reference whose data is valid: reusable by a hit, evictable otherwise.
    pub reclaimable: usize,
    /// Blocks without valid data.
    pub free: usize,
}

impl Buckets {
    /// Size of the pool in blocks.
    pub const fn total(self) -> usize {
        self.active + self.reclaimable + self.free
    }

    /// Free blocks in the view in which "free" includes the reclaimable ones (as vLLM's free
    /// queue counts them). Never add reclaimable to this.
    pub const fn free_including_reclaimable(self) -> usize {
        self.free + self.reclaimable
    }
}

/// One engine step: what was scheduled, how long each part took, where the blocks stood after.
///
/// GEMM time of a mixed step is measured once and divided between prefill and decode by rows;
/// the two attention times are measured apart. `other_ns` is the rest of `duration_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// Number of the step since the engine started.
    pub step: u64,
    /// Start, on the machine's monotonic clock.
    pub start_ns: Nanos,
    /// Whole step.
    pub duration_ns: Nanos,
    /// Planning: queue handling, prefix lookup, block allocation.
    pub schedule_ns: Nanos,
    /// Matrix products, the part of prompt rows.
    pub prefill_gemm_ns: Nanos,
    /// Matrix products, the part of decode rows.
    pub decode_gemm_ns: Nanos,
    /// Attention of prompt chunks.
    pub prefill_attention_ns: Nanos,
    /// Attention of decode rows.
    pub decode_attention_ns: Nanos,
    /// Choosing tokens and log-probabilities.
    pub sampling_ns: Nanos,
    /// The rest: norms, rotary embedding, activation, KV writes, bookkeeping.
    pub other_ns: Nanos,
    /// Prompt tokens computed.
    pub prefill_tokens: usize,
    /// Decode tokens computed.
    pub decode_tokens: usize,
    /// Sequences that computed prompt tokens.
    pub prefill_seqs: usize,
    /// Sequences that decoded.
    pub decode_seqs: usize,
    /// Keys attended to, summed over the computed tokens' sequences at the end of their chunk.
    pub context_tokens: usize,
    /// Requests running after the step.
    pub running: usize,
    /// Requests waiting after the step.
    pub waiting: usize,
    /// Requests preempted in the step.
    pub preempted: usize,
    /// Prompt tokens looked up in the prefix cache by requests admitted in the step.
    pub queried_tokens: usize,
    /// Of these, tokens found, in the pool or in a tier.
    pub hit_tokens: usize,
    /// Cached blocks that lost their contents in the step.
    pub evicted_blocks: usize,
    /// Referenced blocks after the step.
    pub active_blocks: usize,
    /// Unreferenced blocks with valid data after the step.
    pub reclaimable_blocks: usize,
    /// Blocks without valid data after the step.
    pub free_blocks: usize,
    /// Of `schedule_ns`: lookups in the prefix cache and the tiers.
    #[serde(default)]
    pub lookup_ns: Nanos,
    /// Of `schedule_ns`: giving and releasing blocks, fetching from tiers included.
    #[serde(default)]
    pub allocate_ns: Nanos,
    /// Of `schedule_ns`: the rest, queue order and policy.
    #[serde(default)]
    pub plan_ns: Nanos,
    /// Of `other_ns`: moving block data and building the batch for the executor.
    #[serde(default)]
    pub dispatch_ns: Nanos,
    /// Taking commands and the locks shared with others before the step, without the wait of an
    /// idle engine; not in `duration_ns`.
    #[serde(default)]
    pub lock_wait_ns: Nanos,
    /// Of `hit_tokens`: found in host memory.
    #[serde(default)]
    pub host_hit_tokens: usize,
    /// Of `hit_tokens`: found on disk.
    #[serde(default)]
    pub disk_hit_tokens: usize,
    /// Of `hit_tokens`: found on a remote server.
    #[serde(default)]
    pub remote_hit_tokens: usize,
    /// Tokens of swapped requests that came back; never hits.
    #[serde(default)]
    pub swapped_in_tokens: usize,
    /// Of `active_blocks`: held by a pin.
    #[serde(default)]
    pub pinned_blocks: usize,
    /// Of `active_blocks`: held for a transfer.
    #[serde(default)]
    pub in_transfer_blocks: usize,
    /// Host blocks of swapped requests after the step.
    #[serde(default)]
    pub swapped_blocks: usize,
    /// Blocks in the host tier after the step.
    #[serde(default)]
    pub host_blocks: usize,
    /// Blocks in the disk tier after the step.
    #[serde(default)]
    pub disk_blocks: usize,
    /// Blocks that this engine put into the remote tier, after the step.
    #[serde(default)]
    pub remote_blocks: usize,
}

/// How a request ended, from the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestStatus {
    /// Complete: tokens and a proper end.
    Ok,
    /// Ended by a failure other than truncation.
    Failed,
    /// The stream broke off.
    Truncated,
    /// Still running when the run ended.
    Incomplete,
    /// Due but never sent.
    NotOffered,
}

/// One request as the client saw it. Absent instants did not happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRow {
    /// Arm of the experiment.
    pub arm: String,
    /// Matched block of the experiment.
    pub block: u32,
    /// Request within the run.
    pub request: RequestId,
    /// What the request stands for in the workload (for example `background`, `long_prompt`).
    pub class: String,
    /// When its arrival was scheduled.
    pub intended_ns: Nanos,
    /// First byte written.
    pub sent_ns: Option<Nanos>,
    /// Response head received.
    pub headers_ns: Option<Nanos>,
    /// First event of the stream.
    pub first_event_ns: Option<Nanos>,
    /// First event that carries generated content.
    pub first_token_ns: Option<Nanos>,
    /// Last event that carries generated content.
    pub last_token_ns: Option<Nanos>,
    /// Stream closed.
    pub closed_ns: Option<Nanos>,
    /// How it ended.
    pub status: RequestStatus,
    /// Kind of failure.
    pub fail: Option<FailKind>,
    /// HTTP status of the response.
    pub http_status: Option<u16>,
    /// Message of the failure.
    pub fail_message: Option<String>,
    /// Why generation ended, as the server says.
    pub finish_reason: Option<String>,
    /// Prompt tokens that the workload planned.
    pub prompt_tokens_planned: u32,
    /// Prompt tokens that the server counted.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens that the server took from its cache; absent when it does not say.
    pub cached_tokens: Option<u32>,
    /// Output tokens that the workload asked for.
    pub max_tokens: u32,
    /// Output tokens that the server counted.
    pub completion_tokens: Option<u32>,
    /// Output tokens that the stream carried.
    pub streamed_tokens: u32,
}

/// One content event of one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenRow {
    /// Arm of the experiment.
    pub arm: String,
    /// Matched block of the experiment.
    pub block: u32,
    /// Request within the run.
    pub request: RequestId,
    /// Number of the content event within the stream, from 0.
    pub event: u32,
    /// When its bytes arrived.
    pub at_ns: Nanos,
    /// Tokens that it carried.
    pub tokens: u32,
}
