//! Named sets of rules: "plain vLLM V1" and "plain SGLang".
//!
//! A preset sets the rules, not the sizes: budget, pool, block size and lengths stay as they are
//! configured. What is set after it wins.

use serde::{Deserialize, Serialize};

use super::{
    CacheOptions, EngineConfig, Eviction, FreePlacement, HashAlgorithm, PolicyKind, Preemption,
    PrefixCacheKind, QueueOrder, ReservedDecodeOptions, RunningOrder, Scheduling,
};

/// A named set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preset {
    /// vLLM 0.32, V1 scheduler and KV-cache manager, synchronous scheduling:
    ///
    /// - running requests in list order, then waiting ones if nobody was preempted
    ///   (`vllm/v1/core/sched/scheduler.py`, `schedule`);
    /// - one token budget for prompts and decodes alike, prompts cut to what is left (same);
    /// - a lone request is not held to `long_prefill_token_threshold` (same; pull request 57951);
    /// - a prompt is admitted only when all of it would fit (`scheduler_reserve_full_isl`, on by
    ///   default), without a watermark (`vllm/v1/core/kv_cache_manager.py`, `allocate_slots`);
    /// - preemption takes the last running request, recomputes, and puts it in front of the
    ///   queue (scheduler.py);
    /// - full blocks are named by a SHA-256 chain when they are scheduled, freed tail first, blocks
    ///   without a name to the head of the free queue, and lose their names when they are handed
    ///   out again (`vllm/v1/core/block_pool.py`; pull request 42656);
    /// - block 0 is the null block (same).
    #[serde(rename = "vllm-v1")]
    VllmV1,
    /// SGLang 0.5.23, default scheduler over RadixAttention:
    ///
    /// - a prefill batch before any decode, decodes wait, no mixed chunk
    ///   (`python/sglang/srt/managers/scheduler.py`, `get_next_batch_to_run`);
    /// - one chunked request at a time, which goes on first; pages are charged rounded up;
    ///   admission reserves output of running requests by `new_token_ratio`
    ///   (`schedule_policy.py`, `PrefillAdder`);
    /// - out of memory, the requests with the fewest outputs and the longest inputs are retracted
    ///   to the back of the queue (`schedule_batch.py`, `retract_decode`);
    /// - a radix tree of computed pages, least recently used leaf evicted first
    ///   (`mem_cache/radix_cache.py`);
    /// - first come, first served (`server_args.py`, `schedule_policy`).
    #[serde(rename = "sglang")]
    Sglang,
}

impl Preset {
    /// Name as it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Preset::VllmV1 => "vllm-v1",
            Preset::Sglang => "sglang",
        }
    }

    /// The preset of a name.
    pub fn from_name(name: &str) -> Option<Preset> {
        [Preset::VllmV1, Preset::Sglang]
            .into_iter()
            .find(|preset| preset.name() == name)
    }

    /// Sets the rules of the preset.
    pub fn apply(self, config: &mut EngineConfig) {
        config.chunked = true;
        match self {
            Preset::VllmV1 => {
                config.prefix_cache = PrefixCacheKind::HashChain;
                config.cache = CacheOptions {
                    hash: HashAlgorithm::Sha256,
                    null_block: true,
                    placement: FreePlacement::UnhashedToHead,
                    ..CacheOptions::default()
                };
                config.scheduling = Scheduling {
                    policy: PolicyKind::TokenBudget,
                    queue: QueueOrder::Fcfs,
                    running_order: RunningOrder::ListOrder,
                    preemption: Preemption::Recompute,
                    threshold_spares_lone_request: true,
                    reserve_full_prompt: true,
                    ..Scheduling::default()
                };
            }
            Preset::Sglang => {
                config.prefix_cache = PrefixCacheKind::Radix;
                config.cache = CacheOptions {
                    eviction: Eviction::Lru,
                    ..CacheOptions::default()
                };
                config.scheduling = Scheduling {
                    policy: PolicyKind::PrefillFirst,
                    queue: QueueOrder::Fcfs,
                    preemption: Preemption::Recompute,
                    reserve_full_prompt: false,
                    reserved_decode: ReservedDecodeOptions {
                        enabled: true,
                        ..ReservedDecodeOptions::default()
                    },
                    ..Scheduling::default()
                };
            }
        }
    }
}
