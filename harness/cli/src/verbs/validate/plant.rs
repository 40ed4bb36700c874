//! Faults planted from outside: the context is altered before it is sent.
//!
//! A cache that returns a wrong block makes the rows after it look as if other tokens had stood
//! there. No server has to help to see that: it is asked with other tokens. The rows after the
//! altered place are then compared with the true ones, whose tokens are the same.

use pb_contract::TokenId;

/// Tokens replaced as one block; the usual size of a block of the cache.
const BLOCK: usize = 16;

/// An altered context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alteration {
    /// Everything before the boundary is left out, as by a chunk that attends to itself alone.
    ContextIgnored,
    /// The block before the boundary holds other tokens, as after a wrong hit.
    BlockReplaced,
    /// The token before the boundary is another one, as by a stale slot.
    SlotReplaced,
    /// The token before the boundary stands there twice, so that all later positions are one too
    /// high.
    OneTooFar,
    /// The first token is left out.
    FirstMissing,
}

impl Alteration {
    /// All, the plainest first.
    pub(super) const ALL: [Alteration; 5] = [
        Alteration::ContextIgnored,
        Alteration::BlockReplaced,
        Alteration::OneTooFar,
        Alteration::SlotReplaced,
        Alteration::FirstMissing,
    ];

    /// In words.
    pub(super) fn name(self) -> &'static str {
        match self {
            Alteration::ContextIgnored => "context before the boundary missing",
            Alteration::BlockReplaced => "block of 16 before the boundary replaced",
            Alteration::SlotReplaced => "token before the boundary replaced",
            Alteration::OneTooFar => "token before the boundary doubled",
            Alteration::FirstMissing => "first token missing",
        }
    }

    /// Whether rules that miss it are too wide to be of use.
    pub(super) fn is_required(self) -> bool {
        matches!(self, Alteration::ContextIgnored | Alteration::BlockReplaced)
    }

    /// Where prompts of `len` tokens are altered: in the middle, at a whole block.
    pub(super) fn boundary(len: usize) -> usize {
        (len / 2 / BLOCK * BLOCK).max(BLOCK)
    }

    /// The altered prompt. `other` gives the wrong tokens.
    pub(super) fn apply(self, prompt: &[TokenId], other: &[TokenId]) -> Vec<TokenId> {
        let at = Self::boundary(prompt.len());
        let mut altered = prompt.to_vec();
        match self {
            Alteration::ContextIgnored => drop(altered.drain(..at)),
            Alteration::BlockReplaced => replace(&mut altered, at - BLOCK..at, other),
            Alteration::SlotReplaced => replace(&mut altered, at - 1..at, other),
            Alteration::OneTooFar => altered.insert(at, prompt[at - 1]),
            Alteration::FirstMissing => drop(altered.drain(..1)),
        }
        altered
    }

    /// What to add to a position of the altered prompt to get the true one.
    pub(super) fn shift(self, len: usize) -> i64 {
        match self {
            Alteration::ContextIgnored => Self::boundary(len) as i64,
            Alteration::BlockReplaced | Alteration::SlotReplaced => 0,
            Alteration::OneTooFar => -1,
            Alteration::FirstMissing => 1,
        }
    }

    /// The first true position whose row sees the altered context.
    pub(super) fn first_row(self, len: usize) -> usize {
        match self {
            // The first token that is sent has no row.
            Alteration::ContextIgnored => Self::boundary(len) + 1,
            Alteration::FirstMissing => 2,
            _ => Self::boundary(len),
        }
    }
}

/// Other tokens in a range; one that happens to be the same is taken from the next place.
fn replace(tokens: &mut [TokenId], range: std::ops::Range<usize>, other: &[TokenId]) {
    for at in range {
        let candidates = other.iter().cycle().skip(at).take(other.len());
        if let Some(&wrong) = candidates
            .copied()
            .collect::<Vec<_>>()
            .iter()
            .find(|t| **t != tokens[at])
        {
            tokens[at] = wrong;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_after_the_boundary_keep_their_tokens() {
        let prompt: Vec<TokenId> = (100..164).collect();
        let other: Vec<TokenId> = (500..564).collect();
        assert_eq!(Alteration::boundary(64), 32);
        for alteration in Alteration::ALL {
            let altered = alteration.apply(&prompt, &other);
            assert_ne!(altered, prompt, "{alteration:?}");
            let shift = alteration.shift(64);
            for (at, token) in prompt.iter().enumerate().skip(alteration.first_row(64)) {
                let from = (at as i64 - shift) as usize;
                assert_eq!(altered[from], *token, "{alteration:?} at {at}");
                assert!(from > 0, "the first token that is sent has no row");
            }
        }
    }

    #[test]
    fn what_is_replaced_is_told_by_the_name() {
        let prompt: Vec<TokenId> = (100..164).collect();
        // Some of the other tokens are those that stand there.
        let mut other = prompt.clone();
        other[40] = 7;
        let changed = |alteration: Alteration| -> Vec<usize> {
            let altered = alteration.apply(&prompt, &other);
            (0..64).filter(|&i| altered[i] != prompt[i]).collect()
        };
        assert_eq!(changed(Alteration::SlotReplaced), [31]);
        assert_eq!(
            changed(Alteration::BlockReplaced),
            (16..32).collect::<Vec<_>>()
        );
        assert_eq!(
            Alteration::ContextIgnored.apply(&prompt, &other),
            prompt[32..]
        );
        let doubled = Alteration::OneTooFar.apply(&prompt, &other);
        assert_eq!((doubled[31], doubled[32], doubled[33]), (131, 131, 132));
    }
}
