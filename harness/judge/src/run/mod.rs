//! From the rows of a run to its verdict.
//!
//! The gates come in a fixed order. Validity first: were the conditions such that the numbers mean
//! anything? Then correctness: are the outputs right? Only then performance. Everything is computed
//! in any case, also for a run that was killed, because a void run still has to be understood; but
//! its claims are void.
//!
//! The whole is a pure function of the rows and the runner's notes, so a run directory can be
//! judged again by a later version.

mod cache;
mod compare;
mod consistency;
mod correctness;
mod counted;
mod data;
mod headline;
mod notes;
mod samples;
mod schedule;
mod sentence;
mod steps;
mod summary;
mod validity;
mod verdict;

pub use compare::STALL_SHARE_MARGIN;
pub use counted::Counted;
pub use data::{arm_names, block_numbers, class_names};
pub use headline::PrimaryCounts;
pub use notes::{
    CacheControl, CacheNote, Comparison, MetricSpec, NOTES_SCHEMA_VERSION, NumericsNote,
    PlantedFault, Quantity, ResetProof, RunNotes, Statistic, default_metrics,
};
pub use samples::{BUNDLE_RULE, Samples, rows_of};
pub use sentence::metric_words;
pub use validity::{DRIVER_LAG_LIMIT_NS, DRIVER_LAG_SHARE, INTERFERENCE_SHARE};
pub use verdict::{
    ArmSummary, BlockValues, BucketSummary, CacheVerdict, Check, CheckState, ClassSummary,
    Correctness, CorrectnessState, Distribution, MetricComparison, Outcome, Performance,
    RequestCounts, RunVerdict, Stalls, StepSummary, StepTime, VERDICT_SCHEMA_VERSION, Validity,
};

use pb_contract::RunManifest;
use pb_record::RunData;

use crate::ab::Claim;

/// Judges a run. Pure: same rows and notes, same verdict.
pub fn judge(data: &RunData, notes: &RunNotes) -> RunVerdict {
    let threshold_ns = summary::stall_threshold(data);
    let arms = summary::summarise_arms(data, threshold_ns);
    let cache: Vec<CacheVerdict> = notes
        .cache
        .iter()
        .map(|note| cache::judge_cache(data, note, &notes.resets))
        .collect();
    let correctness = correctness::judge_correctness(notes);
    let checks = validity::conditions(data, notes, &arms, &cache);
    let (validity, metrics) = compare_valid(data, notes, threshold_ns, checks, &correctness);
    let performance = Performance {
        comparison: notes.comparison.clone(),
        quantile_rule: pb_stats::QuantileRule::NearestRank.name().to_owned(),
        bundle_rule: BUNDLE_RULE.to_owned(),
        stall_threshold_ns: threshold_ns,
        arms,
        metrics,
    };
    let outcome = outcome(&validity, &correctness, &performance, &cache);
    let sentence = sentence::sentence(outcome, &validity, &correctness, &performance, &cache);
    let manifest = &data.manifest;
    RunVerdict {
        schema_version: VERDICT_SCHEMA_VERSION,
        kind: manifest.kind.clone(),
        created: manifest.created.clone(),
        model: model_line(manifest),
        substitute_reason: manifest.model.substitute_reason.clone(),
        machine: machine_line(manifest),
        tool: tool_line(manifest),
        seed: manifest.seed,
        finished: data.complete(),
        outcome,
        sentence,
        validity,
        correctness,
        performance,
        cache,
        remarks: notes.remarks.iter().chain(&data.notes).cloned().collect(),
    }
}

/// Compares under the conditions found, then holds the driver's lag against what would be claimed:
/// that one condition can only be known after a first look.
fn compare_valid(
    data: &RunData,
    notes: &RunNotes,
    threshold_ns: Option<u64>,
    mut checks: Vec<Check>,
    correctness: &Correctness,
) -> (Validity, Vec<MetricComparison>) {
    let Some(comparison) = &notes.comparison else {
        return (validity::conclude(checks), Vec::new());
    };
    let measured = compare::measure(data, comparison, threshold_ns);
    let seed = data.manifest.seed;
    let first_look = compare::conclude(&measured, &[], seed);
    let smallest = compare::smallest_claim_ns(&first_look);
    checks.push(validity::driver_lag_share(data, Some(comparison), smallest));
    let validity = validity::conclude(checks);
    let mut void = validity.reasons.clone();
    if correctness.state == CorrectnessState::Failed {
        let more_accurate = correctness.is_only_more_accurate();
        let how = if more_accurate {
            "not equivalent"
        } else {
            "wrong"
        };
        void.push(format!("the outputs are {how}"));
    }
    let metrics = if void.is_empty() {
        first_look
    } else {
        compare::conclude(&measured, &void, seed)
    };
    (validity, metrics)
}

/// Whether every measured arm was compared with itself, cold against warm, with an answer.
fn only_cold_and_warm(performance: &Performance, cache: &[CacheVerdict]) -> bool {
    let answered = |arm: &ArmSummary| {
        let mine = |c: &&CacheVerdict| c.arm == arm.name;
        cache.iter().filter(mine).any(|c| c.ttft_ratio.is_some())
    };
    let mut measured = performance
        .arms
        .iter()
        .filter(|arm| arm.blocks > 0)
        .peekable();
    measured.peek().is_some() && measured.all(answered)
}

/// A comparison passes when it answers at least one primary question, whatever the answer. Without
/// a comparison nothing passes but the warm cache against the cold one.
fn outcome(
    validity: &Validity,
    correctness: &Correctness,
    performance: &Performance,
    cache: &[CacheVerdict],
) -> Outcome {
    if !validity.valid {
        return Outcome::Void;
    }
    match correctness.state {
        CorrectnessState::Failed => return Outcome::Fail,
        CorrectnessState::Inconclusive => return Outcome::Inconclusive,
        CorrectnessState::Passed | CorrectnessState::NotChecked => {}
    }
    if performance.comparison.is_none() && !only_cold_and_warm(performance, cache) {
        return Outcome::Inconclusive;
    }
    let answered = |metric: &MetricComparison| {
        let claim = metric.verdict.claim;
        metric.spec.primary && matches!(claim, Claim::Better | Claim::Worse | Claim::Equivalent)
    };
    if performance.comparison.is_some() && !performance.metrics.iter().any(answered) {
        return Outcome::Inconclusive;
    }
    Outcome::Pass
}

fn model_line(manifest: &RunManifest) -> String {
    match (manifest.model.name.as_str(), manifest.model.kind.as_str()) {
        ("", _) => String::new(),
        (name, "") => name.to_owned(),
        (name, kind) => format!("{name} ({kind})"),
    }
}

fn machine_line(manifest: &RunManifest) -> String {
    let machine = &manifest.machine;
    if machine.cpu.is_empty() {
        return String::new();
    }
    format!("{}, {} cores, {}", machine.cpu, machine.cores, machine.isa)
}

fn tool_line(manifest: &RunManifest) -> String {
    let tool = &manifest.tool;
    if tool.version.is_empty() {
        return String::new();
    }
    let dirty = if tool.git_dirty { ", modified" } else { "" };
    format!("prefillbench {} ({}{dirty})", tool.version, tool.git_rev)
}

#[cfg(test)]
mod cache_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod headline_tests;
#[cfg(test)]
mod tests;
