//! Taking a request in, or refusing it at once with a reason.

use pb_contract::{EngineRequest, RequestId, SamplingParams, Stream};
use pb_kv::{AdapterKey, CacheScope};

use super::{Engine, Hold};
use crate::error::AdmitError;
use crate::request::Live;

impl Engine {
    /// Takes a request into the waiting queue, or, when it forks from another, behind that one.
    ///
    /// # Errors
    /// [`AdmitError`] when it could never be served.
    pub fn add(&mut self, request: EngineRequest) -> Result<(), AdmitError> {
        let adapter = self.check_request(&request, request.sampling.max_tokens)?;
        let leader = self.leader_for(&request)?;
        let id = request.id;
        let live = self.make_live(request, adapter, leader);
        self.requests.insert(id, live);
        match leader.and_then(|l| self.requests.get_mut(&l)) {
            Some(leader) => leader.followers.push(id),
            None => self.waiting.push_back(id),
        }
        Ok(())
    }

    /// Checks a request that generates at most `outputs` tokens here; gives its adapter's number.
    pub(super) fn check_request(
        &self,
        request: &EngineRequest,
        outputs: u32,
    ) -> Result<Option<usize>, AdmitError> {
        let id = request.id;
        let known = self.requests.contains_key(&id) || self.incoming.contains_key(&id);
        if known || self.holds.is_hold(id) {
            return Err(AdmitError::DuplicateId(id));
        }
        self.check_prompt(request, outputs)?;
        check_sampling(&request.sampling, self.spec.vocab)?;
        self.adapter(request.adapter.as_deref())
    }

    /// A checked request with its random stream, in no queue yet.
    pub(super) fn make_live(
        &mut self,
        mut request: EngineRequest,
        adapter: Option<usize>,
        leader: Option<RequestId>,
    ) -> Live {
        let id = request.id;
        let prompt = std::mem::take(&mut request.prompt);
        let seq = match leader {
            Some(leader) => self.requests[&leader].seq.clone(),
            None => {
                let scope = self.scope(adapter, request.cache_salt.clone());
                let mut seq = self.kv.config().sequence(&scope);
                seq.extend(&prompt);
                self.tiers.observe(&seq);
                seq
            }
        };
        let stream = match request.sampling.seed {
            Some(seed) => Stream::new(seed, "sampling"),
            None => Stream::new(self.config.seed, &format!("sampling of request {id}")),
        };
        self.streams.insert(id, stream);
        self.arrivals += 1;
        Live {
            request,
            prompt_tokens: prompt.len(),
            seq,
            computed: 0,
            preempted: false,
            swapped: false,
            arrival: self.arrivals - 1,
            admitted: None,
            prompt_logprobs_done: 1,
            adapter,
            tier_blocks: usize::MAX,
            followers: Vec::new(),
            leader,
            hand_off: false,
        }
    }

    /// What beside the tokens a request's blocks depend on.
    pub(super) fn scope(&self, adapter: Option<usize>, salt: Option<String>) -> CacheScope {
        CacheScope {
            identity: self.identity,
            adapter: adapter.map(|index| AdapterKey {
                name: self.spec.adapters[index].name.clone(),
                digest: self.spec.adapters[index].digest,
            }),
            salt,
        }
    }

    /// Number of the adapter called `name`.
    pub(super) fn adapter(&self, name: Option<&str>) -> Result<Option<usize>, AdmitError> {
        let Some(name) = name else {
            return Ok(None);
        };
        let mut adapters = self.spec.adapters.iter();
        match adapters.position(|adapter| adapter.name == name) {
            Some(index) => Ok(Some(index)),
            None => Err(AdmitError::UnknownAdapter {
                name: name.to_owned(),
                loaded: self.spec.adapters.iter().map(|a| a.name.clone()).collect(),
            }),
        }
    }

    fn check_prompt(&self, request: &EngineRequest, outputs: u32) -> Result<(), AdmitError> {
        let n = request.prompt.len();
        if n == 0 {
            return Err(AdmitError::EmptyPrompt);
        }
        let vocab = self.spec.vocab;
        let outside = |&token: &u32| token as usize >= vocab;
        if let Some(position) = request.prompt.iter().position(outside) {
            return Err(AdmitError::TokenOutOfRange {
                token: request.prompt[position],
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
        let needed_blocks = self.blocks_at_most(n, outputs);
        // A pin stays; what is being transferred is given back by itself.
        let pool_blocks = self.kv.usable_blocks() - self.held_blocks(Hold::Pin);
        if needed_blocks > pool_blocks {
            return Err(AdmitError::NeverFits {
                needed_blocks,
                pool_blocks,
            });
        }
        Ok(())
    }

    /// Blocks that a request may hold at the end.
    pub(super) fn blocks_at_most(&self, prompt_tokens: usize, outputs: u32) -> usize {
        let longest = prompt_tokens
            .saturating_add(outputs as usize)
            .min(self.config.max_model_len);
        // The last generated token's keys and values are never computed.
        (longest - 1)
            .max(prompt_tokens)
            .div_ceil(self.config.block_size)
    }

    /// The request that `request` is to wait for and fork from. None when it forks from nothing,
    /// or when it must compute its prompt itself: because it wants the prompt's
    /// log-probabilities, or because the other is gone, has its first token already, or runs
    /// where no place is left.
    fn leader_for(&self, request: &EngineRequest) -> Result<Option<RequestId>, AdmitError> {
        let named = request.fork_of.and_then(|id| self.requests.get(&id));
        let Some(named) = named else {
            return Ok(None);
        };
        let same = named.request.cache_salt == request.cache_salt
            && named.request.adapter == request.adapter
            && named.seq.tokens().get(..named.prompt_tokens) == Some(&request.prompt[..]);
        if !same {
            return Err(AdmitError::ForkMismatch {
                id: request.id,
                fork_of: named.request.id,
            });
        }
        let leader = match named.leader {
            // A follower is no leader, but it has one.
            Some(leader) => leader,
            None => named.request.id,
        };
        let live = &self.requests[&leader];
        let sequences = live.followers.len() + 2;
        let max_num_seqs = self.config.max_num_seqs;
        if live.generated() == 0 && sequences > max_num_seqs {
            return Err(AdmitError::TooManySequences {
                sequences,
                max_num_seqs,
            });
        }
        let late = live.generated() > 0 || (self.running.contains(&leader) && self.is_full());
        let alone = late || request.sampling.prompt_logprobs.is_some();
        Ok((!alone).then_some(leader))
    }

    /// Whether no more sequences may run.
    fn is_full(&self) -> bool {
        self.running_places() >= self.config.max_num_seqs
    }
}

/// Checks the sampling parameters.
fn check_sampling(p: &SamplingParams, vocab: usize) -> Result<(), AdmitError> {
    let checks = [
        (
            p.temperature.is_finite() && p.temperature >= 0.0,
            "temperature",
            p.temperature.to_string(),
            "must be finite and at least 0",
        ),
        (
            p.top_p > 0.0 && p.top_p <= 1.0,
            "top_p",
            p.top_p.to_string(),
            "must be above 0 and at most 1",
        ),
        (
            p.max_tokens > 0,
            "max_tokens",
            p.max_tokens.to_string(),
            "must be at least 1",
        ),
        (
            p.min_tokens <= p.max_tokens,
            "min_tokens",
            p.min_tokens.to_string(),
            "must not be above max_tokens",
        ),
    ];
    let stop = p.stop_token_ids.iter().find(|&&t| t as usize >= vocab);
    let stop = stop.map(|t| {
        (
            false,
            "stop_token_ids",
            t.to_string(),
            "must be below the vocabulary size",
        )
    });
    match checks.into_iter().chain(stop).find(|check| !check.0) {
        Some((_, key, value, problem)) => Err(AdmitError::Sampling {
            key,
            value,
            problem,
        }),
        None => Ok(()),
    }
}
