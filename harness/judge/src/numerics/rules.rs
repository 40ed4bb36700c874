//! The acceptance rules: each statistic against its limit, reported as a share of it.
//!
//! A rule breaks only on proof. The mean rules use equivalence tests, so too few prompts make them
//! undecided, and they break only when the mean is shown to lie beyond the margin at 0.001, Holm
//! adjusted over the configurations of a run. The maximum rules break on the first violation.

use pb_stats::Tost;
use serde::{Deserialize, Serialize};

use super::words::{plain, verdict_of};
use super::{ConfigStats, NumericsError};
use crate::verdict::Verdict;

/// Limits of one tier. The default is T1, for f32.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Equivalence margin of the mean rho.
    pub mean_rho_margin: f64,
    /// Equivalence margin of the mean change of NLL, nats per token.
    pub delta_nll_margin: f64,
    /// One-sided level at which equivalence must be shown.
    pub alpha: f64,
    /// One-sided level, Holm adjusted over a run, at which a mean rule counts as broken.
    pub break_alpha: f64,
    /// The largest rho must stay below this.
    pub max_rho: f64,
    /// The largest z must stay below this.
    pub max_z: f64,
    /// The 99.9th percentile of the divergence must stay below this, nats; None: reported only.
    pub kl_p999: Option<f64>,
    /// The largest divergence must stay below this, nats; None: reported only.
    pub kl_max: Option<f64>,
    /// The RMS change of the true token's probability must stay below this; None: reported only.
    pub rms_delta_p: Option<f64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            mean_rho_margin: 0.10,
            delta_nll_margin: 1e-3,
            alpha: 0.01,
            break_alpha: 0.001,
            max_rho: 0.4,
            max_z: 20.0,
            kl_p999: None,
            kl_max: None,
            rms_delta_p: None,
        }
    }
}

/// Which statistic a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// All logits are finite.
    Finite,
    /// Mean over prompts of rho.
    MeanRho,
    /// Largest rho of a prompt.
    MaxRho,
    /// Largest z of a row.
    MaxZ,
    /// Top-1 flips among decidable rows.
    DecidableFlips,
    /// Mean over prompts of the change of NLL.
    DeltaNll,
    /// Mean over rows of the divergence.
    KlMean,
    /// 99.9th percentile of the divergence.
    KlP999,
    /// Largest divergence.
    KlMax,
    /// RMS change of the true token's probability.
    RmsDeltaP,
}

/// The outcome of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Within its limit.
    Pass,
    /// Beyond its limit.
    Fail,
    /// The data cannot tell.
    Inconclusive,
}

/// One statistic, its limit and how much of it is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Which statistic.
    pub name: CheckName,
    /// Its value; None when nothing could be measured.
    #[serde(with = "crate::real::option")]
    pub value: Option<f64>,
    /// Its limit, in the same unit.
    pub limit: f64,
    /// `|value| / limit`: 1 is the limit. None when nothing could be measured.
    #[serde(with = "crate::real::option")]
    pub share: Option<f64>,
    /// `1 - 2 alpha` interval, for means.
    pub interval: Option<(f64, f64)>,
    /// p-value of "not equivalent", for means.
    pub p: Option<f64>,
    /// Holm-adjusted p-value of "not beyond the margin", for means.
    pub p_beyond: Option<f64>,
    /// The outcome.
    pub outcome: Outcome,
    /// Where the worst value is, or why there is none.
    pub detail: String,
}

/// All checks of one configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigVerdict {
    /// Name of the configuration, such as `chunk 17`.
    pub config: String,
    /// The limits applied.
    pub limits: Limits,
    /// The statistics.
    pub stats: ConfigStats,
    /// Every check, in a fixed order.
    pub checks: Vec<Check>,
    /// The verdict.
    pub verdict: Verdict,
}

impl ConfigVerdict {
    /// The check that uses most of its limit.
    pub fn worst(&self) -> Option<&Check> {
        self.checks
            .iter()
            .filter(|check| check.share.is_some())
            .max_by(|a, b| a.share.unwrap_or(0.0).total_cmp(&b.share.unwrap_or(0.0)))
    }

    /// The check that uses most of its limit among those whose share is finite: a count with the
    /// limit 0 has an infinite share and hides how far the others are beyond theirs.
    pub fn worst_finite(&self) -> Option<&Check> {
        let share = |check: &&Check| check.share.filter(|share| share.is_finite());
        self.checks
            .iter()
            .filter(|check| share(check).is_some())
            .max_by(|a, b| a.share.unwrap_or(0.0).total_cmp(&b.share.unwrap_or(0.0)))
    }
}

/// Judges one configuration on its own. Errors when a limit is out of range.
pub fn judge(
    config: &str,
    stats: ConfigStats,
    limits: &Limits,
) -> Result<ConfigVerdict, NumericsError> {
    let mut run = judge_run(vec![(config.to_owned(), stats)], limits)?;
    // OK because one configuration in is one verdict out.
    Ok(run.pop().expect("one verdict for one configuration"))
}

/// Judges all configurations of a run; the proofs that a mean is beyond its margin are Holm
/// adjusted over all of them. Errors when a limit is out of range.
pub fn judge_run(
    configs: Vec<(String, ConfigStats)>,
    limits: &Limits,
) -> Result<Vec<ConfigVerdict>, NumericsError> {
    let mut means = Vec::with_capacity(2 * configs.len());
    for (_, stats) in &configs {
        let rho: Vec<f64> = stats.rho.iter().map(|r| r.rho).collect();
        means.push(Mean::of(
            CheckName::MeanRho,
            &rho,
            limits.mean_rho_margin,
            limits.alpha,
        )?);
        let margin = limits.delta_nll_margin;
        means.push(Mean::of(
            CheckName::DeltaNll,
            &stats.delta_nll,
            margin,
            limits.alpha,
        )?);
    }
    let raw: Vec<f64> = means.iter().map(|m| m.p_beyond.unwrap_or(1.0)).collect();
    let adjusted = pb_stats::holm_adjust(&raw)?;
    let mut means = means.into_iter().zip(adjusted);
    let mut verdicts = Vec::with_capacity(configs.len());
    for (config, stats) in configs {
        let mut checks = vec![finite_check(&stats)];
        checks.extend(
            means
                .by_ref()
                .take(2)
                .map(|(mean, p)| mean.check(p, limits.break_alpha)),
        );
        checks.extend(max_checks(&stats, limits));
        checks.push(flip_check(&stats));
        checks.extend(distribution_checks(&stats, limits));
        checks.sort_by_key(|check| check.name);
        let verdict = verdict_of(&checks);
        verdicts.push(ConfigVerdict {
            config,
            limits: limits.clone(),
            stats,
            checks,
            verdict,
        });
    }
    Ok(verdicts)
}

/// The verdict over a run: fail if any configuration fails, pass if there are some and all pass.
pub fn overall(verdicts: &[ConfigVerdict]) -> Verdict {
    let (mut reasons, mut why) = (Vec::new(), Vec::new());
    for verdict in verdicts {
        let named = |reason: &String| format!("{}: {reason}", verdict.config);
        match &verdict.verdict {
            Verdict::Pass => {}
            Verdict::Fail { reasons: new } => reasons.extend(new.iter().map(named)),
            Verdict::Inconclusive { why: new } => why.extend(new.iter().map(named)),
        }
    }
    if verdicts.is_empty() {
        why.push("no configuration was compared".to_owned());
    }
    Verdict::from_findings(reasons, why)
}

/// A mean over prompts and its equivalence test, before the run's adjustment.
pub(crate) struct Mean {
    name: CheckName,
    margin: f64,
    test: Result<Tost, String>,
    /// p-value of "not beyond the margin", not adjusted; None without a test.
    pub(crate) p_beyond: Option<f64>,
}

impl Mean {
    /// The test of `units` at the one-sided level `alpha`. Errors when margin or level are none.
    pub(crate) fn of(
        name: CheckName,
        units: &[f64],
        margin: f64,
        alpha: f64,
    ) -> Result<Self, NumericsError> {
        // A bad limit is the caller's mistake, unlike a lack of data.
        pb_stats::tost(0.0, 1.0, 1.0, margin, alpha)?;
        let test = pb_stats::tost_units(units, margin, alpha).map_err(|e| e.to_string());
        let df = units.len() as f64 - 1.0;
        let p_beyond = test.as_ref().ok().map(|t| {
            let excess = t.mean.abs() - margin;
            if t.se > 0.0 {
                pb_stats::t_upper_tail(excess / t.se, df)
            } else {
                f64::from(u8::from(excess <= 0.0))
            }
        });
        Ok(Self {
            name,
            margin,
            test,
            p_beyond,
        })
    }

    /// The check, with the adjusted p-value of "not beyond the margin".
    pub(crate) fn check(self, p_beyond: f64, break_alpha: f64) -> Check {
        let (value, interval, p, outcome, detail) = match self.test {
            Ok(t) => {
                let outcome = if t.equivalent {
                    Outcome::Pass
                } else if p_beyond < break_alpha {
                    Outcome::Fail
                } else {
                    Outcome::Inconclusive
                };
                let detail = format!("interval {} to {}", plain(t.low), plain(t.high));
                (
                    Some(t.mean),
                    Some((t.low, t.high)),
                    Some(t.p),
                    outcome,
                    detail,
                )
            }
            Err(why) => (None, None, None, Outcome::Inconclusive, why),
        };
        Check {
            name: self.name,
            value,
            limit: self.margin,
            share: value.map(|v| share(v, self.margin)),
            interval,
            p,
            p_beyond: value.map(|_| p_beyond),
            outcome,
            detail,
        }
    }
}

/// `|value| / limit`, with 0 of 0 being nothing used.
fn share(value: f64, limit: f64) -> f64 {
    if value == 0.0 {
        0.0
    } else {
        value.abs() / limit
    }
}

/// A check of "the value stays below the limit".
pub(crate) fn below(name: CheckName, value: Option<f64>, limit: f64, detail: String) -> Check {
    let outcome = match value {
        None => Outcome::Inconclusive,
        Some(v) if v < limit => Outcome::Pass,
        Some(_) => Outcome::Fail,
    };
    // A negative maximum uses nothing of an upper limit.
    let share = value.map(|v| share(v.max(0.0), limit));
    Check {
        name,
        value,
        limit,
        share,
        interval: None,
        p: None,
        p_beyond: None,
        outcome,
        detail,
    }
}

/// A check of "the count is zero".
pub(crate) fn none_of(name: CheckName, count: u64, subject: u64, detail: String) -> Check {
    let outcome = match count {
        0 if subject == 0 => Outcome::Inconclusive,
        0 => Outcome::Pass,
        _ => Outcome::Fail,
    };
    let value = (subject > 0).then_some(count as f64);
    let share = value.map(|v| share(v, 0.0));
    Check {
        name,
        value,
        limit: 0.0,
        share,
        interval: None,
        p: None,
        p_beyond: None,
        outcome,
        detail,
    }
}

fn finite_check(stats: &ConfigStats) -> Check {
    let detail = format!("in {} rows", stats.rows);
    none_of(CheckName::Finite, stats.not_finite, stats.rows, detail)
}

fn flip_check(stats: &ConfigStats) -> Check {
    let flips = &stats.flips;
    let mut detail = format!("{} of {} rows decidable", flips.decidable_rows, stats.rows);
    if let Some(at) = &flips.first {
        detail.push_str(&format!(
            ", first flip at prompt {} position {}",
            at.prompt, at.position
        ));
    }
    none_of(
        CheckName::DecidableFlips,
        flips.decidable_variant,
        flips.decidable_rows,
        detail,
    )
}

fn max_checks(stats: &ConfigStats, limits: &Limits) -> [Check; 2] {
    let nothing = || "no rows were scored".to_owned();
    let rho = stats.max_rho.as_ref();
    let z = stats.max_z.as_ref();
    [
        below(
            CheckName::MaxRho,
            rho.map(|w| w.rho),
            limits.max_rho,
            rho.map_or_else(nothing, |w| format!("at prompt {}", w.prompt)),
        ),
        below(
            CheckName::MaxZ,
            z.map(|w| w.z),
            limits.max_z,
            z.map_or_else(nothing, |w| {
                format!("at prompt {} position {}", w.at.prompt, w.at.position)
            }),
        ),
    ]
}

fn distribution_checks(stats: &ConfigStats, limits: &Limits) -> Vec<Check> {
    let kl = stats.variant_kl;
    [
        (CheckName::KlP999, kl.map(|k| k.p999), limits.kl_p999),
        (CheckName::KlMax, kl.map(|k| k.max), limits.kl_max),
        (
            CheckName::RmsDeltaP,
            stats.variant_rms_delta_p,
            limits.rms_delta_p,
        ),
    ]
    .into_iter()
    .filter_map(|(name, value, limit)| {
        let detail = format!("over {} rows", stats.rows);
        limit.map(|limit| below(name, value, limit, detail))
    })
    .collect()
}
