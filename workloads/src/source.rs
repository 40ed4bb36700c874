//! What prompts are made of, and the form in which they are sent.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use pb_contract::TokenId;
use pb_contract::plan::ChatTurn;
use serde::{Deserialize, Serialize};

use crate::text::PROSE;

/// A target's tokenizer, as much of it as planning needs.
pub trait Tokenizer {
    /// The tokens of a completion prompt, with the special tokens that the target puts before it.
    fn encode(&self, text: &str) -> Vec<TokenId>;

    /// The text of tokens.
    fn decode(&self, ids: &[TokenId]) -> String;

    /// The tokens of a conversation in the target's template with the answer opened; `None` when
    /// the template is not known.
    fn encode_chat(&self, _turns: &[ChatTurn]) -> Option<Vec<TokenId>> {
        None
    }

    /// What tells this tokenizer from another one: a hash of its contents, not its name. Two
    /// tokenizers of one class are not the same.
    fn identity(&self) -> String;
}

/// Where the tokens of made prompts come from.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenSource {
    /// Ids drawn from a range of the target's vocabulary, which should leave special tokens out.
    Ids(Range<TokenId>),
    /// Slices of a text in the target's own tokens.
    Text(Vec<TokenId>),
    /// Words of the embedded prose, for prompts that are sent as text.
    Words,
}

/// What prompts are made of.
#[derive(Clone)]
pub struct Source<'a> {
    /// Where tokens come from.
    pub tokens: TokenSource,
    /// The target's tokenizer, where it is known: counts are then exact.
    pub tokenizer: Option<&'a dyn Tokenizer>,
}

impl<'a> Source<'a> {
    /// Random ids of a range.
    pub fn ids(range: Range<TokenId>) -> Self {
        Source {
            tokens: TokenSource::Ids(range),
            tokenizer: None,
        }
    }

    /// Words of the embedded prose.
    pub fn words() -> Self {
        Source {
            tokens: TokenSource::Words,
            tokenizer: None,
        }
    }

    /// With the target's tokenizer.
    pub fn with_tokenizer(mut self, tokenizer: &'a dyn Tokenizer) -> Self {
        self.tokenizer = Some(tokenizer);
        self
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = self.tokenizer.map(|tokenizer| tokenizer.identity());
        f.debug_struct("Source")
            .field("tokens", &self.tokens)
            .field("tokenizer", &identity)
            .finish()
    }
}

/// The form in which prompts are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// Token ids.
    #[default]
    Ids,
    /// Text, which the target tokenizes.
    Text,
    /// Messages, which the target puts into its template.
    Chat,
}

/// Letters of the words that are used without a tokenizer: short ones are one token in most.
const PLAIN_LETTERS: std::ops::RangeInclusive<usize> = 2..=8;

/// The words of the prose in its order, without those that a tokenizer cuts up.
///
/// A word is a token only where it stands after a space, so prompts are joined from words with
/// their space in front. A prompt cut between two words then has as many tokens as words, and two
/// prompts that share words share tokens.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    /// Distinct words.
    words: Vec<&'static str>,
    /// The prose as indices of words.
    prose: Vec<TokenId>,
}

impl Words {
    pub(crate) fn new(tokenizer: Option<&dyn Tokenizer>) -> Self {
        let plain = |word: &str| {
            PLAIN_LETTERS.contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase())
        };
        let candidates: BTreeSet<&str> = PROSE
            .split_whitespace()
            .filter(|word| plain(word))
            .collect();
        // Between two others, so that what the tokenizer puts at the start does not count.
        let one_token = |word: &&&str| {
            let Some(tokenizer) = tokenizer else {
                return true;
            };
            let alone = tokenizer.encode(" the the").len();
            tokenizer.encode(&format!(" the {word} the")).len() == alone + 1
        };
        let mut words: Vec<&str> = candidates.iter().filter(one_token).copied().collect();
        if words.len() < 64 {
            // A tokenizer of bytes: no word is a token, and lengths are what they come to.
            words = candidates.into_iter().collect();
        }
        let index = |word: &str| words.binary_search(&word).ok().map(|at| at as TokenId);
        let prose = PROSE.split_whitespace().filter_map(index).collect();
        Words { words, prose }
    }

    /// The prose, to be cut into slices.
    pub(crate) fn prose(&self) -> Vec<TokenId> {
        self.prose.clone()
    }

    /// The text of indices, each word after a space.
    pub(crate) fn text(&self, indices: &[TokenId]) -> String {
        let mut text = String::with_capacity(indices.len() * 6);
        for &index in indices {
            text.push(' ');
            text.push_str(self.words[index as usize]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token a letter, a space being part of the letter after it.
    struct Letters;

    impl Tokenizer for Letters {
        fn encode(&self, text: &str) -> Vec<TokenId> {
            text.bytes().filter(|b| *b != b' ').map(u32::from).collect()
        }

        fn decode(&self, ids: &[TokenId]) -> String {
            ids.iter().map(|&id| id as u8 as char).collect()
        }

        fn identity(&self) -> String {
            "letters".into()
        }
    }

    /// One token for each word that has an even number of letters, two for the others.
    struct EvenWords;

    impl Tokenizer for EvenWords {
        fn encode(&self, text: &str) -> Vec<TokenId> {
            let tokens = text.split_whitespace().flat_map(|word| {
                let count = 1 + word.len() % 2;
                std::iter::repeat_n(word.len() as TokenId, count)
            });
            std::iter::once(1).chain(tokens).collect()
        }

        fn decode(&self, _ids: &[TokenId]) -> String {
            String::new()
        }

        fn identity(&self) -> String {
            "even words".into()
        }
    }

    #[test]
    fn words_are_single_tokens_of_the_targets_tokenizer() {
        let words = Words::new(Some(&EvenWords));
        assert!(words.words.len() > 500);
        assert!(words.words.iter().all(|word| word.len().is_multiple_of(2)));
        let text = words.text(&words.prose()[..100]);
        assert_eq!(EvenWords.encode(&text).len(), 101);
    }

    #[test]
    fn a_tokenizer_of_letters_still_gets_words() {
        let words = Words::new(Some(&Letters));
        assert!(words.words.len() > 1_000);
        assert_eq!(words.words.len(), Words::new(None).words.len());
    }

    #[test]
    fn the_prose_keeps_its_order() {
        let words = Words::new(None);
        let text = words.text(&words.prose());
        let mut all = PROSE.split_whitespace();
        assert!(text.split_whitespace().count() > 10_000);
        assert!(
            text.split_whitespace()
                .all(|word| all.any(|other| other == word))
        );
    }
}
