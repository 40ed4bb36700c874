//! The third gate: block by block values of each declared metric, handed to the A/B rules.

use std::collections::{BTreeMap, BTreeSet};

use pb_contract::RequestRow;
use pb_record::RunData;
use pb_stats::nearest_rank;

use super::data::block_numbers;
use super::notes::{Comparison, MetricSpec, Quantity, Statistic, default_metrics};
use super::samples::{Samples, rows_of};
use super::summary::stalls_at;
use super::verdict::{BlockValues, MetricComparison};
use crate::ab::{self, AbRules, ArmValues, Claim};

/// Change of a stall share that matters: one percentage point of streaming time.
pub const STALL_SHARE_MARGIN: f64 = 0.01;

/// The metrics that a comparison declares, each once, primary ones first.
fn declared(comparison: &Comparison) -> Vec<MetricSpec> {
    let mut specs = comparison.metrics.clone();
    if specs.is_empty() {
        let classes = (
            comparison.ttft_class.as_deref(),
            comparison.itl_class.as_deref(),
        );
        specs = default_metrics(classes.0, classes.1);
    }
    let mut seen = BTreeSet::new();
    specs.retain(|spec| seen.insert(spec.name()));
    specs.sort_by_key(|spec| !spec.primary);
    specs
}

/// The values of every declared metric, by block. Blocks that only one arm ran have one value.
pub(crate) fn measure(
    data: &RunData,
    comparison: &Comparison,
    threshold_ns: Option<u64>,
) -> Vec<(MetricSpec, Vec<BlockValues>)> {
    let specs = declared(comparison);
    let arms = [&comparison.baseline, &comparison.candidate];
    let blocks: BTreeSet<u32> = arms
        .iter()
        .flat_map(|arm| block_numbers(data, arm))
        .collect();
    let classes: BTreeSet<Option<String>> = specs.iter().map(|spec| spec.class.clone()).collect();
    let mut values: Vec<Vec<BlockValues>> = vec![Vec::new(); specs.len()];
    for block in blocks {
        let samples: BTreeMap<(usize, Option<String>), Samples> = classes
            .iter()
            .flat_map(|class| (0..arms.len()).map(move |arm| (arm, class.clone())))
            .map(|(arm, class)| {
                let in_block = |row: &&RequestRow| row.block == block;
                let rows = rows_of(data, arms[arm], class.as_deref()).filter(in_block);
                let sorted = Samples::collect(data, rows).sorted();
                ((arm, class), sorted)
            })
            .collect();
        for (spec, rows) in specs.iter().zip(&mut values) {
            let of_arm = |arm| {
                let samples = samples.get(&(arm, spec.class.clone()))?;
                block_value(spec, samples, threshold_ns)
            };
            rows.push(BlockValues {
                block,
                baseline: of_arm(0),
                candidate: of_arm(1),
            });
        }
    }
    specs.into_iter().zip(values).collect()
}

/// The metric's value in one arm and block; `None` without samples.
fn block_value(spec: &MetricSpec, sorted: &Samples, threshold_ns: Option<u64>) -> Option<f64> {
    // A list is not one number: without a quantile its median stands for it.
    let quantile = spec.statistic.quantile().or(Statistic::P50.quantile())?;
    let list = match spec.quantity {
        Quantity::StallShare => return stalls_at(&sorted.event_gap, threshold_ns).time_share,
        Quantity::Ttft => &sorted.ttft,
        Quantity::ServiceTtft => &sorted.service_ttft,
        Quantity::Itl => return sorted.itl.nearest_rank(quantile).map(|ns| ns as f64),
        Quantity::EventGap => &sorted.event_gap,
        Quantity::Tpot => &sorted.tpot,
        Quantity::E2e => &sorted.e2e,
    };
    nearest_rank(list, quantile).map(|ns| ns as f64)
}

fn rule(spec: &MetricSpec) -> ab::MetricSpec {
    let (name, unit) = (spec.name(), spec.quantity.unit());
    let metric = match spec.quantity {
        Quantity::StallShare => ab::MetricSpec::count(&name, unit, STALL_SHARE_MARGIN),
        _ => ab::MetricSpec::latency(&name, unit),
    };
    if spec.primary {
        metric
    } else {
        metric.secondary()
    }
}

/// Applies the A/B rules to measured values; any reason in `void` makes every claim void.
pub(crate) fn conclude(
    measured: &[(MetricSpec, Vec<BlockValues>)],
    void: &[String],
    seed: u64,
) -> Vec<MetricComparison> {
    let specs: Vec<ab::MetricSpec> = measured.iter().map(|(spec, _)| rule(spec)).collect();
    let values = measured
        .iter()
        .map(|(spec, blocks)| {
            let a = blocks.iter().map(|block| block.baseline).collect();
            let b = blocks.iter().map(|block| block.candidate).collect();
            (spec.name(), ArmValues { a, b })
        })
        .collect();
    let rules = AbRules {
        seed,
        ..AbRules::default()
    };
    // OK because names are unique, both lists come from the same blocks and the rules are ours.
    let report = ab::judge_ab(&specs, &values, void, &rules).expect("well-formed A/B input");
    let pairs = measured.iter().zip(report.metrics);
    pairs
        .map(|((spec, blocks), verdict)| MetricComparison {
            spec: spec.clone(),
            blocks: blocks.clone(),
            verdict,
        })
        .collect()
}

/// The smallest difference in nanoseconds that a primary metric is about to claim.
pub(crate) fn smallest_claim_ns(metrics: &[MetricComparison]) -> Option<f64> {
    let claimed = metrics.iter().filter(|metric| {
        let claims = matches!(metric.verdict.claim, Claim::Better | Claim::Worse);
        metric.spec.primary && metric.spec.quantity.unit() == "ns" && claims
    });
    claimed
        .filter_map(|metric| metric.verdict.difference)
        .map(|difference| difference.point.abs())
        .min_by(f64::total_cmp)
}
