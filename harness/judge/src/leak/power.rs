//! How many trials a probe needs, decided before the first is sent.
//!
//! Showing that a same-tenant hit is visible needs few trials. What needs many is the other half:
//! "no difference" can only be shown to lie below a limit. The power is the chance that the upper
//! end of the interval lies below the limit when there is truly no difference.

use pb_stats::{normal_cdf, normal_quantile};

use super::auc::variance_at;

/// More trials than anyone runs; a limit that needs more is refused.
pub const MAX_TRIALS: usize = 100_000;

/// The chance that `trials` trials show that the area lies below `limit` (above 0.5) when it is
/// 0.5, at the two-sided `confidence`. By the normal approximation of the score interval.
pub fn power_of_trials(trials: usize, limit: f64, confidence: f64) -> f64 {
    if trials == 0 || limit <= 0.5 {
        return 0.0;
    }
    let z = normal_quantile(0.5 + 0.5 * confidence);
    let highest = limit - z * variance_at(limit, trials).sqrt();
    normal_cdf((highest - 0.5) / variance_at(0.5, trials).sqrt())
}

/// The fewest trials with at least `power`; `None` when it takes more than 100,000.
pub fn trials_for_power(power: f64, limit: f64, confidence: f64) -> Option<usize> {
    let reaches = |n: usize| power_of_trials(n, limit, confidence) >= power;
    if !reaches(MAX_TRIALS) {
        return None;
    }
    // The power grows with the trials.
    let (mut short, mut enough) = (0, MAX_TRIALS);
    while enough - short > 1 {
        let middle = (short + enough) / 2;
        if reaches(middle) {
            enough = middle;
        } else {
            short = middle;
        }
    }
    Some(enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand for 150 trials, limit 0.6, 95 %: variance at 0.5 is 301 / 270000 (0.033389 as
    /// deviation), at 0.6 it is 0.24 * (1 + 149 * (0.4 / 1.4 + 0.6 / 1.6)) / 22500 = 0.00106072
    /// (0.032569); highest 0.6 - 1.959964 * 0.032569 = 0.536166; 0.036166 / 0.033389 = 1.08318;
    /// the normal distribution there is 0.8606.
    #[test]
    fn the_power_by_hand() {
        let power = power_of_trials(150, 0.6, 0.95);
        assert!((power - 0.8606).abs() < 2e-4, "{power}");
    }

    #[test]
    fn the_fewest_trials_are_enough_and_one_less_is_not() {
        for power in [0.5, 0.8, 0.9, 0.99] {
            let n = trials_for_power(power, 0.6, 0.95).unwrap();
            assert!(power_of_trials(n, 0.6, 0.95) >= power);
            assert!(power_of_trials(n - 1, 0.6, 0.95) < power);
        }
        // A limit so near to no difference needs more than anyone sends.
        assert_eq!(trials_for_power(0.9, 0.5001, 0.95), None);
        assert_eq!(power_of_trials(0, 0.6, 0.95), 0.0);
        assert_eq!(power_of_trials(100, 0.5, 0.95), 0.0);
    }
}
