//! One step in the making: what every policy shares.
//!
//! Policies differ in how much each request may take and in which order they ask. Granting
//! blocks, choosing who gives way when there are none, and the conditions of admission are the
//! same for all and stand here once.

use std::cmp::Reverse;

use pb_contract::{RequestId, RunningOrder};

use crate::error::PlanError;
use crate::policy::{Allocator, Scheduled, SeqView, StepPlan, View};

/// Who gives its blocks back when a running request needs some and there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Victim {
    /// The last of the running list (vLLM, first come first served).
    #[default]
    Last,
    /// The largest `(priority, arrival)` (vLLM, priority).
    LowestPriority,
    /// Among the decodes the fewest outputs, then the longest prompt, then the last of the list
    /// (SGLang's retraction). With one decode left, the last partial prompt.
    FewestOutputs,
}

/// Limits that hold under every policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Tokens in a step at most.
    pub(crate) max_batched_tokens: usize,
    /// Running places at most; a request takes as many as it has sequences.
    pub(crate) max_num_seqs: usize,
    /// Longest sequence in tokens, prompt and output.
    pub(crate) max_model_len: usize,
    /// Admit a request only when all its known tokens could be given blocks at once.
    pub(crate) reserve_full_prompt: bool,
    /// Blocks to leave free when a request is admitted into a step that has work already.
    pub(crate) watermark_blocks: usize,
    /// Who gives way.
    pub(crate) victim: Victim,
}

impl Limits {
    /// The three sizes; full-prompt reservation, no watermark, the last of the list gives way.
    pub(crate) const fn new(
        max_batched_tokens: usize,
        max_num_seqs: usize,
        max_model_len: usize,
    ) -> Self {
        Limits {
            max_batched_tokens,
            max_num_seqs,
            max_model_len,
            reserve_full_prompt: true,
            watermark_blocks: 0,
            victim: Victim::Last,
        }
    }

    /// Checks that the sizes leave something to schedule.
    ///
    /// # Errors
    /// When a size is zero, or when prompts are never cut and one might exceed the budget.
    pub(crate) fn validate(&self, chunked: bool) -> Result<(), PlanError> {
        let sizes = [
            ("max_batched_tokens", self.max_batched_tokens),
            ("max_num_seqs", self.max_num_seqs),
            ("max_model_len", self.max_model_len),
        ];
        if let Some(&(key, _)) = sizes.iter().find(|(_, value)| *value == 0) {
            return Err(PlanError::Zero { key });
        }
        let (budget, max_model_len) = (self.max_batched_tokens, self.max_model_len);
        if !chunked && budget < max_model_len {
            return Err(PlanError::MonolithicBudget {
                budget,
                max_model_len,
            });
        }
        Ok(())
    }
}

/// Indices of the running requests in the order in which they are served.
pub(crate) fn running_order(running: &[SeqView], order: RunningOrder) -> Vec<usize> {
    let all = 0..running.len();
    match order {
        RunningOrder::ListOrder => all.collect(),
        RunningOrder::DecodeFirst => {
            let (mut decodes, prompts): (Vec<_>, Vec<_>) =
                all.partition(|&index| running[index].is_decode());
            decodes.extend(prompts);
            decodes
        }
    }
}

/// One step in the making.
pub(crate) struct Step<'a> {
    limits: &'a Limits,
    running: &'a [SeqView],
    alloc: &'a mut dyn Allocator,
    /// Tokens left.
    pub(crate) budget: usize,
    /// Tokens scheduled.
    pub(crate) used: usize,
    /// Whether the watermark holds even while nothing is scheduled yet.
    pub(crate) busy: bool,
    /// Blocks that admissions must leave for running requests.
    pub(crate) promised_blocks: usize,
    /// Running requests that have not been preempted in this step.
    alive: Vec<bool>,
    /// Places that they and the admitted ones take.
    places: usize,
    /// Tokens granted to each running request.
    granted: Vec<usize>,
    /// Running requests in the order of their grants.
    served: Vec<usize>,
    admitted: Vec<Scheduled>,
    preempted: Vec<RequestId>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(
        limits: &'a Limits,
        view: &View<'a>,
        alloc: &'a mut dyn Allocator,
    ) -> Step<'a> {
        Step {
            limits,
            running: view.running,
            alloc,
            budget: limits.max_batched_tokens,
            used: 0,
            busy: false,
            promised_blocks: 0,
            alive: vec![true; view.running.len()],
            places: view.running.iter().map(|seq| seq.places).sum(),
            granted: vec![0; view.running.len()],
            served: Vec::with_capacity(view.running.len()),
            admitted: Vec::new(),
            preempted: Vec::new(),
        }
    }

    /// The blocks, for questions only.
    pub(crate) fn memory(&self) -> &dyn Allocator {
        self.alloc
    }

    /// Whether somebody lost its blocks. Then nobody is admitted: whoever was just preempted must
    /// not be overtaken by a newcomer.
    pub(crate) fn has_preempted(&self) -> bool {
        !self.preempted.is_empty()
    }

    /// Tokens that a running request has left to compute: bounded by the longest sequence, none
    /// once it was preempted or served.
    pub(crate) fn wanted(&self, index: usize) -> usize {
        if !self.alive[index] || self.granted[index] > 0 {
            return 0;
        }
        let seq = &self.running[index];
        let last = self.limits.max_model_len.saturating_sub(1);
        seq.pending().min(last.saturating_sub(seq.computed))
    }

    /// Allocates for a running request if there are blocks.
    pub(crate) fn try_grant(&mut self, index: usize, tokens: usize) -> bool {
        let seq = &self.running[index];
        if !self.alloc.allocate(seq.id, seq.computed, 0, tokens) {
            return false;
        }
        self.granted[index] = tokens;
        self.served.push(index);
        self.budget -= tokens;
        self.used += tokens;
        true
    }

    /// Allocates for a running request; until it succeeds, others give way, at last itself.
    pub(crate) fn grant(&mut self, index: usize, tokens: usize) -> bool {
        while !self.try_grant(index, tokens) {
            let victim = self.victim();
            self.preempt(victim);
            if victim == index {
                return false;
            }
        }
        true
    }

    fn preempt(&mut self, victim: usize) {
        self.alive[victim] = false;
        self.places -= self.running[victim].places;
        self.alloc.free(self.running[victim].id);
        self.preempted.push(self.running[victim].id);
        // A victim that had its share already returns it.
        let returned = std::mem::take(&mut self.granted[victim]);
        self.budget += returned;
        self.used -= returned;
    }

    /// The running request that gives way next. Called only for a request that is alive itself,
    /// so there is one.
    fn victim(&self) -> usize {
        let alive = || (0..self.running.len()).filter(|&index| self.alive[index]);
        let last = alive().next_back();
        let chosen = match self.limits.victim {
            Victim::Last => last,
            Victim::LowestPriority => alive().max_by_key(|&index| {
                let seq = &self.running[index];
                (seq.priority, seq.arrival)
            }),
            Victim::FewestOutputs => self.retracted(),
        };
        // OK because grant asks on behalf of a request that is alive.
        chosen.expect("the request that needs blocks is alive")
    }

    fn retracted(&self) -> Option<usize> {
        let alive = (0..self.running.len()).filter(|&index| self.alive[index]);
        let (decodes, prompts): (Vec<_>, Vec<_>) =
            alive.partition(|&index| self.running[index].is_decode());
        if decodes.len() <= 1 && !prompts.is_empty() {
            return prompts.last().copied();
        }
        decodes.into_iter().min_by_key(|&index| {
            let seq = &self.running[index];
            let outputs = seq.num_tokens - seq.prompt_tokens;
            (outputs, Reverse(seq.prompt_tokens), Reverse(index))
        })
    }

    /// Whether a waiting request finds its running places free.
    pub(crate) fn has_place(&self, seq: &SeqView) -> bool {
        self.places + seq.places <= self.limits.max_num_seqs
    }

    /// Leading tokens of a waiting request that need no computation.
    pub(crate) fn hit_tokens(&self, seq: &SeqView) -> usize {
        let hit_tokens = if seq.skip_cache_read {
            0
        } else {
            self.alloc.lookup(seq.id)
        };
        assert!(
            hit_tokens < seq.num_tokens,
            "a hit leaves at least one token to compute"
        );
        hit_tokens
    }

    /// Admits a waiting request with `count` tokens after `hit_tokens`, or changes nothing.
    pub(crate) fn admit(&mut self, seq: &SeqView, hit_tokens: usize, count: usize) -> bool {
        debug_assert!(count > 0 && count <= self.budget && self.has_place(seq));
        if !self.has_room(seq, hit_tokens, count)
            || !self.alloc.allocate(seq.id, 0, hit_tokens, count)
        {
            return false;
        }
        self.budget -= count;
        self.used += count;
        self.places += seq.places;
        self.admitted.push(Scheduled {
            id: seq.id,
            start: hit_tokens,
            count,
            hit_tokens: Some(hit_tokens),
        });
        true
    }

    /// The conditions of admission that go beyond the blocks of the first chunk.
    fn has_room(&self, seq: &SeqView, hit_tokens: usize, count: usize) -> bool {
        let limits = self.limits;
        let left = |tokens: usize| {
            let needed = self.alloc.blocks_needed(seq.id, 0, hit_tokens, tokens);
            let free = self.alloc.free_blocks();
            free.checked_sub(needed + self.promised_blocks)
        };
        let watermark = match self.busy || self.used > 0 {
            true => limits.watermark_blocks,
            false => 0,
        };
        let fits = |tokens: usize| left(tokens).is_some_and(|blocks| blocks >= watermark);
        let total = seq.num_tokens.min(limits.max_model_len);
        if limits.reserve_full_prompt && !fits(total.saturating_sub(hit_tokens)) {
            return false;
        }
        (watermark == 0 && self.promised_blocks == 0) || fits(count)
    }

    pub(crate) fn into_plan(self) -> StepPlan {
        let served = self.served.iter().filter(|&&index| self.granted[index] > 0);
        let mut scheduled: Vec<_> = served
            .map(|&index| Scheduled {
                id: self.running[index].id,
                start: self.running[index].computed,
                count: self.granted[index],
                hit_tokens: None,
            })
            .collect();
        scheduled.extend(self.admitted);
        StepPlan {
            scheduled,
            preempted: self.preempted,
        }
    }
}
