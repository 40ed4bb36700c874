//! What the cells say of the hypotheses: the rules of [`pb_judge::suite`] on finished cells.

use pb_stats::StatError;

pub(crate) use pb_judge::suite::{Judged, Pairs, Rules};

use super::store::Done;
use crate::verbs::suite::Comparison;

/// The two cells of a block, as far as they are finished.
pub(crate) type Pair<'a> = (Option<&'a Done>, Option<&'a Done>);

/// The pairs of a comparison, a pair a block.
pub(crate) fn pairs(comparison: &Comparison, cells: &[Pair<'_>], least_success: f64) -> Pairs {
    let documents = cells.iter().map(|(a, b)| {
        let (a, b) = (a.map(|done| &done.document), b.map(|done| &done.document));
        (a, b)
    });
    let documents: Vec<pb_judge::suite::Pair<'_>> = documents.collect();
    Pairs::of(&comparison.question, &documents, least_success)
}

/// Judges all comparisons of a suite together.
///
/// # Errors
/// Rules out of range; too little data is a verdict.
pub(crate) fn judged(
    comparisons: &[Comparison],
    pairs: &[Pairs],
    rules: &Rules,
) -> Result<Vec<Judged>, StatError> {
    let questions: Vec<_> = comparisons
        .iter()
        .map(|comparison| comparison.question.clone())
        .collect();
    pb_judge::suite::judged(&questions, pairs, rules)
}

/// Conditions in which every comparison is settled, so that more blocks would change nothing.
/// A condition that nothing is asked of is never settled.
pub(crate) fn settled(
    comparisons: &[Comparison],
    judged: &[Judged],
    conditions: usize,
) -> Vec<bool> {
    let in_condition = |condition: usize| {
        let mut own = comparisons
            .iter()
            .zip(judged)
            .filter(|(comparison, _)| comparison.condition == condition)
            .peekable();
        own.peek().is_some() && own.all(|(_, judged)| judged.is_settled())
    };
    (0..conditions).map(in_condition).collect()
}
