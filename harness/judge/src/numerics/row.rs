//! One row of logits against its f64 reference.
//!
//! KL divergences of a correct f32 engine are near 1e-13, far below what subtracting two
//! log-softmaxes resolves. With `d = x - reference` and `mu` its mean under the reference
//! distribution p, `KL = ln(1 + sum p (exp(d - mu) - 1 - (d - mu)))` exactly: every term is
//! non-negative and nothing cancels.

use serde::{Deserialize, Serialize};

use super::NumericsError;

/// Above this deviation the closed form may overflow and the plain form is accurate anyway.
const CLOSED_FORM_LIMIT: f64 = 30.0;

/// A floating-point type that logits come in.
pub trait Logit: Copy + sealed::Sealed {
    /// The value in f64, exactly.
    fn real(self) -> f64;
    /// The bit pattern, zero-extended.
    fn bits(self) -> u64;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

impl Logit for f32 {
    fn real(self) -> f64 {
        f64::from(self)
    }
    fn bits(self) -> u64 {
        u64::from(self.to_bits())
    }
}

impl Logit for f64 {
    fn real(self) -> f64 {
        self
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

/// What is kept of a reference row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceSummary {
    /// Most likely token; the lowest id wins a tie.
    pub top1: u32,
    /// Its logit minus the runner-up's, in nats, at least 0.
    pub top2_gap: f64,
    /// Negative log-likelihood of the true next token in nats; None on a prompt's last row.
    pub nll: Option<f64>,
}

/// What is kept of a compared row: its deviations from the reference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowScore {
    /// Root mean square over the vocabulary of `x - reference`, in logits.
    #[serde(with = "crate::real")]
    pub rms_error: f64,
    /// Largest `|x - reference|`, in logits.
    #[serde(with = "crate::real")]
    pub max_abs_error: f64,
    /// `KL(reference || x)` in nats, never negative.
    #[serde(with = "crate::real")]
    pub kl: f64,
    /// Most likely token; the lowest id wins a tie.
    pub top1: u32,
    /// Negative log-likelihood of the true next token, in nats; None on a prompt's last row.
    #[serde(with = "crate::real::option")]
    pub nll: Option<f64>,
    /// Probability of the true next token minus the reference's; None on a prompt's last row.
    #[serde(with = "crate::real::option")]
    pub delta_p: Option<f64>,
    /// Logits that are NaN or infinite. With any, the errors above are infinite.
    pub not_finite: u32,
}

/// A row is decidable when its top-2 gap exceeds six standard deviations of the noise in a
/// difference of two logits: `6 * sqrt(2) * sigma_row`. `sigma_row` is the RMS error of the
/// monolithic pass on that very row, so the rule scales with dtype and model.
pub fn decidable(top2_gap: f64, mono_rms_error: f64) -> bool {
    top2_gap > 6.0 * std::f64::consts::SQRT_2 * mono_rms_error
}

/// A reference row prepared for comparisons: its softmax is computed once for all of them.
#[derive(Debug, Clone)]
pub struct ReferenceRow<'a> {
    logits: &'a [f64],
    probability: Vec<f64>,
    log_sum_exp: f64,
    next_token: Option<usize>,
    summary: ReferenceSummary,
}

impl<'a> ReferenceRow<'a> {
    /// Prepares the logits `[vocabulary]` of one position. `next_token` is the prompt's token at
    /// the following position, None for the last row. Errors: fewer than two columns, a logit that
    /// is not finite, a token outside the vocabulary.
    pub fn new(logits: &'a [f64], next_token: Option<u32>) -> Result<Self, NumericsError> {
        let columns = logits.len();
        if columns < 2 || u32::try_from(columns).is_err() {
            return Err(NumericsError::TooFewColumns { columns });
        }
        if let Some(column) = logits.iter().position(|v| !v.is_finite()) {
            return Err(NumericsError::ReferenceNotFinite { column });
        }
        if let Some(token) = next_token.filter(|&token| token as usize >= columns) {
            return Err(NumericsError::TokenOutOfRange { token, columns });
        }
        let (top1, top2_gap) = top_two(logits);
        let peak = logits[top1];
        let mut probability: Vec<f64> = logits.iter().map(|v| (v - peak).exp()).collect();
        let sum: f64 = probability.iter().sum();
        probability.iter_mut().for_each(|p| *p /= sum);
        let log_sum_exp = peak + sum.ln();
        let next_token = next_token.map(|token| token as usize);
        let nll = next_token.map(|token| log_sum_exp - logits[token]);
        let summary = ReferenceSummary {
            top1: top1 as u32,
            top2_gap,
            nll,
        };
        Ok(Self {
            logits,
            probability,
            log_sum_exp,
            next_token,
            summary,
        })
    }

    /// The numbers worth keeping once the row is gone.
    pub fn summary(&self) -> ReferenceSummary {
        self.summary
    }

    /// Scores another computation of the same row. A value that is not finite is a finding (the
    /// errors become infinite); only a different vocabulary is an error.
    pub fn score<L: Logit>(&self, logits: &[L]) -> Result<RowScore, NumericsError> {
        if logits.len() != self.logits.len() {
            let (expected, got) = (self.logits.len(), logits.len());
            return Err(NumericsError::WidthMismatch { expected, got });
        }
        let not_finite = logits.iter().filter(|v| !v.real().is_finite()).count() as u32;
        if not_finite > 0 {
            return Ok(self.broken(logits, not_finite));
        }
        let mut square_sum = 0.0;
        let mut max_abs_error = 0.0_f64;
        let mut mean_shift = 0.0;
        let mut top1 = 0;
        for (column, (x, reference)) in logits.iter().zip(self.logits).enumerate() {
            let error = x.real() - reference;
            square_sum += error * error;
            max_abs_error = max_abs_error.max(error.abs());
            mean_shift += self.probability[column] * error;
            if x.real() > logits[top1].real() {
                top1 = column;
            }
        }
        let (kl, log_sum_exp) = if max_abs_error + mean_shift.abs() < CLOSED_FORM_LIMIT {
            let kl = self.kl_closed(logits, mean_shift);
            (kl, self.log_sum_exp + mean_shift + kl)
        } else {
            self.kl_plain(logits, logits[top1].real())
        };
        let nll = self
            .next_token
            .map(|token| log_sum_exp - logits[token].real());
        let delta_p = self
            .next_token
            .zip(nll)
            .map(|(token, nll)| (-nll).exp() - self.probability[token]);
        Ok(RowScore {
            rms_error: (square_sum / logits.len() as f64).sqrt(),
            max_abs_error,
            kl,
            top1: top1 as u32,
            nll,
            delta_p,
            not_finite,
        })
    }

    /// The form of the module's header: exact for tiny deviations.
    fn kl_closed<L: Logit>(&self, logits: &[L], mean_shift: f64) -> f64 {
        let mut sum = 0.0;
        for ((x, reference), p) in logits.iter().zip(self.logits).zip(&self.probability) {
            let u = (x.real() - reference) - mean_shift;
            sum += p * exp_minus_tangent(u);
        }
        sum.ln_1p()
    }

    /// The definition, for large deviations. Returns the divergence and x's log-sum-exp.
    fn kl_plain<L: Logit>(&self, logits: &[L], peak: f64) -> (f64, f64) {
        let sum: f64 = logits.iter().map(|x| (x.real() - peak).exp()).sum();
        let log_sum_exp = peak + sum.ln();
        let mut kl = 0.0;
        for ((x, reference), p) in logits.iter().zip(self.logits).zip(&self.probability) {
            if *p > 0.0 {
                kl += p * ((reference - self.log_sum_exp) - (x.real() - log_sum_exp));
            }
        }
        (kl.max(0.0), log_sum_exp)
    }

    fn broken<L: Logit>(&self, logits: &[L], not_finite: u32) -> RowScore {
        let mut top1 = 0;
        for (column, x) in logits.iter().enumerate() {
            if x.real() > logits[top1].real() || logits[top1].real().is_nan() {
                top1 = column;
            }
        }
        RowScore {
            rms_error: f64::INFINITY,
            max_abs_error: f64::INFINITY,
            kl: f64::INFINITY,
            top1: top1 as u32,
            nll: self.next_token.map(|_| f64::INFINITY),
            delta_p: self.next_token.map(|token| -self.probability[token]),
            not_finite,
        }
    }
}

/// `exp(u) - 1 - u`, non-negative. Near zero the difference `exp_m1(u) - u` has an error of about
/// `eps * |u|`, which would swamp the wanted `u^2 / 2`, so the series takes over.
fn exp_minus_tangent(u: f64) -> f64 {
    if u.abs() < 1e-2 {
        // The terms left out are below 2e-16 of the sum.
        let tail = 1.0 + u / 5.0 * (1.0 + u / 6.0 * (1.0 + u / 7.0 * (1.0 + u / 8.0)));
        0.5 * u * u * (1.0 + u / 3.0 * (1.0 + u / 4.0 * tail))
    } else {
        (u.exp_m1() - u).max(0.0)
    }
}

/// Index of the largest value (the first of equals) and its distance to the second largest.
fn top_two(logits: &[f64]) -> (usize, f64) {
    let mut best = 0;
    let mut second = f64::NEG_INFINITY;
    for (column, &value) in logits.iter().enumerate().skip(1) {
        if value > logits[best] {
            second = logits[best];
            best = column;
        } else if value > second {
            second = value;
        }
    }
    (best, logits[best] - second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64, relative: f64) {
        assert!(
            (got - want).abs() <= relative * want.abs(),
            "got {got:e}, want {want:e}"
        );
    }

    #[test]
    fn a_hand_worked_row() {
        // Reference (1/2, 1/4, 1/4), x (1/4, 1/2, 1/4): KL = 1/2 ln 2 - 1/4 ln 2 = ln(2)/4.
        let ln2 = std::f64::consts::LN_2;
        let reference = [2.0 * ln2, ln2, ln2];
        let row = ReferenceRow::new(&reference, Some(0)).unwrap();
        let summary = row.summary();
        assert_eq!(summary.top1, 0);
        close(summary.top2_gap, ln2, 1e-15);
        close(summary.nll.unwrap(), ln2, 1e-15);
        let score = row.score(&[ln2, 2.0 * ln2, ln2]).unwrap();
        close(score.kl, ln2 / 4.0, 1e-14);
        close(score.rms_error, ln2 * (2.0_f64 / 3.0).sqrt(), 1e-15);
        close(score.max_abs_error, ln2, 1e-15);
        assert_eq!((score.top1, score.not_finite), (1, 0));
        close(score.nll.unwrap(), 2.0 * ln2, 1e-14);
        close(score.delta_p.unwrap(), -0.25, 1e-14);
    }

    #[test]
    fn tiny_divergences_keep_their_digits() {
        // Uniform over two, logits moved apart by 2h: KL = ln cosh h, which is h^2/2 - h^4/12.
        for h in [1e-9_f64, 1e-7, 1e-4, 4e-3, 0.3] {
            let row = ReferenceRow::new(&[0.0, 0.0], None).unwrap();
            let score = row.score(&[h, -h]).unwrap();
            let want = if h < 1e-2 {
                h * h / 2.0 - h.powi(4) / 12.0 + h.powi(6) / 45.0
            } else {
                f64::cosh(h).ln()
            };
            close(score.kl, want, 1e-12);
            assert_eq!((score.nll, score.delta_p), (None, None));
        }
    }

    #[test]
    fn a_common_shift_changes_the_error_but_not_the_distribution() {
        let reference = [0.3, -1.2, 2.5, 0.0];
        let row = ReferenceRow::new(&reference, Some(1)).unwrap();
        for shift in [0.5, 100.0, -1000.0] {
            let score = row.score(&reference.map(|v| v + shift)).unwrap();
            assert!(score.kl < 1e-12, "{}", score.kl);
            close(score.rms_error, f64::abs(shift), 1e-12);
            close(score.nll.unwrap(), row.summary().nll.unwrap(), 1e-12);
        }
    }

    #[test]
    fn large_deviations_use_the_plain_form() {
        // Reference all but certain of 0 (logits 0, -800), x of 1 (0, 800): KL = 800.
        let row = ReferenceRow::new(&[0.0, -800.0], Some(0)).unwrap();
        let score = row.score(&[0.0, 800.0]).unwrap();
        close(score.kl, 800.0, 1e-14);
        close(score.nll.unwrap(), 800.0, 1e-14);
        close(score.delta_p.unwrap(), -1.0, 1e-14);
    }

    #[test]
    fn ties_go_to_the_lowest_id_and_gaps_count_them() {
        let row = ReferenceRow::new(&[1.0, 3.0, 3.0, 2.0], None).unwrap();
        assert_eq!((row.summary().top1, row.summary().top2_gap), (1, 0.0));
        assert_eq!(row.score(&[5.0_f32, 5.0, 1.0, 5.0]).unwrap().top1, 0);
        assert_eq!(top_two(&[3.0, 1.0, 2.0]), (0, 1.0));
    }

    #[test]
    fn not_finite_is_a_finding() {
        let row = ReferenceRow::new(&[0.0, 1.0, 2.0], Some(2)).unwrap();
        let score = row.score(&[f32::NAN, 1.0, f32::INFINITY]).unwrap();
        assert_eq!((score.not_finite, score.top1), (2, 2));
        assert!(score.rms_error.is_infinite() && score.kl.is_infinite());
    }

    #[test]
    fn bad_input_is_an_error() {
        let one = NumericsError::TooFewColumns { columns: 1 };
        assert_eq!(ReferenceRow::new(&[1.0], None).unwrap_err(), one);
        let nan = NumericsError::ReferenceNotFinite { column: 1 };
        assert_eq!(ReferenceRow::new(&[1.0, f64::NAN], None).unwrap_err(), nan);
        let token = NumericsError::TokenOutOfRange {
            token: 2,
            columns: 2,
        };
        assert_eq!(ReferenceRow::new(&[1.0, 2.0], Some(2)).unwrap_err(), token);
        let width = NumericsError::WidthMismatch {
            expected: 2,
            got: 3,
        };
        let row = ReferenceRow::new(&[1.0, 2.0], None).unwrap();
        assert_eq!(row.score(&[0.0_f32; 3]).unwrap_err(), width);
    }

    #[test]
    fn decidable_is_six_sigma_of_a_difference() {
        // 6 * sqrt 2 = 8.485...
        assert!(decidable(8.49, 1.0) && !decidable(8.48, 1.0));
        assert!(decidable(1e-12, 0.0) && !decidable(0.0, 0.0));
        assert!(!decidable(5.0, f64::INFINITY));
    }
}
