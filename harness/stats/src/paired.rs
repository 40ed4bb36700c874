//! Paired analysis over blocks.
//!
//! Arms are interleaved, so drift of the machine hits both arms of a block alike and cancels in
//! the block's difference. One block is one observation however many tokens it holds: treating
//! tokens as independent is what makes noise look significant.

use crate::dist::{t_quantile, t_two_sided_p};
use crate::error::{StatError, check_finite, check_open_unit, check_sample};
use crate::moments::Moments;

/// A point with its interval, in the unit of the data (or a plain ratio for ratios).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Point estimate.
    pub point: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Standard error; for a ratio, of its logarithm.
    pub se: f64,
    /// Independent units used.
    pub n: usize,
    /// Confidence level of the interval, such as 0.95.
    pub confidence: f64,
}

impl Estimate {
    /// The same interval on the exponential scale; `se` stays that of the logarithm.
    pub(crate) fn exp(self) -> Self {
        Self {
            point: self.point.exp(),
            low: self.low.exp(),
            high: self.high.exp(),
            ..self
        }
    }

    /// Whether `value` lies outside the closed interval.
    pub fn excludes(&self, value: f64) -> bool {
        value < self.low || value > self.high
    }
}

/// A two-sided one-sample t-test of "the mean is zero".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TTest {
    /// Mean of the values.
    pub mean: f64,
    /// Standard error of the mean.
    pub se: f64,
    /// The statistic; infinite when a non-zero mean has no spread.
    pub t: f64,
    /// Degrees of freedom.
    pub df: f64,
    /// Two-sided p-value.
    pub p: f64,
}

/// Mean with a t interval over independent units. Needs two finite values.
pub fn mean_interval(values: &[f64], confidence: f64) -> Result<Estimate, StatError> {
    check_open_unit("confidence", confidence)?;
    let test = paired_t_test(values)?;
    let reach = -t_quantile(0.5 * (1.0 - confidence), test.df) * test.se;
    Ok(Estimate {
        point: test.mean,
        low: test.mean - reach,
        high: test.mean + reach,
        se: test.se,
        n: values.len(),
        confidence,
    })
}

/// Mean of `b - a` over blocks with a paired t interval. Needs two blocks, all values finite.
pub fn paired_difference(a: &[f64], b: &[f64], confidence: f64) -> Result<Estimate, StatError> {
    mean_interval(&differences(a, b)?, confidence)
}

/// Geometric mean of `b / a` over blocks with a paired t interval on logarithms. Needs two blocks
/// and positive values; a zero is the caller's to exclude and to count.
pub fn paired_ratio(a: &[f64], b: &[f64], confidence: f64) -> Result<Estimate, StatError> {
    mean_interval(&log_ratios(a, b)?, confidence).map(Estimate::exp)
}

/// Two-sided t-test of "the mean difference is zero" on per-block differences (or log ratios).
///
/// Without any spread p is 1 for a zero mean and 0 for any other: a simulated run repeats exactly,
/// and then a difference is certain.
pub fn paired_t_test(differences: &[f64]) -> Result<TTest, StatError> {
    check_sample(differences, 2)?;
    let moments = Moments::of(differences);
    let (Some(mean), Some(se)) = (moments.mean(), moments.se()) else {
        return Err(StatError::TooFew {
            got: differences.len(),
            need: 2,
        });
    };
    if !se.is_finite() {
        return Err(StatError::Degenerate);
    }
    let df = (differences.len() - 1) as f64;
    let t = if mean == 0.0 { 0.0 } else { mean / se };
    Ok(TTest {
        mean,
        se,
        t,
        df,
        p: t_two_sided_p(t, df),
    })
}

/// Per-block `b - a`.
pub(crate) fn differences(a: &[f64], b: &[f64]) -> Result<Vec<f64>, StatError> {
    check_pairs(a, b)?;
    Ok(a.iter().zip(b).map(|(a, b)| b - a).collect())
}

/// Per-block `ln b - ln a`.
pub(crate) fn log_ratios(a: &[f64], b: &[f64]) -> Result<Vec<f64>, StatError> {
    check_pairs(a, b)?;
    if let Some(index) = a.iter().zip(b).position(|(&a, &b)| a <= 0.0 || b <= 0.0) {
        return Err(StatError::NotPositive { index });
    }
    Ok(a.iter().zip(b).map(|(a, b)| b.ln() - a.ln()).collect())
}

fn check_pairs(a: &[f64], b: &[f64]) -> Result<(), StatError> {
    if a.len() != b.len() {
        return Err(StatError::LengthMismatch {
            a: a.len(),
            b: b.len(),
        });
    }
    check_finite(a)?;
    check_finite(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    /// Student's sleep data (1908): extra hours under two drugs, ten patients.
    const DRUG_1: [f64; 10] = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0];
    const DRUG_2: [f64; 10] = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4];

    #[test]
    fn sleep_data_as_published() {
        // R: t.test(extra ~ group, paired = TRUE): t = 4.0621, df = 9, p = 0.002833, mean 1.58,
        // 95 % interval 0.7001142 to 2.4598858.
        let estimate = paired_difference(&DRUG_1, &DRUG_2, 0.95).unwrap();
        close(estimate.point, 1.58, 1e-14, 0.0);
        close(estimate.low, 0.700_114_2, 1e-7, 0.0);
        close(estimate.high, 2.459_885_8, 1e-7, 0.0);
        assert_eq!((estimate.n, estimate.confidence), (10, 0.95));
        let test = paired_t_test(&differences(&DRUG_1, &DRUG_2).unwrap()).unwrap();
        close(test.t, 4.0621, 1e-5, 0.0);
        close(test.p, 0.002_833, 0.0, 5e-7);
        assert!(estimate.excludes(0.0) && !estimate.excludes(1.0));
    }

    #[test]
    fn ratio_is_the_geometric_mean_and_reverses() {
        // Ratios 1/2 and 1/8: geometric mean 1/4; sd of ln is ln 2 * sqrt(2), se = ln 2;
        // t(0.975, 1) = 12.7062.
        let r = paired_ratio(&[4.0, 8.0], &[2.0, 1.0], 0.95).unwrap();
        close(r.point, 0.25, 1e-14, 0.0);
        close(r.se, 2.0_f64.ln(), 1e-14, 0.0);
        close(r.high, 0.25 * 2.0_f64.powf(12.706_204_736), 1e-8, 0.0);
        let back = paired_ratio(&[2.0, 1.0], &[4.0, 8.0], 0.95).unwrap();
        close(back.point, 4.0, 1e-14, 0.0);
        close(back.low, 1.0 / r.high, 1e-12, 0.0);
    }

    #[test]
    fn no_spread_gives_certainty_or_nothing() {
        let same = paired_t_test(&[0.0, 0.0, 0.0]).unwrap();
        assert_eq!((same.t, same.p), (0.0, 1.0));
        let shifted = paired_t_test(&[0.5, 0.5]).unwrap();
        assert_eq!((shifted.t, shifted.p), (f64::INFINITY, 0.0));
    }

    #[test]
    fn bad_input_is_an_error() {
        let one = StatError::TooFew { got: 1, need: 2 };
        assert_eq!(paired_difference(&[1.0], &[2.0], 0.95), Err(one));
        let lengths = StatError::LengthMismatch { a: 2, b: 1 };
        assert_eq!(paired_difference(&[1.0, 2.0], &[2.0], 0.95), Err(lengths));
        let zero = StatError::NotPositive { index: 1 };
        assert_eq!(paired_ratio(&[1.0, 2.0], &[2.0, 0.0], 0.95), Err(zero));
        let nan = StatError::NotFinite { index: 0 };
        assert_eq!(paired_ratio(&[f64::NAN, 2.0], &[2.0, 1.0], 0.95), Err(nan));
        let level = StatError::BadParameter {
            name: "confidence",
            value: 1.0,
        };
        assert_eq!(mean_interval(&[1.0, 2.0], 1.0), Err(level));
        assert_eq!(paired_t_test(&[1e308, -1e308]), Err(StatError::Degenerate));
    }
}
