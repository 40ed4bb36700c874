//! A small set of configurations in which every two settings meet at least once.
//!
//! The full product of a dozen options is out of reach, and most faults of a system of options
//! need only two of them to meet. A row picks one level of each factor; rows are made greedily
//! until every allowed pair of levels of two factors stands in some row.

use std::collections::BTreeSet;

/// A level of a factor, as (factor, level).
pub type Choice = (usize, usize);

/// Rows over factors with `levels[factor]` levels each, in which every pair that `allowed` holds
/// for occurs, and none for which it does not. `allowed` must be symmetric, and leave for every
/// allowed pair a row that is allowed as a whole.
///
/// # Panics
/// When an allowed pair fits into no row.
pub fn pairs(levels: &[usize], allowed: impl Fn(Choice, Choice) -> bool) -> Vec<Vec<usize>> {
    let mut open = allowed_pairs(levels, &allowed);
    let mut rows = Vec::new();
    while let Some(&(a, b)) = open.first() {
        let mut row: Vec<Option<usize>> = vec![None; levels.len()];
        row[a.0] = Some(a.1);
        row[b.0] = Some(b.1);
        for factor in 0..levels.len() {
            if row[factor].is_none() {
                row[factor] = best(levels, factor, &row, &open, &allowed);
            }
        }
        let row: Option<Vec<usize>> = row.into_iter().collect();
        let row = row.unwrap_or_else(|| panic!("no allowed row has {a:?} and {b:?}"));
        open.retain(|&(a, b)| row[a.0] != a.1 || row[b.0] != b.1);
        rows.push(row);
    }
    rows
}

/// Every pair of levels of two factors that is allowed, lower factor first.
pub fn allowed_pairs(
    levels: &[usize],
    allowed: impl Fn(Choice, Choice) -> bool,
) -> BTreeSet<(Choice, Choice)> {
    let mut all = BTreeSet::new();
    for second in 0..levels.len() {
        for first in 0..second {
            for a in (0..levels[first]).map(|level| (first, level)) {
                let partners = (0..levels[second]).map(|level| (second, level));
                all.extend(partners.filter(|&b| allowed(a, b)).map(|b| (a, b)));
            }
        }
    }
    all
}

/// The allowed level of `factor` that closes the most open pairs with the levels chosen so far;
/// among equals the one that has the most open pairs left.
fn best(
    levels: &[usize],
    factor: usize,
    row: &[Option<usize>],
    open: &BTreeSet<(Choice, Choice)>,
    allowed: impl Fn(Choice, Choice) -> bool,
) -> Option<usize> {
    let chosen: Vec<Choice> = row
        .iter()
        .enumerate()
        .filter_map(|(factor, &level)| Some((factor, level?)))
        .collect();
    let closes = |mine: Choice| {
        let pair = |other: Choice| (mine.min(other), mine.max(other));
        let now = chosen.iter().filter(|&&other| open.contains(&pair(other)));
        let later = open.iter().filter(|&&(a, b)| a == mine || b == mine);
        (now.count(), later.count())
    };
    let fits = |&level: &usize| chosen.iter().all(|&other| allowed((factor, level), other));
    (0..levels[factor])
        .filter(fits)
        .max_by_key(|&level| (closes((factor, level)), usize::MAX - level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_pair_occurs_and_no_other() {
        let levels = [5, 3, 4, 2, 3];
        // Level 0 of the first factor goes with level 2 of the third alone.
        let allowed = |a: Choice, b: Choice| {
            let (a, b) = (a.min(b), a.max(b));
            !(a == (0, 0) && b.0 == 2 && b.1 != 2)
        };
        let rows = pairs(&levels, allowed);
        for (first, second) in [(0, 1), (0, 2), (1, 2), (2, 4), (3, 4), (0, 4)] {
            for a in 0..levels[first] {
                for b in 0..levels[second] {
                    let there = rows.iter().any(|r| r[first] == a && r[second] == b);
                    let may = first != 0 || a != 0 || second != 2 || b == 2;
                    assert_eq!(there, may, "{:?} {:?}", (first, a), (second, b));
                }
            }
        }
        // At least the two largest factors' product, and far below all 360.
        assert!((18..40).contains(&rows.len()), "{} rows", rows.len());
    }
}
