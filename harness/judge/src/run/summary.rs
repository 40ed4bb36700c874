//! What each arm did, as numbers: latencies, stalls, how requests ended.

use pb_contract::RequestRow;
use pb_record::RunData;
use pb_record::metrics::{Counts, failures};
use pb_stats::{StallRule, nearest_rank, stalls};

use super::data::{arm_names, block_numbers, class_names};
use super::samples::{Samples, driver_lag, rows_of};
use super::steps::summarise_steps;
use super::verdict::{ArmSummary, ClassSummary, Distribution, RequestCounts, Stalls};

impl Distribution {
    /// The distribution of ascending values in nanoseconds.
    pub fn of_sorted(sorted: &[u64]) -> Distribution {
        let sum: f64 = sorted.iter().map(|&value| value as f64).sum();
        Distribution {
            n: sorted.len() as u64,
            p50_ns: nearest_rank(sorted, 0.50),
            p95_ns: nearest_rank(sorted, 0.95),
            p99_ns: nearest_rank(sorted, 0.99),
            max_ns: sorted.last().copied(),
            mean_ns: (!sorted.is_empty()).then(|| sum / sorted.len() as f64),
        }
    }
}

/// The stall threshold of a run: five times the median event gap of all arms together, at least
/// 50 ms. One for all arms: an arm whose median is slower must not be judged more mildly.
pub(crate) fn stall_threshold(data: &RunData) -> Option<u64> {
    let gaps = Samples::collect(data, &data.requests).event_gap;
    stalls(&gaps, StallRule::default()).threshold_ns
}

/// The stalls among event gaps under a fixed threshold.
pub(crate) fn stalls_at(gaps: &[u64], threshold_ns: Option<u64>) -> Stalls {
    let Some(floor_ns) = threshold_ns else {
        return Stalls::default();
    };
    let found = stalls(
        gaps,
        StallRule {
            factor: 0,
            floor_ns,
        },
    );
    Stalls {
        gaps: found.gaps,
        count: found.count,
        total_ns: found.total_ns,
        longest_ns: found.longest_ns,
        time_share: found.time_share,
    }
}

/// The summary of every arm of the run.
pub(crate) fn summarise_arms(data: &RunData, threshold_ns: Option<u64>) -> Vec<ArmSummary> {
    let summarise = |name: String| {
        let class = |class: Option<&str>| summarise_class(data, &name, class, threshold_ns);
        let named = class_names(data, &name).into_iter();
        ArmSummary {
            blocks: block_numbers(data, &name).len(),
            all: class(None),
            classes: named
                .map(|label| (label.clone(), class(Some(&label))))
                .collect(),
            steps: summarise_steps(data.steps.iter().filter(|step| step.arm == name)),
            name,
        }
    };
    arm_names(data).into_iter().map(summarise).collect()
}

fn summarise_class(
    data: &RunData,
    arm: &str,
    class: Option<&str>,
    threshold_ns: Option<u64>,
) -> ClassSummary {
    let rows: Vec<&RequestRow> = rows_of(data, arm, class).collect();
    let samples = Samples::collect(data, rows.iter().copied()).sorted();
    let cached: Vec<u32> = rows.iter().filter_map(|row| row.cached_tokens).collect();
    let prompt = rows.iter().filter_map(|row| row.prompt_tokens);
    ClassSummary {
        counts: count(&rows),
        ttft: Distribution::of_sorted(&samples.ttft),
        service_ttft: Distribution::of_sorted(&samples.service_ttft),
        ttfr: Distribution::of_sorted(&samples.ttfr),
        itl: samples.itl.distribution(),
        event_gap: Distribution::of_sorted(&samples.event_gap),
        tpot: Distribution::of_sorted(&samples.tpot),
        e2e: Distribution::of_sorted(&samples.e2e),
        driver_lag: Distribution::of_sorted(&driver_lag(rows.iter().copied())),
        stalls: stalls_at(&samples.event_gap, threshold_ns),
        prompt_tokens: prompt.map(u64::from).sum(),
        cached_tokens: (!cached.is_empty()).then(|| cached.iter().map(|&n| u64::from(n)).sum()),
        output_tokens: rows.iter().map(|row| u64::from(row.streamed_tokens)).sum(),
        bundled_share: (samples.tokens > 0)
            .then(|| samples.bundled_tokens as f64 / samples.tokens as f64),
    }
}

/// How the given requests ended.
pub(crate) fn count(rows: &[&RequestRow]) -> RequestCounts {
    let counts = Counts::of(rows.iter().copied());
    let named = failures(rows.iter().copied())
        .into_iter()
        .map(|(kind, count)| {
            // The name in the rows is the one that a reader can search for.
            let value = serde_json::to_value(kind).unwrap_or_default();
            (value.as_str().unwrap_or("unknown").to_owned(), count)
        });
    RequestCounts {
        offered: counts.offered,
        ok: counts.ok,
        failed: counts.failed,
        truncated: counts.truncated,
        incomplete: counts.incomplete,
        not_offered: counts.not_offered,
        failures: named.collect(),
    }
}
