//! Quantiles, with the rule named.
//!
//! On 1..=100 three common load tools report a p99 of 99.01, 99 and 100. None is wrong; not saying
//! which one is. Verdicts use nearest rank on raw integers, because it always returns a value that
//! was measured; the other two exist to compare with other tools' numbers.

/// A named way to turn sorted samples into a quantile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuantileRule {
    /// The smallest sample with at least a share `p` of samples at or below it.
    NearestRank,
    /// Interpolation between order statistics (numpy's default, type 7).
    Linear,
    /// `sorted[floor(n * p)]`, as MLPerf LoadGen indexes.
    UpperIndex,
}

impl QuantileRule {
    /// The name that a report prints beside the number.
    pub fn name(self) -> &'static str {
        match self {
            Self::NearestRank => "nearest-rank",
            Self::Linear => "linear",
            Self::UpperIndex => "upper-index",
        }
    }
}

/// The quantile `p` (0 to 1) of ascending finite samples under a named rule. None when the set is
/// empty or `p` is outside `[0, 1]`.
pub fn quantile(sorted: &[f64], p: f64, rule: QuantileRule) -> Option<f64> {
    match rule {
        QuantileRule::NearestRank => nearest_rank(sorted, p),
        QuantileRule::Linear => linear(sorted, p),
        QuantileRule::UpperIndex => upper_index(sorted, p),
    }
}

/// Nearest-rank quantile of an ascending slice: the sample of rank `ceil(p * n)`, at least 1. None
/// when the set is empty or `p` is outside `[0, 1]`.
pub fn nearest_rank<T: Copy>(sorted: &[T], p: f64) -> Option<T> {
    let product = position(sorted.len(), p)?;
    let rank = (product.ceil() as usize).clamp(1, sorted.len());
    Some(sorted[rank - 1])
}

/// LoadGen's rule: the sample at index `floor(p * n)`, at most the last. None as above.
pub fn upper_index<T: Copy>(sorted: &[T], p: f64) -> Option<T> {
    let product = position(sorted.len(), p)?;
    Some(sorted[(product.floor() as usize).min(sorted.len() - 1)])
}

/// Linear interpolation at `p * (n - 1)`. None as above.
pub fn linear(sorted: &[f64], p: f64) -> Option<f64> {
    position(sorted.len(), p)?;
    let place = p * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    let share = place - below as f64;
    Some(sorted[below] * (1.0 - share) + sorted[above] * share)
}

fn position(n: usize, p: f64) -> Option<f64> {
    (n > 0 && (0.0..=1.0).contains(&p)).then(|| snapped(p * n as f64))
}

/// A product `p * n`, snapped to the integer it stands for. Without this, 0.07 * 100 =
/// 7.000000000000001 would be rank 8.
pub(crate) fn snapped(product: f64) -> f64 {
    let whole = product.round();
    if (product - whole).abs() <= 8.0 * f64::EPSILON * whole.max(1.0) {
        whole
    } else {
        product
    }
}

/// The finite values in ascending order, and how many were dropped as NaN or infinite.
pub fn sort_finite(values: &[f64]) -> (Vec<f64>, usize) {
    let mut kept: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    kept.sort_unstable_by(f64::total_cmp);
    let dropped = values.len() - kept.len();
    (kept, dropped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn the_three_rules_differ_on_one_to_a_hundred_as_documented() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        close(
            quantile(&sorted, 0.99, QuantileRule::Linear).unwrap(),
            99.01,
            1e-12,
            0.0,
        );
        assert_eq!(
            quantile(&sorted, 0.99, QuantileRule::NearestRank),
            Some(99.0)
        );
        assert_eq!(
            quantile(&sorted, 0.99, QuantileRule::UpperIndex),
            Some(100.0)
        );
        assert_eq!(QuantileRule::NearestRank.name(), "nearest-rank");
    }

    #[test]
    fn nearest_rank_survives_products_that_round_up() {
        let sorted: Vec<u64> = (1..=100).collect();
        for percent in 1..=100_u64 {
            let p = percent as f64 / 100.0;
            assert_eq!(nearest_rank(&sorted, p), Some(percent), "p{percent}");
        }
        // p99.9 of 1000 is the 999th, of 1001 the 1000th (ceil 999.999).
        let many: Vec<u64> = (1..=1001).collect();
        assert_eq!(nearest_rank(&many[..1000], 0.999), Some(999));
        assert_eq!(nearest_rank(&many, 0.999), Some(1000));
    }

    #[test]
    fn ends_and_empty_sets() {
        assert_eq!(nearest_rank::<u64>(&[], 0.5), None);
        assert_eq!(linear(&[], 0.5), None);
        assert_eq!(upper_index::<u64>(&[], 0.5), None);
        assert_eq!(nearest_rank(&[7_u64], 0.0), Some(7));
        assert_eq!(nearest_rank(&[7_u64, 9], 1.0), Some(9));
        assert_eq!(upper_index(&[7_u64, 9], 1.0), Some(9));
        assert_eq!(linear(&[1.0, 3.0], 0.5), Some(2.0));
        assert_eq!(nearest_rank(&[1_u64], 1.5), None);
        assert_eq!(nearest_rank(&[1_u64], f64::NAN), None);
    }

    #[test]
    fn sort_finite_reports_what_it_dropped() {
        let (kept, dropped) = sort_finite(&[3.0, f64::NAN, -1.0, f64::INFINITY]);
        assert_eq!((kept, dropped), (vec![-1.0, 3.0], 2));
    }
}
