//! A miniature engine around a policy: queues, counters and a memory, no model.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod arms;
pub(crate) mod kv;

use std::collections::BTreeMap;

use pb_contract::{
    BlockId, EngineConfig, KvDtype, Numerics, PrefixCacheKind, QueueOrder, RequestId, Scheduling,
    TokenId,
};
use pb_sched::laws::{Laws, check_plan};
use pb_sched::{
    Allocator, Observation, Policy, QueueInfo, Requeue, RunningOrder, SeqView, StepPlan,
    TokenBudget, View, arrange,
};

/// A memory that is also told what was computed, generated and finished.
pub(crate) trait Memory: Allocator {
    /// The keys and values of the first `computed` tokens are there.
    fn committed(&mut self, _id: RequestId, _computed: usize) {}

    /// A token was generated for `id` in a step that is over.
    fn generated(&mut self, _id: RequestId, _token: u32) {}

    /// The request has ended.
    fn finished(&mut self, id: RequestId) {
        self.free(id);
    }

    /// What queue orders may ask.
    fn info(&self) -> &dyn QueueInfo {
        &NothingCached
    }
}

struct NothingCached;

impl QueueInfo for NothingCached {
    fn matched_blocks(&self, _id: RequestId) -> Vec<BlockId> {
        Vec::new()
    }

    fn block_size(&self) -> usize {
        1
    }

    fn tokens(&self, _id: RequestId) -> &[TokenId] {
        &[]
    }

    fn scope_key(&self, _id: RequestId) -> u64 {
        0
    }
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
        Self::new(16, usize::MAX / 32)
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

    fn block_size(&self) -> usize {
        self.block_size
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

impl Memory for Counting {}

/// A configuration of sizes that tests change as they need.
pub(crate) fn config(budget: usize, chunked: bool, scheduling: Scheduling) -> EngineConfig {
    EngineConfig {
        numerics: Numerics::Exact,
        kv_dtype: KvDtype::F32,
        threads: 1,
        chunked,
        max_batched_tokens: budget,
        max_num_seqs: 64,
        prefix_cache: PrefixCacheKind::None,
        block_size: 4,
        num_blocks: 64,
        max_model_len: 256,
        seed: 0,
        scheduling,
        cache: Default::default(),
        tiers: Default::default(),
        fault: Default::default(),
    }
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
    pub(crate) priority: i64,
    pub(crate) places: usize,
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
            priority: 0,
            places: 1,
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
            remaining: self.max_tokens.saturating_sub(self.output.len()),
            places: self.places,
            priority: self.priority,
            arrival: self.id.0,
        }
    }
}

/// The queues around a policy.
#[derive(Debug)]
pub(crate) struct Sim<M, P = TokenBudget> {
    pub(crate) policy: P,
    pub(crate) laws: Laws,
    pub(crate) queue: QueueOrder,
    pub(crate) max_model_len: usize,
    pub(crate) memory: M,
    pub(crate) running: Vec<Req>,
    pub(crate) waiting: Vec<Req>,
    pub(crate) finished: Vec<Req>,
    pub(crate) preemptions: usize,
    /// Prompt tokens computed.
    pub(crate) prefill_tokens: usize,
    /// What the last step did.
    pub(crate) last: Observation,
    /// Duration of a step that did this.
    pub(crate) duration_ns: fn(&Observation) -> u64,
}

impl<M: Memory> Sim<M> {
    pub(crate) fn new(policy: TokenBudget, memory: M) -> Self {
        policy.validate().unwrap();
        let laws = Laws {
            max_batched_tokens: policy.max_batched_tokens,
            max_num_seqs: policy.max_num_seqs,
            chunked: policy.chunked,
            stall_free: policy.order == RunningOrder::DecodeFirst,
            phases_apart: false,
        };
        Sim::of(policy, laws, policy.max_model_len, memory)
    }
}

impl<M: Memory> Sim<M, Box<dyn Policy>> {
    pub(crate) fn build(config: &EngineConfig, memory: M) -> Self {
        let policy = pb_sched::build(config).unwrap();
        let laws = Laws::of(config);
        Sim {
            queue: config.scheduling.queue,
            ..Sim::of(policy, laws, config.max_model_len, memory)
        }
    }
}

impl<M: Memory, P: Policy> Sim<M, P> {
    pub(crate) fn of(policy: P, laws: Laws, max_model_len: usize, memory: M) -> Self {
        Sim {
            policy,
            laws,
            queue: QueueOrder::Fcfs,
            max_model_len,
            memory,
            running: Vec::new(),
            waiting: Vec::new(),
            finished: Vec::new(),
            preemptions: 0,
            prefill_tokens: 0,
            last: Observation::default(),
            duration_ns: |_| 1_000_000,
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
        self.try_step(sample)
            .unwrap_or_else(|broken| panic!("{broken}"))
    }

    /// As [`Sim::step_with`]; a broken law is an error.
    pub(crate) fn try_step(
        &mut self,
        sample: &dyn Fn(RequestId) -> u32,
    ) -> Result<StepPlan, String> {
        let running: Vec<_> = self.running.iter().map(Req::view).collect();
        let in_line: Vec<_> = self.waiting.iter().map(Req::view).collect();
        let order = arrange(self.queue, &in_line, self.memory.info());
        let waiting: Vec<_> = order.into_iter().map(|index| in_line[index]).collect();
        let view = View {
            running: &running,
            waiting: &waiting,
        };
        let plan = self.policy.plan(&view, &mut self.memory);
        check_plan(&view, &plan, &self.laws).map_err(|broken| format!("{broken}: {plan:?}"))?;
        self.preempt(&plan);
        let mut observed = self.compute(&plan, sample);
        self.finish(&plan);
        observed.preempted = plan.preempted.len();
        observed.running = self.running.len();
        observed.generated = self.running.iter().map(|req| req.output.len()).sum();
        observed.max_new_tokens = self.running.iter().map(|req| req.max_tokens).sum();
        observed.duration_ns = (self.duration_ns)(&observed);
        self.policy.observe(&observed);
        self.last = observed;
        Ok(plan)
    }

    fn preempt(&mut self, plan: &StepPlan) {
        for &id in &plan.preempted {
            let at = self.running.iter().position(|req| req.id == id).unwrap();
            let mut req = self.running.remove(at);
            (req.computed, req.preempted) = (0, true);
            match self.policy.requeue() {
                Requeue::Front => self.waiting.insert(0, req),
                Requeue::Back => self.waiting.push(req),
            }
            self.preemptions += 1;
        }
    }

    fn compute(&mut self, plan: &StepPlan, sample: &dyn Fn(RequestId) -> u32) -> Observation {
        let mut observed = Observation::default();
        for row in &plan.scheduled {
            if row.hit_tokens.is_some() {
                let at = self
                    .waiting
                    .iter()
                    .position(|req| req.id == row.id)
                    .unwrap();
                self.running.push(self.waiting.remove(at));
            }
            let id = row.id;
            let req = self.running.iter_mut().find(|req| req.id == id).unwrap();
            if req.view().is_decode() {
                observed.decode_seqs += 1;
                observed.decode_context += req.len();
            } else {
                observed.prefill.push((row.count, row.start));
                self.prefill_tokens += row.count;
            }
            req.computed = row.start + row.count;
            self.memory.committed(id, req.computed);
            if req.computed == req.len() {
                req.output.push(sample(id));
                self.memory.generated(id, sample(id));
            }
        }
        observed
    }

    fn finish(&mut self, plan: &StepPlan) {
        for row in &plan.scheduled {
            let at = self
                .running
                .iter()
                .position(|req| req.id == row.id)
                .unwrap();
            let req = &self.running[at];
            if req.output.len() >= req.max_tokens || req.len() >= self.max_model_len {
                self.memory.finished(row.id);
                self.finished.push(self.running.remove(at));
            }
        }
    }

    /// Aborts a request in whatever state it is.
    pub(crate) fn abort(&mut self, id: RequestId) {
        self.memory.free(id);
        self.running.retain(|req| req.id != id);
        self.waiting.retain(|req| req.id != id);
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
            "not finished after {limit} steps: {} run, {} wait",
            self.running.len(),
            self.waiting.len()
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

/// Chunks of request `id` until its prompt is computed.
pub(crate) fn chunks_of<M: Memory, P: Policy>(sim: &mut Sim<M, P>, id: u64) -> Vec<usize> {
    let mut chunks = Vec::new();
    for _ in 0..10_000 {
        let plan = sim.step();
        let own = plan.scheduled.iter().filter(|row| row.id.0 == id);
        chunks.extend(own.map(|row| row.count));
        let mut all = sim.running.iter().chain(&sim.finished);
        if all.any(|req| req.id.0 == id && !req.output.is_empty()) {
            return chunks;
        }
    }
    panic!("request {id} got no first token: {chunks:?}");
}
