//! From runs and a policy to the result.

use std::collections::BTreeSet;

use pb_stats::{Estimate, mean_interval};

use super::GateError;
use super::amount::amount;
use super::checked::outputs;
use super::policy::{Bound, Limit, Policy};
use super::report::{
    GateOutcome, GateReport, Kind, PolicyReceipt, RuleResult, SCHEMA_VERSION, State,
};
use crate::ab::{AbRules, Claim, Scale};
use crate::compare::{
    Aspect, CompareRules, Comparison, Run, change_words, check_arm, compare, not_worse,
    stall_threshold_ns,
};
use crate::numerics::Validation;
use crate::verdict::Interval;

/// What a gate looks at.
#[derive(Clone, Debug, Default)]
pub struct Evidence<'a> {
    /// Runs of the version before; may be empty when the policy has no rules on changes.
    pub baseline: &'a [Run],
    /// Runs of the version under judgement.
    pub candidate: &'a [Run],
    /// What `prefillbench validate` found for the candidate.
    pub outputs: Option<&'a Validation>,
    /// Differences between the arms that are wanted.
    pub allow: BTreeSet<Aspect>,
}

/// Puts runs to a policy.
///
/// # Errors
/// Runs that cannot be compared, or evidence that the policy demands and that was not given.
pub fn judge_gate(policy: &Policy, evidence: &Evidence<'_>) -> Result<GateReport, GateError> {
    let candidate = evidence.candidate;
    if candidate.is_empty() {
        return Err(GateError::NoCandidate);
    }
    if policy.outputs_required && evidence.outputs.is_none() {
        return Err(GateError::NoOutputs);
    }
    let comparison = compared(policy, evidence)?;
    if comparison.is_none() {
        // Nobody else looks at whether these runs belong together.
        check_arm(candidate)?;
    }
    let void = void(candidate, comparison.as_ref());
    let mut rules = vec![success(policy, candidate, &void)];
    rules.extend(evidence.outputs.map(|found| outputs(found, candidate)));
    // A faster wrong answer is not faster, and neither is one that never came.
    let broken = rules.iter().find(|rule| rule.state == State::Fail);
    let stop = broken.map(|rule| format!("not judged, because of a rule before it: {}", rule.rule));
    let threshold_ns = stall_threshold_ns(candidate);
    let limits = policy.limits.iter();
    rules.extend(limits.map(|limit| limited(policy, limit, candidate, threshold_ns)));
    rules.extend(comparison.iter().flat_map(|found| changes(policy, found)));
    for rule in &mut rules {
        let timed = matches!(rule.kind, Kind::Limit | Kind::Change);
        if let Some(why) = stop.as_ref().filter(|_| timed) {
            (rule.state, rule.why) = (State::Skipped, why.clone());
        } else if timed && !void.is_empty() {
            (rule.state, rule.why) = (State::Void, void[0].clone());
        }
    }
    let outcome = outcome(&rules, &void);
    Ok(GateReport {
        schema_version: SCHEMA_VERSION,
        outcome,
        exit_code: outcome.exit_code(),
        sentence: sentence(outcome, &rules, comparison.as_ref(), candidate),
        policy: PolicyReceipt {
            name: policy.name.clone(),
            alpha: policy.alpha,
            min_blocks: policy.min_blocks,
            power: policy.power,
        },
        void,
        rules,
        candidate: candidate.iter().map(Run::receipt).collect(),
        comparison,
    })
}

fn compared(policy: &Policy, evidence: &Evidence<'_>) -> Result<Option<Comparison>, GateError> {
    if policy.changes.is_empty() {
        return match evidence.baseline.is_empty() {
            true => Ok(None),
            false => Err(GateError::UnusedBaseline),
        };
    }
    if evidence.baseline.is_empty() {
        return Err(GateError::NoBaseline);
    }
    let names: Vec<String> = policy
        .changes
        .iter()
        .map(|change| change.metric.name.to_owned())
        .collect();
    let margins = policy.changes.iter().map(|change| change.margin);
    let rules = CompareRules {
        ab: AbRules {
            alpha: policy.alpha,
            min_pairs: policy.min_blocks,
            power: Some(policy.power),
            // Nothing of the rule rests on it, and a gate's table does not show it.
            resamples: 0,
            ..AbRules::default()
        },
        margins: names.iter().cloned().zip(margins).collect(),
        metrics: names.clone(),
        // Every rule counts: the adjustment runs over all of them.
        primary: names,
        ratio_margin: None,
        allow: evidence.allow.clone(),
    };
    let found = compare(evidence.baseline, evidence.candidate, &rules)?;
    Ok(Some(found))
}

fn void(candidate: &[Run], comparison: Option<&Comparison>) -> Vec<String> {
    if let Some(comparison) = comparison {
        return comparison.report.void.clone();
    }
    let of = |run: &Run| {
        let problems = run.problems.iter();
        let named: Vec<String> = problems.map(|p| format!("{}: {p}", run.name)).collect();
        named
    };
    candidate.iter().flat_map(of).collect()
}

/// The share of the candidate's requests that ended well. These were counted, not estimated, so
/// there is no interval; and where no request of a run ended well, no reason against the run
/// excuses it.
fn success(policy: &Policy, candidate: &[Run], void: &[String]) -> RuleResult {
    let sums = candidate.iter().map(|run| (run.ok, run.offered));
    let (ok, offered) = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let need = policy.min_success_rate;
    let rate = (offered > 0).then(|| ok as f64 / offered as f64);
    let dead = candidate.iter().find(|run| run.offered > 0 && run.ok == 0);
    let said = format!("{ok} of {offered} requests ended well");
    let (state, why) = match (dead, rate) {
        (Some(run), _) => (State::Fail, format!("{}: every request failed", run.name)),
        _ if !void.is_empty() => (State::Void, void[0].clone()),
        (None, None) => (State::Inconclusive, "no request was offered".to_owned()),
        (None, Some(rate)) if rate >= need => (State::Pass, said),
        (None, Some(rate)) => {
            let (found, need) = (amount(rate, "share"), amount(need, "share"));
            (State::Fail, format!("{said}: {found}, below {need}"))
        }
    };
    RuleResult {
        rule: format!("success rate at least {}", amount(need, "share")),
        kind: Kind::Success,
        metric: Some("success_rate".to_owned()),
        unit: Some("share".to_owned()),
        state,
        why,
        limit: Some(need),
        baseline: None,
        candidate: rate,
        interval: None,
        blocks_needed: None,
    }
}

/// A limit on the candidate's own values, one for each run.
fn limited(policy: &Policy, limit: &Limit, runs: &[Run], threshold_ns: u64) -> RuleResult {
    let metric = limit.metric;
    let (bound, word) = match limit.bound {
        Bound::AtMost(value) => (value, "at most"),
        Bound::AtLeast(value) => (value, "at least"),
    };
    let values = runs
        .iter()
        .filter_map(|run| run.value(metric.name, threshold_ns));
    let values: Vec<f64> = values.collect();
    let interval = interval(&values, metric.is_ratio(), 1.0 - 2.0 * policy.alpha);
    let (state, why) = limit_state(policy, limit, runs.len(), &values, interval.as_ref());
    let (sorted, _) = pb_stats::sort_finite(&values);
    RuleResult {
        rule: format!("{} {word} {}", metric.words, amount(bound, metric.unit)),
        kind: Kind::Limit,
        metric: Some(metric.name.to_owned()),
        unit: Some(metric.unit.to_owned()),
        state,
        why,
        limit: Some(bound),
        baseline: None,
        candidate: pb_stats::linear(&sorted, 0.5),
        interval: interval.map(Interval::from),
        blocks_needed: None,
    }
}

/// The mean over runs with its t interval, on logarithms where values are compared by ratio.
fn interval(values: &[f64], on_logs: bool, confidence: f64) -> Option<Estimate> {
    // Without spread the mean is the value itself, to the last digit.
    if let Some(&only) = values
        .first()
        .filter(|only| values.iter().all(|v| v == *only))
    {
        return (values.len() > 1).then_some(Estimate {
            point: only,
            low: only,
            high: only,
            se: 0.0,
            n: values.len(),
            confidence,
        });
    }
    if !on_logs || values.iter().any(|value| *value <= 0.0) {
        return mean_interval(values, confidence).ok();
    }
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let found = mean_interval(&logs, confidence).ok()?;
    Some(Estimate {
        point: found.point.exp(),
        low: found.low.exp(),
        high: found.high.exp(),
        ..found
    })
}

fn limit_state(
    policy: &Policy,
    limit: &Limit,
    runs: usize,
    values: &[f64],
    interval: Option<&Estimate>,
) -> (State, String) {
    let unit = limit.metric.unit;
    let missing = runs - values.len();
    if missing > 0 {
        let why = format!("{missing} of {runs} runs have no {}", limit.metric.name);
        return (State::Inconclusive, why);
    }
    let endless = values.iter().filter(|value| value.is_infinite()).count();
    if let (Bound::AtMost(_), 1..) = (limit.bound, endless) {
        let why = format!(
            "in {endless} of {runs} runs the percentile falls on a request that did not end well"
        );
        return (State::Fail, why);
    }
    let need = policy.min_blocks;
    let Some(found) = interval.filter(|_| runs >= need) else {
        let (sorted, _) = pb_stats::sort_finite(values);
        let median = pb_stats::linear(&sorted, 0.5).unwrap_or(f64::NAN);
        let seen = amount(median, unit);
        let why = format!("insufficient runs: {runs} of at least {need}; the median is {seen}");
        return (State::Inconclusive, why);
    };
    let (low, high) = (amount(found.low, unit), amount(found.high, unit));
    let within = format!(
        "the mean over {runs} runs lies between {low} and {high} ({:.0} %)",
        100.0 * found.confidence
    );
    let (met, broken) = match limit.bound {
        Bound::AtMost(most) => (found.high <= most, found.low > most),
        Bound::AtLeast(least) => (found.low >= least, found.high < least),
    };
    match (met, broken) {
        (true, _) => (State::Pass, within),
        (_, true) => (State::Fail, within),
        _ => (
            State::Inconclusive,
            format!("{within}, on both sides of the limit"),
        ),
    }
}

fn changes(policy: &Policy, found: &Comparison) -> Vec<RuleResult> {
    let rules = &found.report.rules;
    let of = |change: &super::policy::Change| {
        let verdict = found.report.metric(change.metric.name)?;
        let needed = found
            .blocks_needed
            .get(change.metric.name)
            .copied()
            .flatten();
        let (state, why) = match verdict.claim {
            Claim::Void => (State::Void, verdict.why.clone()),
            Claim::Worse => (
                State::Fail,
                format!("worse{}: {}", sizes(verdict), verdict.why),
            ),
            Claim::Better => (
                State::Pass,
                format!("better{}: {}", sizes(verdict), verdict.why),
            ),
            Claim::Equivalent => (State::Pass, verdict.why.clone()),
            Claim::Inconclusive => match found.withheld.get(change.metric.name) {
                Some(why) => (State::Inconclusive, why.clone()),
                None => undecided(verdict, rules),
            },
        };
        let margin = match change.metric.is_ratio() {
            true => format!("{} %", trimmed(100.0 * change.margin)),
            false => format!("{} points", trimmed(100.0 * change.margin)),
        };
        let undecided = state == State::Inconclusive;
        let why = match needed.filter(|_| undecided) {
            Some(blocks) if blocks > verdict.pairs => {
                format!("{why}; about {blocks} blocks would show it if there is no change")
            }
            _ => why,
        };
        Some(RuleResult {
            rule: format!("{} not worse by {margin}", change.metric.words),
            kind: Kind::Change,
            metric: Some(change.metric.name.to_owned()),
            unit: Some(change.metric.unit.to_owned()),
            state,
            why,
            limit: Some(change.margin),
            baseline: verdict.a,
            candidate: verdict.b,
            interval: verdict.equivalence,
            blocks_needed: needed.filter(|_| undecided),
        })
    };
    policy.changes.iter().filter_map(of).collect()
}

/// The change with its values: ` by +20.1 % (95 % interval +19.0 % to +21.3 %), from 10 ms to
/// 12 ms`; nothing of it where a value has no number.
fn sizes(verdict: &crate::ab::MetricVerdict) -> String {
    let unit = verdict.spec.unit.as_str();
    let Some((change, interval)) = change_words(verdict) else {
        return String::new();
    };
    let values = verdict.a.zip(verdict.b).map_or_else(String::new, |(a, b)| {
        format!(", from {} to {}", amount(a, unit), amount(b, unit))
    });
    format!(" by {change} ({interval}){values}")
}

/// No claim in either direction: not worse by the margin may still be shown.
fn undecided(verdict: &crate::ab::MetricVerdict, rules: &AbRules) -> (State, String) {
    match (not_worse(verdict, rules), verdict.equivalence) {
        (Some(true), Some(_)) => {
            let why = "not worse by the margin: the interval ends before it".to_owned();
            (State::Pass, why)
        }
        (_, Some(narrow)) => {
            let side = match verdict.spec.scale {
                Scale::Ratio { .. } => format!(
                    "between {:+.1} % and {:+.1} %",
                    100.0 * (narrow.low - 1.0),
                    100.0 * (narrow.high - 1.0)
                ),
                Scale::Difference { .. } => format!(
                    "between {:+.2} and {:+.2} points",
                    100.0 * narrow.low,
                    100.0 * narrow.high
                ),
            };
            // Another interval than the one of a claim: one-sided, so `1 - 2 alpha`.
            let level = 100.0 * (1.0 - 2.0 * rules.alpha);
            let why = format!(
                "{}; the {level:.0} % interval, which must end before the margin, lies {side}",
                verdict.why
            );
            (State::Inconclusive, why)
        }
        _ => (State::Inconclusive, verdict.why.clone()),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn outcome(rules: &[RuleResult], void: &[String]) -> GateOutcome {
    let any = |state| rules.iter().any(|rule| rule.state == state);
    match (any(State::Fail), void.is_empty(), any(State::Inconclusive)) {
        (true, ..) => GateOutcome::Fail,
        (_, false, _) => GateOutcome::Void,
        (_, _, true) => GateOutcome::Inconclusive,
        _ => GateOutcome::Pass,
    }
}

fn sentence(
    outcome: GateOutcome,
    rules: &[RuleResult],
    comparison: Option<&Comparison>,
    candidate: &[Run],
) -> String {
    let named = |state| {
        let found: Vec<&RuleResult> = rules.iter().filter(|rule| rule.state == state).collect();
        let first = found
            .first()
            .map_or_else(String::new, |rule| format!("{}: {}", rule.rule, rule.why));
        match found.len() {
            0 | 1 => first,
            2 => format!("{first} (and 1 more rule)"),
            n => format!("{first} (and {} more rules)", n - 1),
        }
    };
    let detail = match outcome {
        GateOutcome::Pass => {
            let (rules, runs) = (rules.len(), candidate.len());
            format!("{rules} rules hold over {runs} candidate runs")
        }
        GateOutcome::Fail => named(State::Fail),
        GateOutcome::Inconclusive => named(State::Inconclusive),
        // The comparison says which blocks make it void.
        GateOutcome::Void => match comparison {
            Some(comparison) => return comparison.sentence.clone(),
            None => void_runs(candidate),
        },
    };
    format!("{}: {detail}", outcome.word())
}

/// The runs that make a gate void which compares nothing.
fn void_runs(candidate: &[Run]) -> String {
    let void = candidate.iter().filter(|run| !run.problems.is_empty());
    let void: Vec<&Run> = void.collect();
    let names: Vec<&str> = void.iter().map(|run| run.name.as_str()).collect();
    let first = void.first().map_or_else(String::new, |run| {
        format!("{}: {}", run.name, run.problems.join("; "))
    });
    format!("{first}. Run again, or leave out, {}", names.join(", "))
}
