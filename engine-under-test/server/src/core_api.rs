//! What the server asks of an engine core.
//!
//! The server does not name an engine: it drives whatever implements [`Core`] from one thread of
//! its own. That is what lets its tests run against a scripted core, without a model.

use pb_contract::{
    Buckets, Clock, EngineConfig, EngineEvent, EngineRequest, Nanos, RequestId, StepRow,
};
use pb_core::Counters;
use pb_kv::CacheStats;
use pb_tiers::{TierKind, TierStats};

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

    /// Tells how long commands and shared locks held the next step up, for its row.
    fn set_lock_wait(&mut self, _waited: Nanos) {}

    /// Runs one step.
    ///
    /// # Errors
    /// The step was lost, and with it some requests or all.
    fn step(&mut self, clock: &dyn Clock) -> Result<CoreStep, CoreFailure>;

    /// Forgets every cached prefix. False when blocks are in use, and nothing was forgotten.
    fn reset_prefix_cache(&mut self) -> bool;

    /// Buckets, counters and statistics now.
    fn status(&self) -> CoreStatus;

    /// Bytes reserved for the KV pool, whatever is in it.
    fn kv_pool_bytes(&self) -> usize;

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

/// Where a core stands.
#[derive(Clone, Debug, Default)]
pub struct CoreStatus {
    /// Where the KV blocks stand.
    pub buckets: Buckets,
    /// Counts since the start, and the lengths of queues and pools now.
    pub counters: Counters,
    /// What became of the cached blocks.
    pub cache: CacheStats,
    /// Each tier that is on, fastest first.
    pub tiers: Vec<(TierKind, TierStats)>,
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
