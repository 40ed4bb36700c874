//! What the server asks of an engine core.
//!
//! The server does not name an engine: it drives whatever implements [`Core`] from one thread of
//! its own. That is what lets its tests run against a scripted core, without a model.

use pb_contract::{
    Buckets, Clock, EngineConfig, EngineEvent, EngineRequest, Nanos, RequestId, StepRow,
};
use pb_core::disagg::{HandedOff, KvStats, KvTask};
use pb_core::{Counters, DeviceMemory, KernelTotal};
use pb_kv::{CacheEvent, CacheStats};
use pb_tiers::{TierKind, TierStats};
use pb_transfer::TransferRow;

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

    /// Takes a request in of which this core computes a part.
    ///
    /// # Errors
    /// As [`Core::add`]; and when the core can compute whole requests only.
    fn add_part(&mut self, request: EngineRequest, task: KvTask) -> Result<(), Refusal> {
        match task {
            KvTask::Whole => self.add(request),
            KvTask::HandOff | KvTask::Stream(_) | KvTask::Prefetch(_) | KvTask::Take(_) => {
                let reason = "this engine computes whole requests only: start it with --role";
                Err(Refusal(reason.to_owned()))
            }
        }
    }

    /// Calls `wake` from now on when [`Core::hear`] has something to do, from another thread.
    fn set_waker(&mut self, _wake: Box<dyn Fn() + Send + Sync>) {}

    /// Takes what other threads have told. Gives the requests that have failed by it, and why; they
    /// are gone.
    fn hear(&mut self) -> Vec<(RequestId, String)> {
        Vec::new()
    }

    /// Whether the last step computed nothing although there is work, because others hold blocks.
    fn is_blocked(&self) -> bool {
        false
    }

    /// Requests that ended in the last step and wait to be decoded elsewhere.
    fn take_handed_off(&mut self) -> Vec<HandedOff> {
        Vec::new()
    }

    /// Requests that only fetched KV ahead and have ended since the last call.
    fn take_fetched(&mut self) -> Vec<RequestId> {
        Vec::new()
    }

    /// Takes back KV that is held under a ticket. False when none is, or somebody has claimed it.
    fn release(&mut self, _ticket: u64) -> bool {
        false
    }

    /// Rows of transfers that ended since the last call.
    fn take_transfers(&mut self) -> Vec<TransferRow> {
        Vec::new()
    }

    /// Collects changes of the prefix cache from now on.
    fn record_cache_events(&mut self) {}

    /// What the prefix cache took in and let go since the last call.
    fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        Vec::new()
    }

    /// What the names of blocks start from.
    fn identity(&self) -> [u8; 32] {
        [0; 32]
    }

    /// Buckets, counters and statistics now.
    fn status(&self) -> CoreStatus;

    /// Bytes reserved for the KV pool, whatever is in it.
    fn kv_pool_bytes(&self) -> usize;

    /// Where the memory of its device stands, from a core that computes on one. Asked for a page of
    /// metrics, not for every step.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }

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
    /// What was transferred, for a core that takes part in that.
    pub kv: Option<KvStats>,
    /// Times by kernel of the steps that were timed; empty while none was.
    pub kernels: Vec<KernelTotal>,
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
