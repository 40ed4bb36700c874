//! The engine's state machine.

mod admission;
mod commit;
mod compute;
mod counters;
mod fork;
mod hand_off;
mod hold;
mod incoming;
mod laws;
mod movement;
mod preempt;
mod progress;
mod queue;
mod step;

use std::collections::{BTreeMap, VecDeque};

use pb_contract::{
    BlockId, Buckets, EngineConfig, Fault, Nanos, Preemption, RequestId, Stream, TokenId,
};
use pb_kv::{CacheEvent, CacheIdentity, EngineFormat, KvConfig, KvFormat, Positional, PrefixCache};
use pb_model::forward::{LayerKv, LogitRow};
use pb_sched::Policy;
use pb_tiers::TierStack;

use crate::device_memory::DeviceMemory;
use crate::execute::{Chunk, Executor, KernelTotal};
use crate::request::Live;
use crate::swap::SwapPool;

pub use counters::Counters;
pub use hand_off::HandOff;
pub use hold::{Hold, HoldId};
pub use incoming::Room;
pub use progress::{Progress, RequestState};
pub use step::StepOutput;

/// A loaded adapter as the core must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Name that requests use.
    pub name: String,
    /// Digest of its weights and settings: another adapter under the same name shares no block.
    pub digest: [u8; 32],
}

/// What the core must know of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSpec {
    /// Token ids are below this.
    pub vocab: usize,
    /// Longest context of the model.
    pub max_position: usize,
    /// Tokens that end a sequence.
    pub eos_ids: Vec<TokenId>,
    /// Hash of the weights: part of every cached block's identity.
    pub identity: [u8; 32],
    /// How positions enter the keys: part of the identity as well.
    pub positional: Positional,
    /// Scales of an fp8 cache in the order of the layers, keys before values, empty for 1
    /// everywhere: part of the identity, since the same codes mean other numbers with others.
    pub kv_scales: Vec<f32>,
    /// Name and version of what computes: another backend's blocks are not reused.
    pub backend: String,
    /// Loaded adapters, in the order in which the executor counts them.
    pub adapters: Vec<AdapterInfo>,
}

impl EngineSpec {
    /// A specification for engines without a model: nothing ends a sequence but its length.
    pub fn simulated(vocab: usize, max_position: usize) -> Self {
        EngineSpec {
            vocab,
            max_position,
            eos_ids: Vec::new(),
            identity: [0; 32],
            positional: Positional::default(),
            kv_scales: Vec::new(),
            backend: "simulated".to_owned(),
            adapters: Vec::new(),
        }
    }

    /// Everything that is the same for all requests of an engine and enters the values
    /// of keys and values.
    pub(crate) fn cache_identity(&self, config: &EngineConfig) -> CacheIdentity {
        CacheIdentity {
            weights: self.identity,
            positional: self.positional.clone(),
            kv: KvFormat {
                dtype: config.kv_dtype,
                scales: self.kv_scales.clone(),
                layout: "block image 1".to_owned(),
            },
            engine: EngineFormat {
                numerics: config.numerics,
                block_size: config.block_size,
                revision: self.backend.clone(),
            },
        }
    }
}

/// Sees the logits of every computed position, for numerical validation.
pub trait LogitTap: Send {
    /// Takes the logits at absolute `position` of request `id`.
    fn row(&mut self, id: RequestId, position: usize, logits: LogitRow<'_>);
}

/// Sees keys and values of a step as soon as a layer of them is written, while the layers above are
/// still computed.
pub trait LayerTap: Send {
    /// Keys and values of `layer` are written at all positions of `chunks` and before them, and the
    /// step changes them no more. The step waits until this returns.
    fn layer(&mut self, chunks: &[Chunk<'_>], layer: usize, kv: &dyn LayerKv);
}

/// The engine core.
pub struct Engine {
    config: EngineConfig,
    spec: EngineSpec,
    /// Seed of every block's name.
    identity: [u8; 32],
    policy: Box<dyn Policy>,
    kv: Box<dyn PrefixCache>,
    tiers: TierStack,
    swap: SwapPool,
    /// Bytes of a block image; 0 while neither tiers nor swapping need images.
    image_bytes: usize,
    arrivals: u64,
    requests: BTreeMap<RequestId, Live>,
    /// Each request's own random stream.
    streams: BTreeMap<RequestId, Stream>,
    running: Vec<RequestId>,
    waiting: VecDeque<RequestId>,
    /// Requests whose prompt another engine has computed and whose KV is not here yet.
    incoming: BTreeMap<RequestId, incoming::Incoming>,
    /// Those of them whose KV is here, in the order of its arrival.
    arrived: VecDeque<RequestId>,
    /// Requests that another engine goes on with.
    handed_off: Vec<HandOff>,
    holds: hold::Holds,
    executor: Box<dyn Executor>,
    tap: Option<Box<dyn LogitTap>>,
    counters: Counters,
    lock_wait: Nanos,
    steps: u64,
}

impl Engine {
    /// An idle engine with an empty cache. The executor's KV pool is made to fit `config`.
    ///
    /// # Errors
    /// A sentence that names the setting at fault; a planted fault is one.
    pub fn new(
        config: EngineConfig,
        spec: EngineSpec,
        executor: Box<dyn Executor>,
    ) -> Result<Self, String> {
        if config.fault != Fault::None {
            return Err(format!(
                "fault = {:?}: an engine with a planted fault is for tests of the checks only; \
                 remove the key",
                config.fault
            ));
        }
        Self::new_under_test(config, spec, executor)
    }

    /// As [`Engine::new`], and a planted fault is allowed: for proving that a check finds it.
    ///
    /// # Errors
    /// A sentence that names the setting at fault.
    pub fn new_under_test(
        config: EngineConfig,
        spec: EngineSpec,
        mut executor: Box<dyn Executor>,
    ) -> Result<Self, String> {
        config.validate()?;
        if config.max_model_len > spec.max_position {
            return Err(format!(
                "max_model_len = {} is above the model's context of {}; lower it",
                config.max_model_len, spec.max_position
            ));
        }
        let identity = spec.cache_identity(&config).digest();
        let policy = pb_sched::build(&config).map_err(|e| e.to_string())?;
        let kv = pb_kv::build(kv_config(&config)).map_err(|e| e.to_string())?;
        let tiers = TierStack::open(&config.tiers, identity, config.fault);
        executor.resize_kv(config.block_size, config.num_blocks);
        executor.set_fault(config.fault)?;
        let mut engine = Engine {
            identity,
            policy,
            kv,
            tiers: tiers.map_err(|e| e.to_string())?,
            swap: SwapPool::new(swap_blocks(&config)),
            image_bytes: 0,
            arrivals: 0,
            config,
            spec,
            requests: BTreeMap::new(),
            streams: BTreeMap::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            incoming: BTreeMap::new(),
            arrived: VecDeque::new(),
            handed_off: Vec::new(),
            holds: hold::Holds::default(),
            executor,
            tap: None,
            counters: Counters::default(),
            lock_wait: Nanos::ZERO,
            steps: 0,
        };
        engine.measure_image();
        Ok(engine)
    }

    /// The configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Gives the executor back, for the next engine over the same weights.
    pub fn into_executor(self) -> Box<dyn Executor> {
        self.executor
    }

    /// Hands every computed position's logits to `tap` from now on.
    pub fn set_tap(&mut self, tap: Option<Box<dyn LogitTap>>) {
        self.tap = tap;
    }

    /// Tells how long the caller waited for its lock or commands before the next step; goes into
    /// that step's row.
    pub fn set_lock_wait(&mut self, waited: Nanos) {
        self.lock_wait = waited;
    }

    /// Removes a request, in whatever state it is, and releases its blocks. Returns whether it
    /// was live. No event follows. A request that forks of it go by hands its place to the first
    /// of them.
    pub fn abort(&mut self, id: RequestId) -> bool {
        if self.abort_incoming(id) {
            return true;
        }
        let place = self.waiting.iter().position(|&r| r == id);
        let Some(live) = self.remove(id) else {
            return false;
        };
        self.kv.free(id);
        self.pass_on_leadership(live, place);
        true
    }

    /// Takes a request out of every queue and pool; its blocks stay.
    fn remove(&mut self, id: RequestId) -> Option<Live> {
        let live = self.requests.remove(&id)?;
        self.streams.remove(&id);
        self.swap.take(id);
        self.running.retain(|&r| r != id);
        if !self.waiting.is_empty() {
            self.waiting.retain(|&r| r != id);
        }
        if let Some(leader) = live.leader.and_then(|l| self.requests.get_mut(&l)) {
            leader.followers.retain(|&f| f != id);
        }
        Some(live)
    }

    /// Whether a step would find a request.
    pub fn has_work(&self) -> bool {
        !self.requests.is_empty() || !self.arrived.is_empty()
    }

    /// Forgets all cached blocks, those in tiers included. Refused (false) while any request
    /// holds blocks.
    pub fn reset_prefix_cache(&mut self) -> bool {
        let done = self.kv.reset();
        if done {
            // Blocks that were evicted before belong to the past that is being forgotten.
            self.kv.take_moves();
            self.tiers.clear();
        }
        done
    }

    /// The three buckets of the KV pool.
    pub fn buckets(&self) -> Buckets {
        self.kv.buckets()
    }

    /// Requests that hold blocks, in order of admission.
    pub fn running(&self) -> &[RequestId] {
        &self.running
    }

    /// Requests in the waiting queue, first come first; a request that waits for another's
    /// prompt to fork from is not among them.
    pub fn waiting(&self) -> impl Iterator<Item = RequestId> {
        self.waiting.iter().copied()
    }

    /// Prompt and generated tokens of a live request.
    pub fn tokens(&self, id: RequestId) -> Option<&[TokenId]> {
        self.requests.get(&id).map(|live| live.seq.tokens())
    }

    /// Blocks of a live request, in order.
    pub fn block_table(&self, id: RequestId) -> &[BlockId] {
        self.kv.block_table(id)
    }

    /// The prefix cache, for looking at.
    pub fn kv(&self) -> &dyn PrefixCache {
        self.kv.as_ref()
    }

    /// Collects changes of the prefix cache for [`Engine::take_cache_events`] from now on.
    pub fn record_cache_events(&mut self) {
        self.kv.record_events();
    }

    /// What the prefix cache has taken in and let go since the last call.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.kv.take_events()
    }

    /// What the names of this engine's blocks start from: digest of everything beside tokens,
    /// adapter and salt that keys and values depend on.
    pub fn identity(&self) -> [u8; 32] {
        self.identity
    }

    /// The specification.
    pub fn spec(&self) -> &EngineSpec {
        &self.spec
    }

    /// The tiers, for looking at.
    pub fn tiers(&self) -> &TierStack {
        &self.tiers
    }

    /// Bytes reserved for the KV pool.
    pub fn kv_bytes(&self) -> usize {
        self.executor.kv_bytes()
    }

    /// Times by kernel, where the backend measures them, see [`Executor::kernel_totals`].
    pub fn kernel_totals(&self) -> Vec<KernelTotal> {
        self.executor.kernel_totals()
    }

    /// Where the memory of a device stands, see [`Executor::device_memory`].
    pub fn device_memory(&self) -> Option<DeviceMemory> {
        self.executor.device_memory()
    }
}

/// The part of `config` that the KV manager needs.
fn kv_config(config: &EngineConfig) -> KvConfig {
    KvConfig {
        null_block: config.cache.null_block,
        placement: config.cache.placement,
        verify_tokens: config.cache.verify_tokens,
        hash: config.cache.hash,
        eviction: config.cache.eviction,
        record_evictions: config.tiers.any(),
        fault: config.fault,
        ..KvConfig::new(config.block_size, config.num_blocks, config.prefix_cache)
    }
}

/// Host blocks for swapped requests.
fn swap_blocks(config: &EngineConfig) -> usize {
    match config.scheduling.preemption {
        Preemption::Recompute => 0,
        Preemption::Swap => config.scheduling.swap_blocks,
    }
}
