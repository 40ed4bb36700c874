//! Prompts cut from real text.
//!
//! Random token ids are not a language: a model answers them oddly and a tokenizer would never
//! produce them. Slices of prose are realistic, but two slices may overlap, and then a prefix
//! cache would serve one from the other. Every prompt therefore starts with a nonce: a few tokens
//! that no other prompt of this source starts with, so that no two prompts share a block.

use std::collections::BTreeSet;

use pb_contract::{Stream, TokenId};

use crate::error::WorkloadError;

/// Public-domain English prose (about 280 KB, ASCII) for the caller to tokenise.
pub const PROSE: &str = include_str!("../prompts/northanger_abbey.txt");

/// Tokens of the nonce at the start of every prompt. Sound for blocks of at least this size; for
/// smaller ones too as soon as the block covers the digits of the prompt's number.
pub const NONCE_TOKENS: usize = 8;

/// Digits of the nonce that count prompts; the others carry the run's nonce.
const COUNTER_DIGITS: u32 = 4;

/// Fewest distinct token ids: 16^4 prompts can then be told apart.
const MIN_DISTINCT: usize = 16;

/// A tokenised text and the count of prompts cut from it so far.
#[derive(Clone, Debug)]
pub struct TextSource {
    tokens: Vec<TokenId>,
    alphabet: Vec<TokenId>,
    run_nonce: u64,
    made: u64,
}

impl TextSource {
    /// A source over `tokens`, the ids of a text in the target's own tokenizer, without special
    /// tokens. `run_nonce` separates the prompts of one run from those of another one against the
    /// same warm server.
    ///
    /// # Errors
    /// A text of fewer than 256 tokens or of fewer than 16 distinct ids.
    pub fn new(tokens: Vec<TokenId>, run_nonce: u64) -> Result<Self, WorkloadError> {
        let distinct: BTreeSet<TokenId> = tokens.iter().copied().collect();
        if tokens.len() < 256 || distinct.len() < MIN_DISTINCT {
            return Err(WorkloadError::Text {
                tokens: tokens.len(),
                distinct: distinct.len(),
                fix: "give at least 256 tokens of 16 kinds",
            });
        }
        let alphabet = distinct.into_iter().collect();
        Ok(TextSource {
            tokens,
            alphabet,
            run_nonce,
            made: 0,
        })
    }

    /// Prompts made so far.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Tokens of the text itself.
    pub fn text_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// A prompt of exactly `len` tokens: a nonce that no other prompt of this source has, then a
    /// slice of the text from a seeded offset (wrapping at its end).
    ///
    /// # Errors
    /// `len` below [`NONCE_TOKENS`] + 1, or more prompts than the nonce can count.
    pub fn prompt(
        &mut self,
        len: usize,
        stream: &mut Stream,
    ) -> Result<Vec<TokenId>, WorkloadError> {
        if len <= NONCE_TOKENS {
            let fix = format!(
                "a prompt needs its nonce and a token: at least {}",
                NONCE_TOKENS + 1
            );
            return Err(WorkloadError::parameter("prompt length", len, fix));
        }
        let mut prompt = self.nonce()?;
        self.append_slice(&mut prompt, len - NONCE_TOKENS, stream);
        Ok(prompt)
    }

    /// Appends `len` tokens of text from a seeded offset, without a nonce.
    fn append_slice(&self, prompt: &mut Vec<TokenId>, len: usize, stream: &mut Stream) {
        let start = stream.below(self.tokens.len() as u64) as usize;
        prompt.extend(self.tokens.iter().cycle().skip(start).take(len));
    }

    /// The next nonce: the prompt's number in base `alphabet`, lowest digit first, so that
    /// neighbours differ in their very first token, then the run's nonce likewise.
    fn nonce(&mut self) -> Result<Vec<TokenId>, WorkloadError> {
        let base = self.alphabet.len() as u64;
        let limit = base.saturating_pow(COUNTER_DIGITS);
        if self.made >= limit {
            let fix = "more prompts than the nonce can count: use a text of more distinct tokens";
            return Err(WorkloadError::parameter("prompts", self.made + 1, fix));
        }
        let mut out = Vec::with_capacity(NONCE_TOKENS);
        let mut digits = |mut value: u64, count: usize| {
            for _ in 0..count {
                out.push(self.alphabet[(value % base) as usize]);
                value /= base;
            }
        };
        digits(self.made, COUNTER_DIGITS as usize);
        digits(self.run_nonce, NONCE_TOKENS - COUNTER_DIGITS as usize);
        self.made += 1;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(run_nonce: u64) -> TextSource {
        TextSource::new((0..4_000u32).map(|i| (i * i) % 331).collect(), run_nonce).unwrap()
    }

    #[test]
    fn prompts_have_their_length_and_their_own_start() {
        let mut text = source(1);
        let mut stream = Stream::new(3, "prompts");
        let mut starts = BTreeSet::new();
        for len in 9..1_009 {
            let prompt = text.prompt(len, &mut stream).unwrap();
            assert_eq!(prompt.len(), len);
            assert!(starts.insert(prompt[..COUNTER_DIGITS as usize].to_vec()));
        }
        assert_eq!(text.made(), 1_000);
    }

    #[test]
    fn the_body_is_a_slice_of_the_text() {
        let mut text = source(1);
        let prompt = text.prompt(50, &mut Stream::new(3, "prompts")).unwrap();
        let body = &prompt[NONCE_TOKENS..];
        let twice: Vec<TokenId> = text.tokens.iter().chain(&text.tokens).copied().collect();
        assert!(twice.windows(body.len()).any(|w| w == body));
    }

    #[test]
    fn runs_with_other_nonces_share_less_than_a_nonce() {
        let (mut a, mut b) = (source(1), source(2));
        let x = a.prompt(64, &mut Stream::new(3, "p")).unwrap();
        let y = b.prompt(64, &mut Stream::new(3, "p")).unwrap();
        assert_ne!(x[..NONCE_TOKENS], y[..NONCE_TOKENS]);
    }

    #[test]
    fn too_small_a_text_or_prompt_is_refused() {
        assert!(TextSource::new(vec![1; 10_000], 0).is_err());
        assert!(TextSource::new((0..100).collect(), 0).is_err());
        let mut text = source(0);
        let error = text
            .prompt(NONCE_TOKENS, &mut Stream::new(1, "p"))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "prompt length = 8: a prompt needs its nonce and a token: at least 9"
        );
    }

    #[test]
    fn the_embedded_prose_is_large_enough_and_plain() {
        assert!(PROSE.len() > 60_000 && PROSE.len() < 300_000);
        assert!(PROSE.is_ascii() && PROSE.contains("Catherine Morland"));
    }
}
