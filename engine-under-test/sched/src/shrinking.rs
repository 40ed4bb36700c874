//! Chunks that shrink as a prompt progresses (Sarathi-Serve's dynamic schedule).
//!
//! A late chunk reads more keys than an early one of the same size and takes longer, so with a
//! fixed chunk the stalls grow through a long prompt. Here the chunk falls in stages that are
//! spread evenly over `max_tokens` prompt tokens. The chunk of a stage is a budget for the step
//! as that prompt sees it: what the step holds already is subtracted, never below zero.

use pb_contract::ShrinkingOptions;

use crate::chunked::{Frame, Share};
use crate::error::PlanError;
use crate::policy::{Allocator, Policy, StepPlan, View};

/// Chunk sizes are multiples of this, or of `low` where that is less.
const GRANULE_TOKENS: usize = 32;

/// Stages at most: each is a chunk size that is kept.
const MAX_STAGES: usize = 1024;

/// Largest chunk and longest schedule, in tokens; their product with the stages fits 64 bits.
const MAX_SHRINKING_TOKENS: usize = 1 << 32;

/// The policy `shrinking`.
#[derive(Debug)]
pub(crate) struct Shrinking {
    frame: Frame,
    schedule: Stages,
}

/// Chunk of every stage.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stages {
    chunks: Vec<usize>,
    tokens_per_stage: usize,
}

impl Shrinking {
    pub(crate) fn new(frame: Frame, options: ShrinkingOptions) -> Result<Self, PlanError> {
        let positive = [
            ("scheduling.shrinking.low", options.low),
            ("scheduling.shrinking.stages", options.stages),
            ("scheduling.shrinking.max_tokens", options.max_tokens),
        ];
        if let Some(&(key, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(PlanError::Zero { key });
        }
        if options.high < options.low {
            return Err(PlanError::Setting {
                key: "scheduling.shrinking.high",
                value: options.high.to_string(),
                problem: "chunks fall from high to low, and high is the smaller one",
                fix: "raise high or lower low",
            });
        }
        let bounded = [
            (
                "scheduling.shrinking.high",
                options.high,
                MAX_SHRINKING_TOKENS,
            ),
            (
                "scheduling.shrinking.max_tokens",
                options.max_tokens,
                MAX_SHRINKING_TOKENS,
            ),
            ("scheduling.shrinking.stages", options.stages, MAX_STAGES),
        ];
        if let Some(&(key, value, _)) = bounded.iter().find(|(_, value, most)| value > most) {
            return Err(PlanError::Setting {
                key,
                value: value.to_string(),
                problem: "more than 1024 stages or 2^32 tokens",
                fix: "lower it",
            });
        }
        if options.stages > options.max_tokens {
            return Err(PlanError::Setting {
                key: "scheduling.shrinking.stages",
                value: options.stages.to_string(),
                problem: "more stages than max_tokens has tokens",
                fix: "lower stages or raise max_tokens",
            });
        }
        let schedule = Stages::new(options);
        Ok(Shrinking { frame, schedule })
    }
}

impl Stages {
    fn new(options: ShrinkingOptions) -> Self {
        let granule = GRANULE_TOKENS.min(options.low);
        let chunks = (0..options.stages)
            .map(|stage| {
                let drop = (options.high - options.low) * stage;
                let steps = options.stages.saturating_sub(1).max(1);
                // The point on the line, cut to an integer, then the nearest multiple.
                nearest_multiple(options.high - drop.div_ceil(steps), granule)
            })
            .collect();
        Stages {
            chunks,
            tokens_per_stage: options.max_tokens.div_ceil(options.stages),
        }
    }

    /// Chunk at `done` computed tokens; the last stage has no end.
    fn chunk(&self, done: usize) -> usize {
        let stage = (done / self.tokens_per_stage).min(self.chunks.len() - 1);
        self.chunks[stage]
    }
}

/// The multiple of `granule` nearest to `value`; half way, the even multiple.
fn nearest_multiple(value: usize, granule: usize) -> usize {
    let (below, rest) = (value / granule, value % granule);
    let up = 2 * rest > granule || (2 * rest == granule && below % 2 == 1);
    (below + usize::from(up)) * granule
}

impl Share for &Stages {
    fn tokens(&self, start: usize, wanted: usize, used: usize) -> usize {
        self.chunk(start).saturating_sub(used).min(wanted)
    }
}

impl Policy for Shrinking {
    fn name(&self) -> &'static str {
        "shrinking"
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        self.frame.plan(view, alloc, &mut &self.schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(high: usize, low: usize, stages: usize) -> Vec<usize> {
        let options = ShrinkingOptions {
            high,
            low,
            stages,
            max_tokens: 8192,
        };
        Stages::new(options).chunks
    }

    #[test]
    fn stages_are_linear_and_rounded() {
        // 2048, 1450.67, 853.33, 256: cut to 1450 = 45.3 * 32 and 853 = 26.7 * 32.
        assert_eq!(chunks(2048, 256, 4), [2048, 1440, 864, 256]);
        // Multiples of 8, because low is 8: 100 is 12.5 granules, to the even 12.
        assert_eq!(chunks(100, 8, 2), [96, 8]);
        // 108 is 13.5 granules, to the even 14.
        assert_eq!(chunks(108, 8, 2), [112, 8]);
        assert_eq!(chunks(512, 512, 3), [512; 3]);
        assert_eq!(chunks(700, 1, 1), [700]);
    }

    #[test]
    fn a_stage_is_a_share_of_the_prompt() {
        let stages = Stages::new(ShrinkingOptions {
            high: 2048,
            low: 256,
            stages: 4,
            max_tokens: 8192,
        });
        let expected = [
            (0, 2048),
            (2047, 2048),
            (2048, 1440),
            (4096, 864),
            (6143, 864),
            (6144, 256),
            (100_000, 256),
        ];
        for (done, chunk) in expected {
            assert_eq!(stages.chunk(done), chunk, "{done} tokens done");
        }
    }
}
