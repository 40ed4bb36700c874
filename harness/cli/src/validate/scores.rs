//! From captured logits to the statistics of one configuration.

use anyhow::{Context, Result};
use pb_contract::TokenId;
use pb_judge::numerics::{
    ConfigStats, ConfigVerdict, Limits, PromptScores, ReferenceRow, judge_run,
};

use super::capture::{Captured, Variant};

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

/// Judges the configurations of a run together, by the limits for f32.
pub(super) fn judge(scores: Vec<Scores>) -> Result<Vec<ConfigVerdict>> {
    let configs = scores
        .into_iter()
        .map(|s| Ok((s.variant.to_string(), ConfigStats::of(&s.prompts)?)))
        .collect::<Result<Vec<_>>>()?;
    Ok(judge_run(configs, &Limits::default())?)
}
