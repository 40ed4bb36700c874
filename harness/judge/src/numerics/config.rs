//! The statistics of one configuration (one chunk size, one cache state) over all its prompts.
//!
//! Means hide rare faults and maxima hide broad ones, so both are kept, each with its place. The
//! unit of every mean that is tested is the prompt: rows of one prompt share its tokens and its
//! fault, and counting them as independent would claim far too much.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{NumericsError, PromptRho, PromptScores, RowScore, ScoredRow, decidable};

/// A position of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowLocus {
    /// The prompt.
    pub prompt: String,
    /// Position within it, from 0.
    pub position: u32,
}

/// The prompt with the largest error ratio.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorstPrompt {
    /// The prompt.
    pub prompt: String,
    /// Its rho.
    #[serde(with = "crate::real")]
    pub rho: f64,
}

/// The row with the largest z.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorstRow {
    /// Where.
    pub at: RowLocus,
    /// The variant's RMS error at the row over the RMS of all prompts' monolithic errors at that
    /// position.
    #[serde(with = "crate::real")]
    pub z: f64,
}

/// `KL(reference || x)` over rows, in nats. The percentile is nearest-rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlSummary {
    /// Mean over rows.
    #[serde(with = "crate::real")]
    pub mean: f64,
    /// 99.9th percentile over rows.
    #[serde(with = "crate::real")]
    pub p999: f64,
    /// Largest.
    #[serde(with = "crate::real")]
    pub max: f64,
}

/// Rows whose most likely token differs from the reference's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flips {
    /// All rows: flips of the monolithic pass.
    pub mono: u64,
    /// All rows: flips of the variant.
    pub variant: u64,
    /// Rows whose top-2 gap is beyond the monolithic pass's noise.
    pub decidable_rows: u64,
    /// Among those: flips of the monolithic pass.
    pub decidable_mono: u64,
    /// Among those: flips of the variant. Must be 0.
    pub decidable_variant: u64,
    /// The first decidable flip of the variant.
    pub first: Option<RowLocus>,
}

/// Everything the rules look at, for one configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigStats {
    /// Prompts given.
    pub prompts: usize,
    /// Rows scored over all prompts.
    pub rows: u64,
    /// Logits that are NaN or infinite, monolithic pass and variant together.
    pub not_finite: u64,
    /// Per-prompt error ratios; prompts without rows have none.
    pub rho: Vec<PromptRho>,
    /// The largest of them.
    pub max_rho: Option<WorstPrompt>,
    /// The row with the largest z.
    pub max_z: Option<WorstRow>,
    /// RMS error of the monolithic pass over all rows, in logits; None without rows.
    #[serde(with = "crate::real::option")]
    pub mono_rms_error: Option<f64>,
    /// The variant's, likewise.
    #[serde(with = "crate::real::option")]
    pub variant_rms_error: Option<f64>,
    /// Largest `|variant - reference|` of any logit; None without rows.
    #[serde(with = "crate::real::option")]
    pub variant_max_abs_error: Option<f64>,
    /// Divergence of the monolithic pass; None without rows.
    pub mono_kl: Option<KlSummary>,
    /// Divergence of the variant; None without rows.
    pub variant_kl: Option<KlSummary>,
    /// RMS over rows of the change of the true next token's probability, monolithic pass.
    #[serde(with = "crate::real::option")]
    pub mono_rms_delta_p: Option<f64>,
    /// The variant's, likewise.
    #[serde(with = "crate::real::option")]
    pub variant_rms_delta_p: Option<f64>,
    /// Top-1 flips.
    pub flips: Flips,
    /// Per-prompt `NLL(variant) - NLL(mono)`, nats per token, in the order of the prompts.
    #[serde(with = "crate::real::list")]
    pub delta_nll: Vec<f64>,
}

impl ConfigStats {
    /// The statistics of one configuration. Errors when a prompt is given twice.
    pub fn of(prompts: &[PromptScores]) -> Result<Self, NumericsError> {
        let mut names = BTreeSet::new();
        if let Some(twice) = prompts.iter().find(|p| !names.insert(p.prompt.as_str())) {
            return Err(NumericsError::DuplicatePrompt {
                prompt: twice.prompt.clone(),
            });
        }
        let rows: Vec<&ScoredRow> = prompts.iter().flat_map(|p| &p.rows).collect();
        let rho: Vec<PromptRho> = prompts.iter().filter_map(PromptScores::rho).collect();
        let bad = |s: &RowScore| u64::from(s.not_finite);
        Ok(Self {
            prompts: prompts.len(),
            rows: rows.len() as u64,
            not_finite: rows.iter().map(|r| bad(&r.mono) + bad(&r.variant)).sum(),
            max_rho: worst_prompt(&rho),
            rho,
            max_z: worst_row(prompts),
            mono_rms_error: rms(rows.iter().map(|r| r.mono.rms_error)),
            variant_rms_error: rms(rows.iter().map(|r| r.variant.rms_error)),
            variant_max_abs_error: rows
                .iter()
                .map(|r| r.variant.max_abs_error)
                .reduce(f64::max),
            mono_kl: kl_summary(rows.iter().map(|r| r.mono.kl)),
            variant_kl: kl_summary(rows.iter().map(|r| r.variant.kl)),
            mono_rms_delta_p: rms(rows.iter().filter_map(|r| r.mono.delta_p)),
            variant_rms_delta_p: rms(rows.iter().filter_map(|r| r.variant.delta_p)),
            flips: flips(prompts),
            delta_nll: prompts.iter().filter_map(PromptScores::delta_nll).collect(),
        })
    }
}

/// Root mean square; None without values.
pub(crate) fn rms(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, n), v| (sum + v * v, n + 1));
    (count > 0).then(|| (sum / count as f64).sqrt())
}

/// Mean, percentile and maximum; None without values.
pub(crate) fn kl_summary(values: impl Iterator<Item = f64>) -> Option<KlSummary> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let (p999, max) = (pb_stats::nearest_rank(&sorted, 0.999)?, *sorted.last()?);
    let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
    Some(KlSummary { mean, p999, max })
}

/// The largest rho; of equals the first.
fn worst_prompt(rho: &[PromptRho]) -> Option<WorstPrompt> {
    let mut worst: Option<&PromptRho> = None;
    for candidate in rho {
        if worst.is_none_or(|w| candidate.rho > w.rho) {
            worst = Some(candidate);
        }
    }
    worst.map(|w| WorstPrompt {
        prompt: w.prompt.clone(),
        rho: w.rho,
    })
}

/// The largest z; of equals the first. Monolithic errors are pooled over prompts by position,
/// because they grow along a prompt.
fn worst_row(prompts: &[PromptScores]) -> Option<WorstRow> {
    let mut pool: BTreeMap<u32, (f64, u64)> = BTreeMap::new();
    for row in prompts.iter().flat_map(|p| &p.rows) {
        let (sum, count) = pool.entry(row.position).or_default();
        *sum += row.mono.rms_error.powi(2);
        *count += 1;
    }
    let mut worst: Option<WorstRow> = None;
    for prompt in prompts {
        for row in &prompt.rows {
            let pooled = pool
                .get(&row.position)
                .map_or(0.0, |(sum, n)| (sum / *n as f64).sqrt());
            let z = z_score(row.variant.rms_error, pooled);
            if worst.as_ref().is_none_or(|w| z > w.z) {
                let at = RowLocus {
                    prompt: prompt.prompt.clone(),
                    position: row.position,
                };
                worst = Some(WorstRow { at, z });
            }
        }
    }
    worst
}

/// 0 when there is no error at all, infinite when only the monolithic pass is free of it.
fn z_score(variant: f64, pooled: f64) -> f64 {
    if variant == 0.0 {
        0.0
    } else if variant.is_infinite() {
        f64::INFINITY
    } else {
        variant / pooled
    }
}

fn flips(prompts: &[PromptScores]) -> Flips {
    let mut flips = Flips::default();
    for prompt in prompts {
        for row in &prompt.rows {
            let mono = row.mono.top1 != row.reference.top1;
            let variant = row.variant.top1 != row.reference.top1;
            flips.mono += u64::from(mono);
            flips.variant += u64::from(variant);
            if !decidable(row.reference.top2_gap, row.mono.rms_error) {
                continue;
            }
            flips.decidable_rows += 1;
            flips.decidable_mono += u64::from(mono);
            flips.decidable_variant += u64::from(variant);
            if variant && flips.first.is_none() {
                let (prompt, position) = (prompt.prompt.clone(), row.position);
                flips.first = Some(RowLocus { prompt, position });
            }
        }
    }
    flips
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::ReferenceSummary;

    fn score(rms_error: f64, top1: u32, delta_p: Option<f64>) -> RowScore {
        let nll = delta_p.map(|_| 1.0);
        RowScore {
            rms_error,
            max_abs_error: rms_error,
            kl: rms_error,
            top1,
            nll,
            delta_p,
            not_finite: 0,
        }
    }

    fn prompt(name: &str, rows: &[(f64, f64, u32)]) -> PromptScores {
        let mut prompt = PromptScores::new(name, 0);
        for (position, &(mono, variant, top1)) in rows.iter().enumerate() {
            let reference = ReferenceSummary {
                top1: 0,
                top2_gap: 9.0,
                nll: Some(1.0),
            };
            let (mono, variant) = (
                score(mono, 0, Some(mono)),
                score(variant, top1, Some(variant)),
            );
            prompt
                .push(position as u32, reference, mono, variant)
                .unwrap();
        }
        prompt
    }

    #[test]
    fn pooled_positions_and_worst_places_by_hand() {
        // Position 0 pools 1 and 7: sqrt(25) = 5. Position 1 pools 1 and 1.
        let a = prompt("a", &[(1.0, 10.0, 1), (1.0, 1.0, 0)]);
        let b = prompt("b", &[(7.0, 5.0, 0), (1.0, 3.0, 1)]);
        let stats = ConfigStats::of(&[a, b]).unwrap();
        let z = stats.max_z.unwrap();
        assert_eq!((z.at.prompt.as_str(), z.at.position, z.z), ("b", 1, 3.0));
        // rho a = ln sqrt(101/2), rho b = ln sqrt(34/50).
        let worst = stats.max_rho.unwrap();
        assert_eq!(worst.prompt, "a");
        assert!((worst.rho - 0.5 * 50.5_f64.ln()).abs() < 1e-15);
        assert!((stats.rho[1].rho - 0.5 * 0.68_f64.ln()).abs() < 1e-15);
        // Gap 9 is decidable at sigma 1 (8.49), not at 7: three rows, two flips.
        let flips = stats.flips;
        assert_eq!((flips.variant, flips.mono), (2, 0));
        assert_eq!((flips.decidable_rows, flips.decidable_variant), (3, 2));
        assert_eq!(
            flips.first,
            Some(RowLocus {
                prompt: "a".to_owned(),
                position: 0
            })
        );
        // RMS of 1, 1, 7, 1 and of 10, 1, 5, 3; KL was set to the error.
        assert_eq!(stats.mono_rms_error, Some(13.0_f64.sqrt()));
        assert_eq!(stats.variant_rms_delta_p, Some(33.75_f64.sqrt()));
        let kl = KlSummary {
            mean: 4.75,
            p999: 10.0,
            max: 10.0,
        };
        assert_eq!(stats.variant_kl, Some(kl));
        assert_eq!(stats.delta_nll, vec![0.0, 0.0]);
        assert_eq!((stats.prompts, stats.rows), (2, 4));
    }

    #[test]
    fn p999_is_the_nearest_rank() {
        let kl = kl_summary((1..=2000).map(f64::from)).unwrap();
        assert_eq!((kl.p999, kl.max, kl.mean), (1998.0, 2000.0, 1000.5));
        assert_eq!(kl_summary(std::iter::empty()), None);
    }

    #[test]
    fn errors_of_zero_give_defined_z() {
        let stats = ConfigStats::of(&[prompt("a", &[(0.0, 0.0, 0)])]).unwrap();
        assert_eq!(stats.max_z.unwrap().z, 0.0);
        let stats = ConfigStats::of(&[prompt("a", &[(0.0, 1e-9, 0)])]).unwrap();
        assert_eq!(stats.max_z.unwrap().z, f64::INFINITY);
        let twice = ConfigStats::of(&[prompt("a", &[]), prompt("a", &[])]);
        assert_eq!(
            twice,
            Err(NumericsError::DuplicatePrompt {
                prompt: "a".to_owned()
            })
        );
    }

    #[test]
    fn infinite_values_survive_a_verdict_file() {
        let stats = ConfigStats::of(&[prompt("a", &[(0.0, 0.5, 0)])]).unwrap();
        let text = serde_json::to_string(&stats).unwrap();
        assert!(text.contains(r#""z":"inf""#), "{text}");
        assert_eq!(serde_json::from_str::<ConfigStats>(&text).unwrap(), stats);
    }
}
