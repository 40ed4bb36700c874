//! One live request inside the core.

use pb_contract::{EngineRequest, RequestId, TokenId};
use pb_kv::HashedTokens;
use pb_sched::SeqView;

/// A request with everything that changes while it lives.
pub(crate) struct Live {
    /// As it came, the prompt aside, which is in `seq`.
    pub(crate) request: EngineRequest,
    /// Length of the prompt.
    pub(crate) prompt_tokens: usize,
    /// Prompt and generated tokens with their block hashes.
    pub(crate) seq: HashedTokens,
    /// Positions whose keys and values are in the cache.
    pub(crate) computed: usize,
    /// Whether it was preempted and not admitted again since.
    pub(crate) preempted: bool,
    /// Whether its keys and values wait in the swap pool.
    pub(crate) swapped: bool,
    /// Number of its arrival.
    pub(crate) arrival: u64,
    /// Prompt tokens found at its first admission, once that has happened.
    pub(crate) admitted: Option<usize>,
    /// Prompt positions whose log-probabilities have been reported.
    pub(crate) prompt_logprobs_done: usize,
    /// Which loaded adapter applies.
    pub(crate) adapter: Option<usize>,
    /// Leading blocks that are worth looking for in the tiers: a block whose load failed is
    /// computed instead.
    pub(crate) tier_blocks: usize,
    /// Requests that fork from this one when its prompt is computed.
    pub(crate) followers: Vec<RequestId>,
    /// The request that this one waits to fork from; such a one is in no queue.
    pub(crate) leader: Option<RequestId>,
    /// Whether another engine goes on after the first token.
    pub(crate) hand_off: bool,
}

impl Live {
    /// Generated tokens.
    pub(crate) fn generated(&self) -> usize {
        self.seq.len() - self.prompt_tokens
    }

    /// Tokens that this engine generates for it at most.
    pub(crate) fn outputs_at_most(&self) -> u32 {
        match self.hand_off {
            true => 1,
            false => self.request.sampling.max_tokens,
        }
    }

    /// Whether log-probabilities of prompt tokens are asked for and not all reported.
    pub(crate) fn wants_prompt_logprobs(&self) -> bool {
        self.request.sampling.prompt_logprobs.is_some()
            && self.prompt_logprobs_done < self.prompt_tokens
    }

    /// As the scheduler sees it.
    pub(crate) fn view(&self) -> SeqView {
        let max_tokens = self.outputs_at_most() as usize;
        SeqView {
            id: self.request.id,
            num_tokens: self.seq.len(),
            prompt_tokens: self.prompt_tokens,
            computed: self.computed,
            // What was swapped out has been reported already as far as it goes.
            skip_cache_read: self.wants_prompt_logprobs() && !self.swapped,
            preempted: self.preempted,
            remaining: max_tokens.saturating_sub(self.generated()),
            places: 1 + self.followers.len(),
            priority: self.request.priority,
            arrival: self.arrival,
        }
    }

    /// Whether the next token to compute is the last generated one.
    pub(crate) fn is_decode(&self) -> bool {
        self.generated() > 0 && self.computed + 1 == self.seq.len()
    }

    /// Tokens that may not be chosen now: those that would end the request before `min_tokens`.
    pub(crate) fn forbidden(&self, eos_ids: &[TokenId]) -> Vec<TokenId> {
        let p = &self.request.sampling;
        if self.generated() >= p.min_tokens as usize {
            return Vec::new();
        }
        eos_ids.iter().chain(&p.stop_token_ids).copied().collect()
    }
}
