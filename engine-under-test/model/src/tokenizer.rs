//! Text to token ids and back, from `tokenizer.json` or from GGUF metadata.
//!
//! Encoding is done by the `tokenizers` crate, which the reference programs use too; a GGUF
//! vocabulary is turned into the same structure. Decoding is ours: a table of the bytes behind
//! every id makes it exact (a token may be half a character) and makes streaming cost the token's
//! length, where decoding the whole output again at every step costs its square.
//!
//! A vocabulary need not have all 256 bytes (SmolLM2's lacks 21 of them); text bytes without a
//! token are dropped by `encode`, as Hugging Face's program and llama.cpp do.

mod bpe;
mod bytes;
mod detok;
mod json;
mod pieces;

use std::path::Path;

use crate::chat::{ChatMessage, ChatTemplate};
use crate::error::{ModelError, Result};
use crate::gguf::Header;
pub(crate) use bytes::byte_to_char;
pub use detok::DetokenizeStream;
use pieces::Pieces;

/// A model's tokenizer and chat template.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Pieces,
    /// Put in front when special tokens are asked for and `inner` does not do it.
    prefix: Option<u32>,
    /// Put behind, likewise.
    suffix: Option<u32>,
    /// Whether a space in front of the whole text belongs to the encoding, not the text.
    strip_leading_space: bool,
    chat: Option<ChatTemplate>,
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError::Config`] or [`ModelError::Tokenizer`] naming the key: a tokenizer model
    /// other than byte-level BPE, an unknown pre-tokenizer, a merge outside the vocabulary.
    pub fn from_gguf(header: &Header) -> Result<Tokenizer> {
        bpe::from_gguf(header)
    }

    /// Builds the tokenizer of a Hugging Face folder.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Format`], [`ModelError::Tokenizer`] or
    /// [`ModelError::Template`].
    pub fn from_dir(dir: &Path) -> Result<Tokenizer> {
        json::from_dir(dir)
    }

    /// Builds a tokenizer from the text of a `tokenizer.json`, without a chat template.
    ///
    /// # Errors
    /// [`ModelError::Format`] or [`ModelError::Tokenizer`].
    pub fn from_json(tokenizer_json: &str) -> Result<Tokenizer> {
        json::from_json(tokenizer_json)
    }

    /// Token ids of `text`. Special tokens written out in the text become their ids;
    /// `add_special` adds what the model wants around a document, such as a begin token. Text
    /// from a chat template already has it: encode that with `add_special = false`.
    ///
    /// Bytes of the text that the vocabulary has no token for, alone or merged, are left out
    /// without an error, as the reference programs leave them out: SmolLM2's vocabulary lacks 21
    /// of the 256 bytes, most of them control characters. Decoding then gives a shorter text.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] when the tokenizer's own configuration refuses the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = self
            .inner
            .encode_fast(text, add_special)
            .map_err(|e| ModelError::tokenizer("encode", e))?;
        let (prefix, suffix) = if add_special {
            (self.prefix, self.suffix)
        } else {
            (None, None)
        };
        Ok(prefix
            .into_iter()
            .chain(encoding.get_ids().iter().copied())
            .chain(suffix)
            .collect())
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = DetokenizeStream::new(self, skip_special);
        let mut text: String = ids.iter().map(|id| stream.push(self, *id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// The bytes that token `id` stands for; empty for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.pieces.bytes(id)
    }

    /// The text that token `id` stands for on its own; halves of characters become U+FFFD.
    pub fn token_str(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id)).into_owned()
    }

    /// The id of a token given by its literal text in the vocabulary, such as `<|im_end|>`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Length in bytes of the longest token. A text of more than `n` times this many bytes has
    /// more than `n` tokens, unless normalizing it or dropping its bytes makes it shorter.
    pub fn longest_token_bytes(&self) -> usize {
        self.pieces.longest_bytes()
    }

    /// Whether `id` is a control token.
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.is_special(id)
    }

    /// One more than the highest token id.
    pub fn id_bound(&self) -> usize {
        self.pieces.id_bound()
    }

    /// The chat template, if the model has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// Replaces the chat template.
    pub fn set_chat_template(&mut self, template: Option<ChatTemplate>) {
        self.chat = template;
    }

    /// Renders a conversation with the model's chat template.
    ///
    /// # Errors
    /// [`ModelError::Template`] when the model has none or it refuses the conversation.
    pub fn apply_chat_template(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String> {
        let missing = || ModelError::Template("this model has none".into());
        self.chat
            .as_ref()
            .ok_or_else(missing)?
            .apply(messages, add_generation_prompt)
    }
}

#[cfg(test)]
mod tests;
