//! Which policy chooses what runs next, and its settings.

use serde::{Deserialize, Serialize};

/// The scheduling policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// Whole prompts only, admitted beside the decodes: one step holds both.
    Monolithic,
    /// Prompts first, decodes wait (vLLM V0; SGLang's default, with its budgets when chunked).
    PrefillFirst,
    /// Decodes first, then whole prompts: the naive fix that does not remove interference.
    DecodePriorityMonolithic,
    /// A budget of tokens a step: decodes, then chunks (Sarathi-Serve, vLLM V1).
    #[default]
    TokenBudget,
    /// Chunk size from the number of active decodes.
    AdaptiveLoad,
    /// Chunk size falls in stages as a prompt progresses (Sarathi-Serve's dynamic schedule).
    Shrinking,
    /// Largest chunk whose predicted step time is within a budget.
    TimeBudget,
}

/// In which order waiting requests are admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueOrder {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Lowest priority value first, then arrival (vLLM).
    Priority,
    /// Longest cached prefix first, with SGLang's in-batch sharing.
    Lpm,
    /// Depth first through the tree of cached prefixes, heaviest branch first (SGLang).
    DfsWeight,
}

/// In which order running requests take their share of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunningOrder {
    /// Decodes first, then prompts that are partly computed (Sarathi-Serve).
    #[default]
    DecodeFirst,
    /// In order of admission, whatever they compute (vLLM V1).
    ListOrder,
}

/// What happens to the KV of a request that must give its blocks back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preemption {
    /// It is dropped and computed again (the prefix cache may give most of it back).
    #[default]
    Recompute,
    /// It is copied to host memory and back; recomputed when host memory is full.
    Swap,
}

/// The load-adaptive chunk rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptiveLoadOptions {
    /// Chunk without an active decode.
    pub max_chunk: usize,
    /// Chunk at `threshold` active decodes and more.
    pub min_chunk: usize,
    /// Chunk that the interpolation starts from.
    pub base: usize,
    /// Active decodes from which the chunk is smallest.
    pub threshold: usize,
}

impl Default for AdaptiveLoadOptions {
    fn default() -> Self {
        AdaptiveLoadOptions {
            max_chunk: 4096,
            min_chunk: 128,
            base: 512,
            threshold: 16,
        }
    }
}

/// Chunk sizes that fall with progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ShrinkingOptions {
    /// Chunk of the first stage.
    pub high: usize,
    /// Chunk of the last stage.
    pub low: usize,
    /// Number of stages.
    pub stages: usize,
    /// Prompt tokens over which the stages are spread.
    pub max_tokens: usize,
}

impl Default for ShrinkingOptions {
    fn default() -> Self {
        ShrinkingOptions {
            high: 2048,
            low: 256,
            stages: 4,
            max_tokens: 8192,
        }
    }
}

/// A budget of predicted step time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimeBudgetOptions {
    /// Predicted time of a step at most, in nanoseconds.
    pub step_budget_ns: u64,
    /// Smallest chunk, scheduled even when it alone exceeds the budget.
    pub min_chunk: usize,
}

impl Default for TimeBudgetOptions {
    fn default() -> Self {
        TimeBudgetOptions {
            step_budget_ns: 50_000_000,
            min_chunk: 64,
        }
    }
}

/// SGLang's reservation of tokens for running decodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReservedDecodeOptions {
    /// Reserve tokens for the output of running requests when admitting.
    pub enabled: bool,
    /// Scales the initial share of `max_tokens` that is reserved (`min(0.7 * c, 1)`).
    pub conservativeness: f64,
    /// Output tokens of one request that are counted at most.
    pub clip_max_new_tokens: usize,
    /// Prompt tokens admitted in one step at most.
    pub max_prefill_tokens: usize,
}

impl Default for ReservedDecodeOptions {
    fn default() -> Self {
        ReservedDecodeOptions {
            enabled: false,
            conservativeness: 1.0,
            clip_max_new_tokens: 4096,
            max_prefill_tokens: 16384,
        }
    }
}

/// What runs next, beyond the limits of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scheduling {
    /// Policy.
    pub policy: PolicyKind,
    /// Order of the waiting queue.
    pub queue: QueueOrder,
    /// Order among running requests (token budget and what is built on it).
    pub running_order: RunningOrder,
    /// What happens to the KV of a preempted request.
    pub preemption: Preemption,
    /// Host blocks for swapped requests.
    pub swap_blocks: usize,
    /// Tokens of one request in a step at most; 0 is no limit.
    pub long_prefill_token_threshold: usize,
    /// Lift that threshold while one request is alone (vLLM from 0.32).
    pub threshold_spares_lone_request: bool,
    /// Admit a request only when all its known tokens could be given blocks at once.
    pub reserve_full_prompt: bool,
    /// Blocks to leave free when a request is admitted into a step that has work already.
    pub watermark_blocks: usize,
    /// Put decodes and prompt chunks into one step (prefill first; SGLang's mixed chunk).
    pub mixed_chunk: bool,
    /// Load-adaptive rule.
    pub adaptive_load: AdaptiveLoadOptions,
    /// Shrinking chunks.
    pub shrinking: ShrinkingOptions,
    /// Time budget.
    pub time_budget: TimeBudgetOptions,
    /// SGLang's reservation for decodes, and its retraction.
    pub reserved_decode: ReservedDecodeOptions,
}

impl Default for Scheduling {
    fn default() -> Self {
        Scheduling {
            policy: PolicyKind::default(),
            queue: QueueOrder::default(),
            running_order: RunningOrder::default(),
            preemption: Preemption::default(),
            swap_blocks: 0,
            long_prefill_token_threshold: 0,
            threshold_spares_lone_request: false,
            reserve_full_prompt: true,
            watermark_blocks: 0,
            mixed_chunk: false,
            adaptive_load: AdaptiveLoadOptions::default(),
            shrinking: ShrinkingOptions::default(),
            time_budget: TimeBudgetOptions::default(),
            reserved_decode: ReservedDecodeOptions::default(),
        }
    }
}
