//! A vocabulary made up by the test.

use pb_contract::TokenId;
use pb_server::{ChatTurn, Detokenizer, TextError, TextModel};

/// Tokens by id; text is split greedily, the longest token first.
#[derive(Clone, Default)]
pub(crate) struct FakeText {
    pub(crate) vocab: Vec<Vec<u8>>,
    /// Tokens from this id on read as nothing.
    pub(crate) special_from: Option<usize>,
    /// What every conversation renders to.
    pub(crate) chat: String,
}

impl FakeText {
    pub(crate) fn new(tokens: &[&str]) -> Self {
        let vocab = tokens.iter().map(|t| t.as_bytes().to_vec()).collect();
        FakeText {
            vocab,
            ..FakeText::default()
        }
    }
}

impl TextModel for FakeText {
    fn encode(&self, text: &str, _add_special: bool) -> Result<Vec<TokenId>, TextError> {
        let mut rest = text.as_bytes();
        let mut ids = Vec::new();
        while !rest.is_empty() {
            let fits = |t: &&Vec<u8>| !t.is_empty() && rest.starts_with(t);
            let longest = self.vocab.iter().filter(fits).max_by_key(|t| t.len());
            let Some(token) = longest else {
                return Err(TextError(format!(
                    "no token for {:?}",
                    String::from_utf8_lossy(rest)
                )));
            };
            ids.push(self.vocab.iter().position(|t| t == token).unwrap() as TokenId);
            rest = &rest[token.len()..];
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[TokenId]) -> Result<String, TextError> {
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| self.vocab[id as usize].clone())
            .collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn token_text(&self, id: TokenId) -> String {
        String::from_utf8_lossy(&self.vocab[id as usize]).into_owned()
    }

    fn token_bytes(&self, id: TokenId) -> Vec<u8> {
        self.vocab[id as usize].clone()
    }

    fn detokenizer(&self) -> Box<dyn Detokenizer> {
        Box::new(Incremental {
            text: self.clone(),
            held: Vec::new(),
        })
    }

    fn render_chat(&self, turns: &[ChatTurn], open: bool) -> Result<String, TextError> {
        assert!(!turns.is_empty());
        if !open {
            return Err(TextError("the template wants to open a turn".to_owned()));
        }
        Ok(self.chat.clone())
    }

    fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    fn longest_token_bytes(&self) -> usize {
        self.vocab.iter().map(Vec::len).max().unwrap_or(0)
    }
}

struct Incremental {
    text: FakeText,
    held: Vec<u8>,
}

impl Detokenizer for Incremental {
    fn push(&mut self, token: TokenId) -> String {
        if self
            .text
            .special_from
            .is_some_and(|first| token as usize >= first)
        {
            return String::new();
        }
        self.held.extend(&self.text.vocab[token as usize]);
        let valid = match std::str::from_utf8(&self.held) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let rest = self.held.split_off(valid);
        String::from_utf8(std::mem::replace(&mut self.held, rest)).unwrap()
    }
}
