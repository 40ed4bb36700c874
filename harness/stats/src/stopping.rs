//! When to stop adding blocks: a rule fixed before the first one, and its decision at each.
//!
//! Two kinds of bound. With [`Bound::Spending`] the looks are few and fixed, and the test is nearly
//! as sharp as a single one at the end: use it when the number of blocks is planned (a gate). Its
//! normal critical value at each look becomes that of Student's t at the same tail, the usual
//! small-sample form (Jennison and Turnbull 2000), whose level is approximate and is simulated in
//! this crate's tests. With [`Bound::AlwaysValid`] any block is a look and the level is exact for
//! normal units, at the price of width: use it for a run that is watched or resumed.
//!
//! Units are one number for each block: a difference, or the logarithm of a ratio.
//!
//! ```
//! use pb_stats::{Bound, Reason, Rule, Spending};
//!
//! let rule = Rule {
//!     looks: vec![4, 8, 16],
//!     alpha: 0.05,
//!     margin: 0.03_f64.ln_1p(),
//!     max_blocks: 16,
//!     target_halfwidth: None,
//!     bound: Bound::Spending(Spending::OBrienFleming),
//! }
//! .compile()?;
//! // Four blocks in which B is 10 to 11 % slower.
//! let units = [1.10_f64, 1.11, 1.105, 1.1].map(f64::ln);
//! let decision = rule.decide(&units)?;
//! assert_eq!((decision.stop, decision.reason), (false, Reason::Open));
//! assert_eq!(decision.next_look, Some(8));
//! # Ok::<(), pb_stats::StatError>(())
//! ```

use crate::anytime::{anytime_interval, mixture_variance};
use crate::dist::{normal_upper_tail, t_quantile};
use crate::error::{StatError, check_finite, check_open_unit};
use crate::paired::{Estimate, paired_t_test};
use crate::spending::{Spending, group_sequential_bounds};

/// What keeps repeated looks honest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Alpha spending over the looks listed.
    Spending(Spending),
    /// A confidence sequence; an empty list of looks means every block.
    AlwaysValid,
}

/// A stopping rule, written down before the first block.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Numbers of blocks at which to look, ascending, each at least 2, the last `max_blocks`. May
    /// be empty for [`Bound::AlwaysValid`].
    pub looks: Vec<usize>,
    /// Chance of ever claiming a difference between equal arms, two-sided, below 0.5.
    pub alpha: f64,
    /// Margin of equivalence, in the unit of the values; 0 for none.
    pub margin: f64,
    /// Blocks at which the run ends whatever was found.
    pub max_blocks: usize,
    /// Stop once the interval is no wider than this to either side, if given.
    pub target_halfwidth: Option<f64>,
    /// What keeps repeated looks honest.
    pub bound: Bound,
}

/// Why a decision is as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// This number of blocks is no look: nothing was computed, so nothing was spent.
    NotALook,
    /// Looked, and nothing is settled yet.
    Open,
    /// The interval excludes no difference, and the mean is beyond the margin.
    Difference,
    /// The interval for equivalence lies within the margin.
    Equivalent,
    /// The interval is as narrow as asked for.
    Precise,
    /// The last block allowed is in, and nothing is settled.
    Exhausted,
}

/// The decision after some blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Whether to stop.
    pub stop: bool,
    /// Why.
    pub reason: Reason,
    /// Interval that covers the true mean at all looks together with `1 - alpha`. None when this
    /// is no look, or while it is infinite.
    pub interval: Option<Estimate>,
    /// The same at `1 - 2 alpha`, for equivalence (two one-sided tests).
    pub narrow: Option<Estimate>,
    /// The next look, if the run goes on.
    pub next_look: Option<usize>,
}

/// A rule whose bounds are computed.
#[derive(Debug, Clone, PartialEq)]
pub struct CompiledRule {
    rule: Rule,
    /// For each look the one-sided tail of its critical value, at `alpha` and at `2 alpha`.
    tails: Vec<(f64, f64)>,
}

impl Rule {
    /// Checks the rule and computes its bounds.
    pub fn compile(self) -> Result<CompiledRule, StatError> {
        check_open_unit("alpha", self.alpha)?;
        let half = self.target_halfwidth.unwrap_or(1.0);
        let ascending = self.looks.windows(2).all(|w| w[0] < w[1]);
        let always = self.bound == Bound::AlwaysValid;
        let last = self.looks.last().copied();
        let ends = last == Some(self.max_blocks) || (always && last.is_none());
        let first = self.looks.first().copied().unwrap_or(2);
        for (name, value, good) in [
            ("alpha", self.alpha, self.alpha < 0.5),
            (
                "margin",
                self.margin,
                self.margin.is_finite() && self.margin >= 0.0,
            ),
            ("target_halfwidth", half, half > 0.0 && half.is_finite()),
            (
                "max_blocks",
                self.max_blocks as f64,
                self.max_blocks >= 2 && ends,
            ),
            ("looks", first as f64, ascending && first >= 2),
        ] {
            if !good {
                return Err(StatError::BadParameter { name, value });
            }
        }
        let tails = match self.bound {
            Bound::AlwaysValid => Vec::new(),
            Bound::Spending(spending) => {
                let all = self.max_blocks as f64;
                let shares: Vec<f64> = self.looks.iter().map(|&n| n as f64 / all).collect();
                let wide = group_sequential_bounds(&shares, self.alpha, spending)?;
                let narrow = group_sequential_bounds(&shares, 2.0 * self.alpha, spending)?;
                wide.into_iter()
                    .zip(narrow)
                    .map(|(w, n)| (normal_upper_tail(w), normal_upper_tail(n)))
                    .collect()
            }
        };
        Ok(CompiledRule { rule: self, tails })
    }
}

impl CompiledRule {
    /// The rule as written.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// One-sided tail probability of the critical value at each look, at level alpha. Empty for
    /// [`Bound::AlwaysValid`].
    pub fn tails(&self) -> Vec<f64> {
        self.tails.iter().map(|(wide, _)| *wide).collect()
    }

    /// The decision after the blocks so far, in order. More than `max_blocks` is an error: the
    /// level was promised for those, and a run extended afterwards has none.
    pub fn decide(&self, units: &[f64]) -> Result<Decision, StatError> {
        check_finite(units)?;
        let (n, limit) = (units.len(), self.rule.max_blocks);
        if n > limit {
            return Err(StatError::TooMany { got: n, limit });
        }
        let next_look = self.next_look(n);
        if n < 2 || !(self.rule.looks.is_empty() || self.rule.looks.contains(&n)) {
            return Ok(Decision {
                stop: false,
                reason: Reason::NotALook,
                interval: None,
                narrow: None,
                next_look,
            });
        }
        let (interval, narrow) = self.intervals(units)?;
        let reason = self.reason(n, interval.as_ref(), narrow.as_ref());
        let stop = reason != Reason::Open;
        Ok(Decision {
            stop,
            reason,
            interval,
            narrow,
            next_look: next_look.filter(|_| !stop),
        })
    }

    fn next_look(&self, n: usize) -> Option<usize> {
        if self.rule.looks.is_empty() {
            return Some((n + 1).max(2)).filter(|next| *next <= self.rule.max_blocks);
        }
        self.rule.looks.iter().copied().find(|look| *look > n)
    }

    fn reason(&self, n: usize, wide: Option<&Estimate>, narrow: Option<&Estimate>) -> Reason {
        let margin = self.rule.margin;
        if wide.is_some_and(|e| e.excludes(0.0) && e.point.abs() > margin) {
            Reason::Difference
        } else if narrow.is_some_and(|e| e.low > -margin && e.high < margin) {
            Reason::Equivalent
        } else if let (Some(e), Some(target)) = (wide, self.rule.target_halfwidth)
            && 0.5 * (e.high - e.low) <= target
        {
            Reason::Precise
        } else if n == self.rule.max_blocks {
            Reason::Exhausted
        } else {
            Reason::Open
        }
    }

    fn intervals(&self, units: &[f64]) -> Result<(Option<Estimate>, Option<Estimate>), StatError> {
        let alpha = self.rule.alpha;
        if self.rule.bound == Bound::AlwaysValid {
            let at = |alpha: f64| {
                let mixture = mixture_variance(alpha, self.rule.max_blocks)?;
                anytime_interval(units, 1.0 - alpha, mixture)
            };
            return Ok((at(alpha)?, at(2.0 * alpha)?));
        }
        let look = self.rule.looks.iter().position(|look| *look == units.len());
        let Some(&(wide, narrow)) = look.and_then(|k| self.tails.get(k)) else {
            return Ok((None, None));
        };
        let test = paired_t_test(units)?;
        let at = |tail: f64, alpha: f64| {
            let t = -t_quantile(tail, test.df);
            let reach = if test.se == 0.0 { 0.0 } else { t * test.se };
            reach.is_finite().then_some(Estimate {
                point: test.mean,
                low: test.mean - reach,
                high: test.mean + reach,
                se: test.se,
                n: units.len(),
                confidence: 1.0 - alpha,
            })
        };
        Ok((at(wide, alpha), at(narrow, 2.0 * alpha)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    fn rule(looks: &[usize], max_blocks: usize, bound: Bound) -> Rule {
        Rule {
            looks: looks.to_vec(),
            alpha: 0.05,
            margin: 0.03,
            max_blocks,
            target_halfwidth: None,
            bound,
        }
    }

    const SPENDING: Bound = Bound::Spending(Spending::OBrienFleming);

    #[test]
    fn a_single_look_is_the_plain_t_interval() {
        let rule = rule(&[5], 5, SPENDING).compile().unwrap();
        let units = [0.1, 0.12, 0.09, 0.11, 0.13];
        let d = rule.decide(&units).unwrap();
        let plain = crate::mean_interval(&units, 0.95).unwrap();
        let got = d.interval.unwrap();
        close(got.low, plain.low, 1e-7, 0.0);
        close(got.high, plain.high, 1e-7, 0.0);
        assert_eq!(
            (d.stop, d.reason, d.next_look),
            (true, Reason::Difference, None)
        );
        assert_eq!((got.confidence, d.narrow.unwrap().confidence), (0.95, 0.9));
    }

    #[test]
    fn the_second_of_two_looks_by_table() {
        // Published bounds 2.963 and 1.969 at half and all; tails 0.001525 and 0.02446.
        let rule = rule(&[6, 12], 12, SPENDING).compile().unwrap();
        let tails = rule.tails();
        close(tails[0], 0.001_525, 3e-3, 0.0);
        close(tails[1], 0.024_5, 3e-3, 0.0);
        let units: Vec<f64> = (0..12).map(|i| f64::from(i % 3) - 1.0).collect();
        let e = rule.decide(&units).unwrap().interval.unwrap();
        // Mean 0, variance 8/11, se = sqrt(8/132); t(11) at tail 0.0245 is 2.2131 by table
        // interpolation between 2.201 (0.025) and 2.226 (0.024).
        close(e.high, 2.213 * (8.0_f64 / 132.0).sqrt(), 2e-3, 0.0);
    }

    #[test]
    fn between_looks_nothing_is_computed_and_beyond_the_last_is_an_error() {
        let rule = rule(&[4, 8], 8, SPENDING).compile().unwrap();
        let d = rule.decide(&[9.0; 5]).unwrap();
        assert_eq!(
            (d.stop, d.reason, d.interval),
            (false, Reason::NotALook, None)
        );
        assert_eq!(d.next_look, Some(8));
        assert_eq!(rule.decide(&[]).unwrap().next_look, Some(4));
        let many = StatError::TooMany { got: 9, limit: 8 };
        assert_eq!(rule.decide(&[0.0; 9]), Err(many));
        assert_eq!(
            rule.decide(&[f64::NAN]),
            Err(StatError::NotFinite { index: 0 })
        );
    }

    #[test]
    fn each_reason_is_reached() {
        let noisy = [0.5, -0.5, 0.4, -0.45, 0.3, -0.2, 0.6, -0.6];
        let mut written = rule(&[4, 8], 8, SPENDING);
        let of = |rule: &Rule, units: &[f64]| {
            rule.clone()
                .compile()
                .unwrap()
                .decide(units)
                .unwrap()
                .reason
        };
        assert_eq!(of(&written, &noisy[..4]), Reason::Open);
        assert_eq!(of(&written, &noisy), Reason::Exhausted);
        assert_eq!(of(&written, &noisy.map(|v| 0.001 * v)), Reason::Equivalent);
        assert_eq!(
            of(&written, &noisy.map(|v| 0.3 + 0.1 * v)),
            Reason::Difference
        );
        written.target_halfwidth = Some(1.0);
        assert_eq!(of(&written, &noisy), Reason::Precise);
        // A sure change within the margin is no difference.
        assert_eq!(
            of(&written, &noisy.map(|v| 0.02 + 0.001 * v)),
            Reason::Equivalent
        );
        // A simulated run repeats exactly: no spread, and the first look settles it.
        assert_eq!(of(&written, &[0.1; 4]), Reason::Difference);
        assert_eq!(of(&written, &[0.0; 4]), Reason::Equivalent);
    }

    #[test]
    fn every_block_is_a_look_when_always_valid() {
        let rule = rule(&[], 30, Bound::AlwaysValid).compile().unwrap();
        assert_eq!(rule.decide(&[0.5]).unwrap().reason, Reason::NotALook);
        assert_eq!(rule.decide(&[0.5, 0.6]).unwrap().interval, None);
        let units: Vec<f64> = (0..12).map(|i| 0.5 + 0.01 * f64::from(i % 4)).collect();
        let d = rule.decide(&units).unwrap();
        assert_eq!((d.stop, d.reason), (true, Reason::Difference));
    }

    #[test]
    fn bad_rules_are_refused() {
        for bad in [
            rule(&[4, 4], 4, SPENDING),
            rule(&[1, 8], 8, SPENDING),
            rule(&[4], 8, SPENDING),
            rule(&[], 8, SPENDING),
            rule(&[], 1, Bound::AlwaysValid),
        ] {
            assert!(bad.compile().is_err());
        }
        let mut bad = rule(&[4], 4, SPENDING);
        bad.alpha = 0.5;
        assert!(bad.compile().is_err());
    }
}
