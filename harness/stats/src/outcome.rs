//! From an interval, a margin and a number of blocks to one of five words.
//!
//! The two that are usually missing matter most. *Inconclusive* is not "equal": the data cannot
//! tell. *Void* is not "worse": a condition of the experiment did not hold, and no number from it
//! counts. A single pair of runs is always inconclusive, however large its difference.

use crate::error::StatError;
use crate::paired::Estimate;

/// What a comparison of B against A found, seen from B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// B is better, beyond the margin.
    Better,
    /// B is worse, beyond the margin.
    Worse,
    /// B differs from A by less than the margin, shown and not assumed.
    Equivalent,
    /// The data cannot tell.
    Inconclusive,
    /// A condition of the experiment did not hold.
    Void,
}

impl Outcome {
    /// The word a report prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Equivalent => "equivalent",
            Self::Inconclusive => "inconclusive",
            Self::Void => "void",
        }
    }
}

/// Which way is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Good {
    /// Times, memory, failures.
    Lower,
    /// Rates, hit rates.
    Higher,
}

/// How far an interval must clear the margin for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Clearance {
    /// The interval excludes no change, and the point is beyond the margin. The level is that of
    /// the interval against "no change at all".
    Point,
    /// The whole interval is beyond the margin. The level holds against "at most the margin", so a
    /// true change of just the margin is claimed in half of `alpha` of the cases only. Needs more
    /// blocks.
    Interval,
}

/// A region of no practical interest around no change, on the scale of the interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margin {
    neutral: f64,
    low: f64,
    high: f64,
}

impl Margin {
    /// Differences between `-margin` and `margin`. Must be finite and not negative.
    pub fn difference(margin: f64) -> Result<Self, StatError> {
        check(margin)?;
        Ok(Self {
            neutral: 0.0,
            low: -margin,
            high: margin,
        })
    }

    /// Ratios between `1 / (1 + margin)` and `1 + margin`, so that swapping the arms mirrors the
    /// outcome. Must be finite and not negative.
    pub fn ratio(margin: f64) -> Result<Self, StatError> {
        check(margin)?;
        Ok(Self {
            neutral: 1.0,
            low: 1.0 / (1.0 + margin),
            high: 1.0 + margin,
        })
    }
}

fn check(margin: f64) -> Result<(), StatError> {
    if margin.is_finite() && margin >= 0.0 {
        return Ok(());
    }
    let (name, value) = ("margin", margin);
    Err(StatError::BadParameter { name, value })
}

/// What the judgement rests on. `interval` and `narrow` have confidence `1 - alpha` and
/// `1 - 2 alpha` on the same scale as the margin; None stands for "no finite interval".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence<'a> {
    /// Interval for claims of a change.
    pub interval: Option<&'a Estimate>,
    /// Interval for claims of equivalence (two one-sided tests).
    pub narrow: Option<&'a Estimate>,
    /// Region of no practical interest.
    pub margin: Margin,
    /// Which way is good.
    pub good: Good,
    /// How far a claim must clear the margin.
    pub clearance: Clearance,
    /// Fewest blocks for any claim; below two counts as two.
    pub least_blocks: usize,
    /// Whether the change survives the adjustment for several metrics (Holm).
    pub survives_adjustment: bool,
    /// Conditions that did not hold.
    pub void: &'a [String],
}

/// The outcome with one sentence of reason.
pub fn judge(evidence: &Evidence<'_>) -> (Outcome, String) {
    if !evidence.void.is_empty() {
        return (Outcome::Void, evidence.void.join("; "));
    }
    let inconclusive = |why: &str| (Outcome::Inconclusive, why.to_owned());
    let (Some(interval), Some(narrow)) = (evidence.interval, evidence.narrow) else {
        return inconclusive("no finite interval");
    };
    let need = evidence.least_blocks.max(2);
    if interval.n < need {
        let why = format!("insufficient blocks: {} usable, {need} needed", interval.n);
        return (Outcome::Inconclusive, why);
    }
    let Margin { neutral, low, high } = evidence.margin;
    let beyond = match evidence.clearance {
        Clearance::Point => interval.point < low || interval.point > high,
        Clearance::Interval => interval.high < low || interval.low > high,
    };
    let changed = interval.excludes(neutral);
    if changed && beyond && evidence.survives_adjustment {
        let lower = interval.point < neutral;
        let outcome = if lower == (evidence.good == Good::Lower) {
            Outcome::Better
        } else {
            Outcome::Worse
        };
        let why = match evidence.clearance {
            Clearance::Point => "the interval excludes no change, the point is beyond the margin",
            Clearance::Interval => "the whole interval is beyond the margin",
        };
        return (outcome, why.to_owned());
    }
    // Touching the margin is not inside it.
    if narrow.low > low && narrow.high < high {
        let why = "the interval lies within the margin".to_owned();
        return (Outcome::Equivalent, why);
    }
    if changed && beyond {
        inconclusive("the change does not survive the adjustment for the number of comparisons")
    } else if changed {
        inconclusive("there is a change, but whether it exceeds the margin is open")
    } else {
        inconclusive("the interval includes no change and reaches beyond the margin")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(point: f64, reach: f64, n: usize) -> Estimate {
        Estimate {
            point,
            low: point - reach,
            high: point + reach,
            se: reach / 2.0,
            n,
            confidence: 0.95,
        }
    }

    fn on(point: f64, reach: f64, n: usize, change: impl Fn(&mut Evidence<'_>)) -> Outcome {
        let (interval, narrow) = (estimate(point, reach, n), estimate(point, 0.8 * reach, n));
        let mut evidence = Evidence {
            interval: Some(&interval),
            narrow: Some(&narrow),
            margin: Margin::ratio(0.03).unwrap(),
            good: Good::Lower,
            clearance: Clearance::Point,
            least_blocks: 3,
            survives_adjustment: true,
            void: &[],
        };
        change(&mut evidence);
        judge(&evidence).0
    }

    #[test]
    fn the_five_outcomes() {
        assert_eq!(on(0.9, 0.05, 8, |_| {}), Outcome::Better);
        assert_eq!(on(1.1, 0.05, 8, |_| {}), Outcome::Worse);
        assert_eq!(on(1.01, 0.015, 8, |_| {}), Outcome::Equivalent);
        assert_eq!(on(1.02, 0.10, 8, |_| {}), Outcome::Inconclusive);
        let late = vec!["the driver was late".to_owned()];
        let (interval, margin) = (estimate(0.5, 0.01, 8), Margin::ratio(0.03).unwrap());
        let evidence = Evidence {
            interval: Some(&interval),
            narrow: Some(&interval),
            margin,
            good: Good::Lower,
            clearance: Clearance::Point,
            least_blocks: 3,
            survives_adjustment: true,
            void: &late,
        };
        assert_eq!(
            judge(&evidence),
            (Outcome::Void, "the driver was late".to_owned())
        );
    }

    #[test]
    fn one_pair_is_never_enough() {
        for least in [0, 1, 2] {
            let outcome = on(0.01, 0.001, 1, |e| e.least_blocks = least);
            assert_eq!(outcome, Outcome::Inconclusive);
        }
        assert_eq!(on(0.9, 0.01, 2, |_| {}), Outcome::Inconclusive);
        assert_eq!(on(0.9, 0.01, 2, |e| e.least_blocks = 2), Outcome::Better);
    }

    #[test]
    fn direction_adjustment_and_missing_intervals() {
        assert_eq!(on(0.9, 0.05, 8, |e| e.good = Good::Higher), Outcome::Worse);
        let unadjusted = on(0.9, 0.05, 8, |e| e.survives_adjustment = false);
        assert_eq!(unadjusted, Outcome::Inconclusive);
        assert_eq!(
            on(0.9, 0.05, 8, |e| e.interval = None),
            Outcome::Inconclusive
        );
        // A sure change within the margin is equivalent, not worse.
        assert_eq!(on(1.01, 0.005, 8, |_| {}), Outcome::Equivalent);
    }

    #[test]
    fn the_strict_clearance_wants_the_whole_interval_beyond() {
        let strict = |e: &mut Evidence<'_>| e.clearance = Clearance::Interval;
        assert_eq!(on(1.06, 0.04, 8, |_| {}), Outcome::Worse);
        assert_eq!(on(1.06, 0.04, 8, strict), Outcome::Inconclusive);
        assert_eq!(on(1.08, 0.04, 8, strict), Outcome::Worse);
    }

    #[test]
    fn touching_the_margin_is_not_inside() {
        let difference = |reach: f64| {
            let narrow = estimate(0.0, reach, 8);
            let evidence = Evidence {
                interval: Some(&narrow),
                narrow: Some(&narrow),
                margin: Margin::difference(1.0).unwrap(),
                good: Good::Lower,
                clearance: Clearance::Point,
                least_blocks: 3,
                survives_adjustment: true,
                void: &[],
            };
            judge(&evidence).0
        };
        assert_eq!(difference(1.0), Outcome::Inconclusive);
        assert_eq!(difference(0.999), Outcome::Equivalent);
        assert!(Margin::ratio(-0.1).is_err() && Margin::difference(f64::NAN).is_err());
        assert_eq!(Outcome::Void.name(), "void");
    }
}
