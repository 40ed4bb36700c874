//! A core that does what the test says, and remembers what it was asked.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use pb_contract::{
    Buckets, Clock, EngineConfig, EngineEvent, EngineRequest, FinishReason, KvDtype, Nanos,
    Numerics, PrefixCacheKind, RequestId, StepRow, TokenId, TokenLogprobs,
};
use pb_core::{Counters, DeviceMemory, KernelTotal};
use pb_kv::CacheStats;
use pb_server::{Core, CoreFailure, CoreStatus, CoreStep, Refusal};
use pb_tiers::{TierKind, TierStats};

/// What one request generates.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// Tokens, repeated for ever unless `end` is set.
    pub(crate) tokens: Vec<TokenId>,
    /// The last token ends the request.
    pub(crate) end: Option<End>,
    /// One entry a token.
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
    pub(crate) cached_tokens: usize,
    pub(crate) refuse: Option<String>,
}

#[derive(Clone, Copy)]
pub(crate) enum End {
    Eos,
    StopToken,
}

pub(crate) fn tokens(tokens: &[TokenId]) -> Script {
    Script {
        tokens: tokens.to_vec(),
        ..Script::default()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Added(Box<EngineRequest>),
    Aborted(RequestId),
    /// Aborted when it had ended.
    Left(RequestId),
    Finished(RequestId),
    Reset,
}

/// How the core behaves as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Good,
    /// The step after `tokens` tokens fails, giving up the oldest request.
    LosesOne {
        after: u64,
    },
    /// The step after `tokens` tokens panics.
    Panics {
        after: u64,
    },
}

/// What the test and the core share.
pub(crate) struct Stage {
    calls: Mutex<Vec<Call>>,
    /// Steps that may run; none means any number.
    permits: Mutex<Option<u64>>,
    changed: Condvar,
}

const PATIENCE: Duration = Duration::from_secs(20);

impl Stage {
    pub(crate) fn new(permits: Option<u64>) -> Arc<Self> {
        let calls = Mutex::new(Vec::new());
        Arc::new(Stage {
            calls,
            permits: Mutex::new(permits),
            changed: Condvar::new(),
        })
    }

    pub(crate) fn permit(&self, steps: u64) {
        if let Some(permits) = self.permits.lock().unwrap().as_mut() {
            *permits += steps;
        }
        self.changed.notify_all();
    }

    /// Takes back what no step has used.
    pub(crate) fn shut(&self) {
        *self.permits.lock().unwrap() = Some(0);
    }

    pub(crate) fn open(&self) {
        *self.permits.lock().unwrap() = None;
        self.changed.notify_all();
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn added(&self) -> Vec<EngineRequest> {
        let added = |call| {
            if let Call::Added(request) = call {
                Some(*request)
            } else {
                None
            }
        };
        self.calls().into_iter().filter_map(added).collect()
    }

    /// Waits until `count` calls satisfy `wanted`.
    pub(crate) async fn wait(self: &Arc<Self>, count: usize, wanted: fn(&Call) -> bool) {
        let stage = Arc::clone(self);
        let waited = tokio::task::spawn_blocking(move || {
            let calls = stage.calls.lock().unwrap();
            let few = |calls: &mut Vec<Call>| calls.iter().filter(|c| wanted(c)).count() < count;
            let (calls, result) = stage
                .changed
                .wait_timeout_while(calls, PATIENCE, few)
                .unwrap();
            assert!(!result.timed_out(), "the core never got there: {calls:?}");
        });
        waited.await.unwrap();
    }

    fn call(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
        self.changed.notify_all();
    }

    fn step(&self) {
        let permits = self.permits.lock().unwrap();
        let (mut permits, _) = self
            .changed
            .wait_timeout_while(permits, PATIENCE, |permits| *permits == Some(0))
            .unwrap();
        if let Some(permits) = permits.as_mut() {
            *permits = permits.saturating_sub(1);
        }
    }
}

struct Live {
    request: EngineRequest,
    script: Script,
    produced: usize,
}

type Writer = Box<dyn Fn(&EngineRequest) -> Script + Send>;

pub(crate) struct FakeCore {
    pub(crate) config: EngineConfig,
    pub(crate) mood: Mood,
    script: Writer,
    stage: Arc<Stage>,
    live: Vec<Live>,
    steps: u64,
    pub(crate) counters: Counters,
    pub(crate) cache: CacheStats,
    pub(crate) tiers: Vec<(TierKind, TierStats)>,
    /// Of a device; its peak grows by a byte a step.
    pub(crate) device: Option<DeviceMemory>,
    pub(crate) kernels: Vec<KernelTotal>,
    /// What the server told before each step.
    lock_waits: Vec<Nanos>,
}

impl FakeCore {
    pub(crate) fn new(
        stage: &Arc<Stage>,
        script: impl Fn(&EngineRequest) -> Script + Send + 'static,
    ) -> Self {
        let config = EngineConfig {
            numerics: Numerics::Exact,
            kv_dtype: KvDtype::F32,
            threads: 1,
            chunked: true,
            max_batched_tokens: 256,
            max_num_seqs: 8,
            prefix_cache: PrefixCacheKind::HashChain,
            block_size: 16,
            num_blocks: 1024,
            max_model_len: 8192,
            seed: 0,
            scheduling: Default::default(),
            cache: Default::default(),
            tiers: Default::default(),
            fault: Default::default(),
        };
        FakeCore {
            config,
            mood: Mood::Good,
            script: Box::new(script),
            stage: Arc::clone(stage),
            live: Vec::new(),
            steps: 0,
            counters: Counters::default(),
            cache: CacheStats::default(),
            tiers: Vec::new(),
            device: None,
            kernels: Vec::new(),
            lock_waits: Vec::new(),
        }
    }
}

impl Live {
    /// The events of one more token, and whether it was the last.
    fn advance(&mut self) -> (Vec<EngineEvent>, bool) {
        let (id, s) = (self.request.id, &self.request.sampling);
        let mut events = Vec::new();
        if self.produced == 0 {
            let cached_tokens = self.script.cached_tokens;
            events.push(EngineEvent::Admitted { id, cached_tokens });
            if s.prompt_logprobs.is_some() {
                let entries = self.script.prompt_logprobs.clone();
                events.push(EngineEvent::PromptLogprobs {
                    id,
                    first: 1,
                    entries,
                });
            }
        }
        let at = self.produced % self.script.tokens.len();
        let token = self.script.tokens[at];
        let logprobs = s
            .logprobs
            .and_then(|_| self.script.logprobs.get(at).cloned());
        events.push(EngineEvent::Token {
            id,
            token,
            logprobs,
        });
        self.produced += 1;
        let (reason, stop_token) = match self.script.end {
            Some(End::Eos) if at + 1 == self.script.tokens.len() => (FinishReason::Stop, None),
            Some(End::StopToken) if s.stop_token_ids.contains(&token) => {
                (FinishReason::Stop, Some(token))
            }
            _ if self.produced as u32 >= s.max_tokens => (FinishReason::Length, None),
            _ => return (events, false),
        };
        events.push(EngineEvent::Finished {
            id,
            reason,
            stop_token,
        });
        (events, true)
    }
}

impl Core for FakeCore {
    fn add(&mut self, request: EngineRequest) -> Result<(), Refusal> {
        let script = (self.script)(&request);
        if let Some(reason) = &script.refuse {
            return Err(Refusal(reason.clone()));
        }
        self.counters.prompt_tokens += request.prompt.len() as u64;
        self.counters.queried_tokens += request.prompt.len() as u64;
        self.counters.hit_tokens += script.cached_tokens as u64;
        self.stage.call(Call::Added(Box::new(request.clone())));
        self.live.push(Live {
            request,
            script,
            produced: 0,
        });
        Ok(())
    }

    fn abort(&mut self, id: RequestId) -> bool {
        let before = self.live.len();
        self.live.retain(|live| live.request.id != id);
        let known = self.live.len() < before;
        self.stage.call(match known {
            true => Call::Aborted(id),
            false => Call::Left(id),
        });
        known
    }

    fn has_work(&self) -> bool {
        !self.live.is_empty()
    }

    fn step(&mut self, clock: &dyn Clock) -> Result<CoreStep, CoreFailure> {
        self.stage.step();
        match self.mood {
            Mood::Panics { after } if self.counters.generation_tokens >= after => {
                panic!("told to panic")
            }
            Mood::LosesOne { after } if self.counters.generation_tokens >= after => {
                self.mood = Mood::Good;
                let failed = vec![self.live.remove(0).request.id];
                return Err(CoreFailure {
                    message: "told to fail".to_owned(),
                    failed,
                });
            }
            _ => {}
        }
        let mut events = Vec::new();
        let stage = &self.stage;
        let mut tokens = 0;
        self.live.retain_mut(|live| {
            let (more, ended) = live.advance();
            events.extend(more);
            tokens += 1;
            if ended {
                stage.call(Call::Finished(live.request.id));
            }
            !ended
        });
        self.counters.generation_tokens += tokens;
        let row = StepRow {
            step: self.steps,
            start_ns: clock.now(),
            decode_tokens: tokens as usize,
            running: self.live.len(),
            // One entry for each step that has begun, this one included.
            lock_wait_ns: self
                .lock_waits
                .get(self.steps as usize)
                .copied()
                .unwrap_or_default(),
            plan_ns: Nanos(250_000_000),
            prefill_gemm_ns: Nanos(500_000_000),
            ..StepRow::default()
        };
        self.steps += 1;
        Ok(CoreStep { row, events })
    }

    fn reset_prefix_cache(&mut self) -> bool {
        self.stage.call(Call::Reset);
        self.live.is_empty()
    }

    fn set_lock_wait(&mut self, waited: Nanos) {
        self.lock_waits.push(waited);
    }

    fn status(&self) -> CoreStatus {
        let active = 256 * self.live.len();
        CoreStatus {
            buckets: Buckets {
                active,
                reclaimable: 24,
                free: self.config.num_blocks - 24 - active,
            },
            counters: Counters {
                running: self.live.len(),
                ..self.counters
            },
            cache: self.cache,
            tiers: self.tiers.clone(),
            kv: None,
            kernels: self.kernels.clone(),
        }
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        let device = self.device.clone()?;
        Some(DeviceMemory {
            peak_bytes: device.peak_bytes + self.steps,
            ..device
        })
    }

    fn kv_pool_bytes(&self) -> usize {
        1 << 20
    }

    fn config(&self) -> &EngineConfig {
        &self.config
    }
}
