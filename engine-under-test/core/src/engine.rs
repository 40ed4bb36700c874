//! The engine's state machine.

mod commit;
mod step;

use std::collections::{BTreeMap, VecDeque};

use pb_contract::{
    BlockId, Buckets, EngineConfig, EngineRequest, RequestId, SamplingParams, Stream, TokenId,
};
use pb_kv::{CacheScope, HashedTokens, KvConfig, KvManager};
use pb_model::forward::LogitRow;
use pb_sched::{Policy, TokenBudget};

use crate::error::AdmitError;
use crate::execute::Executor;
use crate::request::Live;

pub use step::StepOutput;

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
}

/// Cumulative counts since the engine started, and the queue lengths now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens looked up in the prefix cache by first admissions.
    pub queried_tokens: u64,
    /// Of these, tokens found.
    pub hit_tokens: u64,
    /// Tokens looked up by admissions after a preemption.
    pub preempted_queried_tokens: u64,
    /// Of these, tokens found.
    pub preempted_hit_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Cached blocks that lost their contents.
    pub evicted_blocks: u64,
    /// Requests running.
    pub running: usize,
    /// Requests waiting.
    pub waiting: usize,
}

/// Sees the logits of every computed position, for numerical validation.
pub trait LogitTap: Send {
    /// Takes the logits at absolute `position` of request `id`.
    fn row(&mut self, id: RequestId, position: usize, logits: LogitRow<'_>);
}

/// The engine core.
pub struct Engine {
    config: EngineConfig,
    spec: EngineSpec,
    policy: Box<dyn Policy>,
    kv: KvManager,
    requests: BTreeMap<RequestId, Live>,
    running: Vec<RequestId>,
    waiting: VecDeque<RequestId>,
    executor: Box<dyn Executor>,
    tap: Option<Box<dyn LogitTap>>,
    counters: Counters,
    steps: u64,
}

impl Engine {
    /// An idle engine with an empty cache. The executor's KV pool is made to fit `config`.
    ///
    /// # Errors
    /// A sentence that names the setting at fault.
    pub fn new(
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
        let policy = TokenBudget::new(
            config.max_batched_tokens,
            config.max_num_seqs,
            config.max_model_len,
            config.chunked,
        );
        policy.validate().map_err(|e| e.to_string())?;
        let kv_config = KvConfig::new(config.block_size, config.num_blocks, config.prefix_cache);
        executor.resize_kv(config.block_size, config.num_blocks);
        Ok(Engine {
            kv: KvManager::new(kv_config).map_err(|e| e.to_string())?,
            policy: Box::new(policy),
            config,
            spec,
            requests: BTreeMap::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            executor,
            tap: None,
            counters: Counters::default(),
            steps: 0,
        })
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

    /// Takes a request into the waiting queue.
    ///
    /// # Errors
    /// [`AdmitError`] when it could never be served.
    pub fn add(&mut self, request: EngineRequest) -> Result<(), AdmitError> {
        if self.requests.contains_key(&request.id) {
            return Err(AdmitError::DuplicateId(request.id));
        }
        self.check_prompt(&request)?;
        check_sampling(&request.sampling, self.spec.vocab)?;
        let scope = CacheScope {
            identity: self.spec.identity,
            adapter: None,
            salt: request.cache_salt.clone(),
        };
        let mut seq = HashedTokens::new(self.config.block_size, &scope);
        seq.extend(&request.prompt);
        let id = request.id;
        let stream = match request.sampling.seed {
            Some(seed) => Stream::new(seed, "sampling"),
            None => Stream::new(self.config.seed, &format!("sampling of request {id}")),
        };
        let live = Live {
            request,
            seq,
            computed: 0,
            preempted: false,
            admitted: false,
            prompt_logprobs_done: 1,
            stream,
        };
        self.requests.insert(id, live);
        self.waiting.push_back(id);
        Ok(())
    }

    fn check_prompt(&self, request: &EngineRequest) -> Result<(), AdmitError> {
        let n = request.prompt.len();
        if n == 0 {
            return Err(AdmitError::EmptyPrompt);
        }
        let vocab = self.spec.vocab;
        let outside = |&(_, &t): &(usize, &TokenId)| t as usize >= vocab;
        if let Some((position, &token)) = request.prompt.iter().enumerate().find(outside) {
            return Err(AdmitError::TokenOutOfRange {
                token,
                position,
                vocab,
            });
        }
        let max_model_len = self.config.max_model_len;
        if n >= max_model_len {
            return Err(AdmitError::PromptTooLong {
                prompt_tokens: n,
                max_model_len,
            });
        }
        let longest = n
            .saturating_add(request.sampling.max_tokens as usize)
            .min(max_model_len);
        // The last generated token's keys and values are never computed.
        let needed_blocks = (longest - 1).max(n).div_ceil(self.config.block_size);
        let pool_blocks = self.kv.usable_blocks();
        if needed_blocks > pool_blocks {
            return Err(AdmitError::NeverFits {
                needed_blocks,
                pool_blocks,
            });
        }
        Ok(())
    }

    /// Removes a request and releases its blocks. Returns whether it was live. No event follows.
    pub fn abort(&mut self, id: RequestId) -> bool {
        self.remove(id)
    }

    fn remove(&mut self, id: RequestId) -> bool {
        if self.requests.remove(&id).is_none() {
            return false;
        }
        self.kv.free(id);
        self.running.retain(|&r| r != id);
        self.waiting.retain(|&r| r != id);
        true
    }

    /// Whether a step would find a request.
    pub fn has_work(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Forgets all cached blocks. Refused (false) while any request holds blocks.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.kv.reset()
    }

    /// The three buckets of the KV pool.
    pub fn buckets(&self) -> Buckets {
        self.kv.buckets()
    }

    /// Cumulative counters and queue lengths.
    pub fn counters(&self) -> Counters {
        Counters {
            evicted_blocks: self.kv.evicted_total(),
            running: self.running.len(),
            waiting: self.waiting.len(),
            ..self.counters
        }
    }

    /// Blocks of a live request, in order.
    pub fn block_table(&self, id: RequestId) -> &[BlockId] {
        self.kv.block_table(id)
    }

    /// Bytes reserved for the KV pool.
    pub fn kv_bytes(&self) -> usize {
        self.executor.kv_bytes()
    }

    /// Checks every conservation law of the KV manager.
    ///
    /// # Errors
    /// The first law that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.kv.check()
    }
}

/// Checks the sampling parameters.
fn check_sampling(p: &SamplingParams, vocab: usize) -> Result<(), AdmitError> {
    let fail = |key, value: String, problem| {
        Err(AdmitError::Sampling {
            key,
            value,
            problem,
        })
    };
    if !(p.temperature.is_finite() && p.temperature >= 0.0) {
        return fail(
            "temperature",
            p.temperature.to_string(),
            "must be finite and at least 0",
        );
    }
    if !(p.top_p > 0.0 && p.top_p <= 1.0) {
        return fail(
            "top_p",
            p.top_p.to_string(),
            "must be above 0 and at most 1",
        );
    }
    if p.max_tokens == 0 {
        return fail("max_tokens", "0".into(), "must be at least 1");
    }
    if p.min_tokens > p.max_tokens {
        return fail(
            "min_tokens",
            p.min_tokens.to_string(),
            "must not be above max_tokens",
        );
    }
    if let Some(t) = p.stop_token_ids.iter().find(|&&t| t as usize >= vocab) {
        return fail(
            "stop_token_ids",
            t.to_string(),
            "must be below the vocabulary size",
        );
    }
    Ok(())
}
