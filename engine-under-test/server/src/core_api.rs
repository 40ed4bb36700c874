//! What the server asks of an engine core.
//!
//! The server does not name an engine: it drives whatever implements [`Core`] from one thread of
//! its own. That is what lets its tests run against a scripted core, without a model.

use pb_contract::{Buckets, Clock, EngineConfig, EngineEvent, EngineRequest, RequestId, StepRow};

/// An engine core: a state machine that is stepped by the server's engine thread.
///
/// An end-of-sequence or stop token is reported as a `Token` event (it counts as output, as in
/// vLLM) and the `Finished` event follows among the events of the same step.
pub trait Core: Send {
    /// Takes a request in.
    ///
    /// # Errors
    /// A sentence for the user when the request can never run.
    fn add(&mut self, request: EngineRequest) -> Result<(), Refusal>;

    /// Drops a request and frees its blocks; no event follows. False when it is not known.
    fn abort(&mut self, id: RequestId) -> bool;

    /// Whether a step would do anything.
    fn has_work(&self) -> bool;

    /// Runs one step.
    ///
    /// # Errors
    /// The step was lost, and with it some requests or all.
    fn step(&mut self, clock: &dyn Clock) -> Result<CoreStep, CoreFailure>;

    /// Forgets every cached prefix. False when blocks are in use, and nothing was forgotten.
    fn reset_prefix_cache(&mut self) -> bool;

    /// Where the KV blocks stand.
    fn buckets(&self) -> Buckets;

    /// Counts since the start, and the queue lengths now.
    fn counters(&self) -> CoreCounters;

    /// What the engine was asked to be.
    fn config(&self) -> &EngineConfig;
}

/// What one step did.
#[derive(Clone, Debug)]
pub struct CoreStep {
    /// Timings and counts.
    pub row: StepRow,
    /// What happened to the requests, in order.
    pub events: Vec<EngineEvent>,
}

/// Counts since the start of the core. Tokens unless named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCounters {
    /// Looked up in the prefix cache at first admissions.
    pub queried_tokens: u64,
    /// Of these, found.
    pub hit_tokens: u64,
    /// Looked up when a preempted request came back.
    pub preempted_queried_tokens: u64,
    /// Of these, found.
    pub preempted_hit_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Cached blocks that lost their contents.
    pub evicted_blocks: u64,
    /// Requests running now.
    pub running: usize,
    /// Requests waiting now.
    pub waiting: usize,
}

/// A request that can never run, in words for its sender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CoreFailure {
    /// What went wrong.
    pub message: String,
    /// Requests that the core has dropped for it; the others go on. None at all means that the
    /// core cannot be used any more.
    pub failed: Vec<RequestId>,
}
