//! The frame of all policies that cut prompts: running requests, then admissions, under one
//! budget of tokens. What differs between them is the [`Share`] of one prompt.

use pb_contract::RunningOrder;

use crate::policy::{Allocator, StepPlan, View};
use crate::step::{Limits, Step, running_order};

/// How much one prompt may take of a step.
pub(crate) trait Share {
    /// Tokens that a prompt may compute from position `start`, where `wanted` tokens are left of
    /// it and the step holds `used` tokens already. Zero puts it off to a later step.
    fn tokens(&self, start: usize, wanted: usize, used: usize) -> usize;

    /// Learns that a prompt got `count` tokens.
    fn taken(&mut self, _start: usize, _count: usize) {}
}

/// As much as the budget leaves.
pub(crate) struct Everything;

impl Share for Everything {
    fn tokens(&self, _start: usize, wanted: usize, _used: usize) -> usize {
        wanted
    }
}

/// What the policies of this family have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) limits: Limits,
    pub(crate) order: RunningOrder,
    /// Tokens of one request in a step at most; 0 is no limit.
    pub(crate) threshold: usize,
    /// Lift the threshold while one request is alone.
    pub(crate) spares_lone_request: bool,
    /// Whether a prompt may be cut.
    pub(crate) chunked: bool,
}

impl Frame {
    /// What a request may compute at most in one step, budget and share aside.
    pub(crate) fn chunk_limit(&self, view: &View<'_>) -> usize {
        let alone = view.running.len() + view.waiting.len() <= 1;
        match self.threshold {
            0 => usize::MAX,
            _ if !self.chunked || (alone && self.spares_lone_request) => usize::MAX,
            threshold => threshold,
        }
    }

    /// Plans one step.
    pub(crate) fn plan(
        &self,
        view: &View<'_>,
        alloc: &mut dyn Allocator,
        share: &mut dyn Share,
    ) -> StepPlan {
        let mut step = Step::new(&self.limits, view, alloc);
        let limit = self.chunk_limit(view);
        let nobody_put_off = self.serve_running(&mut step, view, limit, share);
        if nobody_put_off && !step.has_preempted() {
            self.admit(&mut step, view, limit, share);
        }
        step.into_plan()
    }

    /// Serves the running requests. False when a prompt was put off by its share; then nobody is
    /// admitted, so that newcomers cannot take turn after turn from it.
    ///
    /// In list order, a request that has to give way itself ends the round (vLLM `schedule`);
    /// with decodes first the others go on, as no decode may wait for another one.
    fn serve_running(
        &self,
        step: &mut Step<'_>,
        view: &View<'_>,
        limit: usize,
        share: &mut dyn Share,
    ) -> bool {
        let mut nobody_put_off = true;
        for index in running_order(view.running, self.order) {
            let seq = &view.running[index];
            // Nothing to compute is no reason to stop: the next one may have work.
            let wanted = step.wanted(index).min(limit).min(step.budget);
            if wanted == 0 {
                continue;
            }
            let tokens = match seq.is_decode() {
                true => wanted,
                false => share.tokens(seq.computed, wanted, step.used).min(wanted),
            };
            if tokens == 0 {
                nobody_put_off = false;
            } else if !step.grant(index, tokens) {
                if self.order == RunningOrder::ListOrder {
                    break;
                }
            } else if !seq.is_decode() {
                share.taken(seq.computed, tokens);
            }
        }
        nobody_put_off
    }

    /// Admits waiting requests in order until one does not fit: nobody is overtaken.
    pub(crate) fn admit(
        &self,
        step: &mut Step<'_>,
        view: &View<'_>,
        limit: usize,
        share: &mut dyn Share,
    ) {
        for seq in view.waiting {
            if step.budget == 0 || !step.has_place(seq) {
                return;
            }
            let hit_tokens = step.hit_tokens(seq);
            let wanted = (seq.num_tokens - hit_tokens).min(limit);
            if !self.chunked && wanted > step.budget {
                return;
            }
            let wanted = wanted.min(step.budget);
            let count = share.tokens(hit_tokens, wanted, step.used).min(wanted);
            if count == 0 || !step.admit(seq, hit_tokens, count) {
                return;
            }
            share.taken(hit_tokens, count);
        }
    }
}
