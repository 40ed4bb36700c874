//! What the server asks of a tokenizer.
//!
//! The engine core knows token ids only; text exists on this side. A trait keeps the tokenizer's
//! library out of the server and lets tests speak a vocabulary of their own.

use std::sync::Arc;

use pb_contract::TokenId;
use serde::Serialize;

/// A tokenizer with the model's chat template.
pub trait TextModel: Send + Sync {
    /// Token ids of a text, with the model's special tokens around it when `add_special`.
    ///
    /// # Errors
    /// Why the text has no tokens.
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, TextError>;

    /// Text of token ids, special tokens included, incomplete characters replaced.
    ///
    /// # Errors
    /// Why the ids have no text.
    fn decode(&self, ids: &[TokenId]) -> Result<String, TextError>;

    /// One token as text.
    fn token_text(&self, id: TokenId) -> String;

    /// One token as bytes; not always valid UTF-8 by themselves.
    fn token_bytes(&self, id: TokenId) -> Vec<u8>;

    /// A new incremental detokenizer.
    fn detokenizer(&self) -> Box<dyn Detokenizer>;

    /// The prompt that stands for a conversation.
    ///
    /// # Errors
    /// There is no template, or it refuses the conversation.
    fn render_chat(
        &self,
        turns: &[ChatTurn],
        add_generation_prompt: bool,
    ) -> Result<String, TextError>;

    /// Ids at or above this are not tokens.
    fn vocab_size(&self) -> usize;

    /// Length in bytes of the longest token: what tells a text that is too long from its length.
    fn longest_token_bytes(&self) -> usize;
}

/// Turns a growing list of tokens into text without ever giving out half a character.
pub trait Detokenizer: Send {
    /// The text that this token completes; empty while a character is incomplete and for special
    /// tokens.
    fn push(&mut self, token: TokenId) -> String;
}

/// One turn of a conversation, its content flattened to text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTurn {
    /// `system`, `user`, `assistant` or another role of the template.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// Text and tokens that do not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TextError(pub String);

/// The model as far as the server needs it.
#[derive(Clone)]
pub struct ModelAssets {
    /// Tokenizer and chat template.
    pub text: Arc<dyn TextModel>,
    /// Where the model came from, for `/v1/models`.
    pub root: String,
    /// Receipt of the model (identity, checksums, shape), shown by `/server_info` as it is.
    pub receipt: serde_json::Value,
    /// Adapters that the engine has loaded.
    pub adapters: Vec<ServedAdapter>,
}

/// A LoRA adapter, which requests choose by naming it as their model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServedAdapter {
    /// Name in requests; also the engine's name for it.
    pub name: String,
    /// Where it came from, for `/v1/models`.
    pub root: String,
    /// Digest of its weights and settings, as hex digits.
    pub digest: String,
}
