//! From captured logits to the statistics of one configuration.
//!
//! A row of the vocabulary is scored in f64 with an exponential for each entry, which costs more
//! than computing it. So the reference side of a row is prepared once for every variant, the
//! monolithic pass is scored once, and a row whose bits equal the monolithic pass's takes its
//! score.

use anyhow::{Context, Result};
use pb_contract::TokenId;
use pb_judge::numerics::{
    ConfigStats, ConfigVerdict, Limits, NumericsError, PromptScores, ReferenceRow, RowScore,
    judge_run,
};

use super::capture::{Captured, Variant};

/// Rows that enter a prompt's error ratio, at least: the ratio of one or two rows' errors is
/// mostly chance. Single rows are what z is for.
const RATIO_ROWS: usize = 8;

/// `f(0), f(1), ..., f(n - 1)` on some threads, in order.
fn in_parallel<R: Send>(threads: usize, n: usize, f: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let share = n.div_ceil(threads.max(1)).max(1);
    let f = &f;
    std::thread::scope(|scope| {
        let worker = |from: usize| {
            let range = from..(from + share).min(n);
            scope.spawn(move || range.map(f).collect::<Vec<R>>())
        };
        let workers: Vec<_> = (0..n).step_by(share).map(worker).collect();
        // OK because a panic of a worker is a bug that must not be hidden.
        workers
            .into_iter()
            .flat_map(|w| w.join().expect("a scoring thread panicked"))
            .collect()
    })
}

/// The reference side of one prompt.
pub(super) struct Reference<'a> {
    rows: Vec<ReferenceRow<'a>>,
    threads: usize,
}

impl<'a> Reference<'a> {
    /// Prepares every position of `truth`.
    pub(super) fn new(
        prompt: &[TokenId],
        truth: &'a Captured<f64>,
        threads: usize,
    ) -> Result<Self> {
        let row = |position: usize| {
            let logits = truth.rows[position]
                .as_ref()
                .context("a reference row is missing")?;
            Ok(ReferenceRow::new(
                logits,
                prompt.get(position + 1).copied(),
            )?)
        };
        let rows = in_parallel(threads, prompt.len(), row)
            .into_iter()
            .collect::<Result<_>>()?;
        Ok(Reference { rows, threads })
    }

    /// Scores the monolithic pass at every position.
    pub(super) fn score_monolithic(&self, mono: &Captured<f32>) -> Result<Vec<RowScore>> {
        let row = |position: usize| {
            let logits = mono.rows[position]
                .as_ref()
                .context("a monolithic row is missing")?;
            Ok(self.rows[position].score(logits)?)
        };
        in_parallel(self.threads, self.rows.len(), row)
            .into_iter()
            .collect()
    }
}

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
        reference: &Reference<'_>,
        (mono, mono_scores): (&Captured<f32>, &[RowScore]),
        got: &Captured<f32>,
    ) -> Result<()> {
        let n = reference.rows.len();
        let first = got.rows.iter().position(Option::is_some);
        let boundary = match self.variant {
            Variant::Chunk(size) => size,
            Variant::Cached => first.context("the cached run computed nothing")?,
            Variant::Monolithic => n,
        };
        let boundary = boundary.min(n.saturating_sub(RATIO_ROWS));
        let score = |position: usize| -> Option<Result<RowScore, NumericsError>> {
            let row = got.rows[position].as_ref()?;
            let same = |want: &Vec<f32>| {
                want.iter()
                    .zip(row)
                    .all(|(a, b)| a.to_bits() == b.to_bits())
            };
            if mono.rows[position].as_ref().is_some_and(same) {
                return Some(Ok(mono_scores[position]));
            }
            Some(reference.rows[position].score(row))
        };
        let mut scores = PromptScores::new(index.to_string(), boundary as u32);
        let rows = in_parallel(reference.threads, n, score);
        for (position, score) in rows.into_iter().enumerate() {
            let Some(score) = score else { continue };
            let summary = reference.rows[position].summary();
            scores.push(position as u32, summary, mono_scores[position], score?)?;
        }
        self.prompts.push(scores);
        Ok(())
    }
}

/// Judges the configurations of a tier together.
pub(super) fn judge(scores: &[Scores], limits: &Limits) -> Result<Vec<ConfigVerdict>> {
    let configs = scores
        .iter()
        .map(|s| Ok((s.variant.to_string(), ConfigStats::of(&s.prompts)?)))
        .collect::<Result<Vec<_>>>()?;
    Ok(judge_run(configs, limits)?)
}
