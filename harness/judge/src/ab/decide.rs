//! The rule that turns numbers into claims.

use std::collections::BTreeSet;

use pb_stats::StatError;

use super::AbError;
use super::measure::Measured;
use super::metric::{
    AbReport, AbRules, Claim, Direction, MetricSpec, MetricVerdict, Scale, Values,
};
use super::pairs::Pairs;
use crate::verdict::Interval;

/// Compares two arms on the declared metrics. `values` has one entry per metric, each with both
/// arms' values in block order; `void` lists the conditions that did not hold (driver lag, a warm
/// cache that should be cold). Errors on a declaration that does not fit the values and on rules
/// out of range; too little data is a verdict.
pub fn judge_ab(
    metrics: &[MetricSpec],
    values: &Values,
    void: &[String],
    rules: &AbRules,
) -> Result<AbReport, AbError> {
    check_rules(rules)?;
    check_metrics(metrics, values)?;
    let mut verdicts = Vec::with_capacity(metrics.len());
    for (stream, spec) in (0_u64..).zip(metrics) {
        let arms = &values[&spec.name];
        let pairs = Pairs::of(arms, spec.scale);
        let measured = Measured::of(&pairs, spec.scale, rules, stream);
        verdicts.push(undecided(spec, arms.a.len(), &pairs, measured));
    }
    adjust(&mut verdicts)?;
    for verdict in &mut verdicts {
        (verdict.claim, verdict.why) = decide(verdict, void, rules);
    }
    Ok(AbReport {
        rules: rules.clone(),
        void: void.to_vec(),
        metrics: verdicts,
    })
}

fn check_rules(rules: &AbRules) -> Result<(), AbError> {
    let bad = |name, value| AbError::BadRules(StatError::BadParameter { name, value });
    if !(rules.alpha > 0.0 && rules.alpha < 0.5) {
        return Err(bad("alpha", rules.alpha));
    }
    if let Some(power) = rules.power.filter(|power| !(*power > 0.0 && *power < 1.0)) {
        return Err(bad("power", power));
    }
    Ok(())
}

fn check_metrics(metrics: &[MetricSpec], values: &Values) -> Result<(), AbError> {
    let mut names = BTreeSet::new();
    for spec in metrics {
        let name = spec.name.clone();
        if !names.insert(&spec.name) {
            return Err(AbError::DuplicateMetric { name });
        }
        let (Scale::Ratio { margin } | Scale::Difference { margin }) = spec.scale;
        if !(margin.is_finite() && margin >= 0.0) {
            return Err(AbError::BadMargin { name, margin });
        }
        let Some(arms) = values.get(&spec.name) else {
            return Err(AbError::MissingMetric { name });
        };
        if arms.a.len() != arms.b.len() {
            return Err(AbError::BlockMismatch {
                name,
                a: arms.a.len(),
                b: arms.b.len(),
            });
        }
    }
    Ok(())
}

fn undecided(spec: &MetricSpec, blocks: usize, pairs: &Pairs, m: Measured) -> MetricVerdict {
    let median = |values: &[f64]| {
        let (sorted, _) = pb_stats::sort_finite(values);
        pb_stats::linear(&sorted, 0.5)
    };
    MetricVerdict {
        spec: spec.clone(),
        a: median(&pairs.a),
        b: median(&pairs.b),
        blocks,
        pairs: pairs.len(),
        excluded: pairs.excluded,
        difference: m.difference,
        ratio: m.ratio,
        equivalence: m.equivalence,
        bootstrap: m.bootstrap,
        p: m.p,
        holm_p: 1.0,
        sign_flip_p: m.sign_flip_p,
        detectable: m.detectable,
        claim: Claim::Inconclusive,
        why: String::new(),
    }
}

/// Holm over the primary family for its members, and over all metrics for the others.
fn adjust(verdicts: &mut [MetricVerdict]) -> Result<(), AbError> {
    let p_of = |verdict: &MetricVerdict| verdict.p.unwrap_or(1.0);
    let primary: Vec<f64> = verdicts
        .iter()
        .filter(|v| v.spec.primary)
        .map(p_of)
        .collect();
    let all: Vec<f64> = verdicts.iter().map(p_of).collect();
    let mut primary = pb_stats::holm_adjust(&primary)
        .map_err(AbError::BadRules)?
        .into_iter();
    let all = pb_stats::holm_adjust(&all).map_err(AbError::BadRules)?;
    for (verdict, over_all) in verdicts.iter_mut().zip(all) {
        let over_primary = if verdict.spec.primary {
            primary.next()
        } else {
            None
        };
        verdict.holm_p = over_primary.unwrap_or(over_all);
    }
    Ok(())
}

/// The metric's own scale: its interval, the value of no change, and the margin's two ends.
struct OnScale {
    interval: Interval,
    neutral: f64,
    low: f64,
    high: f64,
}

impl OnScale {
    fn of(verdict: &MetricVerdict) -> Option<Self> {
        Some(match verdict.spec.scale {
            // Symmetric on logarithms, so that swapping the arms mirrors the claim.
            Scale::Ratio { margin } => Self {
                interval: verdict.ratio?,
                neutral: 1.0,
                low: 1.0 / (1.0 + margin),
                high: 1.0 + margin,
            },
            Scale::Difference { margin } => Self {
                interval: verdict.difference?,
                neutral: 0.0,
                low: -margin,
                high: margin,
            },
        })
    }
}

fn decide(verdict: &MetricVerdict, void: &[String], rules: &AbRules) -> (Claim, String) {
    if !void.is_empty() {
        return (Claim::Void, void.join("; "));
    }
    if let Some(why) = shortage(verdict, rules) {
        return (Claim::Inconclusive, why);
    }
    let (Some(scale), Some(narrow)) = (OnScale::of(verdict), verdict.equivalence) else {
        return (Claim::Inconclusive, "no finite interval".to_owned());
    };
    let point = scale.interval.point;
    let beyond = point < scale.low || point > scale.high;
    if verdict.holm_p < rules.alpha && scale.interval.excludes(scale.neutral) && beyond {
        let lower = point < scale.neutral;
        let better = lower == (verdict.spec.direction == Direction::LowerIsBetter);
        let claim = if better { Claim::Better } else { Claim::Worse };
        return (
            claim,
            format!("adjusted {}, beyond the margin", adjusted(verdict.holm_p)),
        );
    }
    if narrow.within(scale.low, scale.high) {
        return (
            Claim::Equivalent,
            "the interval lies within the margin".to_owned(),
        );
    }
    let level = 100.0 * (1.0 - rules.alpha);
    let why = if !beyond {
        "the change is within the margin, its interval is not".to_owned()
    } else if scale.interval.excludes(scale.neutral) {
        let p = adjusted(verdict.holm_p);
        format!("seen, not claimed: {p} after adjustment for the number of comparisons")
    } else {
        format!("the {level:.0} % interval includes no change")
    };
    (Claim::Inconclusive, why)
}

/// A p value after Holm's adjustment, for people.
fn adjusted(p: f64) -> String {
    match p < 1e-4 {
        true => "p below 0.0001".to_owned(),
        false => format!("p {p:.4}"),
    }
}

/// Why there are too few pairs for any verdict, if so.
fn shortage(verdict: &MetricVerdict, rules: &AbRules) -> Option<String> {
    let need = rules.min_pairs.max(2);
    let out = verdict.excluded;
    if verdict.pairs < need {
        return Some(format!(
            "insufficient blocks: {} of {} usable, {need} needed",
            verdict.pairs, verdict.blocks
        ));
    }
    // What is left of a mostly failing run says little about it.
    (out.total() > verdict.pairs).then(|| {
        format!(
            "more pairs excluded ({}: {} missing in A, {} missing in B only, {} not positive) than \
             kept ({})",
            out.total(),
            out.missing_a,
            out.missing_b,
            out.not_positive,
            verdict.pairs
        )
    })
}
