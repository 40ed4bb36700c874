//! Requests and events as an engine core sees them (after the wire has been parsed).

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::ids::{RequestId, TokenId};

/// How tokens are chosen and when generation stops; the meaning of each is vLLM's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 means greedy.
    pub temperature: f64,
    /// Nucleus mass, in (0, 1].
    pub top_p: f64,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Seed of the request's own random stream.
    pub seed: Option<u64>,
    /// Tokens to generate at most.
    pub max_tokens: u32,
    /// Tokens before which no end-of-sequence or stop string ends the request.
    pub min_tokens: u32,
    /// Go on past the end-of-sequence token.
    pub ignore_eos: bool,
    /// Stop strings (checked on the detokenised text; not part of the output).
    pub stop: Vec<String>,
    /// Stop tokens beside the model's own end-of-sequence tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Top log-probabilities to report for each generated token.
    pub logprobs: Option<u32>,
    /// Top log-probabilities to report for each prompt token.
    pub prompt_logprobs: Option<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            seed: None,
            max_tokens: 16,
            min_tokens: 0,
            ignore_eos: false,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
        }
    }
}

/// A request to an engine core: token ids in, events out.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineRequest {
    /// Unique among live requests.
    pub id: RequestId,
    /// Prompt tokens, at least one.
    pub prompt: Vec<TokenId>,
    /// Sampling and stopping.
    pub sampling: SamplingParams,
    /// Isolation key of the prefix cache.
    pub cache_salt: Option<String>,
    /// Name of a loaded LoRA adapter to apply.
    pub adapter: Option<String>,
    /// Lower is served first, where the queue order heeds it.
    pub priority: i64,
    /// Another request, added before, whose prompt this one shares (`n > 1`): it starts when that
    /// prompt is computed, from the same blocks, and draws its own tokens.
    pub fork_of: Option<RequestId>,
    /// When the request reached the engine.
    pub arrival: Nanos,
}

/// Log-probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token that stands at the position.
    pub token: TokenId,
    /// Its log-probability (natural logarithm, temperature 1).
    pub logprob: f64,
    /// Its rank, 1 for the most likely.
    pub rank: u32,
    /// The most likely tokens, best first; ties by lower token id.
    pub top: Vec<(TokenId, f64)>,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the context length was reached.
    Length,
    /// Aborted by the client or by shutdown.
    Abort,
}

impl FinishReason {
    /// The word of the OpenAI interface.
    pub const fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Abort => "abort",
        }
    }
}

/// What an engine core tells about its requests after a step.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// First scheduling: prompt tokens taken from the prefix cache.
    Admitted {
        /// Request.
        id: RequestId,
        /// Prompt tokens whose KV was reused.
        cached_tokens: usize,
    },
    /// Log-probabilities of prompt positions `first..first + entries.len()`, in order; position
    /// 0 has none and is never reported.
    PromptLogprobs {
        /// Request.
        id: RequestId,
        /// First position reported.
        first: usize,
        /// One entry a position.
        entries: Vec<TokenLogprobs>,
    },
    /// One generated token.
    Token {
        /// Request.
        id: RequestId,
        /// The token.
        token: TokenId,
        /// Present when asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The request has ended and its blocks are released.
    Finished {
        /// Request.
        id: RequestId,
        /// Why.
        reason: FinishReason,
        /// The stop token that ended it, when it was not an end-of-sequence token.
        stop_token: Option<TokenId>,
    },
}
