//! What one version shows against itself, and the margin that follows from it.
//!
//! A margin that is picked by eye flakes or hides. From repeats of one version the standard
//! deviation of a pair follows, with its upper bound; the margin is then the smallest one within
//! which a gate of so many blocks shows equal versions to be in nearly all cases.

use std::collections::{BTreeMap, BTreeSet};

use pb_stats::{NoiseFloor, minimum_detectable_effect, noise_floor, normal_quantile};

use super::GateError;
use crate::compare::{Metric, Run, check_alike, metric, stall_threshold_ns};

/// Pairs that a noise floor needs.
const LEAST_PAIRS: usize = 3;
/// Share of gates between equal versions that are to pass all their rules.
const PASSES: f64 = 0.95;
/// Smallest margins that are proposed: a relative change, and points of a share.
const LEAST_RATIO: f64 = 0.005;
const LEAST_SHARE: f64 = 0.001;

/// Metrics that rules are proposed for, where they were recorded.
const PROPOSED: [&str; 11] = [
    "ttft_p50",
    "ttft_p95",
    "itl_p50",
    "itl_p95",
    "itl_p99",
    "tpot_p50",
    "e2e_p95",
    "output_tps",
    "hit_rate",
    "kv_bytes_max",
    "host_bytes_max",
];

/// What the gate to come looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InitOptions {
    /// Its blocks; as many as there are pairs when absent.
    pub blocks: Option<usize>,
    /// Level of its claims.
    pub alpha: f64,
    /// Power at which its sight is told.
    pub power: f64,
}

impl Default for InitOptions {
    fn default() -> Self {
        Self {
            blocks: None,
            alpha: 0.05,
            power: 0.8,
        }
    }
}

/// One metric's floor and the margin proposed.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    /// The metric.
    pub metric: &'static Metric,
    /// Median over the runs of the pairs, in the metric's unit.
    pub typical: f64,
    /// The floor, of logarithms of ratios or of differences; absent where no run differed.
    pub noise: Option<NoiseFloor>,
    /// Margin in the policy's unit: a relative change, or points of a share.
    pub margin: f64,
    /// True change that such a gate fails in `power` of cases, in the policy's unit; absent
    /// without noise.
    pub fails_at: Option<f64>,
}

/// What `gate init` proposes.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The options.
    pub options: InitOptions,
    /// Blocks of the gate to come.
    pub blocks: usize,
    /// Runs given; one without a partner enters no number.
    pub runs: usize,
    /// A/A pairs among them.
    pub pairs: usize,
    /// Share of gates between equal versions that each rule by itself lets pass.
    pub rule_passes: f64,
    /// Requests offered in the runs of the pairs.
    pub offered: u64,
    /// Of these, the ones that ended well.
    pub ok: u64,
    /// Smallest share of good ends: the lower end of the exact interval, rounded down.
    pub min_success_rate: f64,
    /// The floors.
    pub floors: Vec<Floor>,
    /// Metrics in which the rig favours the first or the second run of a pair.
    pub biased: Vec<&'static str>,
}

/// Neighbouring repeats of one version on one schedule: the first with the second, the third with
/// the fourth, in the order in which they were made.
pub fn aa_pairs(runs: &[Run]) -> Vec<(&Run, &Run)> {
    let mut by_schedule: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        by_schedule.entry(run.schedule()).or_default().push(run);
    }
    let mut pairs = Vec::new();
    for group in by_schedule.values_mut() {
        group.sort_by_key(|run| (&run.created, run.start_ns));
        pairs.extend(group.chunks_exact(2).map(|pair| (pair[0], pair[1])));
    }
    pairs.sort_by_key(|(first, _)| (&first.created, first.start_ns));
    pairs
}

/// Noise floors and margins from repeats of one version.
///
/// # Errors
/// Runs that must not be used, are not alike, or too few; options that cannot be.
pub fn floors(runs: &[Run], options: &InitOptions) -> Result<Proposal, GateError> {
    if !(options.alpha > 0.0 && options.alpha < 0.5) {
        return Err(GateError::Level(options.alpha));
    }
    let pairs = aa_pairs(runs);
    if pairs.len() < LEAST_PAIRS {
        return Err(GateError::FewPairs {
            runs: runs.len(),
            pairs: pairs.len(),
            need: LEAST_PAIRS,
        });
    }
    let (firsts, seconds): (Vec<Run>, Vec<Run>) = pairs
        .iter()
        .map(|(first, second)| ((*first).clone(), (*second).clone()))
        .unzip();
    check_alike(&firsts, &seconds, &BTreeSet::new())?;
    let used = [firsts, seconds].concat();
    if let Some((run, problem)) = used.iter().find_map(|r| Some((r, r.problems.first()?))) {
        return Err(GateError::Void {
            run: run.name.clone(),
            problem: problem.clone(),
        });
    }
    let blocks = options.blocks.unwrap_or(pairs.len()).max(LEAST_PAIRS);
    let threshold_ns = stall_threshold_ns(&used);
    let metrics: Vec<&'static Metric> = PROPOSED
        .iter()
        .filter_map(|name| metric(name))
        .filter(|metric| recorded(metric, &used, threshold_ns))
        .collect();
    // All rules together shall pass that often, so each alone has to more often (Bonferroni).
    let rule_passes = 1.0 - (1.0 - PASSES) / metrics.len().max(1) as f64;
    let plan = Plan {
        blocks,
        rule_passes,
        options,
    };
    let floors: Result<Vec<Floor>, GateError> = metrics
        .iter()
        .map(|metric| plan.floor(metric, &used, &pairs, threshold_ns))
        .collect();
    let floors = floors?;
    let counts = used.iter().map(|run| (run.offered, run.ok));
    let (offered, ok) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let exact = pb_stats::proportion(ok, offered, 1.0 - options.alpha).map_err(GateError::Floor)?;
    Ok(Proposal {
        options: *options,
        blocks,
        runs: runs.len(),
        pairs: pairs.len(),
        rule_passes,
        offered,
        ok,
        min_success_rate: ((exact.low * 1000.0).floor() / 1000.0).max(0.001),
        biased: biased(&floors)?,
        floors,
    })
}

/// A value in every run, and one that has a ratio where ratios are taken.
fn recorded(metric: &Metric, runs: &[Run], threshold_ns: u64) -> bool {
    let fits = |run: &Run| {
        let value = run.value(metric.name, threshold_ns);
        value.is_some_and(|v| v.is_finite() && (v > 0.0 || !metric.is_ratio()))
    };
    runs.iter().all(fits)
}

struct Plan<'a> {
    blocks: usize,
    rule_passes: f64,
    options: &'a InitOptions,
}

impl Plan<'_> {
    fn floor(
        &self,
        metric: &'static Metric,
        runs: &[Run],
        pairs: &[(&Run, &Run)],
        threshold_ns: u64,
    ) -> Result<Floor, GateError> {
        let value = |run: &Run| run.value(metric.name, threshold_ns).unwrap_or(f64::NAN);
        let unit = |(first, second): &(&Run, &Run)| match metric.is_ratio() {
            true => value(second).ln() - value(first).ln(),
            false => value(second) - value(first),
        };
        let units: Vec<f64> = pairs.iter().map(unit).collect();
        let all: Vec<f64> = runs.iter().map(value).collect();
        let (sorted, _) = pb_stats::sort_finite(&all);
        let typical = pb_stats::linear(&sorted, 0.5).unwrap_or(f64::NAN);
        let (alpha, power) = (self.options.alpha, self.options.power);
        let noise = match noise_floor(&units, self.blocks, alpha, power) {
            Ok(noise) => Some(noise),
            Err(pb_stats::StatError::Degenerate) => None,
            Err(error) => return Err(GateError::Floor(error)),
        };
        let policy_unit = |value: f64| match metric.is_ratio() {
            true => value.exp_m1(),
            false => value,
        };
        let (least, step) = match metric.is_ratio() {
            true => (LEAST_RATIO, 1e-3),
            false => (LEAST_SHARE, 1e-4),
        };
        let Some(noise) = noise else {
            return Ok(Floor {
                metric,
                typical,
                noise: None,
                margin: least,
                fails_at: None,
            });
        };
        // A rule passes when the upper end of a one-sided interval lies below the margin: the
        // power of a one-sided t test at a true distance of the margin.
        let reach = minimum_detectable_effect(self.blocks, 2.0 * alpha, self.rule_passes)
            .map_err(GateError::Floor)?;
        let margin = policy_unit(reach * noise.sd_upper).max(least);
        let margin = (margin / step).ceil() * step;
        Ok(Floor {
            metric,
            typical,
            noise: Some(noise),
            margin,
            fails_at: Some(policy_unit(self.fails_at(metric, margin, &noise))),
        })
    }

    /// The true change, on the scale of the tests, whose mean over the blocks is beyond the margin
    /// and clear of no change with the power asked for.
    fn fails_at(&self, metric: &Metric, margin: f64, noise: &NoiseFloor) -> f64 {
        let margin = match metric.is_ratio() {
            true => margin.ln_1p(),
            false => margin,
        };
        let se = noise.sd_upper / (self.blocks as f64).sqrt();
        let beyond = margin + normal_quantile(self.options.power) * se;
        beyond.max(noise.detectable_upper)
    }
}

/// Metrics whose A/A pairs differ in one direction, over the family (Holm).
fn biased(floors: &[Floor]) -> Result<Vec<&'static str>, GateError> {
    let with_noise = floors.iter().filter_map(|floor| {
        let noise = floor.noise?;
        let t = noise.bias.point / noise.bias.se;
        let df = (noise.pairs - 1) as f64;
        Some((floor.metric.name, pb_stats::t_two_sided_p(t, df)))
    });
    let (names, p): (Vec<&'static str>, Vec<f64>) = with_noise.unzip();
    let rejected = pb_stats::holm(&p, 0.05).map_err(GateError::Floor)?;
    let named = names.into_iter().zip(rejected);
    Ok(named
        .filter(|(_, biased)| *biased)
        .map(|(name, _)| name)
        .collect())
}
