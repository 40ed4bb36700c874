//! An interval that stays valid however often one looks: a confidence sequence for a mean.
//!
//! Its promise is not "95 % at the end" but "95 % that it never misses, at no block from the second
//! on". So a run may be watched, stopped at any block for any reason, and even resumed. The price
//! is width: about 1.6 times that of a t interval at the planned length.
//!
//! The sequence inverts the t-mixture of Lai (1976) in the form with a Gaussian mixture over the
//! standardised mean (Gönen and others 2005; Wang and Ramdas 2024): under a mean of `m`
//! `B(m) = r^(-1/2) ((1 + t^2/v) / (1 + t^2/(v r)))^(n/2)` with `v = n - 1`, `r = 1 + n g` and t
//! the usual statistic about `m` is a non-negative martingale that starts at 1, and by Ville's
//! inequality it ever reaches `1/alpha` with probability at most `alpha`. It assumes independent
//! normal units (block differences or log ratios) with one unknown variance.

use crate::error::{StatError, check_open_unit, check_sample};
use crate::moments::Moments;
use crate::paired::Estimate;

/// The mixture variance `g` (squared effect size) that makes the sequence about narrowest at
/// `planned` units. Must be fixed before the data are seen (Howard and others 2021).
pub fn mixture_variance(alpha: f64, planned: usize) -> Result<f64, StatError> {
    check_open_unit("alpha", alpha)?;
    if planned < 2 {
        return Err(StatError::TooFew {
            got: planned,
            need: 2,
        });
    }
    let depth = -2.0 * alpha.ln();
    Ok((depth + (1.0 + depth).ln()) / planned as f64)
}

/// The confidence sequence at the present units. None while it is still infinite (two or three
/// units exclude no mean). `se` is the ordinary standard error.
pub fn anytime_interval(
    units: &[f64],
    confidence: f64,
    mixture: f64,
) -> Result<Option<Estimate>, StatError> {
    check_open_unit("confidence", confidence)?;
    check_mixture(mixture)?;
    let (mean, se, n) = summary(units)?;
    let r = 1.0 + n * mixture;
    // B(m) < 1/alpha is (1 + x) / (1 + x / r) < k with x = t^2 / v.
    let k = (r.sqrt() / (1.0 - confidence)).powf(2.0 / n);
    if k >= r {
        return Ok(None);
    }
    let x = (k - 1.0) / (1.0 - k / r);
    let reach = (x * (n - 1.0)).sqrt() * se;
    Ok(Some(Estimate {
        point: mean,
        low: mean - reach,
        high: mean + reach,
        se,
        n: units.len(),
        confidence,
    }))
}

/// The e-value against "the mean is zero": the payoff of a fair bet on it, and so `1 / e` is a
/// p-value valid at any time. Infinite when units without spread have a mean other than zero.
pub fn e_value(units: &[f64], mixture: f64) -> Result<f64, StatError> {
    check_mixture(mixture)?;
    let (mean, se, n) = summary(units)?;
    let r = 1.0 + n * mixture;
    if se == 0.0 && mean != 0.0 {
        return Ok(f64::INFINITY);
    }
    let t = if mean == 0.0 { 0.0 } else { mean / se };
    let x = t * t / (n - 1.0);
    Ok((0.5 * n * (x.ln_1p() - (x / r).ln_1p()) - 0.5 * r.ln()).exp())
}

/// Mean, standard error and number of units.
fn summary(units: &[f64]) -> Result<(f64, f64, f64), StatError> {
    check_sample(units, 2)?;
    let moments = Moments::of(units);
    match (moments.mean(), moments.se()) {
        (Some(mean), Some(se)) if se.is_finite() => Ok((mean, se, units.len() as f64)),
        _ => Err(StatError::Degenerate),
    }
}

fn check_mixture(mixture: f64) -> Result<(), StatError> {
    if mixture > 0.0 && mixture.is_finite() {
        return Ok(());
    }
    let (name, value) = ("mixture", mixture);
    Err(StatError::BadParameter { name, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;
    use crate::simulate::normal;
    use crate::testing::close;

    #[test]
    fn the_interval_ends_where_the_e_value_reaches_one_over_alpha() {
        let units = [0.3, -0.1, 0.5, 0.2, 0.4, 0.1, 0.35, 0.25];
        let g = mixture_variance(0.05, 8).unwrap();
        let e = anytime_interval(&units, 0.95, g).unwrap().unwrap();
        for end in [e.low, e.high] {
            let about: Vec<f64> = units.iter().map(|v| v - end).collect();
            close(e_value(&about, g).unwrap(), 20.0, 1e-9, 0.0);
        }
        assert!(e_value(&[0.0, 0.0, 1.0, -1.0], g).unwrap() < 1.0);
    }

    #[test]
    fn it_never_misses_more_often_than_stated() {
        // 2,000 runs watched after every unit up to 200: at most 5 % ever miss the truth. A t
        // interval watched so misses in more than a third.
        let mut rng = SplitMix64::new(41);
        let g = mixture_variance(0.05, 20).unwrap();
        let t = |n: usize| crate::t_quantile(0.975, n.max(2) as f64 - 1.0);
        let critical: Vec<f64> = (0..=200).map(t).collect();
        let (mut missed, mut naive) = (0, 0);
        for _ in 0..2_000 {
            let units: Vec<f64> = (0..200).map(|_| 0.7 + 0.2 * normal(&mut rng)).collect();
            let miss = |n: usize| {
                let e = anytime_interval(&units[..n], 0.95, g).unwrap();
                e.is_some_and(|e| e.excludes(0.7))
            };
            missed += u32::from((2..=200).any(miss));
            let t_miss = |n: usize| {
                let (mean, se, _) = summary(&units[..n]).unwrap();
                (mean - 0.7).abs() > critical[n] * se
            };
            naive += u32::from((2..=200).any(t_miss));
        }
        // 100 allowed; binomial sd 9.7.
        assert!(missed <= 129, "{missed}");
        assert!(naive > 600, "{naive}");
    }

    #[test]
    fn the_mixture_is_about_the_best_for_its_length() {
        let units: Vec<f64> = (0..30).map(|i| f64::from(i % 7)).collect();
        let width = |g: f64| {
            let e = anytime_interval(&units, 0.95, g).unwrap();
            e.map_or(f64::INFINITY, |e| e.high - e.low)
        };
        let chosen = width(mixture_variance(0.05, 30).unwrap());
        let best = (1..400)
            .map(|k| width(0.005 * f64::from(k)))
            .fold(f64::INFINITY, f64::min);
        assert!(chosen < 1.02 * best, "{chosen} {best}");
    }

    #[test]
    fn few_units_exclude_nothing() {
        assert_eq!(anytime_interval(&[1.0, 2.0], 0.95, 0.3), Ok(None));
        assert!(anytime_interval(&[1.0], 0.95, 0.3).is_err());
        assert!(anytime_interval(&[1.0, 2.0], 0.95, 0.0).is_err());
        assert_eq!(e_value(&[1.0, 1.0], 0.3), Ok(f64::INFINITY));
        assert!(mixture_variance(0.05, 1).is_err());
    }
}
