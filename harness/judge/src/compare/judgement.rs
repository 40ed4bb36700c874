//! The comparison itself: values by block, claims, and what takes claims away again.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::CompareError;
use super::aspect::Aspect;
use super::beside::{self, Beside};
use super::metric::{METRICS, Metric, SHARE_MARGIN, metric};
use super::pairing::{Difference, Paired, pair};
use super::run::{Receipt, Run, stall_threshold_ns};
use super::words::{notes, sentence, void_blocks};
use crate::ab::{AbReport, AbRules, ArmValues, Claim, Direction, MetricVerdict, Scale, judge_ab};
use crate::run::DRIVER_LAG_SHARE;

/// Version of the keys of a document of comparisons.
pub const SCHEMA_VERSION: u32 = 1;
/// Blocks beyond which a plan is no plan.
const MOST_BLOCKS: usize = 10_000;
/// The metric that is the same wherever servers are healthy.
const SUCCESS_RATE: &str = "success_rate";

/// How runs are compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompareRules {
    /// Level, fewest blocks, power, bootstrap.
    pub ab: AbRules,
    /// Metrics to compare; empty stands for all that both arms recorded.
    pub metrics: Vec<String>,
    /// The primary family; empty stands for the usual one.
    pub primary: Vec<String>,
    /// Margin of all metrics that are compared by ratio; the usual one when absent.
    pub ratio_margin: Option<f64>,
    /// Margins of single metrics, on their own scale.
    pub margins: BTreeMap<String, f64>,
    /// Differences that are wanted.
    pub allow: BTreeSet<Aspect>,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Block {
    /// The baseline's run.
    pub baseline: Receipt,
    /// The candidate's.
    pub candidate: Receipt,
}

/// What a comparison as a whole came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// At least one primary metric has an answer, whichever.
    Answered,
    /// None has.
    Inconclusive,
    /// A run must not be used.
    Void,
}

impl Outcome {
    /// Process exit code: 0 answered, 3 inconclusive or void.
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Answered => 0,
            Outcome::Inconclusive | Outcome::Void => 3,
        }
    }
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What it came to.
    pub outcome: Outcome,
    /// The same in one sentence.
    pub sentence: String,
    /// The blocks, in the order of the values.
    pub blocks: Vec<Block>,
    /// Differences that were allowed.
    pub allowed: Vec<Difference>,
    /// Blocks, from 1, with a run that must not be used: without them the others can be compared.
    pub void_blocks: Vec<usize>,
    /// What a reader has to know.
    pub notes: Vec<String>,
    /// Each metric's value in each block; absent where none was measured or where a percentile
    /// falls on a request that did not end well.
    pub values: BTreeMap<String, ArmValues>,
    /// Metrics of which nothing may be concluded, whatever their interval says, with the reason.
    pub withheld: BTreeMap<String, String>,
    /// Blocks that would show a change below the margin in `power` of cases if there is none, at
    /// the spread seen; absent where that cannot be said.
    pub blocks_needed: BTreeMap<String, Option<usize>>,
    /// Other views of each change, by metric: shown, never claimed by.
    pub beside: BTreeMap<String, Beside>,
    /// The claims.
    pub report: AbReport,
}

/// Compares two arms, run by run.
///
/// # Errors
/// Runs that do not pair or differ in something that is not allowed; an unknown metric; a margin
/// that cannot be.
pub fn compare(a: &[Run], b: &[Run], rules: &CompareRules) -> Result<Comparison, CompareError> {
    let declared = declared(a, b, rules)?;
    let Paired { blocks, allowed } = pair(a, b, &rules.allow)?;
    let threshold_ns = stall_threshold_ns(a.iter().chain(b));
    let raw: BTreeMap<String, ArmValues> = declared
        .iter()
        .map(|one| {
            (
                one.metric.name.to_owned(),
                values(one.metric, &blocks, threshold_ns),
            )
        })
        .collect();
    let specs: Vec<_> = declared
        .iter()
        .map(|one| one.metric.spec(one.margin, one.primary))
        .collect();
    let void = void(&blocks);
    let mut report = judge_ab(&specs, &raw, &void, &rules.ab)?;
    let fewer = fewer_answers(&blocks);
    let mut withheld = BTreeMap::new();
    for (one, verdict) in declared.iter().zip(&mut report.metrics) {
        let arms = &raw[one.metric.name];
        let why = take_back(
            one.metric,
            verdict,
            arms,
            &blocks,
            fewer.as_deref(),
            &rules.ab,
        );
        withheld.extend(why.map(|why| (one.metric.name.to_owned(), why)));
    }
    let blocks_needed = report
        .metrics
        .iter()
        .map(|verdict| (verdict.spec.name.clone(), needed(verdict, &rules.ab)))
        .collect();
    let differing = allowed.iter().map(|one| one.aspect).collect();
    let beside = beside::of(&blocks, &report.metrics, &raw, &differing, rules.ab.alpha);
    let outcome = outcome(&report);
    let void_blocks = void_blocks(&blocks);
    let receipts = blocks.iter().map(|(a, b)| Block {
        baseline: a.receipt(),
        candidate: b.receipt(),
    });
    Ok(Comparison {
        outcome,
        sentence: sentence(outcome, &report, &blocks),
        void_blocks,
        allowed,
        notes: notes(&blocks, &report, &beside),
        beside,
        values: raw
            .into_iter()
            .map(|(name, arms)| (name, finite(arms)))
            .collect(),
        withheld,
        blocks_needed,
        blocks: receipts.collect(),
        report,
    })
}

/// A metric with its margin and family.
struct Declared {
    metric: &'static Metric,
    margin: Option<f64>,
    primary: bool,
}

fn declared(a: &[Run], b: &[Run], rules: &CompareRules) -> Result<Vec<Declared>, CompareError> {
    let named = rules
        .metrics
        .iter()
        .chain(&rules.primary)
        .chain(rules.margins.keys());
    for name in named {
        if metric(name).is_none() {
            return Err(CompareError::UnknownMetric { name: name.clone() });
        }
    }
    let threshold_ns = stall_threshold_ns(a.iter().chain(b));
    let recorded = |metric: &Metric| {
        let in_arm = |runs: &[Run]| {
            let mut values = runs.iter().map(|run| run.value(metric.name, threshold_ns));
            values.any(|value| value.is_some())
        };
        in_arm(a) && in_arm(b)
    };
    let is = |names: &[String], metric: &Metric| names.iter().any(|name| name == metric.name);
    let chosen = METRICS
        .iter()
        .filter(|metric| match rules.metrics.is_empty() {
            true => recorded(metric) || is(&rules.primary, metric),
            false => is(&rules.metrics, metric) || is(&rules.primary, metric),
        });
    let declare = |metric: &'static Metric| Declared {
        metric,
        margin: rules
            .margins
            .get(metric.name)
            .copied()
            .or(rules.ratio_margin.filter(|_| metric.is_ratio())),
        primary: match rules.primary.is_empty() {
            true => metric.primary,
            false => is(&rules.primary, metric),
        },
    };
    let mut declared: Vec<Declared> = chosen.map(declare).collect();
    // A choice without any of the usual family is a family of its own.
    if declared.iter().all(|one| !one.primary) {
        declared.iter_mut().for_each(|one| one.primary = true);
    }
    Ok(declared)
}

fn values(metric: &Metric, blocks: &[(&Run, &Run)], threshold_ns: u64) -> ArmValues {
    let of = |run: &Run| run.value(metric.name, threshold_ns);
    ArmValues {
        a: blocks.iter().map(|(a, _)| of(a)).collect(),
        b: blocks.iter().map(|(_, b)| of(b)).collect(),
    }
}

fn finite(arms: ArmValues) -> ArmValues {
    let keep = |values: Vec<Option<f64>>| {
        let finite = |value: Option<f64>| value.filter(|v| v.is_finite());
        values.into_iter().map(finite).collect()
    };
    ArmValues {
        a: keep(arms.a),
        b: keep(arms.b),
    }
}

fn void(blocks: &[(&Run, &Run)]) -> Vec<String> {
    let runs = blocks.iter().flat_map(|(a, b)| [a, b]);
    let of = |run: &&Run| {
        let name = run.name.clone();
        let say = move |problem: &String| format!("{name}: {problem}");
        run.problems.iter().map(say).collect::<Vec<_>>()
    };
    runs.flat_map(of).collect()
}

/// Why the candidate's good numbers are those of the requests that it did answer.
fn fewer_answers(blocks: &[(&Run, &Run)]) -> Option<String> {
    let rate = |pick: fn(&(&Run, &Run)) -> (u64, u64)| {
        let sums = blocks.iter().map(pick);
        let (ok, offered) = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        ok as f64 / offered as f64
    };
    let a = rate(|(a, _)| (a.ok, a.offered));
    let b = rate(|(_, b)| (b.ok, b.offered));
    (b < a - SHARE_MARGIN).then(|| {
        format!(
            "the candidate answered {:.1} % of its requests and the baseline {:.1} %: its numbers \
             are those of fewer requests",
            100.0 * b,
            100.0 * a
        )
    })
}

/// Claims that the runs as a whole do not allow, and endless values, which have no ratio. The
/// reason why nothing at all may be concluded, if so.
fn take_back(
    metric: &Metric,
    verdict: &mut MetricVerdict,
    arms: &ArmValues,
    blocks: &[(&Run, &Run)],
    fewer: Option<&str>,
    rules: &AbRules,
) -> Option<String> {
    if verdict.claim == Claim::Void {
        return None;
    }
    let survivors = || {
        let of_answers = metric.of_answers() && verdict.claim != Claim::Worse;
        fewer.filter(|_| of_answers).map(str::to_owned)
    };
    let withheld = match endless(arms, rules) {
        Some((claim, why)) => {
            (verdict.claim, verdict.why) = (claim, why.clone());
            (claim == Claim::Inconclusive).then_some(why)
        }
        None => lag_too_large(metric, verdict, blocks).or_else(survivors),
    };
    if let Some(why) = &withheld {
        (verdict.claim, verdict.why) = (Claim::Inconclusive, why.clone());
    }
    withheld
}

/// A percentile that falls on a request that never ended well is longer than any number.
fn endless(arms: &ArmValues, rules: &AbRules) -> Option<(Claim, String)> {
    let pairs = arms.a.iter().zip(&arms.b);
    let known = pairs.filter_map(|(a, b)| Some((a.as_ref()?, b.as_ref()?)));
    let known: Vec<(&f64, &f64)> = known.collect();
    let only = |one: fn(&(&f64, &f64)) -> bool| known.iter().filter(|pair| one(pair)).count();
    let in_b = only(|(a, b)| a.is_finite() && b.is_infinite());
    let in_a = only(|(a, b)| a.is_infinite() && b.is_finite());
    if in_a + in_b == 0 {
        return None;
    }
    let all = known.len();
    let enough = all >= rules.min_pairs.max(2);
    let claim = match (in_a, in_b) {
        (0, n) if n == all && enough => Claim::Worse,
        (n, 0) if n == all && enough => Claim::Better,
        _ => Claim::Inconclusive,
    };
    let why = format!(
        "of {all} pairs the percentile falls on a request that did not end well in {in_a} of the \
         baseline alone and in {in_b} of the candidate alone"
    );
    Some((claim, why))
}

/// A client that is late by more than a share of the change may have made the change.
fn lag_too_large(
    metric: &Metric,
    verdict: &MetricVerdict,
    blocks: &[(&Run, &Run)],
) -> Option<String> {
    if !metric.from_arrival || !matches!(verdict.claim, Claim::Better | Claim::Worse) {
        return None;
    }
    let runs = blocks.iter().flat_map(|(a, b)| [a, b]);
    let lag_ms = runs.filter_map(|run| run.lag_p99_ms).reduce(f64::max)?;
    let change_ms = verdict.difference?.point.abs();
    (lag_ms > DRIVER_LAG_SHARE * change_ms).then(|| {
        format!(
            "the client's own lag, p99 {lag_ms:.3} ms, is above {:.0} % of the change of \
             {change_ms:.3} ms",
            100.0 * DRIVER_LAG_SHARE
        )
    })
}

/// Blocks that show a change below the margin when there is none.
fn needed(verdict: &MetricVerdict, rules: &AbRules) -> Option<usize> {
    let (estimate, margin) = match verdict.spec.scale {
        Scale::Ratio { margin } => (verdict.ratio?, margin.ln_1p()),
        Scale::Difference { margin } => (verdict.difference?, margin),
    };
    let sd = estimate.se * (estimate.n as f64).sqrt();
    if sd == 0.0 {
        return Some(rules.min_pairs.max(2));
    }
    // One side only: that the candidate is not worse by the margin.
    let power = rules.power.unwrap_or(0.8);
    let level = (2.0 * rules.alpha).min(0.5);
    let found = pb_stats::blocks_needed(margin, sd, level, power, MOST_BLOCKS);
    Some(found.ok()??.max(rules.min_pairs))
}

/// Whether a metric is shown to be not worse than the margin: the end of the `1 - 2 alpha`
/// interval on the bad side lies within it. Absent where there are too few pairs to say.
pub(crate) fn not_worse(verdict: &MetricVerdict, rules: &AbRules) -> Option<bool> {
    if verdict.pairs < rules.min_pairs.max(2) || verdict.excluded.total() > verdict.pairs {
        return None;
    }
    let narrow = verdict.equivalence?;
    let (low, high) = match verdict.spec.scale {
        Scale::Ratio { margin } => (1.0 / (1.0 + margin), 1.0 + margin),
        Scale::Difference { margin } => (-margin, margin),
    };
    Some(match verdict.spec.direction {
        Direction::LowerIsBetter => narrow.high < high,
        Direction::HigherIsBetter => narrow.low > low,
    })
}

fn outcome(report: &AbReport) -> Outcome {
    if !report.void.is_empty() {
        return Outcome::Void;
    }
    let primary = || report.metrics.iter().filter(|m| m.spec.primary);
    // On healthy servers the success rate is always the same: that answers only those who asked
    // for nothing else.
    let is_success = |verdict: &MetricVerdict| verdict.spec.name == SUCCESS_RATE;
    let only_success = primary().all(is_success);
    let answers = |verdict: &MetricVerdict| match verdict.claim {
        Claim::Inconclusive | Claim::Void => false,
        Claim::Equivalent => only_success || !is_success(verdict),
        Claim::Better | Claim::Worse => true,
    };
    match primary().any(answers) {
        true => Outcome::Answered,
        false => Outcome::Inconclusive,
    }
}
