//! What the engine counts.

use pb_tiers::TierKind;

use super::Engine;
use super::hold::Hold;

/// Cumulative counts since the engine started, and the state now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens looked up in the prefix cache by first admissions.
    pub queried_tokens: u64,
    /// Of these, tokens found, in the pool or in a tier.
    pub hit_tokens: u64,
    /// Of `hit_tokens`: found in host memory.
    pub host_hit_tokens: u64,
    /// Of `hit_tokens`: found on disk.
    pub disk_hit_tokens: u64,
    /// Of `hit_tokens`: found on a remote server.
    pub remote_hit_tokens: u64,
    /// Tokens looked up by admissions after a preemption.
    pub preempted_queried_tokens: u64,
    /// Of these, tokens found.
    pub preempted_hit_tokens: u64,
    /// Tokens of swapped requests that came back; never hits.
    pub swapped_in_tokens: u64,
    /// Blocks copied to the swap pool.
    pub swapped_out_blocks: u64,
    /// Preempted requests for which the swap pool had no room.
    pub swap_full: u64,
    /// Blocks that a tier promised and could not give.
    pub failed_loads: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Of `prompt_tokens`: tokens whose KV another engine computed; never hits.
    pub received_tokens: u64,
    /// Requests that were handed off after their first token.
    pub handed_off: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Steps made.
    pub steps: u64,
    /// Cached blocks that lost their contents.
    pub evicted_blocks: u64,
    /// Requests running.
    pub running: usize,
    /// Requests waiting.
    pub waiting: usize,
    /// Distinct pool blocks held by a pin; part of the active ones.
    pub pinned_blocks: usize,
    /// Distinct pool blocks held for a transfer, or filled by one; part of the active ones.
    pub in_transfer_blocks: usize,
    /// Host blocks of swapped requests.
    pub swapped_blocks: usize,
    /// Blocks in the host tier.
    pub host_blocks: u64,
    /// Blocks in the disk tier.
    pub disk_blocks: u64,
    /// Blocks that this engine put into the remote tier.
    pub remote_blocks: u64,
}

impl Engine {
    /// Cumulative counters and the state of queues and pools.
    pub fn counters(&self) -> Counters {
        let following = |id| self.requests[id].followers.len();
        let followers: usize = self
            .waiting
            .iter()
            .chain(&self.running)
            .map(following)
            .sum();
        Counters {
            steps: self.steps,
            evicted_blocks: self.kv.evicted_total(),
            running: self.running.len(),
            waiting: self.waiting.len() + followers + self.incoming.len(),
            pinned_blocks: self.held_blocks(Hold::Pin),
            in_transfer_blocks: self.in_transfer_blocks(),
            swapped_blocks: self.swap.used_blocks(),
            host_blocks: self.tiers.blocks(TierKind::Host),
            disk_blocks: self.tiers.blocks(TierKind::Disk),
            remote_blocks: self.tiers.blocks(TierKind::Redis),
            ..self.counters
        }
    }
}
