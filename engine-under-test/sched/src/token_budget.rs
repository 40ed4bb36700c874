//! The token budget of Sarathi-Serve and vLLM V1: decodes never wait for a prompt.
//!
//! A step computes at most `max_batched_tokens` tokens. Running requests come first and new ones
//! are admitted into what is left, so a long prompt is cut into chunks that ride along with the
//! decodes instead of stopping them. With chunking off the same rules give the monolithic
//! schedule that this policy is compared with: a prompt is admitted whole or not at all.
//!
//! With more decodes than budget the first `max_batched_tokens` of them run and the others wait
//! for a later step; no prompt progresses, and no chunk is ever zero or negative (the original
//! subtraction goes below zero there).
//!
//! When the blocks run out, the last admitted request gives its own back and is computed anew
//! later. The first request of the list can therefore always go on, which is why every admissible
//! load ends.

use pb_contract::RequestId;

use crate::chunks::PlanError;
use crate::policy::{Allocator, Policy, Scheduled, SeqView, StepPlan, View};

/// In which order running requests take their share of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunningOrder {
    /// Decodes first, then prompts that are partly computed (Sarathi-Serve).
    #[default]
    DecodeFirst,
    /// In order of admission, whatever they compute (vLLM V1).
    ListOrder,
}

/// The limits of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBudget {
    /// Tokens in a step at most.
    pub max_batched_tokens: usize,
    /// Running requests at most.
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
}

impl TokenBudget {
    /// Decodes first, full-prompt reservation on, no threshold, no watermark.
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
        }
    }

    /// Checks that every admissible request can be scheduled at some time.
    ///
    /// # Errors
    /// When a limit is zero, or when chunking is off and a whole prompt might exceed the budget.
    pub fn validate(&self) -> Result<(), PlanError> {
        let limits = [
            ("max_batched_tokens", self.max_batched_tokens),
            ("max_num_seqs", self.max_num_seqs),
            ("max_model_len", self.max_model_len),
        ];
        if let Some(&(key, _)) = limits.iter().find(|(_, value)| *value == 0) {
            return Err(PlanError::Zero { key });
        }
        let (budget, max_model_len) = (self.max_batched_tokens, self.max_model_len);
        if !self.chunked && budget < max_model_len {
            return Err(PlanError::MonolithicBudget {
                budget,
                max_model_len,
            });
        }
        Ok(())
    }

    /// What a request may compute at most in one step, the budget aside.
    fn chunk_limit(&self, view: &View<'_>) -> usize {
        let alone = view.running.len() + view.waiting.len() <= 1;
        match self.long_prefill_token_threshold {
            0 => usize::MAX,
            _ if !self.chunked || (alone && self.threshold_spares_lone_request) => usize::MAX,
            threshold => threshold,
        }
    }
}

impl Policy for TokenBudget {
    fn name(&self) -> &'static str {
        "token_budget"
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        let mut step = Step {
            policy: self,
            running: view.running,
            alloc,
            budget: self.max_batched_tokens,
            chunk_limit: self.chunk_limit(view),
            alive: view.running.len(),
            granted: vec![0; view.running.len()],
            admitted: Vec::new(),
            preempted: Vec::new(),
        };
        let order = step.running_order();
        step.serve_running(&order);
        // Whoever was just preempted must not be overtaken by a newcomer.
        if step.preempted.is_empty() {
            step.admit(view.waiting);
        }
        step.into_plan(&order)
    }
}

/// One step in the making.
struct Step<'a> {
    policy: &'a TokenBudget,
    running: &'a [SeqView],
    alloc: &'a mut dyn Allocator,
    /// Tokens left.
    budget: usize,
    /// Tokens of one request at most.
    chunk_limit: usize,
    /// Leading running requests that have not been preempted in this step.
    alive: usize,
    /// Tokens granted to each running request.
    granted: Vec<usize>,
    admitted: Vec<Scheduled>,
    preempted: Vec<RequestId>,
}

impl Step<'_> {
    /// Indices of the running requests in the order in which they are served.
    fn running_order(&self) -> Vec<usize> {
        let all = 0..self.running.len();
        match self.policy.order {
            RunningOrder::ListOrder => all.collect(),
            RunningOrder::DecodeFirst => {
                let (mut decodes, prompts): (Vec<_>, Vec<_>) =
                    all.partition(|&index| self.running[index].is_decode());
                decodes.extend(prompts);
                decodes
            }
        }
    }

    fn serve_running(&mut self, order: &[usize]) {
        for &index in order {
            let seq = &self.running[index];
            // The position of the last token that may be computed bounds what is left to do.
            let room = self
                .policy
                .max_model_len
                .saturating_sub(1)
                .saturating_sub(seq.computed);
            let limit = self.chunk_limit.min(self.budget).min(room);
            let tokens = seq.pending().min(limit);
            // Nothing to compute is no reason to stop: the next one may have work.
            if index < self.alive && tokens > 0 {
                self.grant(index, tokens);
            }
        }
    }

    /// Allocates for a running request; until it succeeds, the last running request gives way.
    fn grant(&mut self, index: usize, tokens: usize) {
        let seq = &self.running[index];
        while !self.alloc.allocate(seq.id, seq.computed, 0, tokens) {
            self.alive -= 1;
            let victim = self.running[self.alive].id;
            self.alloc.free(victim);
            self.preempted.push(victim);
            // A victim that had its share already returns it.
            self.budget += std::mem::take(&mut self.granted[self.alive]);
            if self.alive == index {
                return;
            }
        }
        self.granted[index] = tokens;
        self.budget -= tokens;
    }

    /// Admits waiting requests in order until one does not fit: nobody is overtaken.
    fn admit(&mut self, waiting: &[SeqView]) {
        for seq in waiting {
            let running = self.alive + self.admitted.len();
            if self.budget == 0 || running >= self.policy.max_num_seqs {
                return;
            }
            let hit_tokens = if seq.skip_cache_read {
                0
            } else {
                self.alloc.lookup(seq.id)
            };
            assert!(
                hit_tokens < seq.num_tokens,
                "a hit leaves at least one token to compute"
            );
            let wanted = (seq.num_tokens - hit_tokens).min(self.chunk_limit);
            if !self.policy.chunked && wanted > self.budget {
                return;
            }
            let count = wanted.min(self.budget);
            if !self.has_room(seq, hit_tokens, count)
                || !self.alloc.allocate(seq.id, 0, hit_tokens, count)
            {
                return;
            }
            self.budget -= count;
            let hit = Some(hit_tokens);
            self.admitted.push(Scheduled {
                id: seq.id,
                start: hit_tokens,
                count,
                hit_tokens: hit,
            });
        }
    }

    /// The conditions of admission that go beyond the blocks of the first chunk.
    fn has_room(&self, seq: &SeqView, hit_tokens: usize, count: usize) -> bool {
        let total = seq.num_tokens.min(self.policy.max_model_len);
        if self.policy.reserve_full_prompt && !self.alloc.fits_in_full(seq.id, hit_tokens, total) {
            return false;
        }
        let step_has_work = self.budget < self.policy.max_batched_tokens;
        if self.policy.watermark_blocks == 0 || !step_has_work {
            return true;
        }
        let needed = self.alloc.blocks_needed(seq.id, 0, hit_tokens, count);
        needed + self.policy.watermark_blocks <= self.alloc.free_blocks()
    }

    fn into_plan(self, order: &[usize]) -> StepPlan {
        let served = order.iter().filter(|&&index| self.granted[index] > 0);
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
