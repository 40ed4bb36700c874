//! The token budget of Sarathi-Serve and vLLM V1: decodes never wait for a prompt.
//!
//! A step computes at most `max_batched_tokens` tokens. Running requests come first and new ones
//! are admitted into what is left, so a long prompt is cut into chunks that ride along with the
//! decodes instead of stopping them. With chunking off the same rules give a monolithic schedule:
//! a prompt is admitted whole or not at all.
//!
//! With more decodes than budget the first `max_batched_tokens` of them run and the others wait
//! for a later step; no prompt progresses, and no chunk is ever zero or negative (the original
//! subtraction goes below zero there).
//!
//! When the blocks run out, one request gives its own back and is computed anew later: the last
//! admitted one, or under [`Victim::LowestPriority`] the one that matters least. The first request
//! of that order can therefore always go on, which is why every admissible load ends.

use pb_contract::RunningOrder;

use crate::chunked::{Everything, Frame};
use crate::error::PlanError;
use crate::policy::{Allocator, Policy, StepPlan, View};
use crate::step::{Limits, Victim};

/// The limits of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBudget {
    /// Tokens in a step at most.
    pub max_batched_tokens: usize,
    /// Running places at most.
    pub max_num_seqs: usize,
    /// Longest sequence in tokens, prompt and output.
    pub max_model_len: usize,
    /// Whether a prompt may be cut.
    pub chunked: bool,
    /// Tokens of one request in a step at most, so that a long prompt leaves room for short
    /// ones; 0 is no limit. Without effect when chunking is off.
    pub long_prefill_token_threshold: usize,
    /// Lift the threshold while one request is alone in the scheduler, where there is nobody to
    /// leave room for (vLLM from 0.32). Off, the threshold is a fixed chunk size.
    pub threshold_spares_lone_request: bool,
    /// Admit a request only when all its known tokens could be given blocks at once.
    pub reserve_full_prompt: bool,
    /// Blocks to leave free when a request is admitted into a step that has work already.
    pub watermark_blocks: usize,
    /// Order among the running requests.
    pub order: RunningOrder,
    /// Who gives way when the blocks run out.
    pub victim: Victim,
}

impl TokenBudget {
    /// Decodes first, full-prompt reservation on, no threshold, no watermark, the last admitted
    /// request gives way.
    pub const fn new(
        max_batched_tokens: usize,
        max_num_seqs: usize,
        max_model_len: usize,
        chunked: bool,
    ) -> Self {
        TokenBudget {
            max_batched_tokens,
            max_num_seqs,
            max_model_len,
            chunked,
            long_prefill_token_threshold: 0,
            threshold_spares_lone_request: false,
            reserve_full_prompt: true,
            watermark_blocks: 0,
            order: RunningOrder::DecodeFirst,
            victim: Victim::Last,
        }
    }

    /// Checks that every admissible request can be scheduled at some time.
    ///
    /// # Errors
    /// When a limit is zero, or when chunking is off and a whole prompt might exceed the budget.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.frame().limits.validate(self.chunked)
    }

    fn frame(&self) -> Frame {
        Frame {
            limits: Limits {
                reserve_full_prompt: self.reserve_full_prompt,
                watermark_blocks: self.watermark_blocks,
                victim: self.victim,
                ..Limits::new(
                    self.max_batched_tokens,
                    self.max_num_seqs,
                    self.max_model_len,
                )
            },
            order: self.order,
            threshold: self.long_prefill_token_threshold,
            spares_lone_request: self.threshold_spares_lone_request,
            chunked: self.chunked,
        }
    }
}

impl From<Frame> for TokenBudget {
    fn from(frame: Frame) -> Self {
        TokenBudget {
            max_batched_tokens: frame.limits.max_batched_tokens,
            max_num_seqs: frame.limits.max_num_seqs,
            max_model_len: frame.limits.max_model_len,
            chunked: frame.chunked,
            long_prefill_token_threshold: frame.threshold,
            threshold_spares_lone_request: frame.spares_lone_request,
            reserve_full_prompt: frame.limits.reserve_full_prompt,
            watermark_blocks: frame.limits.watermark_blocks,
            order: frame.order,
            victim: frame.limits.victim,
        }
    }
}

impl Policy for TokenBudget {
    fn name(&self) -> &'static str {
        "token_budget"
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        self.frame().plan(view, alloc, &mut Everything)
    }
}
