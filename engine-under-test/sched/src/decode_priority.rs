//! Decodes first, then whole prompts: the naive fix.
//!
//! Every decode has its token in every step, whatever waits. That is not enough: a prompt that is
//! admitted whole still occupies one whole step, and the decodes of that step wait for it. The
//! policy exists so that a measurement can show this.

use crate::monolithic::{admit_whole, serve_whole};
use crate::policy::{Allocator, Policy, StepPlan, View};
use crate::step::{Limits, Step};

/// The policy `decode_priority_monolithic`.
#[derive(Debug)]
pub(crate) struct DecodePriorityMonolithic {
    pub(crate) limits: Limits,
}

impl Policy for DecodePriorityMonolithic {
    fn name(&self) -> &'static str {
        "decode_priority_monolithic"
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        let mut step = Step::new(&self.limits, view, alloc);
        serve_whole(&mut step, view);
        if !step.has_preempted() {
            admit_whole(&mut step, view);
        }
        step.into_plan()
    }
}
