//! What a paired design can and cannot see.
//!
//! "No difference found" means little unless the report adds "and one of 12 % would have been
//! found four times out of five". With a handful of blocks the usual normal approximation is far
//! off, so the power is that of the noncentral t distribution.

use crate::dist::{normal_cdf, t_quantile};
use crate::error::{StatError, check_open_unit};
use crate::special::ln_gamma;

/// Power of the two-sided paired t-test with `n` blocks to see a true mean of `effect` standard
/// deviations of the block differences. Needs `n >= 2`, `0 < alpha < 1` and a finite effect.
pub fn paired_t_power(effect: f64, n: usize, alpha: f64) -> Result<f64, StatError> {
    check_design(n, alpha)?;
    if !effect.is_finite() {
        return Err(StatError::BadParameter {
            name: "effect",
            value: effect,
        });
    }
    Ok(power(effect, n, -t_quantile(0.5 * alpha, (n - 1) as f64)))
}

/// The smallest true mean, in standard deviations of the block differences, that the two-sided
/// paired t-test with `n` blocks sees with the given power. Multiply by the standard deviation of
/// the differences (or of the log ratios) to get it in the data's unit.
pub fn minimum_detectable_effect(n: usize, alpha: f64, target: f64) -> Result<f64, StatError> {
    check_design(n, alpha)?;
    check_open_unit("target", target)?;
    if target <= alpha {
        // Even no effect at all is "found" that often.
        return Ok(0.0);
    }
    let critical = -t_quantile(0.5 * alpha, (n - 1) as f64);
    let mut high = 1.0;
    while power(high, n, critical) < target {
        high *= 2.0;
        if high > 1e9 {
            return Err(StatError::Degenerate);
        }
    }
    let mut low = 0.0;
    while high - low > 1e-9 * high {
        let middle = 0.5 * (low + high);
        if power(middle, n, critical) < target {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(high)
}

fn check_design(n: usize, alpha: f64) -> Result<(), StatError> {
    if n < 2 {
        return Err(StatError::TooFew { got: n, need: 2 });
    }
    check_open_unit("alpha", alpha)
}

/// `P(|T'| > critical)` for noncentral T' = (Z + effect * sqrt n) / S, by integrating over S, the
/// ratio of the sample's standard deviation to the true one (a scaled chi variable).
fn power(effect: f64, n: usize, critical: f64) -> f64 {
    const PANELS: usize = 512;
    let df = (n - 1) as f64;
    let shift = effect * (n as f64).sqrt();
    let ln_scale = 2.0_f64.ln() + 0.5 * df * (0.5 * df).ln() - ln_gamma(0.5 * df);
    let rejected = |s: f64| {
        let density = if s == 0.0 {
            // s^(df - 1) is 1 for a single degree of freedom and 0 otherwise.
            if n == 2 { ln_scale.exp() } else { 0.0 }
        } else {
            (ln_scale + (df - 1.0) * s.ln() - 0.5 * df * s * s).exp()
        };
        density * (normal_cdf(shift - critical * s) + normal_cdf(-shift - critical * s))
    };
    // S has mean near 1 and standard deviation near 1/sqrt(2 df): twelve of those hold it all.
    let reach = 12.0 / (2.0 * df).sqrt();
    let from = (1.0 - reach).max(0.0);
    let width = (1.0 + reach - from) / PANELS as f64;
    let mut sum = rejected(from) + rejected(1.0 + reach);
    for i in 1..PANELS {
        let weight = if i % 2 == 1 { 4.0 } else { 2.0 };
        sum += weight * rejected(from + i as f64 * width);
    }
    (sum * width / 3.0).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn power_matches_gpower_and_high_precision_quadrature() {
        // The first two are G*Power's standard examples (dz 0.5 at n 34, dz 0.8 at n 15); all were
        // recomputed with mpmath's quadrature.
        let cases = [
            (0.5, 34, 0.807_777_501_279),
            (0.8, 15, 0.821_310_538_724),
            (0.2, 199, 0.801_691_024_037),
            (2.0, 4, 0.754_983_917_114),
            (1.5, 6, 0.832_529_279_867),
            (5.0, 3, 0.975_462_268_733),
            (10.0, 2, 0.732_819_589_806),
        ];
        for (effect, n, want) in cases {
            close(paired_t_power(effect, n, 0.05).unwrap(), want, 1e-6, 0.0);
            close(paired_t_power(-effect, n, 0.05).unwrap(), want, 1e-6, 0.0);
        }
        close(paired_t_power(0.0, 5, 0.05).unwrap(), 0.05, 1e-6, 0.0);
    }

    #[test]
    fn detectable_effect_matches_high_precision_bisection() {
        let cases = [
            (2, 11.549_888_44),
            (3, 3.264_043_55),
            (4, 2.127_949_343),
            (6, 1.434_544_782),
            (8, 1.156_034_678),
            (20, 0.660_441_654_6),
        ];
        for (n, want) in cases {
            close(
                minimum_detectable_effect(n, 0.05, 0.8).unwrap(),
                want,
                1e-6,
                0.0,
            );
        }
        assert_eq!(minimum_detectable_effect(4, 0.05, 0.04), Ok(0.0));
        let few = StatError::TooFew { got: 1, need: 2 };
        assert_eq!(minimum_detectable_effect(1, 0.05, 0.8), Err(few));
    }
}
