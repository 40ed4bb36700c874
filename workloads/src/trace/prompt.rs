//! Token ids for the block names of a trace.

use std::collections::BTreeSet;
use std::ops::Range;

use pb_contract::TokenId;

use crate::trace::TraceRow;
use crate::trace::error::TraceError;

/// Smallest vocabulary. Two names then agree in 16 tokens with a chance of 2^-80.
pub const MIN_VOCABULARY: u32 = 32;

/// Separates tokens that no name stands for from those of names.
const UNNAMED: u64 = 0x756e_6e61_6d65_6421;

/// Turns block names into tokens: a name always gives the same slice, a partial last block is its
/// name's slice, cut, and tokens without a name are the row's own.
///
/// Prompts then share whole blocks exactly where the trace says so. Single tokens after the shared
/// part agree by chance. The result depends on nothing but the row, the vocabulary and the seed:
/// nothing is stored, so nothing made for one tokenizer can be taken for another's.
#[derive(Clone, Debug)]
pub struct PromptTokens {
    source: Source,
    seed: u64,
}

/// Where tokens come from.
#[derive(Clone, Debug)]
enum Source {
    /// Drawn from a range.
    Uniform { first: TokenId, count: u64 },
    /// Slices of a text, each after its name written in the text's own tokens.
    Text {
        tokens: Vec<TokenId>,
        alphabet: Vec<TokenId>,
    },
}

impl PromptTokens {
    /// Tokens are drawn from `vocabulary`, which should leave special tokens out. Another seed
    /// gives other tokens, so that a run cannot hit the blocks of one before it.
    ///
    /// # Errors
    /// A vocabulary of fewer than [`MIN_VOCABULARY`] tokens.
    pub fn new(vocabulary: Range<TokenId>, seed: u64) -> Result<Self, TraceError> {
        let count = vocabulary.end.saturating_sub(vocabulary.start);
        if count < MIN_VOCABULARY {
            return Err(too_few(count as usize));
        }
        let first = vocabulary.start;
        let count = u64::from(count);
        Ok(PromptTokens {
            source: Source::Uniform { first, count },
            seed: mix(seed),
        })
    }

    /// Tokens are slices of `text`, the ids of a text in the target's own tokenizer. A slice
    /// begins with its name in a few tokens, so that two names never share a block.
    ///
    /// # Errors
    /// A text of fewer than [`MIN_VOCABULARY`] different tokens.
    pub fn from_text(text: Vec<TokenId>, seed: u64) -> Result<Self, TraceError> {
        let distinct: BTreeSet<TokenId> = text.iter().copied().collect();
        if distinct.len() < MIN_VOCABULARY as usize {
            return Err(too_few(distinct.len()));
        }
        Ok(PromptTokens {
            source: Source::Text {
                tokens: text,
                alphabet: distinct.into_iter().collect(),
            },
            seed: mix(seed),
        })
    }

    /// Other tokens of the same source.
    pub(crate) fn with_seed(mut self, seed: u64) -> Self {
        self.seed = mix(seed);
        self
    }

    /// The prompt of a row, `input_tokens` long.
    pub fn realise(&self, row: &TraceRow) -> Vec<TokenId> {
        let mut prompt = Vec::with_capacity(row.input_tokens);
        for (index, &id) in row.block_ids.iter().enumerate() {
            self.append_named(id, row.tokens_in_block(index), &mut prompt);
        }
        let rest = row.input_tokens.saturating_sub(prompt.len());
        if rest > 0 {
            self.append_own(row.number, rest, &mut prompt);
        }
        prompt
    }

    /// Appends the first `tokens` tokens of the slice that block name `id` stands for.
    pub(crate) fn append_named(&self, id: u64, tokens: usize, prompt: &mut Vec<TokenId>) {
        self.append(mix(self.seed ^ id), tokens, prompt);
    }

    /// Appends `tokens` tokens that no block name stands for and no other `number` has.
    pub(crate) fn append_own(&self, number: u64, tokens: usize, prompt: &mut Vec<TokenId>) {
        let own = mix(mix(self.seed ^ UNNAMED) ^ number);
        self.append(own, tokens, prompt);
    }

    /// Appends the first `tokens` tokens of the slice of `name`.
    fn append(&self, name: u64, tokens: usize, prompt: &mut Vec<TokenId>) {
        match &self.source {
            Source::Uniform { first, count } => {
                // Each hash gives two tokens.
                let token = |half: u64| first + ((half * count) >> 32) as TokenId;
                for pair in 0..tokens.div_ceil(2) {
                    let hash = mix(name.wrapping_add(pair as u64));
                    prompt.push(token(hash & 0xffff_ffff));
                    if 2 * pair + 1 < tokens {
                        prompt.push(token(hash >> 32));
                    }
                }
            }
            Source::Text {
                tokens: text,
                alphabet,
            } => {
                let base = alphabet.len() as u64;
                let mut digits = Some(name);
                let written = std::iter::from_fn(|| {
                    let value = digits?;
                    digits = Some(value / base).filter(|&left| left > 0);
                    Some(alphabet[(value % base) as usize])
                });
                let start = (mix(name) % text.len() as u64) as usize;
                let slice = text.iter().copied().cycle().skip(start);
                prompt.extend(written.chain(slice).take(tokens));
            }
        }
    }
}

fn too_few(count: usize) -> TraceError {
    TraceError::Parameter {
        key: "vocabulary",
        value: count.to_string(),
        fix: "must have at least 32 tokens, or different prompts would agree by chance".into(),
    }
}

/// The finaliser of SplitMix64 after one step: a bijection that scatters neighbours.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixer_is_splitmix64() {
        // First outputs of SplitMix64 for seed 0, as published with it (Vigna, splitmix64.c).
        let gamma = 0x9e37_79b9_7f4a_7c15_u64;
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(gamma), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(mix(gamma.wrapping_mul(2)), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn a_small_vocabulary_is_refused() {
        assert!(PromptTokens::new(10..42, 0).is_ok());
        let error = PromptTokens::new(10..41, 0).unwrap_err().to_string();
        assert!(error.starts_with("vocabulary = 31"), "{error}");
        assert!(PromptTokens::new(Range { start: 5, end: 4 }, 0).is_err());
        assert!(PromptTokens::from_text(vec![1; 1_000], 0).is_err());
    }
}
