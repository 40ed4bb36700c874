//! Dependence within a run: autocorrelation, its test, and what it costs.
//!
//! Neighbouring requests wait in the same queue, so a thousand latencies of one run may carry the
//! information of fifty. The effective sample size says so in one number, and the Ljung-Box test
//! says whether the correlation is more than chance. Neither repairs a test that took the samples
//! for independent: for that the block is the unit.

use crate::error::{StatError, check_sample};
use crate::gamma::chi2_upper_tail;

/// Sample autocorrelations for lags `0..=max_lag` (divisor n at every lag, so that the sequence is
/// positive definite). Needs two values that differ and `max_lag < n`.
pub fn autocorrelation(values: &[f64], max_lag: usize) -> Result<Vec<f64>, StatError> {
    check_sample(values, 2)?;
    let n = values.len();
    if max_lag >= n {
        return Err(StatError::BadParameter {
            name: "max_lag",
            value: max_lag as f64,
        });
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    let centred: Vec<f64> = values.iter().map(|v| v - mean).collect();
    let variance: f64 = centred.iter().map(|v| v * v).sum();
    if !(variance > 0.0 && variance.is_finite()) {
        return Err(StatError::Degenerate);
    }
    let at = |lag: usize| {
        let products = centred.iter().zip(&centred[lag..]).map(|(x, y)| x * y);
        products.sum::<f64>() / variance
    };
    Ok((0..=max_lag).map(at).collect())
}

/// A portmanteau test of "no autocorrelation up to this lag".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LjungBox {
    /// The statistic Q.
    pub statistic: f64,
    /// Lags tested, the degrees of freedom.
    pub lags: usize,
    /// p-value from the chi-square distribution.
    pub p: f64,
}

/// Ljung and Box (1978). Ten lags, or a fifth of the values, are usual.
pub fn ljung_box(values: &[f64], lags: usize) -> Result<LjungBox, StatError> {
    if lags == 0 {
        return Err(StatError::BadParameter {
            name: "lags",
            value: 0.0,
        });
    }
    let rho = autocorrelation(values, lags)?;
    let n = values.len() as f64;
    let terms = rho.iter().enumerate().skip(1);
    let sum: f64 = terms.map(|(lag, r)| r * r / (n - lag as f64)).sum();
    let statistic = n * (n + 2.0) * sum;
    Ok(LjungBox {
        statistic,
        lags,
        p: chi2_upper_tail(statistic, lags as f64),
    })
}

/// How many independent samples would give the mean of these as precisely, by Geyer's (1992)
/// initial monotone sequence: autocorrelations are summed in pairs up to the first pair that is not
/// positive, each pair capped by the one before. At most n: a negative correlation is not credited.
/// Needs four values that differ.
pub fn effective_sample_size(values: &[f64]) -> Result<f64, StatError> {
    check_sample(values, 4)?;
    let n = values.len();
    // Pairs beyond a few hundred lags are noise in any run that was not already dead at lag 100.
    let rho = autocorrelation(values, (n / 2).min(2_000))?;
    let (mut sum, mut cap) = (0.0, f64::INFINITY);
    for pair in rho.chunks_exact(2) {
        let both = (pair[0] + pair[1]).min(cap);
        if both <= 0.0 {
            break;
        }
        sum += both;
        cap = both;
    }
    let inflation = (2.0 * sum - 1.0).max(1.0);
    Ok(n as f64 / inflation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;
    use crate::simulate::normal;
    use crate::testing::close;

    #[test]
    fn autocorrelation_by_hand() {
        // 1, 2, 3, 4: centred -1.5, -0.5, 0.5, 1.5, sum of squares 5; lag 1: 0.75 - 0.25 + 0.75.
        let rho = autocorrelation(&[1.0, 2.0, 3.0, 4.0], 3).unwrap();
        for (got, want) in rho.iter().zip([1.0, 0.25, -0.3, -0.45]) {
            close(*got, want, 1e-14, 0.0);
        }
        // Q = 4 * 6 * (0.0625 / 3) = 0.5.
        close(
            ljung_box(&[1.0, 2.0, 3.0, 4.0], 1).unwrap().statistic,
            0.5,
            1e-13,
            0.0,
        );
    }

    fn autoregression(phi: f64, n: usize, seed: u64) -> Vec<f64> {
        let mut rng = SplitMix64::new(seed);
        let mut state = normal(&mut rng);
        (0..n)
            .map(|_| {
                state = phi * state + (1.0 - phi * phi).sqrt() * normal(&mut rng);
                state
            })
            .collect()
    }

    #[test]
    fn effective_size_of_an_autoregression_follows_theory() {
        // n (1 - phi) / (1 + phi): 20000 / 9 at 0.8, 20000 / 3 at 0.5; the estimate's own error is
        // near a tenth.
        for (phi, seed) in [(0.8, 1), (0.5, 2), (0.0, 3)] {
            let size = effective_sample_size(&autoregression(phi, 20_000, seed)).unwrap();
            close(size, 20_000.0 * (1.0 - phi) / (1.0 + phi), 0.15, 0.0);
        }
        // Negative correlation is not credited.
        assert_eq!(
            effective_sample_size(&autoregression(-0.5, 5_000, 4)),
            Ok(5_000.0)
        );
    }

    #[test]
    fn ljung_box_keeps_its_level_and_finds_dependence() {
        let rejected = |phi: f64| {
            (0..1_000_u64)
                .filter(|seed| {
                    let values = autoregression(phi, 200, 1_000 + seed);
                    ljung_box(&values, 10).unwrap().p < 0.05
                })
                .count()
        };
        // 50 expected, binomial sd 6.9; the chi-square approximation adds a little.
        let (clean, dependent) = (rejected(0.0), rejected(0.4));
        assert!((28..=75).contains(&clean), "{clean}");
        assert!(dependent > 950, "{dependent}");
    }

    #[test]
    fn constant_or_short_series_are_errors() {
        assert_eq!(autocorrelation(&[2.0; 9], 3), Err(StatError::Degenerate));
        assert!(autocorrelation(&[1.0, 2.0], 2).is_err());
        assert!(ljung_box(&[1.0, 2.0, 3.0], 0).is_err());
        assert!(effective_sample_size(&[1.0, 2.0, 3.0]).is_err());
    }
}
