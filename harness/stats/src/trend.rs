//! Drift within a run: a trend test that no single stall can trigger, and its size.
//!
//! A server that warms up, fragments or throttles has no steady state, and an average over such a
//! run describes no moment of it. Mann (1945) and Kendall (1975) ask whether later values tend to
//! be larger; Theil (1950) and Sen (1968) say by how much, as the median of all slopes. Both
//! assume independent values: correlated ones look like drift far too often, so judge medians of
//! batches ([`batch_medians`]) longer than the correlation, not single latencies.

use crate::dist::{normal_quantile, normal_upper_tail};
use crate::error::{StatError, check_open_unit, check_sample};
use crate::quantile::linear;

/// Most values; all pairs are looked at.
const LIMIT: usize = 5_000;

/// A test for a monotone trend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannKendall {
    /// Pairs that rise minus pairs that fall.
    pub s: i64,
    /// Variance of `s` without trend, corrected for ties.
    pub variance: f64,
    /// Standardised `s` with continuity correction.
    pub z: f64,
    /// Two-sided p-value (normal approximation, good from ten values on).
    pub p: f64,
}

/// The Mann-Kendall test on values in order of time. Needs four values, at most 5,000.
pub fn mann_kendall(values: &[f64]) -> Result<MannKendall, StatError> {
    check(values, 4)?;
    let n = values.len();
    let mut s = 0_i64;
    for (i, early) in values.iter().enumerate() {
        for late in &values[i + 1..] {
            s += i64::from(late > early) - i64::from(late < early);
        }
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let term = |k: f64| k * (k - 1.0) * (2.0 * k + 5.0);
    let ties: f64 = sorted
        .chunk_by(|x, y| x == y)
        .map(|group| term(group.len() as f64))
        .sum();
    let variance = (term(n as f64) - ties) / 18.0;
    let z = if s == 0 || variance <= 0.0 {
        0.0
    } else {
        (s - s.signum()) as f64 / variance.sqrt()
    };
    Ok(MannKendall {
        s,
        variance,
        z,
        p: (2.0 * normal_upper_tail(z.abs())).min(1.0),
    })
}

/// A robust slope per step with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TheilSen {
    /// Median of the slopes of all pairs, in the data's unit per step.
    pub slope: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Median of the values minus the slope times the median place: the value at step 0.
    pub intercept: f64,
}

/// Theil-Sen slope of values at steps 0, 1, 2, ... with Sen's rank interval. Needs four values, at
/// most 5,000; errors when they are too few for the confidence.
pub fn theil_sen(values: &[f64], confidence: f64) -> Result<TheilSen, StatError> {
    check_open_unit("confidence", confidence)?;
    let variance = mann_kendall(values)?.variance;
    let n = values.len();
    let mut slopes = Vec::with_capacity(n * (n - 1) / 2);
    for (i, early) in values.iter().enumerate() {
        let later = values[i + 1..].iter().zip(1..);
        slopes.extend(later.map(|(late, gap)| (late - early) / f64::from(gap)));
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let z = normal_quantile(0.5 * (1.0 + confidence));
    let count = slopes.len() as f64;
    // Sen (1968): ranks (N -+ z sigma) / 2, rounded outwards.
    let lower = ((count - z * variance.sqrt()) * 0.5).round() - 1.0;
    let upper = ((count + z * variance.sqrt()) * 0.5).round();
    if lower < 0.0 || upper >= count {
        return Err(StatError::TooFew {
            got: n,
            need: n + 1,
        });
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (Some(slope), Some(middle)) = (linear(&slopes, 0.5), linear(&sorted, 0.5)) else {
        return Err(StatError::TooFew { got: n, need: 4 });
    };
    Ok(TheilSen {
        slope,
        low: slopes[lower as usize],
        high: slopes[upper as usize],
        intercept: middle - slope * 0.5 * (n - 1) as f64,
    })
}

/// Whether a run drifts, and how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drift {
    /// p-value of the trend.
    pub p: f64,
    /// Change from the first to the last batch over the median level, such as 0.1 for +10 %.
    pub change: f64,
    /// Lower end of `change`.
    pub low: f64,
    /// Upper end of `change`.
    pub high: f64,
    /// The trend is significant and larger than the limit: the run has no steady state.
    pub drifts: bool,
}

/// Judges a run by the medians of `batches` consecutive batches of its values: drifting when the
/// trend is significant at `alpha` *and* the change over the run exceeds `limit` (a share of the
/// median). Significance alone would condemn every long run for a harmless 0.1 %. Needs at least
/// eight batches, a value in each, and a positive median.
pub fn drift(values: &[f64], batches: usize, alpha: f64, limit: f64) -> Result<Drift, StatError> {
    check_open_unit("alpha", alpha)?;
    if !(limit.is_finite() && limit >= 0.0) {
        return Err(StatError::BadParameter {
            name: "limit",
            value: limit,
        });
    }
    if batches < 8 {
        return Err(StatError::TooFew {
            got: batches,
            need: 8,
        });
    }
    let medians = batch_medians(values, batches)?;
    let test = mann_kendall(&medians)?;
    let line = theil_sen(&medians, 1.0 - alpha)?;
    let mut sorted = medians;
    sorted.sort_unstable_by(f64::total_cmp);
    let level = linear(&sorted, 0.5).unwrap_or(0.0);
    if level <= 0.0 {
        return Err(StatError::NotPositive { index: 0 });
    }
    let scale = (batches - 1) as f64 / level;
    let change = line.slope * scale;
    Ok(Drift {
        p: test.p,
        change,
        low: line.low * scale,
        high: line.high * scale,
        drifts: test.p < alpha && change.abs() > limit,
    })
}

/// Medians of `batches` consecutive stretches as equal in length as can be.
pub fn batch_medians(values: &[f64], batches: usize) -> Result<Vec<f64>, StatError> {
    check_sample(values, batches.max(1))?;
    if batches == 0 {
        return Err(StatError::BadParameter {
            name: "batches",
            value: 0.0,
        });
    }
    let edge = |i: usize| i * values.len() / batches;
    Ok((0..batches)
        .filter_map(|i| {
            let mut batch = values[edge(i)..edge(i + 1)].to_vec();
            batch.sort_unstable_by(f64::total_cmp);
            linear(&batch, 0.5)
        })
        .collect())
}

fn check(values: &[f64], need: usize) -> Result<(), StatError> {
    check_sample(values, need)?;
    if values.len() > LIMIT {
        let (got, limit) = (values.len(), LIMIT);
        return Err(StatError::TooMany { got, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;
    use crate::simulate::normal;
    use crate::testing::close;

    #[test]
    fn mann_kendall_by_hand() {
        // 1, 3, 2, 4: five of six pairs rise, one falls: S = 4; variance 4 * 3 * 13 / 18 = 26/3.
        let t = mann_kendall(&[1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!(t.s, 4);
        close(t.variance, 26.0 / 3.0, 1e-14, 0.0);
        close(t.z, 3.0 / (26.0_f64 / 3.0).sqrt(), 1e-14, 0.0);
        let flat = mann_kendall(&[5.0; 6]).unwrap();
        assert_eq!((flat.s, flat.z, flat.p), (0, 0.0, 1.0));
    }

    #[test]
    fn drift_needs_significance_and_size() {
        let mut rng = SplitMix64::new(5);
        let mut run = |per_run: f64| -> Vec<f64> {
            (0..2_000)
                .map(|i| 100.0 * (1.0 + per_run * f64::from(i) / 2_000.0) + 5.0 * normal(&mut rng))
                .collect()
        };
        let judge = |values: &[f64]| drift(values, 20, 0.01, 0.03).unwrap();
        let (steady, tiny, real) = (judge(&run(0.0)), judge(&run(0.02)), judge(&run(0.10)));
        assert!(!steady.drifts);
        assert!(tiny.p < 0.01 && !tiny.drifts, "{tiny:?}");
        assert!(
            real.drifts && real.low < 0.095 && real.high > 0.085,
            "{real:?}"
        );
        let mut down = run(0.10);
        down.reverse();
        assert!(judge(&down).change < -0.05);
    }

    #[test]
    fn one_stall_is_no_drift_and_the_level_holds() {
        let mut rng = SplitMix64::new(6);
        let mut false_alarms = 0;
        for _ in 0..1_000 {
            let mut values: Vec<f64> = (0..400).map(|_| 50.0 + normal(&mut rng)).collect();
            values[390] = 5_000.0;
            false_alarms += u32::from(drift(&values, 20, 0.05, 0.0).unwrap().drifts);
        }
        // 50 expected at most (the continuity correction is conservative), binomial sd 6.9.
        assert!((15..=72).contains(&false_alarms), "{false_alarms}");
    }

    #[test]
    fn batches_cover_everything_once() {
        let medians = batch_medians(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 3).unwrap();
        assert_eq!(medians, vec![1.5, 3.5, 6.0]);
        assert!(batch_medians(&[1.0], 2).is_err() && batch_medians(&[1.0], 0).is_err());
        assert!(drift(&[1.0; 100], 5, 0.05, 0.1).is_err());
    }
}
