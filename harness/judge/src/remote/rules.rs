//! The rules of a comparison over HTTP: each statistic against its limit.

use serde::{Deserialize, Serialize};

use super::{RemoteError, RemoteStats};
use crate::numerics::{Check, CheckName, Mean, below, none_of, verdict_of};
use crate::verdict::Verdict;

/// The precision that both sides compute in, which says how large harmless noise is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Weights and activations in f32 at least.
    F32,
    /// Activations rounded to bf16 or f16.
    Bf16,
    /// Activations rounded to 8 bits in blocks, as by llama.cpp where weights are quantised.
    Int8,
}

/// Limits of one comparison. Divergences are the smallest that the lists allow, so a limit that is
/// exceeded is exceeded in truth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteLimits {
    /// A preference below this is a tie, nats.
    pub tie_margin: f64,
    /// Equivalence margin of the mean change of NLL, nats per token.
    pub delta_nll_margin: f64,
    /// One-sided level at which equivalence must be shown.
    pub alpha: f64,
    /// One-sided level at which the change of NLL counts as beyond the margin.
    pub break_alpha: f64,
    /// The mean divergence over rows must stay below this, nats.
    pub kl_mean: f64,
    /// Its 99.9th percentile must stay below this, nats.
    pub kl_p999: f64,
    /// The largest must stay below this, nats.
    pub kl_max: f64,
    /// The RMS change of the probability of the token that stands there must stay below this.
    pub rms_delta_p: f64,
}

impl RemoteLimits {
    /// The limits for a precision; docs/VALIDATE.md has the runs that they come from.
    pub const fn of(precision: Precision) -> RemoteLimits {
        match precision {
            Precision::F32 => RemoteLimits {
                tie_margin: 0.01,
                delta_nll_margin: 1e-3,
                alpha: 0.01,
                break_alpha: 0.001,
                kl_mean: 1e-5,
                kl_p999: 1e-4,
                kl_max: 1e-3,
                rms_delta_p: 1e-3,
            },
            Precision::Bf16 => RemoteLimits {
                tie_margin: 0.5,
                delta_nll_margin: 5e-3,
                alpha: 0.01,
                break_alpha: 0.001,
                kl_mean: 2e-3,
                kl_p999: 0.02,
                kl_max: 0.05,
                rms_delta_p: 0.02,
            },
            Precision::Int8 => RemoteLimits {
                tie_margin: 0.5,
                delta_nll_margin: 0.03,
                alpha: 0.01,
                break_alpha: 0.001,
                kl_mean: 4e-3,
                kl_p999: 0.04,
                kl_max: 0.08,
                rms_delta_p: 0.03,
            },
        }
    }
}

/// All checks of one comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteVerdict {
    /// The limits applied.
    pub limits: RemoteLimits,
    /// The statistics.
    pub stats: RemoteStats,
    /// Every check, in a fixed order.
    pub checks: Vec<Check>,
    /// The verdict.
    pub verdict: Verdict,
}

impl RemoteVerdict {
    /// The check that uses most of its limit; a count beyond 0 comes before everything.
    pub fn worst(&self) -> Option<&Check> {
        let share = |check: &&Check| check.share.unwrap_or(0.0);
        self.checks
            .iter()
            .max_by(|a, b| share(a).total_cmp(&share(b)))
    }
}

/// Judges one comparison. Errors when a limit is out of range.
pub fn judge(stats: RemoteStats, limits: &RemoteLimits) -> Result<RemoteVerdict, RemoteError> {
    let mean = Mean::of(
        CheckName::DeltaNll,
        &stats.delta_nll,
        limits.delta_nll_margin,
        limits.alpha,
    )?;
    let p_beyond = mean.p_beyond.unwrap_or(1.0);
    let over = format!("smallest possible, over {} rows", stats.rows);
    let kl = stats.kl;
    let checks = vec![
        none_of(
            CheckName::Finite,
            stats.not_finite,
            stats.rows,
            format!("in {} rows", stats.rows),
        ),
        real_flips(&stats),
        mean.check(p_beyond, limits.break_alpha),
        below(
            CheckName::KlMean,
            kl.map(|k| k.mean),
            limits.kl_mean,
            over.clone(),
        ),
        below(
            CheckName::KlP999,
            kl.map(|k| k.p999),
            limits.kl_p999,
            over.clone(),
        ),
        below(CheckName::KlMax, kl.map(|k| k.max), limits.kl_max, over),
        below(
            CheckName::RmsDeltaP,
            stats.rms_delta_p,
            limits.rms_delta_p,
            format!("over {} rows", stats.rows),
        ),
    ];
    let verdict = verdict_of(&checks);
    Ok(RemoteVerdict {
        limits: limits.clone(),
        stats,
        checks,
        verdict,
    })
}

fn real_flips(stats: &RemoteStats) -> Check {
    let flips = &stats.flips;
    let mut detail = format!("{} rows, {} near ties beside", stats.rows, flips.near_ties);
    if let Some(at) = &flips.first_real {
        detail.push_str(&format!(
            ", first at prompt {} position {}",
            at.prompt, at.position
        ));
    }
    none_of(CheckName::DecidableFlips, flips.real, stats.rows, detail)
}

#[cfg(test)]
mod tests {
    use super::super::{PromptDeltas, TopRow, compare};
    use super::*;
    use crate::numerics::Outcome;
    use pb_stats::{RandomSource, SplitMix64};

    const TOKENS: usize = 50;
    const LISTED: usize = 10;

    fn unit(rng: &mut SplitMix64) -> f64 {
        (rng.next_u64() >> 11) as f64 / 2.0_f64.powi(53)
    }

    /// The list of a server whose logits are `logits`.
    fn listed(position: u32, logits: &[f64], token: usize) -> TopRow {
        let sum: f64 = logits.iter().map(|v| v.exp()).sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&i, &j| logits[j].total_cmp(&logits[i]));
        let mut keep = order[..LISTED].to_vec();
        keep.push(token);
        let named = |i: usize| (format!("t{i}"), logits[i] - sum.ln());
        let top = keep.into_iter().map(named).collect();
        TopRow::new(position, format!("t{token}"), top)
    }

    /// Prompts whose second side has uniform noise of `noise` on its logits, and in prompt
    /// `faulty` shows the logits of another row at `position` 5.
    fn compared(prompts: usize, noise: f64, faulty: Option<usize>) -> RemoteStats {
        let mut rng = SplitMix64::new(9);
        let limits = RemoteLimits::of(Precision::Bf16);
        let mut all = Vec::new();
        for p in 0..prompts {
            let mut rows = Vec::new();
            for position in 0..40 {
                let logits: Vec<f64> = (0..TOKENS).map(|_| 8.0 * unit(&mut rng)).collect();
                let other: Vec<f64> = (0..TOKENS).map(|_| 8.0 * unit(&mut rng)).collect();
                let token = (rng.next_u64() % TOKENS as u64) as usize;
                let wrong = faulty == Some(p) && position == 5;
                let base = if wrong { &other } else { &logits };
                let moved: Vec<f64> = base
                    .iter()
                    .map(|v| v + noise * (2.0 * unit(&mut rng) - 1.0))
                    .collect();
                let (a, b) = (
                    listed(position, &logits, token),
                    listed(position, &moved, token),
                );
                rows.push(compare(&a, &b, LISTED, limits.tie_margin).unwrap());
            }
            all.push(PromptDeltas::new(format!("p{p}"), rows));
        }
        RemoteStats::of(&all)
    }

    fn verdict(stats: RemoteStats) -> RemoteVerdict {
        judge(stats, &RemoteLimits::of(Precision::Bf16)).unwrap()
    }

    #[test]
    fn small_noise_passes_and_equal_rows_use_nothing() {
        let v = verdict(compared(12, 0.02, None));
        assert!(v.verdict.is_pass(), "{:?}", v.verdict);
        let equal = verdict(compared(12, 0.0, None));
        assert!(equal.verdict.is_pass());
        assert_eq!(equal.stats.kl.unwrap().max, 0.0);
        assert!(equal.checks.iter().all(|c| c.share == Some(0.0)));
        // The same rows under the limits of f32 are told apart.
        let strict = judge(compared(12, 0.02, None), &RemoteLimits::of(Precision::F32));
        assert!(strict.unwrap().verdict.is_fail());
    }

    #[test]
    fn one_wrong_row_of_one_prompt_fails_though_the_mean_hides_it() {
        let v = verdict(compared(12, 0.02, Some(7)));
        assert!(v.verdict.is_fail());
        let outcome = |name| {
            let check = v.checks.iter().find(|c| c.name == name).unwrap();
            check.outcome
        };
        assert_eq!(outcome(CheckName::KlMax), Outcome::Fail);
        assert_eq!(outcome(CheckName::DecidableFlips), Outcome::Fail);
        assert_ne!(outcome(CheckName::DeltaNll), Outcome::Fail);
        let first = v.stats.flips.first_real.unwrap();
        assert_eq!((first.prompt.as_str(), first.position), ("p7", 5));
    }

    #[test]
    fn nothing_compared_is_inconclusive() {
        let v = verdict(RemoteStats::of(&[]));
        assert_eq!(v.verdict.exit_code(), 3);
        // One prompt cannot show that a mean is small.
        let v = verdict(compared(1, 0.02, None));
        assert_eq!(v.verdict.exit_code(), 3, "{:?}", v.verdict);
    }
}
