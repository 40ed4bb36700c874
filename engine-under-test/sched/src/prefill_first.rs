//! Prompts first, decodes wait: vLLM's first scheduler, and SGLang's.
//!
//! While a prompt can be computed the step holds prompts only; decodes run in steps without
//! prompts. This gives the earliest first tokens and the longest pauses between later ones. With
//! `mixed_chunk` decodes ride along (SGLang's mixed chunk). With [`Reserve`] admission follows
//! SGLang: it sets tokens aside for the output of running requests, and when that estimate was
//! too low it retracts requests to the back of the queue.

use crate::chunked::{Everything, Frame};
use crate::policy::{Allocator, Observation, Policy, Requeue, StepPlan, View};
use crate::reserve::{Budgets, Outcome, Reserve};
use crate::step::Step;

/// The policy `prefill_first`.
#[derive(Debug)]
pub(crate) struct PrefillFirst {
    pub(crate) frame: Frame,
    /// Decodes run beside prompts.
    pub(crate) mixed_chunk: bool,
    /// SGLang's reservation.
    pub(crate) reserve: Option<Reserve>,
}

impl Policy for PrefillFirst {
    fn name(&self) -> &'static str {
        "prefill_first"
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        if self.mixed_chunk && self.reserve.is_none() {
            return self.frame.plan(view, alloc, &mut Everything);
        }
        let mut step = Step::new(&self.frame.limits, view, alloc);
        step.busy = !view.running.is_empty();
        if self.mixed_chunk {
            serve_decodes(&mut step, view);
        }
        let before = step.used;
        if !step.has_preempted() {
            match &self.reserve {
                Some(reserve) => self.reserved_prompts(reserve, &mut step, view),
                None => self.prompts(&mut step, view),
            }
        }
        // A prompt in the step is a reason for decodes to wait.
        if step.used == before && !self.mixed_chunk {
            serve_decodes(&mut step, view);
        }
        if step.used == 0 && !step.has_preempted() {
            self.serve_by_force(&mut step, view);
        }
        step.into_plan()
    }

    fn observe(&mut self, observed: &Observation) {
        if let Some(reserve) = &mut self.reserve {
            reserve.observe(observed);
        }
    }

    fn requeue(&self) -> Requeue {
        match self.reserve {
            Some(_) => Requeue::Back,
            None => Requeue::Front,
        }
    }
}

impl PrefillFirst {
    /// Partial prompts go on, then waiting ones are admitted. Nobody gives way to a prompt.
    fn prompts(&self, step: &mut Step<'_>, view: &View<'_>) {
        let limit = self.frame.chunk_limit(view);
        for (index, seq) in view.running.iter().enumerate() {
            let tokens = step.wanted(index).min(limit).min(step.budget);
            if !seq.is_decode() && tokens > 0 && !step.try_grant(index, tokens) {
                return;
            }
        }
        self.frame.admit(step, view, limit, &mut Everything);
    }

    /// As [`PrefillFirst::prompts`], with the budgets of SGLang's admission.
    fn reserved_prompts(&self, reserve: &Reserve, step: &mut Step<'_>, view: &View<'_>) {
        let limit = self.frame.chunk_limit(view);
        let mut budgets = Budgets::new(reserve, self.frame.chunked, step, view);
        for (index, seq) in view.running.iter().enumerate() {
            let left = step.wanted(index);
            let tokens = left.min(budgets.chunk_tokens()).min(limit);
            if seq.is_decode() || tokens == 0 {
                continue;
            }
            if !step.try_grant(index, tokens) {
                return;
            }
            budgets.charge(tokens, (tokens == left).then_some(seq.remaining));
        }
        for seq in view.waiting {
            if budgets.add(step, seq, limit) == Outcome::Stop {
                return;
            }
        }
    }

    /// Nothing could run: prompts that are partly computed hold all blocks. The first of the list
    /// goes on at the expense of the last.
    fn serve_by_force(&self, step: &mut Step<'_>, view: &View<'_>) {
        let limit = self.frame.chunk_limit(view);
        for index in 0..view.running.len() {
            let tokens = step.wanted(index).min(limit).min(step.budget);
            if tokens > 0 {
                step.grant(index, tokens);
            }
        }
    }
}

fn serve_decodes(step: &mut Step<'_>, view: &View<'_>) {
    for (index, seq) in view.running.iter().enumerate() {
        if seq.is_decode() && step.budget > 0 && step.wanted(index) > 0 {
            step.grant(index, 1);
        }
    }
}
