//! The scores of one prompt under one configuration, and its error ratio rho.

use serde::{Deserialize, Serialize};

use super::{Logit, NumericsError, ReferenceRow, ReferenceSummary, RowScore};

/// One position, scored for the monolithic pass and for the variant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoredRow {
    /// Position within the prompt, from 0.
    pub position: u32,
    /// The reference.
    pub reference: ReferenceSummary,
    /// The monolithic pass against it.
    pub mono: RowScore,
    /// The variant against it.
    pub variant: RowScore,
}

/// `rho = ln(|variant - reference| / |mono - reference|)` of one prompt, a plain logarithm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptRho {
    /// The prompt.
    pub prompt: String,
    /// The ratio's logarithm. 0 when both errors are 0, +inf when only the monolithic one is.
    #[serde(with = "crate::real")]
    pub rho: f64,
    /// Rows it is taken over.
    pub rows: usize,
    /// True: the rows after the first boundary. False: no row lies there (one chunk took the
    /// whole prompt), so all rows were taken.
    pub after_boundary: bool,
}

/// Scored rows of one prompt, in ascending position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptScores {
    /// Name of the prompt, unique within a configuration.
    pub prompt: String,
    /// First position that the variant computes differently: the size of the first chunk, or the
    /// number of cached tokens.
    pub first_boundary: u32,
    /// The rows. A cached variant has none for the positions that it did not compute.
    pub rows: Vec<ScoredRow>,
}

impl PromptScores {
    /// A prompt without rows.
    pub fn new(prompt: impl Into<String>, first_boundary: u32) -> Self {
        Self {
            prompt: prompt.into(),
            first_boundary,
            rows: Vec::new(),
        }
    }

    /// Adds a row scored elsewhere; scoring the monolithic pass once serves every variant. Errors
    /// unless positions ascend.
    pub fn push(
        &mut self,
        position: u32,
        reference: ReferenceSummary,
        mono: RowScore,
        variant: RowScore,
    ) -> Result<(), NumericsError> {
        if let Some(last) = self.rows.last().filter(|last| last.position >= position) {
            let (prompt, previous) = (self.prompt.clone(), last.position);
            return Err(NumericsError::PositionOrder {
                prompt,
                position,
                previous,
            });
        }
        self.rows.push(ScoredRow {
            position,
            reference,
            mono,
            variant,
        });
        Ok(())
    }

    /// Scores and adds one row of logits `[vocabulary]`. Errors as [`ReferenceRow::score`] and
    /// [`PromptScores::push`] do.
    pub fn push_logits<M: Logit, V: Logit>(
        &mut self,
        position: u32,
        reference: &ReferenceRow<'_>,
        mono: &[M],
        variant: &[V],
    ) -> Result<(), NumericsError> {
        let (mono, variant) = (reference.score(mono)?, reference.score(variant)?);
        self.push(position, reference.summary(), mono, variant)
    }

    /// The prompt's error ratio; None without rows.
    pub fn rho(&self) -> Option<PromptRho> {
        let start = self
            .rows
            .partition_point(|row| row.position < self.first_boundary);
        let after_boundary = start < self.rows.len();
        let rows = if after_boundary {
            &self.rows[start..]
        } else {
            &self.rows[..]
        };
        if rows.is_empty() {
            return None;
        }
        // All rows have the same width, so mean squares may stand for sums of squares.
        let energy =
            |pick: fn(&ScoredRow) -> f64| -> f64 { rows.iter().map(|row| pick(row).powi(2)).sum() };
        let (mono, variant) = (
            energy(|r| r.mono.rms_error),
            energy(|r| r.variant.rms_error),
        );
        let rho = if variant == mono {
            0.0
        } else {
            0.5 * (variant / mono).ln()
        };
        let prompt = self.prompt.clone();
        Some(PromptRho {
            prompt,
            rho,
            rows: rows.len(),
            after_boundary,
        })
    }

    /// Mean over rows with a next token of `NLL(variant) - NLL(mono)`, nats per token; None
    /// without such rows.
    pub fn delta_nll(&self) -> Option<f64> {
        let deltas: Vec<f64> = self
            .rows
            .iter()
            .filter_map(|row| Some(row.variant.nll? - row.mono.nll?))
            .collect();
        (!deltas.is_empty()).then(|| deltas.iter().sum::<f64>() / deltas.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(rms_error: f64, nll: Option<f64>) -> RowScore {
        let (max_abs_error, kl, delta_p) = (rms_error, 0.0, nll.map(|_| 0.0));
        RowScore {
            rms_error,
            max_abs_error,
            kl,
            top1: 0,
            nll,
            delta_p,
            not_finite: 0,
        }
    }

    fn prompt(boundary: u32, rows: &[(f64, f64)]) -> PromptScores {
        let mut prompt = PromptScores::new("p", boundary);
        let reference = ReferenceSummary {
            top1: 0,
            top2_gap: 1.0,
            nll: None,
        };
        for (position, &(mono, variant)) in rows.iter().enumerate() {
            prompt
                .push(
                    position as u32,
                    reference,
                    score(mono, None),
                    score(variant, None),
                )
                .unwrap();
        }
        prompt
    }

    #[test]
    fn rho_by_hand_over_rows_after_the_boundary() {
        // Rows 1 and 2: mono 3, 4 -> 5; variant 6, 8 -> 10: rho = ln 2. Row 0 must not count.
        let rho = prompt(1, &[(1.0, 100.0), (3.0, 6.0), (4.0, 8.0)])
            .rho()
            .unwrap();
        assert!((rho.rho - std::f64::consts::LN_2).abs() < 1e-15);
        assert_eq!((rho.rows, rho.after_boundary), (2, true));
    }

    #[test]
    fn one_chunk_over_everything_takes_all_rows() {
        let rho = prompt(7, &[(3.0, 6.0), (4.0, 8.0)]).rho().unwrap();
        assert!((rho.rho - std::f64::consts::LN_2).abs() < 1e-15);
        assert_eq!((rho.rows, rho.after_boundary), (2, false));
        assert_eq!(prompt(7, &[]).rho(), None);
    }

    #[test]
    fn zero_errors_are_defined() {
        assert_eq!(prompt(0, &[(0.0, 0.0)]).rho().unwrap().rho, 0.0);
        assert_eq!(prompt(0, &[(0.0, 1.0)]).rho().unwrap().rho, f64::INFINITY);
        assert_eq!(
            prompt(0, &[(1.0, 0.0)]).rho().unwrap().rho,
            f64::NEG_INFINITY
        );
    }

    #[test]
    fn delta_nll_skips_rows_without_a_next_token() {
        let mut p = PromptScores::new("p", 0);
        let reference = ReferenceSummary {
            top1: 0,
            top2_gap: 1.0,
            nll: None,
        };
        p.push(0, reference, score(0.0, Some(1.0)), score(0.0, Some(1.5)))
            .unwrap();
        p.push(1, reference, score(0.0, Some(2.0)), score(0.0, Some(1.9)))
            .unwrap();
        p.push(2, reference, score(0.0, None), score(0.0, None))
            .unwrap();
        assert!((p.delta_nll().unwrap() - 0.2).abs() < 1e-15);
        let again = p.push(2, reference, score(0.0, None), score(0.0, None));
        let error = NumericsError::PositionOrder {
            prompt: "p".to_owned(),
            position: 2,
            previous: 2,
        };
        assert_eq!(again, Err(error));
    }
}
