//! Chunk size from load: large while nothing decodes, small beside many decodes.
//!
//! The rule bounds the prompt tokens of a whole step, not of one request, because what a decode
//! feels is the step. Two prompts in one step share the allowance in the order of the queue.

use pb_contract::AdaptiveLoadOptions;
use pb_contract::formulas::LoadAdaptive;

use crate::chunked::{Frame, Share};
use crate::error::PlanError;
use crate::policy::{Allocator, Policy, SeqView, StepPlan, View};

/// The policy `adaptive_load`.
#[derive(Debug)]
pub(crate) struct AdaptiveLoad {
    frame: Frame,
    rule: LoadAdaptive,
}

impl AdaptiveLoad {
    pub(crate) fn new(frame: Frame, options: AdaptiveLoadOptions) -> Result<Self, PlanError> {
        let AdaptiveLoadOptions {
            max_chunk,
            min_chunk,
            base,
            threshold,
        } = options;
        let positive = [
            ("scheduling.adaptive_load.min_chunk", min_chunk),
            ("scheduling.adaptive_load.threshold", threshold),
            ("scheduling.adaptive_load.max_chunk", max_chunk),
        ];
        if let Some(&(key, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(PlanError::Zero { key });
        }
        if base < min_chunk {
            return Err(PlanError::Setting {
                key: "scheduling.adaptive_load.base",
                value: base.to_string(),
                problem: "the chunk falls from base to min_chunk, and base is the smaller one",
                fix: "raise base or lower min_chunk",
            });
        }
        let rule = LoadAdaptive {
            min_chunk_tokens: min_chunk as u64,
            base_chunk_tokens: base as u64,
            max_chunk_tokens: max_chunk as u64,
            threshold_decodes: threshold as u64,
        };
        Ok(AdaptiveLoad { frame, rule })
    }
}

impl Policy for AdaptiveLoad {
    fn name(&self) -> &'static str {
        "adaptive_load"
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        let decodes = view.running.iter().filter(|seq| SeqView::is_decode(seq));
        let chunk = self.rule.chunk_tokens(decodes.count() as u64);
        let mut left = Allowance {
            tokens: usize::try_from(chunk).unwrap_or(usize::MAX),
        };
        self.frame.plan(view, alloc, &mut left)
    }
}

/// Prompt tokens that a step may still take.
pub(crate) struct Allowance {
    pub(crate) tokens: usize,
}

impl Share for Allowance {
    fn tokens(&self, _start: usize, wanted: usize, _used: usize) -> usize {
        self.tokens.min(wanted)
    }

    fn taken(&mut self, _start: usize, count: usize) {
        self.tokens -= count;
    }
}
