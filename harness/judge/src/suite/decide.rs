//! What the cells say of the hypotheses.
//!
//! The unit is the pair of cells of one block and one condition: the same schedule, one after the
//! other, each in a fresh server. Of each pair one number is taken, the ratio or the difference of
//! the figure. Everything from there on is `pb_stats`; `docs/STATISTICS.md` has the methods.

use pb_stats::{
    Bound, Clearance, Estimate, Evidence, Margin, Outcome, Rule, StatError, e_value, holm_adjust,
    judge, mean_interval, mixture_variance, paired_t_test,
};

use super::store::Done;
use crate::verbs::suite::{Comparison, Expect, LEAST_PAIRS, Scale, StopRule};

/// A late client may take this share of an effect at most.
const LAG_SHARE: f64 = 0.05;

/// How a comparison is decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rules {
    /// When blocks stop being added.
    pub(crate) stop: StopRule,
    /// Blocks, or the most of them.
    pub(crate) blocks: usize,
    /// Chance of any false claim.
    pub(crate) alpha: f64,
    /// Share of requests that must end well.
    pub(crate) least_success: f64,
}

/// The two cells of a block, as far as they are finished.
pub(crate) type Pair<'a> = (Option<&'a Done>, Option<&'a Done>);

/// The pairs of one comparison, with one number each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pairs {
    /// Values of the baseline, in the order of blocks.
    pub(crate) a: Vec<f64>,
    /// Values of the candidate.
    pub(crate) b: Vec<f64>,
    /// Differences, or logarithms of ratios.
    pub(crate) units: Vec<f64>,
    /// Numbers of the blocks that they are of.
    pub(crate) blocks: Vec<usize>,
    /// Pairs that are finished and cannot be used, and why.
    pub(crate) left_out: Vec<String>,
    /// What takes every claim away.
    pub(crate) void: Vec<String>,
    /// Driver lag of the worse arm: the 99th percentile within a cell, median over cells, in ms.
    pub(crate) lag_ms: f64,
}

impl Pairs {
    /// Of the cells of a comparison, a pair a block.
    pub(crate) fn of(comparison: &Comparison, pairs: &[Pair<'_>], least_success: f64) -> Pairs {
        let mut found = Pairs::default();
        let mut lags = [Vec::new(), Vec::new()];
        for (block, pair) in pairs.iter().enumerate() {
            let (Some(a), Some(b)) = pair else { continue };
            for (lags, cell) in lags.iter_mut().zip([a, b]) {
                lags.extend(cell.document["driver_lag_ms"]["p99"].as_f64());
            }
            if let Err(why) = found.add(comparison, block, a, b, least_success) {
                found.left_out.push(format!("block {block}: {why}"));
            }
        }
        let medians = lags.map(|lags| median(&lags).unwrap_or(0.0));
        found.lag_ms = medians[0].max(medians[1]);
        found
    }

    /// Takes the number of a pair, or says why it has none.
    fn add(
        &mut self,
        comparison: &Comparison,
        block: usize,
        a: &Done,
        b: &Done,
        least_success: f64,
    ) -> Result<(), String> {
        if a.schedule() != b.schedule() || a.schedule().is_empty() {
            self.void
                .push(format!("block {block}: the arms had different schedules"));
        }
        let metric = &comparison.metric;
        for (who, cell) in [("baseline", a), ("candidate", b)] {
            if let Some(reason) = cell.reasons().first() {
                return Err(format!("the {who} is not valid: {reason}"));
            }
            let success = cell.success().unwrap_or(0.0);
            if metric.is_of_good_ends() && success < least_success {
                self.void.push(format!(
                    "block {block}: {:.1} % of the {who}'s requests ended well, below \
                     run.least_success; what fails has no latency",
                    100.0 * success
                ));
            }
        }
        let value = |who: &str, cell: &Done| {
            let found = metric.value(&cell.document);
            found.ok_or_else(|| format!("the {who} has no {}", metric.name))
        };
        let (a, b) = (value("baseline", a)?, value("candidate", b)?);
        let unit = match metric.scale {
            Scale::Ratio if a <= 0.0 || b <= 0.0 => {
                return Err("a value is not above 0, so it has no ratio".to_owned());
            }
            Scale::Ratio => b.ln() - a.ln(),
            Scale::Difference => b - a,
        };
        self.a.push(a);
        self.b.push(b);
        self.units.push(unit);
        self.blocks.push(block);
        Ok(())
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judged {
    /// Medians of baseline and candidate over the pairs.
    pub(crate) medians: Option<(f64, f64)>,
    /// The change with its interval: a ratio, or a difference.
    pub(crate) change: Option<Estimate>,
    /// p-value of no change; valid at every block under the sequential rule.
    pub(crate) p: Option<f64>,
    /// The same, adjusted for all comparisons of the suite.
    pub(crate) holm_p: f64,
    /// The verdict.
    pub(crate) outcome: Outcome,
    /// Its reason.
    pub(crate) why: String,
    /// Whether the expectation was met; absent while it is open.
    pub(crate) as_expected: Option<bool>,
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
    let mut measured = Vec::new();
    for (comparison, pairs) in comparisons.iter().zip(pairs) {
        measured.push(Measured::of(comparison, pairs, rules)?);
    }
    // One without a p-value, or that is void, still counts among the comparisons made.
    let p: Vec<f64> = measured.iter().map(|one| one.p.unwrap_or(1.0)).collect();
    let adjusted = holm_adjust(&p)?;
    let each = comparisons
        .iter()
        .zip(pairs)
        .zip(measured.into_iter().zip(adjusted));
    each.map(|((comparison, pairs), (measured, holm_p))| {
        decided(comparison, pairs, measured, holm_p, rules)
    })
    .collect()
}

/// The numbers of one comparison, without the others.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    interval: Option<Estimate>,
    narrow: Option<Estimate>,
    p: Option<f64>,
}

impl Measured {
    fn of(comparison: &Comparison, pairs: &Pairs, rules: &Rules) -> Result<Measured, StatError> {
        if pairs.units.len() < 2 || !pairs.void.is_empty() {
            return Ok(Measured::default());
        }
        let found = match rules.stop {
            StopRule::Fixed => Measured {
                interval: kept(mean_interval(&pairs.units, 1.0 - rules.alpha)),
                narrow: kept(mean_interval(&pairs.units, 1.0 - 2.0 * rules.alpha)),
                p: paired_t_test(&pairs.units).ok().map(|test| test.p),
            },
            StopRule::Sequential => Measured::at_any_time(&pairs.units, rules)?,
        };
        let scaled = |estimate: Estimate| match comparison.metric.scale {
            Scale::Difference => estimate,
            Scale::Ratio => Estimate {
                point: estimate.point.exp(),
                low: estimate.low.exp(),
                high: estimate.high.exp(),
                ..estimate
            },
        };
        Ok(Measured {
            interval: found.interval.map(scaled),
            narrow: found.narrow.map(scaled),
            p: found.p,
        })
    }

    /// Valid after every block, so that the run may stop at any of them.
    fn at_any_time(units: &[f64], rules: &Rules) -> Result<Measured, StatError> {
        let rule = Rule {
            looks: Vec::new(),
            alpha: rules.alpha,
            margin: 0.0,
            max_blocks: rules.blocks,
            target_halfwidth: None,
            bound: Bound::AlwaysValid,
        };
        let decision = rule.compile()?.decide(units)?;
        let mixture = mixture_variance(rules.alpha, rules.blocks)?;
        // The bet was ever worth so much: one over its maximum is a p-value at any time.
        let mut most = 0.0_f64;
        for n in 2..=units.len() {
            most = most.max(e_value(&units[..n], mixture).unwrap_or(0.0));
        }
        Ok(Measured {
            interval: decision.interval,
            narrow: decision.narrow,
            p: Some((1.0 / most).min(1.0)),
        })
    }
}

fn kept(estimate: Result<Estimate, StatError>) -> Option<Estimate> {
    let finite = |e: &Estimate| e.low.is_finite() && e.high.is_finite();
    estimate.ok().filter(finite)
}

fn decided(
    comparison: &Comparison,
    pairs: &Pairs,
    measured: Measured,
    holm_p: f64,
    rules: &Rules,
) -> Result<Judged, StatError> {
    let margin = match comparison.metric.scale {
        Scale::Ratio => Margin::ratio(comparison.margin)?,
        Scale::Difference => Margin::difference(comparison.margin)?,
    };
    let (mut outcome, mut why) = judge(&Evidence {
        interval: measured.interval.as_ref(),
        narrow: measured.narrow.as_ref(),
        margin,
        good: comparison.metric.good,
        clearance: Clearance::Point,
        least_blocks: LEAST_PAIRS,
        survives_adjustment: holm_p < rules.alpha,
        void: &pairs.void,
    });
    let medians = median(&pairs.a).zip(median(&pairs.b));
    // What is left of a mostly unusable run says little about it.
    if outcome != Outcome::Void && pairs.left_out.len() > pairs.units.len() {
        outcome = Outcome::Inconclusive;
        why = format!(
            "more pairs left out ({}) than kept ({})",
            pairs.left_out.len(),
            pairs.units.len()
        );
    }
    let claimed = matches!(outcome, Outcome::Better | Outcome::Worse);
    if let Some((a, b)) = medians.filter(|_| claimed && comparison.metric.from_arrival) {
        let most = LAG_SHARE * (b - a).abs();
        if pairs.lag_ms > most {
            outcome = Outcome::Void;
            why = format!(
                "the client was {:.3} ms late, above {:.0} % of the effect ({most:.3} ms)",
                pairs.lag_ms,
                100.0 * LAG_SHARE
            );
        }
    }
    let lower = measured.interval.map(|e| match comparison.metric.scale {
        Scale::Ratio => e.point < 1.0,
        Scale::Difference => e.point < 0.0,
    });
    let enough = pairs.units.len() >= LEAST_PAIRS;
    Ok(Judged {
        as_expected: as_expected(comparison.expect, outcome, lower, enough),
        medians,
        change: measured.interval,
        p: measured.p,
        holm_p,
        outcome,
        why,
    })
}

/// Whether an outcome is what was expected; absent where it settles nothing.
fn as_expected(
    expect: Option<Expect>,
    outcome: Outcome,
    lower: Option<bool>,
    enough: bool,
) -> Option<bool> {
    match (expect, outcome) {
        (_, Outcome::Void) => None,
        (Some(Expect::NoClaim), Outcome::Inconclusive) => enough.then_some(true),
        (_, Outcome::Inconclusive) => None,
        (None, _) => Some(true),
        (Some(expect), Outcome::Equivalent) => {
            Some(matches!(expect, Expect::Equivalent | Expect::NoClaim))
        }
        (Some(expect), Outcome::Better | Outcome::Worse) => Some(match expect {
            Expect::Lower => lower == Some(true),
            Expect::Higher => lower == Some(false),
            Expect::Equivalent | Expect::NoClaim => false,
        }),
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let (sorted, _) = pb_stats::sort_finite(values);
    pb_stats::linear(&sorted, 0.5)
}

/// Conditions in which every comparison is settled, so that more blocks would change nothing.
/// A condition that nothing is asked of is never settled.
pub(crate) fn settled(
    comparisons: &[Comparison],
    judged: &[Judged],
    conditions: usize,
) -> Vec<bool> {
    let is_settled = |judged: &Judged| {
        matches!(
            judged.outcome,
            Outcome::Better | Outcome::Worse | Outcome::Equivalent
        )
    };
    let in_condition = |condition: usize| {
        let mut own = comparisons
            .iter()
            .zip(judged)
            .filter(|(comparison, _)| comparison.condition == condition)
            .peekable();
        own.peek().is_some() && own.all(|(_, judged)| is_settled(judged))
    };
    (0..conditions).map(in_condition).collect()
}
