//! Samples in nanoseconds and what is said of them.
//!
//! Percentiles of verdicts are nearest-rank: a value that was measured. Other tools interpolate;
//! their rule is here too, under its name, for files that they shall read.

use pb_contract::Nanos;
use pb_record::metrics::Repeated;
use serde::{Deserialize, Serialize};

/// Name of the rule of all percentiles in the document.
pub const PERCENTILE_RULE: &str = "nearest-rank";

/// A set of latencies, in milliseconds. Percentiles are nearest-rank on the nanosecond values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Samples.
    pub n: usize,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Of samples in nanoseconds; nothing when there are none.
    pub fn of(samples_ns: Vec<u64>) -> Option<Spread> {
        Distribution::of(samples_ns).spread()
    }
}

/// Nanoseconds in milliseconds.
pub(crate) fn ms(ns: u64) -> f64 {
    Nanos(ns).as_millis_f64()
}

/// The rank of the quantile `p` (0 to 1) among `n` samples, from 1: `ceil(p * n)`, at least 1.
/// A product that is an integer but for rounding stands for that integer.
pub(crate) fn rank(n: u64, p: f64) -> Option<u64> {
    if n == 0 || !(0.0..=1.0).contains(&p) {
        return None;
    }
    let product = p * n as f64;
    let whole = product.round();
    let near = (product - whole).abs() <= 8.0 * f64::EPSILON * whole.max(1.0);
    let rank = if near { whole } else { product.ceil() };
    Some((rank as u64).clamp(1, n))
}

/// Samples in order. Those that many tokens share are kept once with their number, so that a row
/// that claims a billion tokens costs no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    singles: Vec<u64>,
    runs: Vec<Repeated>,
    n: u64,
}

impl Distribution {
    /// Of samples in nanoseconds, in any order.
    pub fn of(singles: Vec<u64>) -> Distribution {
        Distribution::with_runs(singles, Vec::new())
    }

    /// Of samples, and of others that occur several times; both in any order.
    pub fn with_runs(mut singles: Vec<u64>, mut runs: Vec<Repeated>) -> Distribution {
        singles.sort_unstable();
        runs.retain(|run| run.count > 0);
        runs.sort_unstable();
        let counted = runs.iter().map(|run| run.count);
        let n = counted.fold(singles.len() as u64, u64::saturating_add);
        Distribution { singles, runs, n }
    }

    /// Samples.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// The samples that are there once, ascending.
    pub(crate) fn singles(&self) -> &[u64] {
        &self.singles
    }

    /// No samples.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// The distinct samples with their numbers, ascending; equal ones may come more than once.
    pub fn iter(&self) -> impl Iterator<Item = Repeated> {
        let (mut singles, mut runs) = (self.singles.iter().peekable(), self.runs.iter().peekable());
        std::iter::from_fn(move || match (singles.peek(), runs.peek()) {
            (Some(&&ns), run) if run.is_none_or(|run| ns <= run.ns) => {
                singles.next();
                Some(Repeated { ns, count: 1 })
            }
            _ => runs.next().copied(),
        })
    }

    /// The samples of ascending ranks, from 1.
    fn at(&self, ranks: &[u64]) -> Vec<u64> {
        let (mut found, mut seen) = (Vec::with_capacity(ranks.len()), 0_u64);
        for run in self.iter() {
            seen = seen.saturating_add(run.count);
            while found.len() < ranks.len() && ranks[found.len()] <= seen {
                found.push(run.ns);
            }
        }
        found
    }

    /// The sample of a rank, from 1.
    pub(crate) fn at_rank(&self, rank: u64) -> Option<u64> {
        self.at(&[rank]).first().copied()
    }

    /// The nearest-rank quantile `p`, 0 to 1. None when the set is empty or `p` is outside.
    pub fn nearest_rank(&self, p: f64) -> Option<u64> {
        self.at(&[rank(self.n, p)?]).first().copied()
    }

    /// The quantile `p` interpolated at `p * (n - 1)`, as numpy does by default. None as above.
    pub fn linear(&self, p: f64) -> Option<f64> {
        if self.n == 0 || !(0.0..=1.0).contains(&p) {
            return None;
        }
        let place = p * (self.n - 1) as f64;
        let below = place.floor();
        let ranks = [below as u64 + 1, (below as u64 + 2).min(self.n)];
        let around = self.at(&ranks);
        let (low, high) = (*around.first()? as f64, *around.get(1)? as f64);
        Some(low + (high - low) * (place - below))
    }

    /// Mean in nanoseconds.
    pub fn mean_ns(&self) -> Option<f64> {
        let sum: u128 = self
            .iter()
            .map(|run| u128::from(run.ns) * u128::from(run.count))
            .sum();
        (self.n > 0).then(|| sum as f64 / self.n as f64)
    }

    /// Standard deviation of the samples themselves (divided by `n`) in nanoseconds, as numpy
    /// does by default.
    pub fn std_ns(&self) -> Option<f64> {
        let mean = self.mean_ns()?;
        let square = |run: Repeated| (run.ns as f64 - mean).powi(2) * run.count as f64;
        Some((self.iter().map(square).sum::<f64>() / self.n as f64).sqrt())
    }

    /// The usual figures.
    pub fn spread(&self) -> Option<Spread> {
        let ranks: Option<Vec<u64>> = [0.5, 0.9, 0.95, 0.99, 0.999, 1.0]
            .into_iter()
            .map(|p| rank(self.n, p))
            .collect();
        let found = self.at(&ranks?);
        let [p50, p90, p95, p99, p999, max] = found[..] else {
            return None;
        };
        Some(Spread {
            n: usize::try_from(self.n).unwrap_or(usize::MAX),
            mean: self.mean_ns()? / 1e6,
            p50: ms(p50),
            p90: ms(p90),
            p95: ms(p95),
            p99: ms(p99),
            p999: ms(p999),
            max: ms(max),
        })
    }
}

#[cfg(test)]
mod tests {
    use pb_stats::nearest_rank;
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// 1 to 100: linear interpolation gives 99.01, nearest rank 99, an upper index 100.
    #[test]
    fn row_79_the_rule_of_a_percentile_has_a_name() {
        let all = Distribution::of((1..=100).rev().map(|i| i * MS).collect());
        assert_eq!(PERCENTILE_RULE, "nearest-rank");
        assert_eq!(all.nearest_rank(0.99), Some(99 * MS));
        assert_eq!(all.spread().unwrap().p99, 99.0);
        let linear = all.linear(0.99).unwrap() / MS as f64;
        assert!((linear - 99.01).abs() < 1e-9, "{linear}");
        // Mean 50.5, variance (100^2 - 1) / 12.
        assert_eq!(all.mean_ns(), Some(50.5 * MS as f64));
        let std = all.std_ns().unwrap() / MS as f64;
        assert!((std - (9_999.0_f64 / 12.0).sqrt()).abs() < 1e-9, "{std}");
    }

    #[test]
    fn counted_samples_are_samples() {
        let runs = vec![Repeated { ns: 5, count: 3 }, Repeated { ns: 1, count: 0 }];
        let some = Distribution::with_runs(vec![7, 2], runs);
        // 2, 5, 5, 5, 7.
        assert_eq!((some.n(), some.nearest_rank(0.5)), (5, Some(5)));
        assert_eq!(some.at(&[1, 2, 4, 5]), [2, 5, 5, 7]);
        assert_eq!(some.mean_ns(), Some(24.0 / 5.0));
        let huge = Distribution::with_runs(
            vec![9],
            vec![Repeated {
                ns: 4,
                count: u64::MAX,
            }],
        );
        assert_eq!((huge.n(), huge.nearest_rank(0.5)), (u64::MAX, Some(4)));
    }

    #[test]
    fn row_38_an_empty_set_has_no_figures() {
        let none = Distribution::default();
        assert_eq!(
            (none.spread(), none.mean_ns(), none.std_ns()),
            (None, None, None)
        );
        assert_eq!((none.nearest_rank(0.5), none.linear(0.5)), (None, None));
        assert_eq!(Distribution::of(vec![1]).nearest_rank(1.5), None);
    }

    proptest! {
        #[test]
        fn ranks_are_those_of_the_plain_rule(values in prop::collection::vec(0_u64..50, 1..80),
                                             p in 0.0_f64..=1.0, percent in 0_u32..=100) {
            let mut sorted = values.clone();
            sorted.sort_unstable();
            // The same samples, some of them counted.
            let (singles, counted) = values.split_at(values.len() / 2);
            let runs = counted.iter().map(|&ns| Repeated { ns, count: 1 }).collect();
            let mixed = Distribution::with_runs(singles.to_vec(), runs);
            for p in [p, f64::from(percent) / 100.0] {
                prop_assert_eq!(mixed.nearest_rank(p), nearest_rank(&sorted, p));
                let plain: Vec<f64> = sorted.iter().map(|&ns| ns as f64).collect();
                let (a, b) = (mixed.linear(p).unwrap(), pb_stats::linear(&plain, p).unwrap());
                prop_assert!((a - b).abs() < 1e-9);
            }
        }
    }
}
