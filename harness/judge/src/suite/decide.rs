//! From the pairs of all comparisons to their verdicts.
//!
//! Of each pair one number is taken, the ratio or the difference of the figure. Everything from
//! there on is `pb_stats`; `docs/STATISTICS.md` has the methods.

use pb_stats::{
    Bound, Clearance, Estimate, Evidence, Margin, Outcome, Rule, StatError, e_value, holm_adjust,
    judge, mean_interval, mixture_variance, paired_t_test,
};

use super::looks::Looks;
use super::metric::Scale;
use super::pairs::{Pairs, median};
use super::{Expect, LEAST_PAIRS, Question, Rules, StopRule};

/// A late client may take this share of an effect at most.
const LAG_SHARE: f64 = 0.05;

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Medians of baseline and candidate over the pairs.
    pub medians: Option<(f64, f64)>,
    /// The change with its interval: a ratio, or a difference.
    pub change: Option<Estimate>,
    /// p-value of no change; valid at every block under the sequential rule.
    pub p: Option<f64>,
    /// The same, adjusted for all comparisons of the suite.
    pub holm_p: f64,
    /// The verdict.
    pub outcome: Outcome,
    /// Its reason.
    pub why: String,
    /// Whether the expectation was met; absent while it is open.
    pub as_expected: Option<bool>,
}

/// Judges all comparisons of a suite together.
///
/// # Errors
/// Rules out of range; too little data is a verdict.
pub fn judged(
    questions: &[Question],
    pairs: &[Pairs],
    rules: &Rules,
) -> Result<Vec<Judged>, StatError> {
    let mut measured = Vec::new();
    for (question, pairs) in questions.iter().zip(pairs) {
        measured.push(Measured::of(question, pairs, rules)?);
    }
    // One without a p-value, or that is void, still counts among the comparisons made.
    let p: Vec<f64> = measured.iter().map(|one| one.p.unwrap_or(1.0)).collect();
    let adjusted = holm_adjust(&p)?;
    let each = questions
        .iter()
        .zip(pairs)
        .zip(measured.into_iter().zip(adjusted));
    each.map(|((question, pairs), (measured, holm_p))| {
        decided(question, pairs, measured, holm_p, rules)
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
    fn of(question: &Question, pairs: &Pairs, rules: &Rules) -> Result<Measured, StatError> {
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
            StopRule::Spending => Measured::at_a_look(pairs, rules)?,
        };
        let scaled = |estimate: Estimate| match question.metric.scale {
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

    /// At the last of the planned looks whose blocks are there; nothing before the first.
    fn at_a_look(pairs: &Pairs, rules: &Rules) -> Result<Measured, StatError> {
        let Some(looks) = Looks::of(pairs, rules.blocks) else {
            return Ok(Measured::default());
        };
        let (interval, narrow) = looks.intervals(rules.alpha)?;
        Ok(Measured {
            interval,
            narrow,
            p: looks.p()?,
        })
    }
}

fn kept(estimate: Result<Estimate, StatError>) -> Option<Estimate> {
    let finite = |e: &Estimate| e.low.is_finite() && e.high.is_finite();
    estimate.ok().filter(finite)
}

fn decided(
    question: &Question,
    pairs: &Pairs,
    measured: Measured,
    holm_p: f64,
    rules: &Rules,
) -> Result<Judged, StatError> {
    let margin = match question.metric.scale {
        Scale::Ratio => Margin::ratio(question.margin)?,
        Scale::Difference => Margin::difference(question.margin)?,
    };
    let (mut outcome, mut why) = judge(&Evidence {
        interval: measured.interval.as_ref(),
        narrow: measured.narrow.as_ref(),
        margin,
        good: question.metric.good,
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
    if let Some((a, b)) = medians.filter(|_| claimed && question.metric.from_arrival) {
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
    let lower = measured.interval.map(|e| match question.metric.scale {
        Scale::Ratio => e.point < 1.0,
        Scale::Difference => e.point < 0.0,
    });
    let enough = pairs.units.len() >= LEAST_PAIRS;
    Ok(Judged {
        as_expected: as_expected(question.expect, outcome, lower, enough),
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

impl Judged {
    /// Whether more blocks would change nothing.
    pub fn is_settled(&self) -> bool {
        matches!(
            self.outcome,
            Outcome::Better | Outcome::Worse | Outcome::Equivalent
        )
    }
}
