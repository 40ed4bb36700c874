//! Planned looks between which the error is spent (O'Brien and Fleming, by Lan and DeMets).
//!
//! Looks are numbers of blocks, fixed before the first. A pair that cannot be used makes a look
//! smaller than planned; the spending function takes the pairs that there are, which is what it was
//! invented for, as long as nobody moves a look because of what was seen.

use pb_stats::{
    Bound, Estimate, Rule, Spending, StatError, group_sequential_bounds, normal_upper_tail,
    paired_t_test,
};

use super::LEAST_PAIRS;
use super::pairs::Pairs;

const SPENDING: Spending = Spending::OBrienFleming;

/// Levels of the p-value: halved at every eighth, so that it is at most 9 % above the exact one.
const LEVELS: i32 = 8 * 40;

/// Numbers of blocks after which a suite of at most `blocks` looks: its quarters, without those
/// that are too few for any claim.
pub fn looks(blocks: usize) -> Vec<usize> {
    let quarters = (1..=4).map(|k| (k * blocks).div_ceil(4));
    let mut all: Vec<usize> = quarters.filter(|look| *look >= LEAST_PAIRS).collect();
    all.dedup();
    all
}

/// The looks that were had at one comparison.
pub(super) struct Looks<'a> {
    /// Pairs up to the last look.
    units: &'a [f64],
    /// Pairs at each look, ascending.
    counts: Vec<usize>,
    /// Pairs at the last look there will be.
    all: usize,
}

impl<'a> Looks<'a> {
    /// The looks that `pairs` have reached; nothing before the first.
    pub(super) fn of(pairs: &'a Pairs, blocks: usize) -> Option<Looks<'a>> {
        let used = |look: usize| pairs.blocks.iter().filter(|block| **block < look).count();
        let planned = looks(blocks);
        let had = planned.iter().filter(|look| **look <= pairs.reached);
        let mut counts: Vec<usize> = had.map(|look| used(*look)).collect();
        counts.retain(|count| *count >= LEAST_PAIRS);
        counts.dedup();
        let last = *counts.last()?;
        Some(Looks {
            units: &pairs.units[..last],
            // At the end whatever is left of the error is spent.
            all: if pairs.reached >= blocks {
                last
            } else {
                blocks
            },
            counts,
        })
    }

    /// At `1 - alpha` and `1 - 2 alpha`, valid at all looks together.
    pub(super) fn intervals(
        &self,
        alpha: f64,
    ) -> Result<(Option<Estimate>, Option<Estimate>), StatError> {
        let mut looks = self.counts.clone();
        if looks.last() != Some(&self.all) {
            looks.push(self.all);
        }
        let rule = Rule {
            looks,
            alpha,
            margin: 0.0,
            max_blocks: self.all,
            target_halfwidth: None,
            bound: Bound::Spending(SPENDING),
        };
        let decision = rule.compile()?.decide(self.units)?;
        Ok((decision.interval, decision.narrow))
    }

    /// The smallest level, of a fixed list, at which a look so far would have claimed a change: a
    /// p-value that is valid whichever look the run stopped at.
    pub(super) fn p(&self) -> Result<Option<f64>, StatError> {
        let mut at_looks = Vec::with_capacity(self.counts.len());
        for count in &self.counts {
            match paired_t_test(&self.units[..*count]) {
                Ok(test) => at_looks.push(test.p),
                Err(_) => return Ok(None),
            }
        }
        let shares: Vec<f64> = self
            .counts
            .iter()
            .map(|count| *count as f64 / self.all as f64)
            .collect();
        let claims = |alpha: f64| -> Result<bool, StatError> {
            let bounds = group_sequential_bounds(&shares, alpha, SPENDING)?;
            let mut each = bounds.into_iter().zip(&at_looks);
            Ok(each.any(|(bound, p)| *p <= 2.0 * normal_upper_tail(bound)))
        };
        let level = |step: i32| 0.5 * f64::from(-step).exp2().powf(0.125);
        if !claims(level(0))? {
            return Ok(Some(1.0));
        }
        // A larger level claims whatever a smaller one does.
        let (mut claimed, mut open) = (0, LEVELS);
        while open - claimed > 1 {
            let middle = claimed + (open - claimed) / 2;
            match claims(level(middle))? {
                true => claimed = middle,
                false => open = middle,
            }
        }
        Ok(Some(level(claimed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(units: &[f64], blocks: &[usize], reached: usize) -> Pairs {
        Pairs {
            units: units.to_vec(),
            blocks: blocks.to_vec(),
            reached,
            ..Pairs::default()
        }
    }

    #[test]
    fn looks_are_the_quarters_that_can_claim() {
        assert_eq!(looks(12), [3, 6, 9, 12]);
        assert_eq!(looks(8), [4, 6, 8]);
        assert_eq!(looks(4), [3, 4]);
        assert_eq!(looks(40), [10, 20, 30, 40]);
    }

    #[test]
    fn nothing_is_looked_at_between_looks() {
        let units = [0.1, 0.2, 0.1, 0.2, 0.1];
        assert!(Looks::of(&pairs(&units[..2], &[0, 1], 2), 12).is_none());
        let five = pairs(&units, &[0, 1, 2, 3, 4], 5);
        let found = Looks::of(&five, 12).unwrap();
        assert_eq!((found.units.len(), found.counts.as_slice()), (3, &[3][..]));
        // A pair that was left out makes the look smaller, and the last one spends the rest.
        let units = [0.1, 0.2, 0.15, 0.2, 0.1, 0.12, 0.2, 0.18, 0.1, 0.11, 0.12];
        let blocks = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11];
        let all = pairs(&units, &blocks, 12);
        let found = Looks::of(&all, 12).unwrap();
        assert_eq!(
            (found.counts.as_slice(), found.all),
            (&[3, 5, 8, 11][..], 11)
        );
    }

    #[test]
    fn a_p_value_is_the_level_at_which_the_interval_begins_to_exclude_no_change() {
        let units = [0.3, 0.1, 0.25, 0.2, 0.05, 0.3, 0.2, 0.1, 0.3];
        let blocks: Vec<usize> = (0..9).collect();
        for reached in [3, 6, 9] {
            let found = pairs(&units[..reached], &blocks[..reached], reached);
            let looks = Looks::of(&found, 12).unwrap();
            let p = looks.p().unwrap().unwrap();
            let excludes = |alpha: f64| {
                let (wide, _) = looks.intervals(alpha).unwrap();
                wide.is_some_and(|e| e.excludes(0.0))
            };
            if p < 0.5 {
                assert!(excludes(p * 1.0001), "{reached} {p}");
                assert!(!excludes(p * 0.9), "{reached} {p}");
            } else {
                assert!(!excludes(0.49), "{reached} {p}");
            }
        }
    }

    #[test]
    fn the_last_look_alone_is_nearly_the_plain_test() {
        // Two looks by the published bounds, 2.963 and 1.969: the p-value of the last is that of
        // the plain test at 1.969 instead of 1.960 where it is 5 %.
        let units = [0.3, -0.2, 0.25, 0.2, -0.1, 0.3, 0.2, -0.1];
        let found = pairs(&units, &[0, 1, 2, 3, 4, 5, 6, 7], 8);
        let looks = Looks::of(&found, 8).unwrap();
        let plain = paired_t_test(&units).unwrap().p;
        let p = looks.p().unwrap().unwrap();
        assert!((plain..1.25 * plain).contains(&p), "{p} {plain}");
    }
}
