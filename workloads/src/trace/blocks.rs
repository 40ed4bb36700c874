//! How many tokens a name stands for: the rule, and how it is found out.
//!
//! A file does not say its block size. A row of `n` names and `L` tokens allows the sizes with
//! `ceil(L / B) = n` when a partial last block has a name, and those with `floor(L / B) = n` when
//! it has none. Each is an interval, and so is what all rows allow.

use std::fmt;

use crate::trace::TraceRow;
use crate::trace::error::{Place, TraceError};
use crate::trace::formats::TraceFormat;

/// Whether a partial last block has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastBlock {
    /// It has its own, which is never that of a full block.
    Named,
    /// It has none: its tokens are shared with nothing.
    Unnamed,
    /// It differs by row.
    Either,
}

/// Size of the blocks that names stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRule {
    /// Tokens of a full block.
    pub tokens: usize,
    /// What becomes of the rest of a prompt.
    pub last: LastBlock,
}

impl BlockRule {
    /// The rule that the documentation of `format` states; 512 tokens where it states none.
    pub fn documented(format: TraceFormat) -> Self {
        BlockRule {
            tokens: format.documented_block_tokens().unwrap_or(512),
            last: match format {
                TraceFormat::Weka | TraceFormat::Bailian => LastBlock::Either,
                _ => LastBlock::Named,
            },
        }
    }

    /// Checks that a row has as many names as its length asks for; a row without names is sound.
    pub(crate) fn check(&self, row: &TraceRow, place: &Place) -> Result<(), TraceError> {
        let (names, tokens) = (row.block_ids.len(), row.input_tokens);
        if names == 0 {
            return Ok(());
        }
        let (most, least) = (tokens.div_ceil(self.tokens), tokens / self.tokens);
        let (sound, expected) = match self.last {
            LastBlock::Named => (names == most, format!("{most} ids")),
            LastBlock::Unnamed => (names == least, format!("{least} ids")),
            LastBlock::Either => (
                names == most || names == least,
                format!("{least} or {most} ids"),
            ),
        };
        if sound {
            return Ok(());
        }
        let fix = format!(
            "must have {expected}, one for each {} tokens of the prompt's {tokens}",
            self.tokens
        );
        Err(TraceError::value(
            place,
            "hash_ids",
            format!("({names} ids)"),
            fix,
        ))
    }
}

/// The sizes that the rows so far allow, both ends included; empty when `low > high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) low: usize,
    pub(crate) high: usize,
}

impl Sizes {
    const ALL: Sizes = Sizes {
        low: 1,
        high: usize::MAX,
    };

    pub(crate) fn has(self, size: usize) -> bool {
        (self.low..=self.high).contains(&size)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.low > self.high
    }

    fn and(self, other: Sizes) -> Sizes {
        Sizes {
            low: self.low.max(other.low),
            high: self.high.min(other.high),
        }
    }

    /// Powers of two among them, at most up to 2^20.
    fn powers(self) -> Vec<usize> {
        let powers = (0..=20).map(|bit| 1usize << bit);
        powers.filter(|&size| self.has(size)).collect()
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_empty(), self.high) {
            (true, _) => f.write_str("no size"),
            (_, usize::MAX) => write!(f, "{} or more", self.low),
            _ => write!(f, "{} to {}", self.low, self.high),
        }
    }
}

/// What the rows say about the block size.
#[derive(Clone, Debug)]
pub(crate) struct BlockSurvey {
    pub(crate) named_rows: u64,
    pub(crate) named: Sizes,
    pub(crate) unnamed: Sizes,
    /// The first row that no size fits any more.
    contradiction: Option<(u64, usize, usize)>,
}

impl Default for BlockSurvey {
    fn default() -> Self {
        BlockSurvey {
            named_rows: 0,
            named: Sizes::ALL,
            unnamed: Sizes::ALL,
            contradiction: None,
        }
    }
}

impl BlockSurvey {
    pub(crate) fn add(&mut self, tokens: usize, names: usize, line: u64) {
        if names == 0 {
            return;
        }
        self.named_rows += 1;
        self.named = self.named.and(Sizes {
            low: tokens.div_ceil(names),
            high: match names {
                1 => usize::MAX,
                _ => tokens.div_ceil(names - 1).saturating_sub(1),
            },
        });
        self.unnamed = self.unnamed.and(Sizes {
            low: tokens / (names + 1) + 1,
            high: tokens / names,
        });
        if self.named.is_empty() && self.unnamed.is_empty() && self.contradiction.is_none() {
            self.contradiction = Some((line, names, tokens));
        }
    }

    /// The rule that fits, with the evidence for it.
    ///
    /// # Errors
    /// None fits, or several do: why, and what to set.
    pub(crate) fn decide(
        &self,
        format: TraceFormat,
        asked: Option<usize>,
        stated: Option<usize>,
    ) -> Result<(BlockRule, String), String> {
        let documented = BlockRule::documented(format);
        let allowed = format!(
            "{} rows with names allow {} tokens if a partial last block has a name, {} if not",
            self.named_rows, self.named, self.unnamed
        );
        let rule = |tokens: usize, why: &str| {
            let last = match (self.named.has(tokens), self.unnamed.has(tokens)) {
                (true, _) => LastBlock::Named,
                (false, true) => LastBlock::Unnamed,
                // The reader finds the row that contradicts.
                (false, false) => documented.last,
            };
            Ok((BlockRule { tokens, last }, format!("{why}; {allowed}")))
        };
        if let Some(tokens) = asked {
            return rule(tokens, "as set");
        }
        if let Some(tokens) = stated {
            return rule(tokens, "as the file's name states");
        }
        let fits = |tokens: usize| self.named.has(tokens) || self.unnamed.has(tokens);
        match format.documented_block_tokens() {
            Some(tokens) if fits(tokens) => return rule(tokens, "as documented for the format"),
            Some(tokens) if documented.last == LastBlock::Either => {
                return rule(tokens, "as documented for the format");
            }
            _ => {}
        }
        for sizes in [self.named, self.unnamed] {
            match sizes.powers()[..] {
                [] => {}
                [tokens] => return rule(tokens, "the only power of two that fits"),
                _ => {
                    return Err(format!("the block size is ambiguous: {allowed}; set it"));
                }
            }
        }
        if let Some(tokens) = format.documented_block_tokens() {
            return rule(tokens, "as documented for the format");
        }
        Err(match self.contradiction {
            Some((line, names, tokens)) => format!(
                "no block size fits all rows: line {line} is the first that contradicts those \
                 before it, with {names} ids for {tokens} tokens"
            ),
            None => format!("no power of two is a block size here: {allowed}; set it"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_that_a_search_finds() {
        for (tokens, names) in [
            (600, 2),
            (512, 1),
            (513, 2),
            (17, 17),
            (1, 1),
            (100, 3),
            (9, 5),
        ] {
            let mut survey = BlockSurvey::default();
            survey.add(tokens, names, 1);
            for size in 1..2_000 {
                assert_eq!(survey.named.has(size), tokens.div_ceil(size) == names);
                assert_eq!(survey.unnamed.has(size), tokens / size == names);
            }
        }
    }

    #[test]
    fn the_documented_size_wins_only_where_it_fits() {
        let mut survey = BlockSurvey::default();
        survey.add(700, 2, 1);
        let (rule, evidence) = survey.decide(TraceFormat::Mooncake, None, None).unwrap();
        assert_eq!((rule.tokens, rule.last), (512, LastBlock::Named));
        assert!(evidence.contains("350 to 699"), "{evidence}");
        survey.add(100, 7, 2);
        let (rule, evidence) = survey
            .decide(TraceFormat::Mooncake, Some(16), None)
            .unwrap();
        assert_eq!(rule.tokens, 16, "{evidence}");
        let mut sixteen = BlockSurvey::default();
        sixteen.add(1_000, 63, 1);
        let (rule, _) = sixteen.decide(TraceFormat::Mooncake, None, None).unwrap();
        assert_eq!((rule.tokens, rule.last), (16, LastBlock::Named));
        let mut floors = BlockSurvey::default();
        floors.add(1_000, 62, 1);
        let (rule, _) = floors.decide(TraceFormat::VllmTimed, None, None).unwrap();
        assert_eq!((rule.tokens, rule.last), (16, LastBlock::Unnamed));
        let mut unclear = BlockSurvey::default();
        unclear.add(10, 1, 1);
        let why = unclear
            .decide(TraceFormat::VllmTimed, None, None)
            .unwrap_err();
        assert!(why.contains("ambiguous") && why.contains("set it"), "{why}");
        unclear.add(10_000, 3, 9);
        unclear.add(10, 3, 12);
        let why = unclear
            .decide(TraceFormat::VllmTimed, None, None)
            .unwrap_err();
        assert!(why.contains("line 12"), "{why}");
    }
}
