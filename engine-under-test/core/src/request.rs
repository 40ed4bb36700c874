//! One live request inside the core.

use pb_contract::{EngineRequest, Stream, TokenId};
use pb_kv::HashedTokens;
use pb_sched::SeqView;

/// A request with everything that changes while it lives.
pub(crate) struct Live {
    pub(crate) request: EngineRequest,
    /// Prompt and generated tokens with their block hashes.
    pub(crate) seq: HashedTokens,
    /// Positions whose keys and values are in the cache.
    pub(crate) computed: usize,
    /// Whether it was preempted and not admitted again since.
    pub(crate) preempted: bool,
    /// Whether its first admission has been reported.
    pub(crate) admitted: bool,
    /// Prompt positions whose log-probabilities have been reported.
    pub(crate) prompt_logprobs_done: usize,
    /// The request's own random stream.
    pub(crate) stream: Stream,
}

impl Live {
    /// Prompt tokens.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.request.prompt.len()
    }

    /// Generated tokens.
    pub(crate) fn generated(&self) -> usize {
        self.seq.len() - self.prompt_tokens()
    }

    /// As the scheduler sees it.
    pub(crate) fn view(&self) -> SeqView {
        SeqView {
            id: self.request.id,
            num_tokens: self.seq.len(),
            prompt_tokens: self.prompt_tokens(),
            computed: self.computed,
            skip_cache_read: self.request.sampling.prompt_logprobs.is_some(),
            preempted: self.preempted,
        }
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
