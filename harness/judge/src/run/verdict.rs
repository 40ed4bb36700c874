//! The verdict of a run: what `verdict.json` holds and every report is made from.
//!
//! It holds aggregates and reasons but no raw samples, so that it stays small; whoever wants other
//! aggregates judges the rows again. An empty set is absent (`null`), never 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::notes::{Comparison, MetricSpec, NumericsNote, PlantedFault};
use crate::Interval;
use crate::ab::MetricVerdict;

/// Version of [`RunVerdict`]; raised when an old reader would misread a new file.
pub const VERDICT_SCHEMA_VERSION: u32 = 1;

/// What the run as a whole says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Valid, correct, and with an answer to at least one primary question. The answer may be that
    /// the candidate is worse.
    Pass,
    /// Valid, but a correctness check failed.
    Fail,
    /// Valid, but the data cannot answer.
    Inconclusive,
    /// The conditions did not hold: no number of it may be claimed.
    Void,
}

impl Outcome {
    /// The process exit code that stands for it.
    pub const fn exit_code(self) -> u8 {
        match self {
            Outcome::Pass => 0,
            Outcome::Fail => 1,
            Outcome::Inconclusive | Outcome::Void => 3,
        }
    }

    /// The name in files. People read [`RunVerdict::headline`], since a pass is no praise.
    pub const fn word(self) -> &'static str {
        match self {
            Outcome::Pass => "pass",
            Outcome::Fail => "fail",
            Outcome::Inconclusive => "inconclusive",
            Outcome::Void => "void",
        }
    }
}

/// The verdict of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunVerdict {
    /// [`VERDICT_SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// What kind of run.
    pub kind: String,
    /// Start of the run, for people.
    pub created: String,
    /// Model.
    pub model: String,
    /// Why a model stands in for the one asked for, if it does.
    pub substitute_reason: Option<String>,
    /// Machine in one line.
    pub machine: String,
    /// Version of the tool that made the run.
    pub tool: String,
    /// Seed of the run.
    pub seed: u64,
    /// Whether the writer of the run reached its end.
    pub finished: bool,
    /// What the run as a whole says.
    pub outcome: Outcome,
    /// The same in plain words: what was compared, whether it is valid, what changed.
    pub sentence: String,
    /// First gate.
    pub validity: Validity,
    /// Second gate.
    pub correctness: Correctness,
    /// Third gate.
    pub performance: Performance,
    /// Cold against warm experiments.
    pub cache: Vec<CacheVerdict>,
    /// The runner's remarks.
    pub remarks: Vec<String>,
}

/// State of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// The condition held.
    Held,
    /// The condition did not hold.
    Broken,
    /// The rows cannot tell, or the check does not apply.
    NotChecked,
}

impl CheckState {
    /// Words for people.
    pub const fn word(self) -> &'static str {
        match self {
            CheckState::Held => "held",
            CheckState::Broken => "BROKEN",
            CheckState::NotChecked => "not checked",
        }
    }
}

/// One condition of a valid run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Name.
    pub name: String,
    /// State.
    pub state: CheckState,
    /// What was found, in words with units.
    pub measured: String,
    /// What was required, in words with units.
    pub limit: String,
    /// The condition that this is one block's part of: reports show all parts as one row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Whether the conditions of the run held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// No check is broken.
    pub valid: bool,
    /// All checks, in the order in which they were made.
    pub checks: Vec<Check>,
    /// The broken ones as sentences.
    pub reasons: Vec<String>,
}

/// Whether the outputs were right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correctness {
    /// Conclusion of the reports and the planted faults.
    pub state: CorrectnessState,
    /// Why, when it is not [`CorrectnessState::Passed`].
    pub reasons: Vec<String>,
    /// Logit checks of variants that should be correct.
    pub reports: Vec<NumericsNote>,
    /// Logit checks of variants that must be rejected.
    pub planted_faults: Vec<PlantedFault>,
}

impl Correctness {
    /// Whether all that failed are variants that are more accurate than the monolithic pass. They
    /// are not equivalent to it, but their outputs are not wrong.
    pub fn is_only_more_accurate(&self) -> bool {
        let failed = |n: &&NumericsNote| n.verdicts().iter().any(crate::Verdict::is_fail);
        let mut failing = self.reports.iter().filter(failed);
        self.state == CorrectnessState::Failed
            && self.planted_faults.iter().all(|fault| fault.rejected)
            && failing.all(NumericsNote::is_only_more_accurate)
    }
}

/// Conclusion about the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrectnessState {
    /// Every variant passed and every planted fault was rejected.
    Passed,
    /// A variant failed, or a planted fault went unnoticed.
    Failed,
    /// A check could not decide, or its power was not shown by a planted fault.
    Inconclusive,
    /// Nothing was checked.
    NotChecked,
}

impl CorrectnessState {
    /// Words for people.
    pub const fn word(self) -> &'static str {
        match self {
            CorrectnessState::Passed => "passed",
            CorrectnessState::Failed => "FAILED",
            CorrectnessState::Inconclusive => "inconclusive",
            CorrectnessState::NotChecked => "not checked",
        }
    }
}

/// Everything measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Performance {
    /// Which arms were compared, when any were.
    pub comparison: Option<Comparison>,
    /// Rule of percentiles.
    pub quantile_rule: String,
    /// Rule of token gaps.
    pub bundle_rule: String,
    /// Threshold of a stall: gaps of at least this many nanoseconds, one for all arms.
    pub stall_threshold_ns: Option<u64>,
    /// Arms in the order of the manifest.
    pub arms: Vec<ArmSummary>,
    /// Compared metrics, primary ones first.
    pub metrics: Vec<MetricComparison>,
}

impl Performance {
    /// The summary of an arm.
    pub fn arm(&self, name: &str) -> Option<&ArmSummary> {
        self.arms.iter().find(|arm| arm.name == name)
    }
}

/// One compared metric: the values that went in and what came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricComparison {
    /// What was compared.
    pub spec: MetricSpec,
    /// Values by matched block.
    pub blocks: Vec<BlockValues>,
    /// Conclusion.
    pub verdict: MetricVerdict,
}

/// The values of one matched block, in the metric's unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockValues {
    /// Block.
    pub block: u32,
    /// Value of the baseline arm.
    pub baseline: Option<f64>,
    /// Value of the candidate arm.
    pub candidate: Option<f64>,
}

/// What one arm did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmSummary {
    /// Arm.
    pub name: String,
    /// Blocks in which it ran.
    pub blocks: usize,
    /// All requests together.
    pub all: ClassSummary,
    /// Requests by class.
    pub classes: BTreeMap<String, ClassSummary>,
    /// What its engine said of itself; absent without step rows.
    pub steps: Option<StepSummary>,
}

impl ArmSummary {
    /// The summary of a class, of all requests when `class` is absent.
    pub fn class(&self, class: Option<&str>) -> Option<&ClassSummary> {
        match class {
            None => Some(&self.all),
            Some(name) => self.classes.get(name),
        }
    }
}

/// What one set of requests did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassSummary {
    /// How they ended.
    pub counts: RequestCounts,
    /// First token minus intended arrival.
    pub ttft: Distribution,
    /// First token minus first byte sent.
    pub service_ttft: Distribution,
    /// First event minus intended arrival.
    pub ttfr: Distribution,
    /// Gaps between tokens.
    pub itl: Distribution,
    /// Gaps between content events.
    pub event_gap: Distribution,
    /// Time for each token after the first, by request.
    pub tpot: Distribution,
    /// Last token minus intended arrival.
    pub e2e: Distribution,
    /// First byte sent minus intended arrival, of all requests that were sent.
    pub driver_lag: Distribution,
    /// Gaps that a reader notices.
    pub stalls: Stalls,
    /// Prompt tokens that the server counted.
    pub prompt_tokens: u64,
    /// Prompt tokens that the server took from its cache; absent when it never says.
    pub cached_tokens: Option<u64>,
    /// Tokens streamed.
    pub output_tokens: u64,
    /// Share of streamed tokens that shared their event with others.
    pub bundled_share: Option<f64>,
}

/// How requests ended. The parts sum to `offered`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// Requests that the workload offered.
    pub offered: u64,
    /// Complete.
    pub ok: u64,
    /// Ended by a failure other than truncation.
    pub failed: u64,
    /// Stream broke off.
    pub truncated: u64,
    /// Still running when the run ended.
    pub incomplete: u64,
    /// Due but never sent.
    pub not_offered: u64,
    /// Failures by kind, named as in the rows.
    pub failures: BTreeMap<String, u64>,
}

/// A distribution in nanoseconds; nearest-rank percentiles of the raw values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Values.
    pub n: u64,
    /// Median.
    pub p50_ns: Option<u64>,
    /// 95th percentile.
    pub p95_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// Largest.
    pub max_ns: Option<u64>,
    /// Mean.
    pub mean_ns: Option<f64>,
}

/// Stalls of a set of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stalls {
    /// Event gaps looked at.
    pub gaps: u64,
    /// Gaps at or above the threshold.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub total_ns: u64,
    /// The longest in nanoseconds.
    pub longest_ns: Option<u64>,
    /// Stalled time as a share of all streaming time.
    pub time_share: Option<f64>,
}

/// What an arm's engine said of its steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSummary {
    /// Steps.
    pub steps: u64,
    /// Steps that computed prompt tokens.
    pub prefill_steps: u64,
    /// Steps that computed prompt tokens and decoded.
    pub mixed_steps: u64,
    /// Most prompt tokens in one step.
    pub max_prefill_tokens: u64,
    /// Duration of a step.
    pub duration: Distribution,
    /// Where the time of all steps went.
    pub time: StepTime,
    /// Block buckets over time.
    pub buckets: BucketSummary,
    /// Prompt tokens looked up in the prefix cache.
    pub queried_tokens: u64,
    /// Of these, found.
    pub hit_tokens: u64,
    /// Cached blocks that lost their contents.
    pub evicted_blocks: u64,
    /// Preemptions.
    pub preempted: u64,
}

/// Step time by part, in nanoseconds, summed over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTime {
    /// Whole.
    pub total_ns: u64,
    /// Planning.
    pub schedule_ns: u64,
    /// Matrix products of prompt rows.
    pub prefill_gemm_ns: u64,
    /// Attention of prompt rows.
    pub prefill_attention_ns: u64,
    /// Matrix products of decode rows.
    pub decode_gemm_ns: u64,
    /// Attention of decode rows.
    pub decode_attention_ns: u64,
    /// Choosing tokens.
    pub sampling_ns: u64,
    /// The rest.
    pub other_ns: u64,
}

impl StepTime {
    /// The parts with their names, in the order of a step.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("schedule", self.schedule_ns),
            ("prefill GEMM", self.prefill_gemm_ns),
            ("prefill attention", self.prefill_attention_ns),
            ("decode GEMM", self.decode_gemm_ns),
            ("decode attention", self.decode_attention_ns),
            ("sampling", self.sampling_ns),
            ("other", self.other_ns),
        ]
    }
}

/// The three disjoint buckets over time. `free` does not contain `reclaimable`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSummary {
    /// Blocks in the pool.
    pub pool: Option<u64>,
    /// Most blocks in use at once.
    pub active_peak: Option<u64>,
    /// Most blocks cached without a user at once.
    pub reclaimable_peak: Option<u64>,
    /// Fewest blocks without data.
    pub free_min: Option<u64>,
    /// Most blocks without data.
    pub free_peak: Option<u64>,
    /// Steps in which the three did not sum to the pool.
    pub violations: u64,
}

/// What one cold against warm experiment showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheVerdict {
    /// Arm.
    pub arm: String,
    /// Block.
    pub block: u32,
    /// Whether the cache was empty for the cold requests.
    pub cold_proven: bool,
    /// Whether every warm request found exactly the planned tokens.
    pub warm_proven: bool,
    /// Why one of the two is not proven.
    pub reasons: Vec<String>,
    /// Requests sent cold.
    pub cold: u64,
    /// Requests sent warm.
    pub warm: u64,
    /// Tokens that the warm requests should have found.
    pub planned_tokens: u64,
    /// Tokens that they found.
    pub cached_tokens: Option<u64>,
    /// TTFT of the cold requests.
    pub cold_ttft: Distribution,
    /// TTFT of the warm requests.
    pub warm_ttft: Distribution,
    /// Pairs with a TTFT on both sides.
    pub pairs: u64,
    /// Warm over cold TTFT, geometric mean over pairs with its 95 % interval; absent below two
    /// pairs or when a state is unproven. Pairs of one session are not independent sessions.
    pub ttft_ratio: Option<Interval>,
}
