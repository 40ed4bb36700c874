//! The area under the ROC curve of two samples of times, with an interval.
//!
//! `pb_stats::auc` is for independent samples; here both times of a trial share the server's mood.
//!
//! The area is the chance that a time of the arm is shorter than one of the control, ties counting
//! half (Mann and Whitney 1947). Two intervals are computed and the wider end of either is kept:
//!
//! * the score interval of Newcombe (2006, method 5), which solves for the areas whose own
//!   variance allows what was seen, and so keeps a width when the samples do not overlap;
//! * the interval of DeLong (1988) on the logit scale, in the form of Obuchowski (1997) for
//!   samples that come in pairs: the two times of one trial share the server's mood. It follows
//!   the real shape of the samples, and does not exist where they do not overlap.

use pb_stats::normal_quantile;
use serde::{Deserialize, Serialize};

/// Steps of the bisection: more than the digits of an `f64`.
const BISECTIONS: usize = 100;

/// Fewest pairs for which an interval means anything.
const MIN_PAIRS: usize = 2;

/// An area with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auc {
    /// Chance that the arm's time is shorter than the control's.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Pairs of times that were used.
    pub n: usize,
    /// Confidence level of the two-sided interval.
    pub confidence: f64,
}

/// The area of pairs `(arm, control)`, one pair a trial, in any unit. `None` when there are fewer
/// than two pairs, when a time is not a number, or for a confidence outside (0, 1).
pub fn auc(pairs: &[(f64, f64)], confidence: f64) -> Option<Auc> {
    let odd = pairs.iter().any(|(a, c)| a.is_nan() || c.is_nan());
    if pairs.len() < MIN_PAIRS || odd || !(confidence > 0.0 && confidence < 1.0) {
        return None;
    }
    let (arm, control): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    // How much of the control each time of the arm beats, and the other way round.
    let wins = placements(&arm, &control);
    let beaten: Vec<f64> = placements(&control, &arm).iter().map(|p| 1.0 - p).collect();
    let n = pairs.len();
    let value = wins.iter().sum::<f64>() / n as f64;
    let z = normal_quantile(0.5 + 0.5 * confidence);
    let (mut low, mut high) = (score_end(value, n, -z), score_end(value, n, z));
    if let Some((delong_low, delong_high)) = delong(value, &wins, &beaten, z) {
        low = low.min(delong_low);
        high = high.max(delong_high);
    }
    Some(Auc {
        value,
        low,
        high,
        n,
        confidence,
    })
}

/// For each of `these` the share of `others` that is greater, equal ones counting half.
fn placements(these: &[f64], others: &[f64]) -> Vec<f64> {
    let mut sorted = others.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let share = |x: &f64| {
        let below = sorted.partition_point(|y| y < x);
        let up_to = sorted.partition_point(|y| y <= x);
        let greater = sorted.len() - up_to;
        let equal = up_to - below;
        (greater as f64 + 0.5 * equal as f64) / sorted.len() as f64
    };
    these.iter().map(share).collect()
}

/// Variance of the estimate when the true area is `theta` and each sample has `n` times
/// (Hanley and McNeil 1982, as Newcombe symmetrised it).
pub(crate) fn variance_at(theta: f64, n: usize) -> f64 {
    let n = n as f64;
    let pair = (1.0 - theta) / (2.0 - theta) + theta / (1.0 + theta);
    theta * (1.0 - theta) * (1.0 + (n - 1.0) * pair) / (n * n)
}

/// The end of the score interval on the side of `z`: the area farthest from `value` of which
/// `value` is no more than `|z|` standard errors away.
fn score_end(value: f64, n: usize, z: f64) -> f64 {
    let (mut inside, mut outside) = (value, if z < 0.0 { 0.0 } else { 1.0 });
    for _ in 0..BISECTIONS {
        let theta = 0.5 * (inside + outside);
        if (theta - value).abs() <= z.abs() * variance_at(theta, n).sqrt() {
            inside = theta;
        } else {
            outside = theta;
        }
    }
    inside
}

/// The clustered DeLong interval on the logit scale; `None` where the samples do not overlap or
/// nothing varies.
fn delong(value: f64, wins: &[f64], beaten: &[f64], z: f64) -> Option<(f64, f64)> {
    let n = wins.len() as f64;
    let product = |a: &[f64], b: &[f64]| {
        let sum: f64 = a
            .iter()
            .zip(b)
            .map(|(a, b)| (a - value) * (b - value))
            .sum();
        sum / (n - 1.0)
    };
    let spread = product(wins, wins) + product(beaten, beaten) + 2.0 * product(wins, beaten);
    if !(spread > 0.0 && value > 0.0 && value < 1.0) {
        return None;
    }
    let error = (spread / n).sqrt() / (value * (1.0 - value));
    let logit = (value / (1.0 - value)).ln();
    let back = |x: f64| 1.0 / (1.0 + (-x).exp());
    Some((back(logit - z * error), back(logit + z * error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, expected: f64, tolerance: f64) {
        assert!(
            (got - expected).abs() <= tolerance,
            "{got} is not {expected}"
        );
    }

    /// Nine comparisons by hand: 1 < 2, 4, 6 (3); 3 < 4, 6 (2); 5 < 6 (1): six of nine.
    #[test]
    fn the_area_by_hand() {
        let pairs = [(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)];
        close(auc(&pairs, 0.95).unwrap().value, 6.0 / 9.0, 1e-12);
        // 1 ties with 1 (half) and is below 2: 1.5; 2 ties with 2: 0.5; two of four.
        let ties = [(1.0, 1.0), (2.0, 2.0)];
        close(auc(&ties, 0.95).unwrap().value, 0.5, 1e-12);
    }

    #[test]
    fn swapping_arm_and_control_mirrors_the_interval() {
        let pairs: Vec<(f64, f64)> = (0..40_u32)
            .map(|i| (f64::from(i * 7 % 40), f64::from(i * 11 % 40 + 6)))
            .collect();
        let swapped: Vec<(f64, f64)> = pairs.iter().map(|(a, c)| (*c, *a)).collect();
        let (one, other) = (auc(&pairs, 0.9).unwrap(), auc(&swapped, 0.9).unwrap());
        close(one.value, 1.0 - other.value, 1e-12);
        close(one.low, 1.0 - other.high, 1e-9);
        close(one.high, 1.0 - other.low, 1e-9);
        assert!(one.low < one.value && one.value < one.high);
    }

    /// Samples that do not overlap, n = 20. The end solves (1 - t)^2 = z^2 var(t), z = 1.959964, by
    /// hand: t = 0.8977 gives 0.010465 > 0.010361, t = 0.8997 gives 0.010060 < 0.010166.
    #[test]
    fn complete_separation_keeps_a_width() {
        let pairs: Vec<(f64, f64)> = (0..20).map(|i| (f64::from(i), 100.0)).collect();
        let area = auc(&pairs, 0.95).unwrap();
        assert_eq!((area.value, area.high), (1.0, 1.0));
        assert!((0.8977..0.8997).contains(&area.low), "{}", area.low);
    }

    /// Under "no difference" the variance is the exact one of the Mann-Whitney statistic,
    /// (m + n + 1) / (12 m n), which is 101 / 30000 for 50 and 50.
    #[test]
    fn the_variance_at_one_half_is_the_textbook_one() {
        close(variance_at(0.5, 50), 101.0 / 30_000.0, 1e-12);
    }

    /// Worked by hand: arm 1, 3, 5, control 2, 4, 6. wins 1, 2/3, 1/3; beaten 1/3, 2/3, 1;
    /// theta 2/3. S10 = S01 = (1/9 + 0 + 1/9) / 2 = 1/9, S11 = (-1/9 + 0 - 1/9) / 2 = -1/9.
    /// Their sum is 1/9 + 1/9 - 2/9 = 0: the pairs move together, and DeLong says nothing.
    #[test]
    fn the_clustered_variance_by_hand() {
        let third = 1.0 / 3.0;
        let (wins, beaten) = ([1.0, 2.0 * third, third], [third, 2.0 * third, 1.0]);
        assert_eq!(placements(&[1.0, 3.0, 5.0], &[2.0, 4.0, 6.0]), wins);
        assert!(
            delong(2.0 / 3.0, &wins, &beaten, 1.96).is_none_or(|(low, high)| high - low < 1e-6)
        );
        // Other pairs: S11 = (1/3 * 0 + 0 * -1/3 + -1/3 * 1/3) / 2 = -1/18, the sum is 1/9, the
        // error sqrt(1/27) / (2/3 * 1/3) = sqrt(3) / 2 around logit ln 2.
        let shuffled = [2.0 * third, third, 1.0];
        let error = 0.75_f64.sqrt();
        let (low, high) = delong(2.0 / 3.0, &wins, &shuffled, 1.0).unwrap();
        let logit = |p: f64| (p / (1.0 - p)).ln();
        close(logit(high) - 2f64.ln(), error, 1e-9);
        close(2f64.ln() - logit(low), error, 1e-9);
    }

    #[test]
    fn what_cannot_be_answered_is_none() {
        assert_eq!(auc(&[], 0.95), None);
        assert_eq!(auc(&[(1.0, 2.0)], 0.95), None);
        assert_eq!(auc(&[(1.0, 2.0), (f64::NAN, 1.0)], 0.95), None);
        assert_eq!(auc(&[(1.0, 2.0), (1.0, 2.0)], 1.0), None);
        // Failures may be counted as endless.
        let endless = auc(&[(1.0, f64::INFINITY), (2.0, 3.0)], 0.95).unwrap();
        assert_eq!(endless.value, 1.0);
    }
}
