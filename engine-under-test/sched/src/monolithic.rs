//! Whole prompts beside the decodes in one step: the schedule that chunking replaces.
//!
//! Waiting prompts are admitted first, whole, and take the budget; the decodes run beside them in
//! what is left. Every decode of such a step waits for the longest prompt in it. The blocks that
//! running requests need in the step are set aside before anybody is admitted, so admission never
//! causes a preemption in its own step.

use crate::policy::{Allocator, Policy, StepPlan, View};
use crate::step::{Limits, Step};

/// The policy `monolithic`.
#[derive(Debug)]
pub(crate) struct Monolithic {
    pub(crate) limits: Limits,
}

impl Policy for Monolithic {
    fn name(&self) -> &'static str {
        "monolithic"
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        let mut step = Step::new(&self.limits, view, alloc);
        step.busy = !view.running.is_empty();
        let needed = |index: usize| {
            let seq = &view.running[index];
            step.memory()
                .blocks_needed(seq.id, seq.computed, 0, step.wanted(index))
        };
        step.promised_blocks = (0..view.running.len()).map(needed).sum();
        if step.promised_blocks <= step.memory().free_blocks() {
            admit_whole(&mut step, view);
        }
        serve_whole(&mut step, view);
        step.into_plan()
    }
}

/// Admits waiting prompts in order, each whole, until one does not fit.
pub(crate) fn admit_whole(step: &mut Step<'_>, view: &View<'_>) {
    for seq in view.waiting {
        if !step.has_place(seq) {
            return;
        }
        let hit_tokens = step.hit_tokens(seq);
        let count = seq.num_tokens - hit_tokens;
        if count > step.budget || !step.admit(seq, hit_tokens, count) {
            return;
        }
    }
}

/// Serves the running requests in order of admission, each whole.
pub(crate) fn serve_whole(step: &mut Step<'_>, view: &View<'_>) {
    for index in 0..view.running.len() {
        let wanted = step.wanted(index);
        if wanted > 0 && wanted <= step.budget {
            step.grant(index, wanted);
        }
    }
}
