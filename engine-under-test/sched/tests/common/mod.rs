//! A miniature engine around a policy: queues, counters and a memory, no model.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::{BTreeMap, BTreeSet};

use pb_contract::RequestId;
use pb_sched::{Allocator, Policy, SeqView, StepPlan, TokenBudget, View};

/// A memory that can also be told of generated tokens.
pub(crate) trait Memory: Allocator {
    /// A token was generated for `id` in a step that is over.
    fn generated(&mut self, id: RequestId, token: u32);
}

/// Counts blocks; there is no sharing. Can be told to refuse one call.
#[derive(Debug)]
pub(crate) struct Counting {
    pub(crate) block_size: usize,
    pub(crate) free: usize,
    pub(crate) held: BTreeMap<RequestId, usize>,
    pub(crate) hits: BTreeMap<RequestId, usize>,
    pub(crate) calls: usize,
    pub(crate) refuse_call: Option<usize>,
}

impl Counting {
    pub(crate) fn new(block_size: usize, blocks: usize) -> Self {
        Counting {
            block_size,
            free: blocks,
            held: BTreeMap::new(),
            hits: BTreeMap::new(),
            calls: 0,
            refuse_call: None,
        }
    }

    pub(crate) fn unlimited() -> Self {
        Self::new(16, usize::MAX / 2)
    }
}

impl Allocator for Counting {
    fn lookup(&self, id: RequestId) -> usize {
        self.hits.get(&id).copied().unwrap_or(0)
    }

    fn blocks_needed(&self, id: RequestId, computed: usize, hit: usize, new: usize) -> usize {
        let held = self.held.get(&id).copied().unwrap_or(0);
        (computed + hit + new)
            .div_ceil(self.block_size)
            .saturating_sub(held)
    }

    fn free_blocks(&self) -> usize {
        self.free
    }

    fn allocate(&mut self, id: RequestId, computed: usize, hit: usize, new: usize) -> bool {
        assert!(new > 0, "request {id} was scheduled for nothing");
        self.calls += 1;
        let needed = self.blocks_needed(id, computed, hit, new);
        if needed > self.free || self.refuse_call == Some(self.calls) {
            return false;
        }
        self.free -= needed;
        *self.held.entry(id).or_insert(0) += needed;
        true
    }

    fn free(&mut self, id: RequestId) {
        self.free += self.held.remove(&id).unwrap_or(0);
    }
}

impl Memory for Counting {
    fn generated(&mut self, _id: RequestId, _token: u32) {}
}

/// A request of the miniature engine.
#[derive(Clone, Debug)]
pub(crate) struct Req {
    pub(crate) id: RequestId,
    pub(crate) prompt: usize,
    pub(crate) max_tokens: usize,
    pub(crate) output: Vec<u32>,
    pub(crate) computed: usize,
    pub(crate) preempted: bool,
}

impl Req {
    pub(crate) fn new(id: u64, prompt: usize, max_tokens: usize) -> Self {
        let id = RequestId(id);
        Req {
            id,
            prompt,
            max_tokens,
            output: Vec::new(),
            computed: 0,
            preempted: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.prompt + self.output.len()
    }

    fn view(&self) -> SeqView {
        SeqView {
            id: self.id,
            num_tokens: self.len(),
            prompt_tokens: self.prompt,
            computed: self.computed,
            skip_cache_read: false,
            preempted: self.preempted,
        }
    }
}

/// The queues around a policy.
#[derive(Debug)]
pub(crate) struct Sim<M> {
    pub(crate) policy: TokenBudget,
    pub(crate) memory: M,
    pub(crate) running: Vec<Req>,
    pub(crate) waiting: Vec<Req>,
    pub(crate) finished: Vec<Req>,
    pub(crate) preemptions: usize,
}

impl<M: Memory> Sim<M> {
    pub(crate) fn new(policy: TokenBudget, memory: M) -> Self {
        policy.validate().unwrap();
        Sim {
            policy,
            memory,
            running: Vec::new(),
            waiting: Vec::new(),
            finished: Vec::new(),
            preemptions: 0,
        }
    }

    pub(crate) fn add(&mut self, id: u64, prompt: usize, max_tokens: usize) {
        self.waiting.push(Req::new(id, prompt, max_tokens));
    }

    /// Puts requests straight into their decode phase.
    pub(crate) fn add_decodes(&mut self, ids: std::ops::Range<u64>, max_tokens: usize) {
        for id in ids {
            let mut req = Req::new(id, 1, max_tokens);
            assert!(self.memory.allocate(req.id, 0, 0, 1));
            (req.computed, req.output) = (1, vec![0]);
            self.running.push(req);
        }
    }

    /// One step: plan, verify the laws, advance.
    pub(crate) fn step(&mut self) -> StepPlan {
        self.step_with(&|_| 0)
    }

    /// As [`Sim::step`] with the token that each request generates.
    pub(crate) fn step_with(&mut self, sample: &dyn Fn(RequestId) -> u32) -> StepPlan {
        let running: Vec<_> = self.running.iter().map(Req::view).collect();
        let waiting: Vec<_> = self.waiting.iter().map(Req::view).collect();
        let view = View {
            running: &running,
            waiting: &waiting,
        };
        let plan = self.policy.plan(&view, &mut self.memory);
        self.verify(&view, &plan);
        for &id in &plan.preempted {
            let at = self.running.iter().position(|req| req.id == id).unwrap();
            let mut req = self.running.remove(at);
            (req.computed, req.preempted) = (0, true);
            self.waiting.insert(0, req);
            self.preemptions += 1;
        }
        for scheduled in &plan.scheduled {
            if scheduled.hit_tokens.is_some() {
                assert_eq!(
                    self.waiting[0].id, scheduled.id,
                    "admission keeps the order"
                );
                self.running.push(self.waiting.remove(0));
            }
            let id = scheduled.id;
            let req = self.running.iter_mut().find(|req| req.id == id).unwrap();
            req.computed = scheduled.start + scheduled.count;
            if req.computed == req.len() {
                req.output.push(sample(id));
                self.memory.generated(id, sample(id));
            }
        }
        let order: Vec<_> = plan
            .scheduled
            .iter()
            .map(|scheduled| scheduled.id)
            .collect();
        order.into_iter().for_each(|id| self.finish_if_done(id));
        plan
    }

    fn finish_if_done(&mut self, id: RequestId) {
        let at = self.running.iter().position(|req| req.id == id).unwrap();
        let req = &self.running[at];
        if req.output.len() >= req.max_tokens || req.len() >= self.policy.max_model_len {
            self.memory.free(id);
            self.finished.push(self.running.remove(at));
        }
    }

    fn verify(&self, view: &View<'_>, plan: &StepPlan) {
        let budget = self.policy.max_batched_tokens;
        assert!(
            plan.total_tokens() <= budget,
            "budget {budget} exceeded: {plan:?}"
        );
        let ids: BTreeSet<_> = plan.scheduled.iter().map(|s| s.id).collect();
        assert_eq!(ids.len(), plan.scheduled.len(), "scheduled twice: {plan:?}");
        assert!(
            plan.preempted.iter().all(|id| !ids.contains(id)),
            "both: {plan:?}"
        );
        let admitted = plan
            .scheduled
            .iter()
            .filter(|s| s.hit_tokens.is_some())
            .count();
        assert!(
            admitted == 0 || plan.preempted.is_empty(),
            "admitted after preemption: {plan:?}"
        );
        let running = view.running.len() - plan.preempted.len() + admitted;
        assert!(admitted == 0 || running <= self.policy.max_num_seqs);
        for scheduled in &plan.scheduled {
            assert!(scheduled.count > 0, "empty chunk: {plan:?}");
            let known = view.running.iter().find(|seq| seq.id == scheduled.id);
            let waiting = view.waiting.iter().find(|seq| seq.id == scheduled.id);
            let seq = known.or(waiting).unwrap();
            let start = scheduled.hit_tokens.unwrap_or(seq.computed);
            assert_eq!(
                (scheduled.start, waiting.is_some()),
                (start, known.is_none())
            );
            assert!(scheduled.start + scheduled.count <= seq.num_tokens);
            assert!(
                seq.is_decode() || self.policy.chunked || known.is_none(),
                "a cut prompt"
            );
        }
        let decodes = view.running.iter().filter(|seq| seq.is_decode());
        let starved = decodes.filter(|seq| !ids.contains(&seq.id)).count();
        let decode_first = self.policy.order == pb_sched::RunningOrder::DecodeFirst;
        let full = plan.scheduled.iter().filter(|s| s.count == 1).count() == budget;
        assert!(
            !decode_first || full || starved <= plan.preempted.len(),
            "{starved} decodes left out: {plan:?}"
        );
    }

    /// Steps until nothing is left; returns the number of steps. Panics beyond `limit`.
    pub(crate) fn drain(&mut self, limit: usize) -> usize {
        for steps in 0..=limit {
            if self.running.is_empty() && self.waiting.is_empty() {
                return steps;
            }
            self.step();
        }
        panic!(
            "not finished after {limit} steps: {} left",
            self.running.len()
        );
    }
}

/// `(id, start, count)` of every scheduled row.
pub(crate) fn rows(plan: &StepPlan) -> Vec<(u64, usize, usize)> {
    plan.scheduled
        .iter()
        .map(|s| (s.id.0, s.start, s.count))
        .collect()
}
