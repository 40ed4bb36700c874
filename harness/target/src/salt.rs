//! Prompts that no cache can know: a salted first block.
//!
//! A prefix cache finds a prompt by its beginning, so a prompt whose first block was never sent
//! before cannot be found, whatever the server holds. The salt must not change what the prompts
//! of one cell share among themselves, or it would add hits that nobody planned: a common word in
//! front of all of them would be a common block. So each of the first tokens is replaced by one
//! that depends on it and on those before it, which keeps every shared beginning as long as it
//! was.

use std::collections::BTreeSet;
use std::sync::Arc;

use pb_contract::wire::Prompt;
use pb_contract::{Stream, TokenId};

use crate::error::TargetError;

/// First tokens of a prompt that are replaced.
pub const SALT_TOKENS: usize = 8;

/// Of these, as many must be replaceable.
const MIN_REPLACED: usize = 4;

/// First characters of a text that its word is made from.
const SALT_CHARS: usize = 64;

/// Makes one salt for each cell of a run.
#[derive(Clone, Debug)]
pub struct SaltMaker {
    nonce: u64,
    alphabet: Arc<[TokenId]>,
    made: usize,
}

/// What every prompt of one cell is salted with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salt {
    alphabet: Arc<[TokenId]>,
    /// Distance in the alphabet between the first replaced token and its replacement.
    first_shift: usize,
    key: u64,
    word: String,
}

impl SaltMaker {
    /// Salts from `alphabet`, ordinary tokens of the target's vocabulary. The `nonce` must be
    /// another one in every run, or a second run finds what the first one left; it is recorded
    /// with the run.
    ///
    /// # Errors
    /// Fewer than 64 different tokens: salts would repeat.
    pub fn new(nonce: u64, alphabet: &[TokenId]) -> Result<SaltMaker, TargetError> {
        let distinct: BTreeSet<TokenId> = alphabet.iter().copied().collect();
        if distinct.len() < 64 {
            return Err(TargetError::Prompt(format!(
                "an alphabet of {} different tokens cannot salt prompts: give at least 64 \
                 ordinary tokens of the vocabulary",
                distinct.len()
            )));
        }
        Ok(SaltMaker {
            nonce,
            alphabet: distinct.into_iter().collect(),
            made: 0,
        })
    }

    /// The salt of the next cell.
    ///
    /// # Errors
    /// There were as many as the alphabet allows.
    pub fn next_salt(&mut self) -> Result<Salt, TargetError> {
        // A shift by nothing, or by the whole alphabet, would be no salt.
        let shifts = self.alphabet.len() - 1;
        if self.made == shifts {
            return Err(TargetError::Prompt(format!(
                "{shifts} cells were salted: a further salt would begin like an earlier one; \
                 give a larger alphabet"
            )));
        }
        let mut stream = Stream::new(self.nonce, &format!("salt/{}", self.made));
        let start = (self.nonce % shifts as u64) as usize;
        let key = stream.next_u64();
        let word = format!("{:016x}", stream.next_u64());
        let first_shift = 1 + (start + self.made) % shifts;
        self.made += 1;
        Ok(Salt {
            alphabet: Arc::clone(&self.alphabet),
            first_shift,
            key,
            word,
        })
    }
}

impl Salt {
    /// The prompt with its beginning salted.
    ///
    /// Of token ids, those among the first 8 that the alphabet has are replaced (a token that
    /// marks the beginning stays): the length stays, and two prompts share as many tokens as
    /// before. A text gets a word in front, made from its first 64 characters: it grows by the
    /// word's tokens, and texts that share fewer characters share nothing any more.
    ///
    /// # Errors
    /// The prompt is too short, has too few tokens of the alphabet, or is a list of prompts.
    pub fn apply(&self, prompt: &Prompt) -> Result<Prompt, TargetError> {
        match prompt {
            Prompt::Ids(ids) => self.ids(ids).map(Prompt::Ids),
            Prompt::Text(text) => {
                let start: String = text.chars().take(SALT_CHARS).collect();
                let word = Stream::new(self.key, &start).next_u64();
                Ok(Prompt::Text(format!("{word:016x} {text}")))
            }
            Prompt::Texts(_) | Prompt::IdLists(_) => Err(TargetError::Prompt(
                "a list of prompts cannot be salted: send them one by one".to_owned(),
            )),
        }
    }

    fn ids(&self, prompt: &[TokenId]) -> Result<Vec<TokenId>, TargetError> {
        let size = self.alphabet.len();
        let mut salted = prompt.to_vec();
        let mut replaced = 0;
        let mut before = self.key;
        for token in salted.iter_mut().take(SALT_TOKENS) {
            let shift = match replaced {
                0 => self.first_shift,
                _ => 1 + (before % (size as u64 - 1)) as usize,
            };
            before = Stream::new(before, &format!("after/{token}")).next_u64();
            // Tokens outside stay as they are, so that no two tokens become the same one.
            if let Ok(index) = self.alphabet.binary_search(token) {
                *token = self.alphabet[(index + shift) % size];
                replaced += 1;
            }
        }
        if replaced < MIN_REPLACED {
            return Err(TargetError::Prompt(format!(
                "a prompt of {} tokens cannot be salted: {replaced} of its first {SALT_TOKENS} \
                 are in the alphabet of {size} tokens, {MIN_REPLACED} are needed; give longer \
                 prompts or a larger alphabet",
                prompt.len()
            )));
        }
        Ok(salted)
    }

    /// The salt as a key for servers that take one with the request.
    pub fn key(&self) -> &str {
        &self.word
    }
}

/// A warm-up prompt that a measured prompt shares its first block with, as indices into the two
/// lists: such a warm-up would fill the cache with what is to be measured cold. A warm-up prompt
/// shorter than a block cannot be found in blocks and clashes with nothing.
pub fn first_block_clash(
    warm_up: &[Vec<TokenId>],
    measured: &[Vec<TokenId>],
    block_size: usize,
) -> Option<(usize, usize)> {
    let block = block_size.max(1);
    for (w, first) in warm_up.iter().enumerate() {
        let Some(first) = first.get(..block) else {
            continue;
        };
        if let Some(m) = measured.iter().position(|p| p.starts_with(first)) {
            return Some((w, m));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maker(nonce: u64) -> SaltMaker {
        SaltMaker::new(nonce, &(100..200).collect::<Vec<TokenId>>()).unwrap()
    }

    fn ids(prompt: Prompt) -> Vec<TokenId> {
        match prompt {
            Prompt::Ids(ids) => ids,
            other => panic!("{other:?}"),
        }
    }

    fn salted(salt: &Salt, prompt: &[TokenId]) -> Vec<TokenId> {
        ids(salt.apply(&Prompt::Ids(prompt.to_vec())).unwrap())
    }

    fn shared(a: &[TokenId], b: &[TokenId]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    /// vllm #52884 and guidellm #186: neither an earlier cell nor the salt itself may add hits.
    #[test]
    fn row_54_what_prompts_share_stays_and_cells_share_nothing() {
        let mut maker = maker(7);
        let mut stream = Stream::new(1, "prompts");
        // Few different tokens, so that many prompts share a beginning.
        let mut prompt = || (0..12).map(|_| 100 + stream.below(2) as TokenId).collect();
        let prompts: Vec<Vec<TokenId>> = (0..40).map(|_| prompt()).collect();
        let cells: Vec<Salt> = (0..99).map(|_| maker.next_salt().unwrap()).collect();
        for salt in &cells[..3] {
            for a in &prompts {
                for b in &prompts {
                    let (sa, sb) = (salted(salt, a), salted(salt, b));
                    assert_eq!(shared(&sa, &sb), shared(a, b), "{a:?} {b:?}");
                    assert_eq!(sa[SALT_TOKENS..], a[SALT_TOKENS..]);
                }
                assert_eq!(shared(&salted(salt, a), a), 0);
            }
        }
        let firsts: BTreeSet<TokenId> = cells.iter().map(|c| salted(c, &prompts[0])[0]).collect();
        assert_eq!(firsts.len(), 99);
        let error = maker.next_salt().unwrap_err().to_string();
        assert!(error.contains("larger alphabet"), "{error}");
    }

    #[test]
    fn a_token_outside_the_alphabet_stays() {
        let salt = maker(3).next_salt().unwrap();
        let out = salted(&salt, &[1, 110, 111, 112, 113, 114]);
        assert_eq!(out[0], 1);
        assert_eq!(shared(&out[1..], &[110]), 0);
        assert!(
            out[1..].iter().all(|token| (100..200).contains(token)),
            "{out:?}"
        );
    }

    #[test]
    fn another_nonce_gives_other_salts_and_the_same_one_the_same() {
        let first = |nonce| maker(nonce).next_salt().unwrap();
        let prompt: Vec<TokenId> = (100..120).collect();
        assert_eq!(first(1), first(1));
        assert_eq!(
            shared(&salted(&first(1), &prompt), &salted(&first(2), &prompt)),
            0
        );
        assert_ne!(salted(&first(1), &prompt), salted(&first(100), &prompt));
        assert_ne!(first(1).key(), first(2).key());
    }

    #[test]
    fn texts_that_share_a_beginning_get_the_same_word() {
        let salt = maker(1).next_salt().unwrap();
        let word = |text: &str| match salt.apply(&Prompt::Text(text.to_owned())).unwrap() {
            Prompt::Text(salted) => salted.strip_suffix(text).unwrap().to_owned(),
            other => panic!("{other:?}"),
        };
        let system = "x".repeat(64);
        assert_eq!(word(&format!("{system}a")), word(&format!("{system}b")));
        assert_ne!(word("What is a?"), word("What is b?"));
        assert_eq!(word("one").len(), 17);
    }

    #[test]
    fn what_cannot_be_salted_says_why() {
        let salt = maker(1).next_salt().unwrap();
        for (prompt, part) in [
            (Prompt::Ids(vec![100; 3]), "3 of its first 8"),
            (Prompt::Ids(vec![5; 50]), "0 of its first 8"),
            (Prompt::Texts(vec![]), "one by one"),
        ] {
            let error = salt.apply(&prompt).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let few = SaltMaker::new(1, &[5; 1000]).unwrap_err().to_string();
        assert!(few.contains("1 different tokens"), "{few}");
    }

    /// aiperf #1040, ATOM #1759: warm-up prompts that share a first block seed the cache.
    #[test]
    fn row_59_warm_up_and_measured_prompts_differ_in_their_first_block() {
        let measured = vec![vec![1, 2, 3, 4, 5], vec![6, 7, 8, 9]];
        let clash = |warm: &[Vec<TokenId>]| first_block_clash(warm, &measured, 4);
        assert_eq!(clash(&[vec![9, 9, 9, 9]]), None);
        assert_eq!(clash(&[vec![9; 4], vec![6, 7, 8, 9, 1]]), Some((1, 1)));
        assert_eq!(clash(&[vec![1, 2, 3]]), None, "less than a block");
    }
}
