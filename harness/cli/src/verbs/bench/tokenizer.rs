//! The target's tokenizer, read from a file.

use std::path::Path;

use anyhow::{Context, Result};
use pb_contract::TokenId;
use pb_contract::plan::ChatTurn;
use pb_model::chat::ChatMessage;
use pb_model::gguf::GgufFile;
use sha2::{Digest, Sha256};

/// A tokenizer, known by the contents of its file.
pub(crate) struct TargetTokenizer {
    inner: pb_model::Tokenizer,
    identity: String,
}

impl TargetTokenizer {
    /// Reads a `tokenizer.json`, a directory that has one, or a GGUF file.
    ///
    /// # Errors
    /// A file that cannot be read or is none of these.
    pub(crate) fn read(path: &Path) -> Result<TargetTokenizer> {
        let place = || format!("--tokenizer {}", path.display());
        let is_json = path
            .extension()
            .is_some_and(|extension| extension == "json");
        if path.is_dir() {
            let text = std::fs::read(path.join("tokenizer.json")).with_context(place)?;
            let inner = pb_model::Tokenizer::from_dir(path).with_context(place)?;
            return Ok(TargetTokenizer::of(inner, &text));
        }
        if is_json {
            let text = std::fs::read_to_string(path).with_context(place)?;
            let inner = pb_model::Tokenizer::from_json(&text).with_context(place)?;
            return Ok(TargetTokenizer::of(inner, text.as_bytes()));
        }
        let file = GgufFile::open(path).with_context(place)?;
        let inner = pb_model::Tokenizer::from_gguf(&file.header).with_context(place)?;
        // The metadata, without the weights.
        let metadata = file.header.metadata.iter();
        let own = metadata.filter(|(key, _)| key.starts_with("tokenizer."));
        let text = own.map(|entry| format!("{entry:?}\n")).collect::<String>();
        Ok(TargetTokenizer::of(inner, text.as_bytes()))
    }

    fn of(inner: pb_model::Tokenizer, contents: &[u8]) -> TargetTokenizer {
        let digest = Sha256::digest(contents);
        let hex = digest.iter().map(|byte| format!("{byte:02x}"));
        TargetTokenizer {
            inner,
            identity: hex.collect(),
        }
    }

    /// One more than the highest token id.
    pub(crate) fn id_bound(&self) -> usize {
        self.inner.id_bound()
    }
}

impl pb_workloads::Tokenizer for TargetTokenizer {
    fn encode(&self, text: &str) -> Vec<TokenId> {
        // A text that the tokenizer refuses has no tokens, and is then of a wrong length.
        self.inner.encode(text, true).unwrap_or_default()
    }

    fn decode(&self, ids: &[TokenId]) -> String {
        self.inner.decode(ids, false)
    }

    fn encode_chat(&self, turns: &[ChatTurn]) -> Option<Vec<TokenId>> {
        let message = |turn: &ChatTurn| ChatMessage::new(&turn.role, &turn.content);
        let messages: Vec<ChatMessage> = turns.iter().map(message).collect();
        let text = self.inner.apply_chat_template(&messages, true).ok()?;
        self.inner.encode(&text, false).ok()
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }
}
