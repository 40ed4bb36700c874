//! From captured logits to the statistics of one configuration.

use anyhow::{Context, Result};
use pb_contract::TokenId;
use pb_judge::numerics::{
    BenignVariant, ConfigStats, ConfigVerdict, Limits, PromptScores, ReferenceRow, calibrate,
    judge_run,
};

use super::capture::{Captured, Variant};

/// Rows that enter a prompt's error ratio, at least.
const RATIO_ROWS: usize = 8;

/// The scored prompts of one configuration.
pub(super) struct Scores {
    variant: Variant,
    prompts: Vec<PromptScores>,
}

impl Scores {
    pub(super) fn new(variant: &Variant) -> Self {
        Scores {
            variant: *variant,
            prompts: Vec::new(),
        }
    }

    pub(super) fn variant(&self) -> Variant {
        self.variant
    }

    /// Scores the rows of prompt number `index` that the variant computed.
    pub(super) fn add(
        &mut self,
        index: usize,
        prompt: &[TokenId],
        truth: &Captured<f64>,
        mono: &Captured<f32>,
        got: &Captured<f32>,
    ) -> Result<()> {
        let computed = |rows: &[Option<Vec<f32>>]| rows.iter().position(Option::is_some);
        let boundary = match self.variant {
            Variant::Chunk(size) => size,
            Variant::Cached => computed(&got.rows).context("the cached run computed nothing")?,
            Variant::Monolithic => prompt.len(),
        };
        // The ratio of one or two rows' errors is mostly chance, so at least a few rows enter it.
        // Single rows are what z is for.
        let boundary = boundary.min(prompt.len().saturating_sub(RATIO_ROWS));
        let mut scores = PromptScores::new(index.to_string(), boundary as u32);
        for (position, truth) in truth.rows.iter().enumerate() {
            let rows = (truth, &mono.rows[position], &got.rows[position]);
            let (Some(truth), Some(mono), Some(got)) = rows else {
                continue;
            };
            let reference = ReferenceRow::new(truth, prompt.get(position + 1).copied())?;
            scores.push_logits(position as u32, &reference, mono, got)?;
        }
        self.prompts.push(scores);
        Ok(())
    }
}

/// Margin of the mean change of NLL where activations are rounded to bf16, nats per token: the
/// size that published bf16 runs are held to.
const BF16_NLL_MARGIN: f64 = 5e-3;

fn stats(scores: &[Scores]) -> Result<Vec<(String, ConfigStats)>> {
    scores
        .iter()
        .map(|s| Ok((s.variant.to_string(), ConfigStats::of(&s.prompts)?)))
        .collect()
}

/// Judges the configurations of a run together.
pub(super) fn judge(scores: &[Scores], limits: &Limits) -> Result<Vec<ConfigVerdict>> {
    Ok(judge_run(stats(scores)?, limits)?)
}

fn base() -> Limits {
    Limits {
        delta_nll_margin: BF16_NLL_MARGIN,
        ..Limits::default()
    }
}

/// Limits from correct variants.
pub(super) fn limits_from(scores: &[Scores]) -> Result<Limits> {
    let variant = |(name, stats)| BenignVariant { name, stats };
    let ensemble: Vec<BenignVariant> = stats(scores)?.into_iter().map(variant).collect();
    Ok(calibrate(&ensemble, &base())?)
}

/// Judges each configuration by limits from all the others, so that none sets its own.
pub(super) fn judge_by_others(scores: &[Scores]) -> Result<Vec<ConfigVerdict>> {
    let stats = stats(scores)?;
    let mut verdicts = Vec::new();
    for (index, (name, own)) in stats.iter().enumerate() {
        let others: Vec<BenignVariant> = stats
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(|(_, (name, stats))| BenignVariant {
                name: name.clone(),
                stats: stats.clone(),
            })
            .collect();
        let limits = calibrate(&others, &base())?;
        verdicts.extend(judge_run(vec![(name.clone(), own.clone())], &limits)?);
    }
    Ok(verdicts)
}
