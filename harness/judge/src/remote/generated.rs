//! Greedy continuations of one prompt: comparable until the first different token.

use serde::{Deserialize, Serialize};

use super::row::choice_flip;
use super::{Flip, RemoteError, RowDelta, TopRow, compare};

/// Where two continuations part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Divergence {
    /// The prompt.
    pub prompt: String,
    /// Generated tokens before it.
    pub after_tokens: u32,
    /// Token of the first.
    pub a: String,
    /// Token of the second.
    pub b: String,
    /// Why: a near tie or a real difference, by the tokens that were chosen.
    pub flip: Flip,
}

/// Compares two continuations row by row to the first different token, whose row is the last that
/// has the same context on both sides. Errors as [`compare`] does.
pub fn compare_generated(
    prompt: &str,
    a: &[TopRow],
    b: &[TopRow],
    k: usize,
    tie_margin: f64,
) -> Result<(Vec<RowDelta>, Option<Divergence>), RemoteError> {
    let mut deltas = Vec::new();
    for (index, (row_a, row_b)) in a.iter().zip(b).enumerate() {
        let mut delta = compare(row_a, row_b, k, tie_margin)?;
        if row_a.token == row_b.token {
            deltas.push(delta);
            continue;
        }
        let flip = choice_flip(row_a, row_b, tie_margin);
        let divergence = Divergence {
            prompt: prompt.to_owned(),
            after_tokens: index as u32,
            a: row_a.token.clone(),
            b: row_b.token.clone(),
            flip,
        };
        // Each side chose its maximum, so the change of either token has a known sign here: noise
        // would look like a loss.
        delta.flip = Some(flip);
        delta.delta_logprob = None;
        delta.delta_p = None;
        deltas.push(delta);
        return Ok((deltas, Some(divergence)));
    }
    Ok((deltas, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(position: u32, token: &str, x: f64, y: f64) -> TopRow {
        let top = [("x".to_owned(), x), ("y".to_owned(), y)];
        TopRow::new(position, token, top.into())
    }

    #[test]
    fn rows_after_the_first_difference_do_not_count() {
        let a = [
            row(5, "x", -0.1, -3.0),
            row(6, "x", -0.69, -0.70),
            row(7, "x", -0.1, -5.0),
        ];
        let b = [
            row(5, "x", -0.1, -3.0),
            row(6, "y", -0.70, -0.69),
            row(7, "y", -5.0, -0.1),
        ];
        let (rows, parted) = compare_generated("p", &a, &b, 2, 0.1).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(
            (rows[0].delta_logprob, rows[1].delta_logprob),
            (Some(0.0), None)
        );
        let parted = parted.unwrap();
        assert_eq!((parted.after_tokens, &parted.b[..]), (1, "y"));
        assert!(matches!(parted.flip, Flip::NearTie { .. }));
        let (rows, parted) = compare_generated("p", &a, &a, 2, 0.1).unwrap();
        assert_eq!((rows.len(), parted), (3, None));
    }

    #[test]
    fn equal_logits_are_a_tie_whichever_was_taken_and_what_is_given_away_is_not() {
        let flip = |x: TopRow, y: TopRow| {
            let (rows, parted) = compare_generated("p", &[x], &[y], 2, 0.1).unwrap();
            assert_eq!(rows[0].flip, parted.as_ref().map(|p| p.flip));
            parted.unwrap().flip
        };
        // Both lists begin with x by name; the second side took y of equals.
        let tie = flip(row(5, "x", -0.7, -0.7), row(5, "y", -0.7, -0.7));
        assert_eq!(tie, Flip::NearTie { margin: 0.0 });
        // The first side saw a tie; the second took y although its own list prefers x.
        let wrong = flip(row(5, "x", -0.7, -0.7), row(5, "y", -0.2, -1.7));
        assert_eq!(wrong, Flip::Real { margin: 1.5 });
    }
}
