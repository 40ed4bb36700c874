//! The bodies that the server writes.
//!
//! The contract's wire types are what a client of any server reads, lenient about what is
//! missing. These write exactly the keys that vLLM writes, in its order: which of them are null
//! and which are absent differs between a whole answer and an event, and clients notice.

use pb_contract::TokenId;
use pb_contract::chat::ChatLogprobs;
use pb_contract::wire::{CompletionLogprobs, PromptLogprobEntry, Usage};
use serde::Serialize;

use crate::collector::StopCause;
use crate::kv::KvTransferParams;

/// Always null.
pub(crate) type Null = Option<()>;

/// `stop_reason`: a token id or a stop string.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum StopReason {
    Token(TokenId),
    Text(String),
}

impl From<StopCause> for StopReason {
    fn from(cause: StopCause) -> Self {
        match cause {
            StopCause::Token(id) => StopReason::Token(id),
            StopCause::Text(text) => StopReason::Text(text),
        }
    }
}

/// A whole completion.
#[derive(Debug, Serialize)]
pub(crate) struct Completion<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<CompletionChoice>,
    pub(crate) service_tier: Null,
    pub(crate) system_fingerprint: &'static str,
    pub(crate) usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_transfer_params: Option<KvTransferParams>,
}

/// A choice of a whole completion.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopReason>,
    pub(crate) token_ids: Option<Vec<TokenId>>,
    pub(crate) prompt_logprobs: Option<Vec<PromptLogprobEntry>>,
    pub(crate) prompt_token_ids: Option<Vec<TokenId>>,
}

/// An event of either stream.
#[derive(Debug, Serialize)]
pub(crate) struct Event<'a, C> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
    /// Chat only, in its first event, null or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Option<Vec<TokenId>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system_fingerprint: Option<&'static str>,
    /// In the last event of a request that is to be decoded elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_transfer_params: Option<KvTransferParams>,
}

/// A choice of a completion event.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionDelta {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopReason>,
    pub(crate) prompt_token_ids: Option<Vec<TokenId>>,
    pub(crate) token_ids: Option<Vec<TokenId>>,
}

/// A whole chat completion.
#[derive(Debug, Serialize)]
pub(crate) struct Chat<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) service_tier: Null,
    pub(crate) system_fingerprint: &'static str,
    pub(crate) usage: Usage,
    pub(crate) prompt_logprobs: Option<Vec<PromptLogprobEntry>>,
    pub(crate) prompt_token_ids: Option<Vec<TokenId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_transfer_params: Option<KvTransferParams>,
}

/// A choice of a whole chat completion.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: ChatMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopReason>,
    pub(crate) token_ids: Option<Vec<TokenId>>,
}

/// A generated message; this engine calls no tools and makes no audio.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatMessage {
    pub(crate) role: &'static str,
    pub(crate) content: String,
    pub(crate) refusal: Null,
    pub(crate) annotations: Null,
    pub(crate) audio: Null,
    pub(crate) function_call: Null,
    pub(crate) tool_calls: [u8; 0],
}

/// A choice of a chat event.
#[derive(Debug, Serialize)]
pub(crate) struct ChatDelta {
    pub(crate) index: usize,
    pub(crate) delta: Delta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    /// In the last event of a choice only, null or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<Option<StopReason>>,
    /// In every event but the first of a choice, null or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Option<Vec<TokenId>>>,
}

/// The new part of a message.
#[derive(Debug, Serialize)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    pub(crate) content: String,
}
