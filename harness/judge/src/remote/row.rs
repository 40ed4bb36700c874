//! One position as a server lists it, and two servers' lists of it compared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::divergence::bounds;
use crate::numerics::NumericsError;

/// Servers write this for a log-probability of minus infinity, which no finite logits give.
const NO_LOGPROB: f64 = -9998.0;

/// Answers that cannot be compared. A wrong *value* is a finding, not an error.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RemoteError {
    /// A list without tokens.
    #[error("position {position}: the server lists no token")]
    Empty {
        /// Position within the prompt.
        position: u32,
    },
    /// Rows of two positions.
    #[error("rows of positions {a} and {b} cannot be compared")]
    Positions {
        /// Of the first.
        a: u32,
        /// Of the second.
        b: u32,
    },
    /// A limit or a level that is none.
    #[error(transparent)]
    Numerics(#[from] NumericsError),
}

/// What a server said of one position: the most likely tokens and the one that stands there.
#[derive(Clone, Debug, PartialEq)]
pub struct TopRow {
    /// Position of the token within the sequence, from 0.
    pub position: u32,
    /// The token that stands there, named as in the list.
    pub token: String,
    /// Natural logarithms of probabilities by token: the most likely ones and `token` itself.
    pub top: BTreeMap<String, f64>,
}

impl TopRow {
    /// A row.
    pub fn new(position: u32, token: impl Into<String>, top: BTreeMap<String, f64>) -> TopRow {
        let token = token.into();
        TopRow {
            position,
            token,
            top,
        }
    }

    /// The token's log-probability.
    pub fn logprob(&self) -> Option<f64> {
        self.top.get(&self.token).copied()
    }

    /// Tokens from the most likely on; of equals the first by name.
    fn ranked(&self) -> Vec<(&str, f64)> {
        let mut all: Vec<(&str, f64)> = self.top.iter().map(|(t, &lp)| (&t[..], lp)).collect();
        all.sort_by(|x, y| y.1.total_cmp(&x.1));
        all
    }

    fn not_finite(&self) -> bool {
        let bad = |lp: &f64| !lp.is_finite() || *lp < NO_LOGPROB || *lp > 1e-3;
        self.top.values().any(bad)
    }
}

/// How two servers came to different most likely tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Flip {
    /// Both saw a tie, within the margin: harmless noise decides it.
    NearTie {
        /// The larger of the two preferences, nats.
        #[serde(with = "crate::real")]
        margin: f64,
    },
    /// At least one side clearly preferred its own, or did not even list the other's.
    Real {
        /// The larger of the two preferences, nats; infinite when a side does not list the other's.
        #[serde(with = "crate::real")]
        margin: f64,
    },
}

/// What differs at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowDelta {
    /// Position of the predicted token.
    pub position: u32,
    /// The smallest `KL(a || b)` that both lists allow, nats.
    pub kl: f64,
    /// Probability under `a` that lies outside what both list.
    pub unseen: f64,
    /// Log-probability of the token that stands there in `b` minus in `a`, nats; None where it is
    /// not listed by both.
    pub delta_logprob: Option<f64>,
    /// The same of its probability.
    pub delta_p: Option<f64>,
    /// What happened to the most likely token; None when it is the same.
    pub flip: Option<Flip>,
    /// Whether `a` preferred its most likely token to the next one by the margin or more.
    pub decidable: bool,
    /// Share of `a`'s `k` most likely tokens that are among `b`'s.
    pub overlap: f64,
    /// Share of the pairs of tokens in both lists that both rank alike; None without pairs.
    pub concordance: Option<f64>,
    /// Whether a log-probability is not finite, or above 0.
    pub not_finite: bool,
}

/// Compares two rows of one position that list `k` tokens each. A preference below `tie_margin`
/// nats is a tie. Errors on an empty list and on rows of different positions.
pub fn compare(a: &TopRow, b: &TopRow, k: usize, tie_margin: f64) -> Result<RowDelta, RemoteError> {
    let position = a.position;
    if position != b.position {
        let (a, b) = (position, b.position);
        return Err(RemoteError::Positions { a, b });
    }
    let (ranked_a, ranked_b) = (a.ranked(), b.ranked());
    let (Some(&first_a), Some(&first_b)) = (ranked_a.first(), ranked_b.first()) else {
        return Err(RemoteError::Empty { position });
    };
    let k = k.max(1);
    // A list may hold the token itself beyond its k most likely ones.
    let cutoff = |ranked: &[(&str, f64)]| ranked[k.min(ranked.len()) - 1].1;
    let found = bounds((&a.top, cutoff(&ranked_a)), (&b.top, cutoff(&ranked_b)));
    let not_finite = a.not_finite() || b.not_finite();
    let pair = a.logprob().zip(b.top.get(&a.token).copied());
    let second = ranked_a.get(1).map_or(f64::NEG_INFINITY, |x| x.1);
    Ok(RowDelta {
        position,
        kl: if not_finite {
            f64::INFINITY
        } else {
            found.least
        },
        unseen: found.unseen,
        delta_logprob: pair.map(|(lp, lq)| lq - lp),
        delta_p: pair.map(|(lp, lq)| lq.exp() - lp.exp()),
        flip: (first_a.0 != first_b.0).then(|| flip((a, first_a), (b, first_b), tie_margin)),
        decidable: first_a.1 - second >= tie_margin,
        overlap: overlap(&ranked_a, &ranked_b, k),
        concordance: concordance(&ranked_a, &b.top),
        not_finite,
    })
}

/// How two greedy rows of one context came to different tokens. Equal logits are common in bf16,
/// and either token is then a right choice, so the chosen ones count, not the order of a list. A
/// side that did not take its most likely token differs by at least what it gave away.
pub(super) fn choice_flip(a: &TopRow, b: &TopRow, tie_margin: f64) -> Flip {
    let own = |row: &TopRow| row.logprob().unwrap_or(f64::NEG_INFINITY);
    let best = |row: &TopRow| row.top.values().copied().fold(f64::NEG_INFINITY, f64::max);
    let (own_a, own_b) = (own(a), own(b));
    let given_away = (best(a) - own_a).max(best(b) - own_b);
    let chosen = flip((a, (&a.token, own_a)), (b, (&b.token, own_b)), tie_margin);
    let (Flip::NearTie { margin } | Flip::Real { margin }) = chosen;
    let margin = margin.max(given_away);
    if margin < tie_margin {
        Flip::NearTie { margin }
    } else {
        Flip::Real { margin }
    }
}

/// A row and its most likely token.
type Best<'a> = (&'a TopRow, (&'a str, f64));

fn flip((a, first_a): Best<'_>, (b, first_b): Best<'_>, tie_margin: f64) -> Flip {
    let preferred = |row: &TopRow, own: f64, other: &str| {
        let other = row.top.get(other);
        other.map_or(f64::INFINITY, |other| own - other)
    };
    let margin = preferred(a, first_a.1, first_b.0).max(preferred(b, first_b.1, first_a.0));
    if margin < tie_margin {
        Flip::NearTie { margin }
    } else {
        Flip::Real { margin }
    }
}

fn overlap(a: &[(&str, f64)], b: &[(&str, f64)], k: usize) -> f64 {
    let (a, b) = (&a[..k.min(a.len())], &b[..k.min(b.len())]);
    let both = a.iter().filter(|x| b.iter().any(|y| x.0 == y.0)).count();
    both as f64 / a.len() as f64
}

fn concordance(a: &[(&str, f64)], b: &BTreeMap<String, f64>) -> Option<f64> {
    let both: Vec<(f64, f64)> = a
        .iter()
        .filter_map(|(token, lp)| Some((*lp, *b.get(*token)?)))
        .collect();
    let (mut alike, mut pairs) = (0_u32, 0_u32);
    for (i, x) in both.iter().enumerate() {
        for y in &both[i + 1..] {
            let product = (x.0 - y.0) * (x.1 - y.1);
            // A tie on either side orders nothing.
            if product != 0.0 {
                pairs += 1;
                alike += u32::from(product > 0.0);
            }
        }
    }
    (pairs > 0).then(|| f64::from(alike) / f64::from(pairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(token: &str, pairs: &[(&str, f64)]) -> TopRow {
        let top = pairs.iter().map(|(t, lp)| ((*t).to_owned(), *lp)).collect();
        TopRow::new(3, token, top)
    }

    #[test]
    fn a_flip_is_a_tie_only_if_both_sides_say_so() {
        let a = row("x", &[("x", -1.00), ("y", -1.05), ("z", -2.0)]);
        let b = row("x", &[("x", -1.04), ("y", -1.00), ("z", -2.0)]);
        let delta = compare(&a, &b, 3, 0.1).unwrap();
        let Some(Flip::NearTie { margin }) = delta.flip else {
            panic!("{delta:?}");
        };
        assert!((margin - 0.05).abs() < 1e-12);
        assert!(!delta.decidable);
        // One side is sure: real.
        let sure = row("x", &[("x", -3.0), ("y", -0.5), ("z", -2.0)]);
        let delta = compare(&a, &sure, 3, 0.1).unwrap();
        assert_eq!(delta.flip, Some(Flip::Real { margin: 2.5 }));
        // A most likely token that the other does not list at all: real whatever the margins.
        let other = row("x", &[("x", -1.3), ("w", -1.0), ("y", -1.2)]);
        let delta = compare(&a, &other, 3, 10.0).unwrap();
        assert_eq!(
            delta.flip,
            Some(Flip::Real {
                margin: f64::INFINITY
            })
        );
    }

    #[test]
    fn the_token_that_stands_there_and_the_order_by_hand() {
        let a = row("y", &[("x", -0.5), ("y", -1.5), ("z", -3.0)]);
        let b = row("y", &[("x", -0.5), ("y", -1.0), ("z", -0.9)]);
        let delta = compare(&a, &b, 3, 0.1).unwrap();
        assert_eq!(delta.delta_logprob, Some(0.5));
        let want = f64::exp(-1.0) - f64::exp(-1.5);
        assert!((delta.delta_p.unwrap() - want).abs() < 1e-15);
        // Pairs xy and xz keep their order, yz does not.
        assert_eq!(delta.concordance, Some(2.0 / 3.0));
        assert_eq!((delta.overlap, delta.flip), (1.0, None));
        // Of the two most likely, x stays and y gives way to z.
        assert_eq!(compare(&a, &b, 2, 0.1).unwrap().overlap, 0.5);
    }

    #[test]
    fn infinite_values_are_findings_and_other_positions_errors() {
        let a = row("x", &[("x", -0.5)]);
        let b = row("x", &[("x", -9999.0)]);
        let delta = compare(&a, &b, 1, 0.1).unwrap();
        assert!(delta.not_finite && delta.kl.is_infinite());
        let mut moved = a.clone();
        moved.position = 4;
        assert_eq!(
            compare(&a, &moved, 1, 0.1),
            Err(RemoteError::Positions { a: 3, b: 4 })
        );
        let empty = row("x", &[]);
        assert_eq!(
            compare(&a, &empty, 1, 0.1),
            Err(RemoteError::Empty { position: 3 })
        );
    }
}
