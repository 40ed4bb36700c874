//! Equivalence by two one-sided tests (TOST).
//!
//! "No significant difference" is the wrong test of sameness: with enough data it fails a correct
//! engine over a harmless 1e-3, with too little it passes a broken one. TOST asks for proof that
//! the mean lies inside a margin that was fixed beforehand.

use crate::dist::{t_quantile, t_upper_tail};
use crate::error::{StatError, check_open_unit};
use crate::paired::{differences, log_ratios, paired_t_test};

/// The outcome of two one-sided t-tests against the margin `(-delta, delta)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tost {
    /// The estimate tested.
    pub mean: f64,
    /// Its standard error.
    pub se: f64,
    /// p-value of "the mean is at or below -delta".
    pub p_lower: f64,
    /// p-value of "the mean is at or above +delta".
    pub p_upper: f64,
    /// The larger of the two: p-value of "not equivalent".
    pub p: f64,
    /// Lower end of the `1 - 2 alpha` interval.
    pub low: f64,
    /// Upper end of the `1 - 2 alpha` interval.
    pub high: f64,
    /// The interval lies inside the margin: equivalence is shown.
    pub equivalent: bool,
    /// The interval lies wholly outside the margin: a difference beyond it is shown.
    pub outside: bool,
}

/// TOST from a mean, its standard error and degrees of freedom. Neither `equivalent` nor `outside`
/// means that the data cannot tell. `delta` must be positive and `0 < alpha < 0.5`.
pub fn tost(mean: f64, se: f64, df: f64, delta: f64, alpha: f64) -> Result<Tost, StatError> {
    check_open_unit("alpha", alpha)?;
    for (name, value, good) in [
        ("alpha", alpha, alpha < 0.5),
        ("mean", mean, mean.is_finite()),
        ("se", se, se.is_finite() && se >= 0.0),
        ("df", df, df > 0.0),
        ("delta", delta, delta.is_finite() && delta > 0.0),
    ] {
        if !good {
            return Err(StatError::BadParameter { name, value });
        }
    }
    let p_lower = one_sided_p(mean + delta, se, df);
    let p_upper = one_sided_p(delta - mean, se, df);
    let reach = -t_quantile(alpha, df) * se;
    let (low, high) = (mean - reach, mean + reach);
    Ok(Tost {
        mean,
        se,
        p_lower,
        p_upper,
        p: p_lower.max(p_upper),
        low,
        high,
        equivalent: low > -delta && high < delta,
        outside: low >= delta || high <= -delta,
    })
}

/// TOST on independent units (blocks, prompts). Needs two.
pub fn tost_units(values: &[f64], delta: f64, alpha: f64) -> Result<Tost, StatError> {
    let test = paired_t_test(values)?;
    tost(test.mean, test.se, test.df, delta, alpha)
}

/// TOST on the block differences `b - a` against `(-delta, delta)`, in the data's unit.
pub fn tost_paired(a: &[f64], b: &[f64], delta: f64, alpha: f64) -> Result<Tost, StatError> {
    tost_units(&differences(a, b)?, delta, alpha)
}

/// TOST on the logarithms of the block ratios `b / a`, which must be positive. The margin 0.03
/// means a ratio between `1 / 1.03` and `1.03`, so that swapping the arms changes nothing; all
/// fields of the result are on the scale of logarithms.
pub fn tost_paired_ratio(a: &[f64], b: &[f64], margin: f64, alpha: f64) -> Result<Tost, StatError> {
    tost_units(&log_ratios(a, b)?, margin.ln_1p(), alpha)
}

/// p-value of "the distance is not positive".
fn one_sided_p(distance: f64, se: f64, df: f64) -> f64 {
    if se == 0.0 {
        return if distance > 0.0 { 0.0 } else { 1.0 };
    }
    t_upper_tail(distance / se, df)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn a_hand_worked_case() {
        // Cauchy (df 1): P(T > t) = 1/2 - atan(t)/pi. Mean 1, se 1, delta 3: t = 4 and 2.
        let t = tost(1.0, 1.0, 1.0, 3.0, 0.25).unwrap();
        let cauchy = |t: f64| 0.5 - t.atan() / std::f64::consts::PI;
        close(t.p_lower, cauchy(4.0), 1e-13, 0.0);
        close(t.p_upper, cauchy(2.0), 1e-13, 0.0);
        assert_eq!(t.p, t.p_upper);
        // t(0.75, 1) = tan(pi/4) = 1: the interval is 0 to 2, inside (-3, 3).
        close(t.low, 0.0, 0.0, 1e-12);
        close(t.high, 2.0, 1e-12, 0.0);
        assert!(t.equivalent && !t.outside);
    }

    #[test]
    fn a_significant_but_harmless_difference_is_equivalent() {
        // 3.3 standard errors from zero, yet well inside 5e-3.
        let t = tost(-1.6e-3, 0.5e-3, 31.0, 5e-3, 0.01).unwrap();
        assert!(t.equivalent && t.high < 0.0, "{t:?}");
    }

    #[test]
    fn inside_outside_and_cannot_tell_agree_with_p() {
        for (mean, se) in [
            (0.0, 0.02),
            (0.5, 0.02),
            (-0.5, 0.02),
            (0.09, 0.02),
            (0.0, 1.0),
        ] {
            let t = tost(mean, se, 7.0, 0.1, 0.05).unwrap();
            assert_eq!(t.equivalent, t.p < 0.05, "{t:?}");
            assert!(!(t.equivalent && t.outside));
        }
        assert!(tost(0.5, 0.02, 7.0, 0.1, 0.05).unwrap().outside);
        assert!(tost(-0.5, 0.02, 7.0, 0.1, 0.05).unwrap().outside);
        let unclear = tost(0.09, 0.02, 7.0, 0.1, 0.05).unwrap();
        assert!(!unclear.equivalent && !unclear.outside);
    }

    #[test]
    fn units_without_spread_and_bad_parameters() {
        let same = tost_units(&[0.0, 0.0, 0.0], 0.1, 0.01).unwrap();
        assert!(same.equivalent && same.p == 0.0);
        let edge = tost_units(&[0.1, 0.1], 0.1, 0.01).unwrap();
        assert!(!edge.equivalent && edge.outside && edge.p == 1.0);
        assert_eq!(
            tost_units(&[0.0], 0.1, 0.01),
            Err(StatError::TooFew { got: 1, need: 2 })
        );
        assert!(tost(0.0, -1.0, 3.0, 0.1, 0.01).is_err());
        assert!(tost(0.0, 1.0, 3.0, 0.0, 0.01).is_err());
        assert!(tost(0.0, 1.0, 3.0, 0.1, 0.6).is_err());
        assert!(tost(f64::NAN, 1.0, 3.0, 0.1, 0.01).is_err());
    }
}
