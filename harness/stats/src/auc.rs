//! Area under the ROC curve with an interval: how well two sets of times can be told apart.
//!
//! A timing probe asks whether an observer can tell a cache hit from a miss. The area is the
//! chance that a random positive lies above a random negative, ties counting half: 0.5 is "cannot
//! tell", 1 is "always". It needs no threshold and no shape. Its variance is that of DeLong, DeLong
//! and Clarke-Pearson (1988), its interval is taken on the logit scale, which keeps the level near
//! the ends better than the plain one. With complete separation the variance estimate is zero, and
//! a few samples would then claim certainty; there Newcombe's (2006) score interval takes over.

use crate::dist::normal_quantile;
use crate::error::{StatError, check_open_unit, check_sample};
use crate::moments::Moments;

/// An area under the ROC curve with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Auc {
    /// `P(positive > negative) + P(equal) / 2`, in `[0, 1]`.
    pub value: f64,
    /// Lower end of the interval, in `[0, 1]`.
    pub lower: f64,
    /// Upper end of the interval, in `[0, 1]`.
    pub upper: f64,
    /// DeLong's standard error; 0 with complete separation.
    pub se: f64,
    /// Positives used.
    pub positives: usize,
    /// Negatives used.
    pub negatives: usize,
    /// Confidence level of the interval, such as 0.95.
    pub confidence: f64,
}

/// Area under the ROC curve for "a larger value means positive". For a cache probe, whose hits are
/// *faster*, give the misses as `positives` and the hits as `negatives`. Each set needs two finite
/// values, and all values must be independent (one per trial, not one per token).
pub fn auc(positives: &[f64], negatives: &[f64], confidence: f64) -> Result<Auc, StatError> {
    check_open_unit("confidence", confidence)?;
    check_sample(positives, 2)?;
    check_sample(negatives, 2)?;
    let (m, n) = (positives.len() as f64, negatives.len() as f64);
    // For each value: the share of the other set that it is on the right side of.
    let above: Vec<f64> = shares_below(negatives, positives);
    let below: Vec<f64> = shares_below(positives, negatives)
        .iter()
        .map(|share| 1.0 - share)
        .collect();
    let (of_positives, of_negatives) = (Moments::of(&above), Moments::of(&below));
    let value = of_positives.mean().unwrap_or(0.5).clamp(0.0, 1.0);
    let variance =
        of_positives.variance().unwrap_or(0.0) / m + of_negatives.variance().unwrap_or(0.0) / n;
    let se = variance.sqrt();
    let z = normal_quantile(0.5 * (1.0 + confidence));
    let spread = value * (1.0 - value);
    let (lower, upper) = if se > 0.0 && spread > 0.0 {
        let (logit, reach) = ((value / (1.0 - value)).ln(), z * se / spread);
        (expit(logit - reach), expit(logit + reach))
    } else {
        score_interval(value, m, n, z)
    };
    Ok(Auc {
        value,
        lower,
        upper,
        se,
        positives: positives.len(),
        negatives: negatives.len(),
        confidence,
    })
}

/// Samples needed in each of two sets of equal size so that the one-sided end of the interval
/// clears `bound` with the given power when the true area is `truth`. `alpha` is the error of that
/// one end (0.025 for a 95 % interval). By the variance of [`auc_standard_error`]; None when more
/// than a million would be needed.
pub fn auc_sample_size(
    truth: f64,
    bound: f64,
    alpha: f64,
    power: f64,
) -> Result<Option<usize>, StatError> {
    for (name, value) in [
        ("truth", truth),
        ("bound", bound),
        ("alpha", alpha),
        ("power", power),
    ] {
        check_open_unit(name, value)?;
    }
    if truth == bound {
        return Ok(None);
    }
    let (z_level, z_power) = (normal_quantile(1.0 - alpha), normal_quantile(power));
    let clears = |n: usize| {
        let size = n as f64;
        let need = z_level * auc_standard_error(bound, size, size)
            + z_power * auc_standard_error(truth, size, size);
        need <= (truth - bound).abs()
    };
    let mut high = 2;
    while !clears(high) {
        high *= 2;
        if high > 1_000_000 {
            return Ok(None);
        }
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if clears(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(Some(high))
}

/// The standard error that an area of `value` has with `m` positives and `n` negatives, by Hanley
/// and McNeil (1982) with Newcombe's (2006) symmetric sample size. For planning: it needs no data.
pub fn auc_standard_error(value: f64, m: f64, n: f64) -> f64 {
    let common = 0.5 * (m + n) - 1.0;
    let shape = (1.0 - value) / (2.0 - value) + value / (1.0 + value);
    (value * (1.0 - value) * (1.0 + common * shape) / (m * n)).sqrt()
}

/// All areas whose own standard error puts `value` within `z` of them, found by bisection.
fn score_interval(value: f64, m: f64, n: f64, z: f64) -> (f64, f64) {
    let inside = |area: f64| (value - area).abs() <= z * auc_standard_error(area, m, n);
    let end = |edge: f64| {
        let (mut within, mut outside) = (value, edge);
        for _ in 0..100 {
            let middle = 0.5 * (within + outside);
            if inside(middle) {
                within = middle;
            } else {
                outside = middle;
            }
        }
        within
    };
    // The error vanishes at 0 and 1 themselves, so a value there is its own end on that side.
    let lower = if value > 0.0 { end(0.0) } else { 0.0 };
    let upper = if value < 1.0 { end(1.0) } else { 1.0 };
    (lower, upper)
}

/// For each of `values` the share of `reference` below it, ties counting half.
fn shares_below(reference: &[f64], values: &[f64]) -> Vec<f64> {
    let mut sorted = reference.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let size = sorted.len() as f64;
    values
        .iter()
        .map(|&value| {
            let below = sorted.partition_point(|&r| r < value);
            let up_to = sorted.partition_point(|&r| r <= value);
            0.5 * (below + up_to) as f64 / size
        })
        .collect()
}

fn expit(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn a_hand_worked_area() {
        // Pairs (positive, negative): 3>1, 3=3 (half), 5>1, 5>3: 3.5 of 4. Shares of the
        // positives 0.75 and 1 (variance 1/32), of the negatives 1 and 0.75 (1/32): se^2 = 1/32.
        let a = auc(&[3.0, 5.0], &[1.0, 3.0], 0.95).unwrap();
        close(a.value, 0.875, 1e-15, 0.0);
        close(a.se, (1.0_f64 / 32.0).sqrt(), 1e-14, 0.0);
        // The odds are 7; on their logarithm the interval reaches z se / (7/64).
        let reach = 1.959_963_985 * (1.0_f64 / 32.0).sqrt() * 64.0 / 7.0;
        close(a.lower, 1.0 / (1.0 + reach.exp() / 7.0), 1e-8, 0.0);
        close(a.upper, 1.0 / (1.0 + (-reach).exp() / 7.0), 1e-8, 0.0);
    }

    #[test]
    fn swapping_the_sets_mirrors_the_interval() {
        let (x, y) = ([1.0, 4.0, 2.5, 8.0, 3.0], [2.0, 6.0, 7.0, 3.0]);
        let (a, b) = (auc(&x, &y, 0.9).unwrap(), auc(&y, &x, 0.9).unwrap());
        close(a.value, 1.0 - b.value, 1e-14, 0.0);
        close(a.lower, 1.0 - b.upper, 1e-12, 0.0);
        close(a.se, b.se, 1e-13, 0.0);
    }

    #[test]
    fn complete_separation_of_few_is_not_certainty() {
        // Value 1: the lower end solves (1 - a)^2 = z^2 var(a); for m = n = 3, a = 0.4 has
        // var = 0.24 (1 + 2 (0.375 + 2/7)) / 9 = 0.0619, z se = 0.4877 < 0.6, so the end is above.
        let few = auc(&[4.0, 5.0, 6.0], &[1.0, 2.0, 3.0], 0.95).unwrap();
        assert_eq!((few.value, few.se, few.upper), (1.0, 0.0, 1.0));
        assert!(few.lower > 0.4 && few.lower < 0.6, "{few:?}");
        let at_end = 1.959_963_985 * auc_standard_error(few.lower, 3.0, 3.0);
        close(1.0 - few.lower, at_end, 1e-9, 0.0);
        let mirrored = auc(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0], 0.95).unwrap();
        close(mirrored.upper, 1.0 - few.lower, 1e-12, 0.0);
        // All values alike: one half, and no information either.
        let flat = auc(&[1.0; 4], &[1.0; 4], 0.95).unwrap();
        assert!(flat.value == 0.5 && flat.lower < 0.2 && flat.upper > 0.8);
    }

    #[test]
    fn the_planned_size_meets_its_own_condition() {
        // At one half the variance is (1 + (n - 1) 2/3) / (4 n^2) = (2n + 1) / (12 n^2), that of
        // Mann and Whitney. 0.5 against 0.6 at 2.5 % and 90 %: (1.96 + 1.28)^2 / 6 / 0.01 = 175.
        close(
            auc_standard_error(0.5, 10.0, 10.0),
            (21.0_f64 / 1200.0).sqrt(),
            1e-14,
            0.0,
        );
        let n = auc_sample_size(0.5, 0.6, 0.025, 0.9).unwrap().unwrap();
        assert!((165..=180).contains(&n), "{n}");
        let easy = auc_sample_size(0.995, 0.9, 0.025, 0.9).unwrap().unwrap();
        assert!((15..60).contains(&easy), "{easy}");
        assert_eq!(auc_sample_size(0.6, 0.6, 0.025, 0.9), Ok(None));
        assert_eq!(auc_sample_size(0.6, 0.600_01, 0.025, 0.9), Ok(None));
    }

    #[test]
    fn too_few_or_bad_values_are_errors() {
        let few = StatError::TooFew { got: 1, need: 2 };
        assert_eq!(auc(&[1.0], &[1.0, 2.0], 0.95), Err(few));
        let nan = StatError::NotFinite { index: 1 };
        assert_eq!(auc(&[1.0, 2.0], &[1.0, f64::NAN], 0.95), Err(nan));
        assert!(auc(&[1.0, 2.0], &[1.0, 2.0], 1.0).is_err());
    }
}
