//! The seam between a scheduling policy and the engine around it.

use pb_contract::RequestId;

/// What a policy may know of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqView {
    /// The request.
    pub id: RequestId,
    /// Tokens known so far: prompt and generated.
    pub num_tokens: usize,
    /// Of these, prompt tokens.
    pub prompt_tokens: usize,
    /// Leading tokens whose keys and values are computed (or scheduled to be).
    pub computed: usize,
    /// The request must compute its whole prompt (it wants prompt log-probabilities), so nothing
    /// is taken from the prefix cache.
    pub skip_cache_read: bool,
    /// It ran before and lost its blocks.
    pub preempted: bool,
    /// Tokens that it may still generate.
    pub remaining: usize,
    /// Running places that it takes: with `n > 1` one for each sequence that will fork from it.
    pub places: usize,
    /// Lower is served first, where the policy heeds it.
    pub priority: i64,
    /// Number of its arrival: unique, ascending.
    pub arrival: u64,
}

impl SeqView {
    /// Tokens that are known but not computed.
    pub fn pending(&self) -> usize {
        self.num_tokens.saturating_sub(self.computed)
    }

    /// Whether the next token to compute is the last generated one. The last token of a prompt
    /// is not: it is still prefill, even when it is alone in its chunk.
    pub fn is_decode(&self) -> bool {
        self.num_tokens > self.prompt_tokens && self.pending() == 1
    }
}

/// The queues before a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct View<'a> {
    /// Admitted requests, in order of admission.
    pub running: &'a [SeqView],
    /// Requests that hold no block, in the order in which they should be admitted.
    pub waiting: &'a [SeqView],
}

/// Block allocation as a policy sees it.
pub trait Allocator {
    /// Leading tokens of a waiting request that the prefix cache holds; below its token count.
    /// Changes nothing.
    fn lookup(&self, id: RequestId) -> usize;

    /// Blocks that the same `allocate` would take out of the free ones.
    fn blocks_needed(
        &self,
        id: RequestId,
        computed: usize,
        hit_tokens: usize,
        new_tokens: usize,
    ) -> usize;

    /// Blocks that can be handed out.
    fn free_blocks(&self) -> usize;

    /// Tokens in a block.
    fn block_size(&self) -> usize;

    /// Gives the request blocks for `new_tokens` tokens after `computed + hit_tokens`; on
    /// admission `computed` is 0, afterwards `hit_tokens` is. False, without any effect, when
    /// there are too few.
    fn allocate(
        &mut self,
        id: RequestId,
        computed: usize,
        hit_tokens: usize,
        new_tokens: usize,
    ) -> bool;

    /// Releases all blocks of a request.
    fn free(&mut self, id: RequestId);
}

/// Tokens of one request in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// The request.
    pub id: RequestId,
    /// Position of the first token to compute.
    pub start: usize,
    /// Tokens to compute, at least one.
    pub count: usize,
    /// On admission, tokens taken from the prefix cache (then equal to `start`).
    pub hit_tokens: Option<usize>,
}

/// What to do in one step. An empty plan is legal: everything may be waiting for something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Running requests in the policy's order, then admitted ones.
    pub scheduled: Vec<Scheduled>,
    /// Running requests that lost their blocks, in the order in which they lost them. Each goes
    /// to the front of the waiting queue in this order, so the last one ends up first.
    pub preempted: Vec<RequestId>,
}

impl StepPlan {
    /// Tokens that the step computes.
    pub fn total_tokens(&self) -> usize {
        self.scheduled.iter().map(|scheduled| scheduled.count).sum()
    }
}

/// What a step did, as the engine measured it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Prompt chunks: tokens computed, and tokens of context before them.
    pub prefill: Vec<(usize, usize)>,
    /// Sequences that decoded.
    pub decode_seqs: usize,
    /// Keys that the decoding sequences attended to, summed.
    pub decode_context: usize,
    /// Requests preempted.
    pub preempted: usize,
    /// Requests that run after the step.
    pub running: usize,
    /// Tokens that running requests have generated so far.
    pub generated: usize,
    /// Tokens that running requests may generate in all.
    pub max_new_tokens: usize,
    /// Duration of the step in nanoseconds, planning included.
    pub duration_ns: u64,
}

/// Where a preempted request goes in the waiting queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Before everyone (vLLM).
    Front,
    /// Behind everyone (SGLang).
    Back,
}

/// A way to choose what runs next.
pub trait Policy: std::fmt::Debug + Send {
    /// Name as it is configured and recorded.
    fn name(&self) -> &'static str;

    /// Plans one step. Blocks of what is scheduled are allocated and blocks of what is preempted
    /// are released through `alloc`; nothing else changes.
    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan;

    /// Learns from a step that has run. Policies without memory ignore it.
    fn observe(&mut self, _step: &Observation) {}

    /// Where preempted requests go.
    fn requeue(&self) -> Requeue {
        Requeue::Front
    }
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn plan(&self, view: &View<'_>, alloc: &mut dyn Allocator) -> StepPlan {
        (**self).plan(view, alloc)
    }

    fn observe(&mut self, step: &Observation) {
        (**self).observe(step);
    }

    fn requeue(&self) -> Requeue {
        (**self).requeue()
    }
}
