//! What a paired design can and cannot see.
//!
//! "No difference found" means little unless the report adds "and one of 12 % would have been
//! found four times out of five". With a handful of blocks the usual normal approximation is far
//! off, so the power is that of the noncentral t distribution.

use crate::dist::{normal_cdf, normal_upper_tail, t_quantile};
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

/// Fewest blocks with which the two-sided paired t-test sees a true mean of `effect` with the power
/// asked for, when block differences have the standard deviation `sd` (same unit). None when
/// `limit` blocks are not enough. Take `sd` from an A/A experiment, and its upper bound rather than
/// its point ([`crate::NoiseFloor::sd_upper`]), or half of all plans will fall short.
pub fn blocks_needed(
    effect: f64,
    sd: f64,
    alpha: f64,
    target: f64,
    limit: usize,
) -> Result<Option<usize>, StatError> {
    check_sd(sd)?;
    check_open_unit("target", target)?;
    if !(effect.is_finite() && effect != 0.0) {
        let (name, value) = ("effect", effect);
        return Err(StatError::BadParameter { name, value });
    }
    first_at(limit, |n| {
        Ok(paired_t_power(effect / sd, n, alpha)? >= target)
    })
}

/// Power of TOST with `n` blocks to show that a true mean of `effect` lies within `(-delta, delta)`
/// when block differences have the standard deviation `sd` (all in one unit).
pub fn tost_power(
    effect: f64,
    sd: f64,
    n: usize,
    delta: f64,
    alpha: f64,
) -> Result<f64, StatError> {
    check_design(n, alpha)?;
    check_sd(sd)?;
    for (name, value, good) in [
        ("delta", delta, delta.is_finite() && delta > 0.0),
        ("effect", effect, effect.is_finite()),
    ] {
        if !good {
            return Err(StatError::BadParameter { name, value });
        }
    }
    let root = (n as f64).sqrt() / sd;
    let critical = -t_quantile(alpha, (n - 1) as f64);
    // Shown when |mean| < delta - t s / sqrt n; the mean is normal, s independent of it.
    let shown = |s: f64| {
        let reach = delta * root - critical * s;
        if reach <= 0.0 {
            0.0
        } else {
            let shift = effect.abs() * root;
            normal_upper_tail(shift - reach) - normal_upper_tail(shift + reach)
        }
    };
    // The integrand has a kink where the reach ends: integrate up to there only.
    Ok(over_spread(n, delta * root / critical, shown))
}

/// Fewest blocks with which TOST shows equivalence of arms that truly differ by `effect`. None when
/// `limit` blocks are not enough.
pub fn blocks_for_equivalence(
    effect: f64,
    sd: f64,
    delta: f64,
    alpha: f64,
    target: f64,
    limit: usize,
) -> Result<Option<usize>, StatError> {
    check_open_unit("target", target)?;
    first_at(limit, |n| {
        Ok(tost_power(effect, sd, n, delta, alpha)? >= target)
    })
}

/// The first n from 2 on that is enough, for a condition that once true stays true.
fn first_at(
    limit: usize,
    enough: impl Fn(usize) -> Result<bool, StatError>,
) -> Result<Option<usize>, StatError> {
    if limit < 2 || !enough(limit)? {
        return Ok(None);
    }
    let (mut low, mut high) = (1, limit);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if enough(middle)? {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(Some(high))
}

fn check_sd(sd: f64) -> Result<(), StatError> {
    if sd.is_finite() && sd > 0.0 {
        return Ok(());
    }
    let (name, value) = ("sd", sd);
    Err(StatError::BadParameter { name, value })
}

fn check_design(n: usize, alpha: f64) -> Result<(), StatError> {
    if n < 2 {
        return Err(StatError::TooFew { got: n, need: 2 });
    }
    check_open_unit("alpha", alpha)
}

/// `P(|T'| > critical)` for noncentral T' = (Z + effect * sqrt n) / S.
fn power(effect: f64, n: usize, critical: f64) -> f64 {
    let shift = effect * (n as f64).sqrt();
    over_spread(n, f64::INFINITY, |s| {
        normal_cdf(shift - critical * s) + normal_cdf(-shift - critical * s)
    })
}

/// Mean of `f(S)` over S below `end`, where S is the ratio of the standard deviation of `n` values
/// to the true one (a scaled chi variable), by Simpson's rule.
fn over_spread(n: usize, end: f64, f: impl Fn(f64) -> f64) -> f64 {
    const PANELS: usize = 512;
    let df = (n - 1) as f64;
    let ln_scale = 2.0_f64.ln() + 0.5 * df * (0.5 * df).ln() - ln_gamma(0.5 * df);
    let weighted = |s: f64| {
        let density = if s == 0.0 {
            // s^(df - 1) is 1 for a single degree of freedom and 0 otherwise.
            if n == 2 { ln_scale.exp() } else { 0.0 }
        } else {
            (ln_scale + (df - 1.0) * s.ln() - 0.5 * df * s * s).exp()
        };
        density * f(s)
    };
    // S has mean near 1 and standard deviation near 1/sqrt(2 df): twelve of those hold it all.
    let reach = 12.0 / (2.0 * df).sqrt();
    let from = (1.0 - reach).max(0.0);
    let to = (1.0 + reach).min(end);
    if to <= from {
        return 0.0;
    }
    let width = (to - from) / PANELS as f64;
    let mut sum = weighted(from) + weighted(to);
    for i in 1..PANELS {
        let weight = if i % 2 == 1 { 4.0 } else { 2.0 };
        sum += weight * weighted(from + i as f64 * width);
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

    #[test]
    fn planned_blocks_are_the_first_that_suffice() {
        // G*Power: dz 0.5 needs 34 blocks for 80 %, dz 0.8 needs 15.
        assert_eq!(blocks_needed(0.5, 1.0, 0.05, 0.8, 1000), Ok(Some(34)));
        assert_eq!(blocks_needed(-0.08, 0.1, 0.05, 0.8, 1000), Ok(Some(15)));
        assert_eq!(blocks_needed(0.1, 1.0, 0.05, 0.8, 50), Ok(None));
        assert!(blocks_needed(0.0, 1.0, 0.05, 0.8, 50).is_err());
        assert!(blocks_needed(0.1, 0.0, 0.05, 0.8, 50).is_err());
        let n = blocks_for_equivalence(0.0, 0.02, 0.03, 0.05, 0.9, 1000);
        let n = n.unwrap().unwrap();
        assert!(tost_power(0.0, 0.02, n, 0.03, 0.05).unwrap() >= 0.9);
        assert!(tost_power(0.0, 0.02, n - 1, 0.03, 0.05).unwrap() < 0.9);
        // A true difference at the margin is "equivalent" alpha of the time and never needs less.
        let edge = tost_power(0.03, 0.02, 40, 0.03, 0.05).unwrap();
        close(edge, 0.05, 1e-3, 0.0);
        assert_eq!(
            blocks_for_equivalence(0.03, 0.02, 0.03, 0.05, 0.9, 1000),
            Ok(None)
        );
    }
}
