//! Wire types of `POST /v1/chat/completions`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::TokenId;
use crate::wire::{PromptLogprobEntry, SamplingFields, Usage};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or another role of the template.
    pub role: String,
    /// Text, or a list of `{"type": "text", "text": ...}` parts.
    pub content: Value,
}

/// Body of `POST /v1/chat/completions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatRequest {
    /// Model name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Conversation so far.
    pub messages: Vec<ChatMessage>,
    /// Newer name of `max_tokens`; wins over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<u32>,
    /// Whether to report log-probabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// How many top candidates to report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u32>,
    /// Open the assistant's turn after the messages; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_generation_prompt: Option<bool>,
    /// Sampling and streaming.
    #[serde(flatten)]
    pub sampling: SamplingFields,
}

/// One candidate token of a chat choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatTopLogprob {
    /// The token as text.
    pub token: String,
    /// Log-probability.
    pub logprob: f64,
    /// The token's bytes.
    pub bytes: Option<Vec<u8>>,
}

/// Log-probabilities of one token of a chat choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatTokenLogprob {
    /// The token as text.
    pub token: String,
    /// Log-probability.
    pub logprob: f64,
    /// The token's bytes.
    pub bytes: Option<Vec<u8>>,
    /// The most likely candidates.
    pub top_logprobs: Vec<ChatTopLogprob>,
}

/// Log-probabilities of a chat choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatLogprobs {
    /// One entry a token.
    pub content: Vec<ChatTokenLogprob>,
}

/// A message that the server made, or the new part of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatDelta {
    /// Set in the first event of a stream only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// One choice of a chat completion; `message` in a whole response, `delta` in an event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatChoice {
    /// Number of the choice.
    pub index: u32,
    /// The whole message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<ChatDelta>,
    /// The new part of the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<ChatDelta>,
    /// Log-probabilities when asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why generation ended; null while it goes on.
    pub finish_reason: Option<String>,
    /// The stop string or stop token that ended it.
    #[serde(default)]
    pub stop_reason: Option<Value>,
    /// Output token ids when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<TokenId>>,
}

/// A chat completion, or one event of a streamed one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatResponse {
    /// Id.
    pub id: String,
    /// `chat.completion` or `chat.completion.chunk`.
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    /// Model name.
    pub model: String,
    /// Choices; empty in the usage event.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Prompt log-probabilities when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Vec<PromptLogprobEntry>>,
    /// Prompt token ids when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<TokenId>>,
}
