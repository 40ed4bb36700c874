//! The HTTP interface: OpenAI's completions and chat completions as vLLM serves them.
//!
//! The server writes these types and the client reads them. Fields that some servers omit are
//! optional on the way in; unknown fields are ignored, as vLLM ignores them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::TokenId;

/// A prompt: text or token ids, one or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// One text.
    Text(String),
    /// One list of token ids.
    Ids(Vec<TokenId>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    IdLists(Vec<Vec<TokenId>>),
}

/// One string or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// As a list.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMany::One(s) => vec![s],
            OneOrMany::Many(v) => v,
        }
    }
}

/// Options of a streamed response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOptions {
    /// Send one last event with the usage and no choices.
    #[serde(default)]
    pub include_usage: bool,
    /// Put the usage so far into every event.
    #[serde(default)]
    pub continuous_usage_stats: bool,
}

/// Sampling fields shared by both request types.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingFields {
    /// Choices to generate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// 0 means greedy; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus mass; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Keep the k most likely; 0 or -1 keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Seed of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Stop strings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<OneOrMany>,
    /// Stop tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_token_ids: Option<Vec<TokenId>>,
    /// Output tokens at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Output tokens at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u32>,
    /// Go on past the end-of-sequence token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// Top log-probabilities per prompt position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<u32>,
    /// Stream the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Options of the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Isolation key of the prefix cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    /// Put the token ids of prompt and output into the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_token_ids: Option<bool>,
    /// Add the model's special tokens to a text prompt; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special_tokens: Option<bool>,
}

/// Body of `POST /v1/completions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionRequest {
    /// Model name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Prompt or prompts.
    pub prompt: Prompt,
    /// Return the prompt in front of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,
    /// Top log-probabilities per generated token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    /// Sampling and streaming.
    #[serde(flatten)]
    pub sampling: SamplingFields,
}

/// Token counts of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Prompt and output tokens.
    #[serde(default)]
    pub total_tokens: u32,
    /// Output tokens.
    #[serde(default)]
    pub completion_tokens: u32,
    /// Parts of the prompt count.
    #[serde(default)]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

/// Parts of the prompt count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens whose KV came from the prefix cache; absent means that the server does not
    /// say, which is not the same as zero.
    #[serde(default)]
    pub cached_tokens: Option<u32>,
}

/// Log-probabilities of a completion choice, in OpenAI's layout: parallel lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionLogprobs {
    /// Character offset of each token in the text.
    pub text_offset: Vec<usize>,
    /// Log-probability of each token; null for the first token of an echoed prompt.
    pub token_logprobs: Vec<Option<f64>>,
    /// Each token as text.
    pub tokens: Vec<String>,
    /// The most likely tokens at each position.
    pub top_logprobs: Vec<Option<BTreeMap<String, f64>>>,
}

/// One candidate at a prompt position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptLogprob {
    /// Log-probability.
    pub logprob: f64,
    /// Rank, 1 for the most likely.
    pub rank: u32,
    /// The token as text.
    pub decoded_token: String,
}

/// Candidates at one prompt position by token id; null at position 0.
pub type PromptLogprobEntry = Option<BTreeMap<String, PromptLogprob>>;

/// One choice of a completion or of a completion event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionChoice {
    /// Number of the choice.
    pub index: u32,
    /// Text (of the event: the new part).
    pub text: String,
    /// Log-probabilities when asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why generation ended; null while it goes on.
    pub finish_reason: Option<String>,
    /// The stop string or stop token that ended it.
    #[serde(default)]
    pub stop_reason: Option<Value>,
    /// Output token ids when asked for.
    #[serde(default)]
    pub token_ids: Option<Vec<TokenId>>,
    /// Prompt log-probabilities when asked for.
    #[serde(default)]
    pub prompt_logprobs: Option<Vec<PromptLogprobEntry>>,
    /// Prompt token ids when asked for.
    #[serde(default)]
    pub prompt_token_ids: Option<Vec<TokenId>>,
}

/// A completion, or one event of a streamed completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionResponse {
    /// Id.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    /// Model name.
    pub model: String,
    /// Choices; empty in the usage event.
    pub choices: Vec<CompletionChoice>,
    /// Token counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Body of an error response (`{"error": {...}}`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// An error as vLLM words it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// What is wrong and what to do.
    pub message: String,
    /// Class, for example `BadRequestError`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field at fault.
    pub param: Option<String>,
    /// HTTP status.
    pub code: u16,
}

/// Body of `POST /tokenize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenizeRequest {
    /// Model name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Text.
    pub prompt: String,
    /// Add the model's special tokens; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special_tokens: Option<bool>,
}

/// Answer of `POST /tokenize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenizeResponse {
    /// Number of tokens.
    pub count: usize,
    /// Longest sequence that the server takes.
    pub max_model_len: usize,
    /// Token ids.
    pub tokens: Vec<TokenId>,
}

/// Body of `POST /detokenize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetokenizeRequest {
    /// Model name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Token ids.
    pub tokens: Vec<TokenId>,
}

/// Answer of `POST /detokenize`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DetokenizeResponse {
    /// Text.
    pub prompt: String,
}
