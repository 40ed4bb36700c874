//! The differences of a comparison over all its prompts.

use serde::{Deserialize, Serialize};

use super::{Divergence, Flip, RowDelta};
use crate::numerics::{KlSummary, RowLocus, kl_summary, rms};

/// The compared rows of one prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptDeltas {
    /// Name of the prompt, unique within a comparison.
    pub prompt: String,
    /// Its rows.
    pub rows: Vec<RowDelta>,
    /// Where two continuations parted, if they did.
    pub divergence: Option<Divergence>,
}

impl PromptDeltas {
    /// Rows without a continuation.
    pub fn new(prompt: impl Into<String>, rows: Vec<RowDelta>) -> PromptDeltas {
        PromptDeltas {
            prompt: prompt.into(),
            rows,
            divergence: None,
        }
    }

    /// Mean over rows of `NLL(b) - NLL(a)` of the token that stands there, nats per token.
    fn delta_nll(&self) -> Option<f64> {
        let deltas: Vec<f64> = self.rows.iter().filter_map(|r| r.delta_logprob).collect();
        (!deltas.is_empty()).then(|| -deltas.iter().sum::<f64>() / deltas.len() as f64)
    }
}

/// Rows whose most likely token changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flips {
    /// Rows in which the first side's preference is beyond the margin.
    pub decidable_rows: u64,
    /// Flips that both sides call a tie.
    pub near_ties: u64,
    /// All others. Must be 0.
    pub real: u64,
    /// The first real one.
    pub first_real: Option<RowLocus>,
    /// The widest margin of a near tie, nats; None without one.
    #[serde(with = "crate::real::option")]
    pub widest_tie: Option<f64>,
}

/// Everything the rules look at, and what is reported beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteStats {
    /// Prompts that have rows.
    pub prompts: usize,
    /// Rows compared.
    pub rows: u64,
    /// Rows with a log-probability that is not finite.
    pub not_finite: u64,
    /// Smallest divergence of a row that the lists allow, over rows, nats; None without rows.
    pub kl: Option<KlSummary>,
    /// Mean over rows of the probability that lies outside both lists.
    #[serde(with = "crate::real::option")]
    pub unseen: Option<f64>,
    /// RMS over rows of the change of probability of the token that stands there.
    #[serde(with = "crate::real::option")]
    pub rms_delta_p: Option<f64>,
    /// RMS over rows of the change of its log-probability, nats.
    #[serde(with = "crate::real::option")]
    pub rms_delta_logprob: Option<f64>,
    /// Largest change of its log-probability, nats.
    #[serde(with = "crate::real::option")]
    pub max_delta_logprob: Option<f64>,
    /// Mean share of the first side's most likely tokens that the second lists too.
    #[serde(with = "crate::real::option")]
    pub overlap: Option<f64>,
    /// Mean share of pairs of tokens that both rank alike.
    #[serde(with = "crate::real::option")]
    pub concordance: Option<f64>,
    /// Changes of the most likely token.
    pub flips: Flips,
    /// By prompt: `NLL(b) - NLL(a)`, nats per token.
    #[serde(with = "crate::real::list")]
    pub delta_nll: Vec<f64>,
    /// Continuations that parted, in the order of the prompts.
    pub divergences: Vec<Divergence>,
}

impl RemoteStats {
    /// The statistics of one comparison.
    pub fn of(prompts: &[PromptDeltas]) -> RemoteStats {
        let rows = || prompts.iter().flat_map(|p| &p.rows);
        RemoteStats {
            prompts: prompts.iter().filter(|p| !p.rows.is_empty()).count(),
            rows: rows().count() as u64,
            not_finite: rows().filter(|r| r.not_finite).count() as u64,
            kl: kl_summary(rows().map(|r| r.kl)),
            unseen: mean(rows().map(|r| r.unseen)),
            rms_delta_p: rms(rows().filter_map(|r| r.delta_p)),
            rms_delta_logprob: rms(rows().filter_map(|r| r.delta_logprob)),
            max_delta_logprob: rows()
                .filter_map(|r| r.delta_logprob)
                .map(f64::abs)
                .reduce(f64::max),
            overlap: mean(rows().map(|r| r.overlap)),
            concordance: mean(rows().filter_map(|r| r.concordance)),
            flips: flips(prompts),
            delta_nll: prompts.iter().filter_map(PromptDeltas::delta_nll).collect(),
            divergences: prompts
                .iter()
                .filter_map(|p| p.divergence.clone())
                .collect(),
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, n), v| (sum + v, n + 1));
    (count > 0).then(|| sum / count as f64)
}

fn flips(prompts: &[PromptDeltas]) -> Flips {
    let mut flips = Flips::default();
    for prompt in prompts {
        for row in &prompt.rows {
            flips.decidable_rows += u64::from(row.decidable);
            match row.flip {
                None => {}
                Some(Flip::NearTie { margin }) => {
                    flips.near_ties += 1;
                    flips.widest_tie = Some(flips.widest_tie.unwrap_or(0.0).max(margin));
                }
                Some(Flip::Real { .. }) => {
                    flips.real += 1;
                    flips.first_real.get_or_insert_with(|| RowLocus {
                        prompt: prompt.prompt.clone(),
                        position: row.position,
                    });
                }
            }
        }
    }
    flips
}
