//! Samples of which many are equal, without the memory of each.
//!
//! A content event may claim any number of tokens, and each of them is a sample. Counting equal
//! ones keeps the memory of a verdict within the size of the rows, whatever they claim.

use pb_record::metrics::Repeated;

use super::verdict::Distribution;

/// A set of samples in nanoseconds with their counts, ascending once sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    runs: Vec<Repeated>,
}

impl Counted {
    /// One sample for each value.
    pub fn of(values: &[u64]) -> Counted {
        let runs = values.iter().map(|&ns| Repeated { ns, count: 1 });
        Counted {
            runs: runs.collect(),
        }
    }

    /// Appends samples.
    pub fn extend(&mut self, runs: impl IntoIterator<Item = Repeated>) {
        self.runs.extend(runs);
    }

    /// Sorts the samples, for quantiles.
    pub fn sort(&mut self) {
        self.runs.sort_unstable();
    }

    /// The values with their counts, in their order.
    pub fn runs(&self) -> &[Repeated] {
        &self.runs
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Nearest-rank quantile of sorted samples, by the rule of [`pb_stats::nearest_rank`]. `None`
    /// without samples.
    pub fn nearest_rank(&self, p: f64) -> Option<u64> {
        let n = self.len();
        if n == 0 || !(0.0..=1.0).contains(&p) {
            return None;
        }
        // Products such as 0.07 * 100 stand for the integer next to them.
        let product = p * n as f64;
        let whole = product.round();
        let snapped = (product - whole).abs() <= 8.0 * f64::EPSILON * whole.max(1.0);
        let rank = if snapped { whole } else { product.ceil() };
        let rank = (rank as u64).clamp(1, n);
        let mut seen = 0;
        let reaches = |run: &&Repeated| {
            seen += run.count;
            seen >= rank
        };
        self.runs.iter().find(reaches).map(|run| run.ns)
    }

    /// The distribution of sorted samples.
    pub fn distribution(&self) -> Distribution {
        let n = self.len();
        let weighted = self.runs.iter().map(|run| run.ns as f64 * run.count as f64);
        let sum: f64 = weighted.sum();
        Distribution {
            n,
            p50_ns: self.nearest_rank(0.50),
            p95_ns: self.nearest_rank(0.95),
            p99_ns: self.nearest_rank(0.99),
            max_ns: self.runs.last().map(|run| run.ns),
            mean_ns: (n > 0).then(|| sum / n as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_samples_written_out() {
        let runs = [(3, 7), (5, 1), (5, 2), (9, 40), (11, 49), (700, 1)];
        let mut counted = Counted::default();
        counted.extend(runs.map(|(ns, count)| Repeated { ns, count }));
        let repeat = |&(ns, count): &(u64, usize)| std::iter::repeat_n(ns, count);
        let plain: Vec<u64> = runs
            .map(|(ns, n)| (ns, n as usize))
            .iter()
            .flat_map(repeat)
            .collect();
        assert_eq!(counted.len(), 100);
        for percent in 0..=1000 {
            let p = f64::from(percent) / 1000.0;
            assert_eq!(
                counted.nearest_rank(p),
                pb_stats::nearest_rank(&plain, p),
                "{p}"
            );
        }
        assert_eq!(counted.distribution().max_ns, Some(700));
        // 21 + 15 + 360 + 539 + 700 = 1635.
        assert_eq!(counted.distribution().mean_ns, Some(16.35));
        assert_eq!(Counted::default().distribution(), Distribution::default());
    }

    #[test]
    fn four_billion_samples_fit() {
        let mut counted = Counted::of(&[1, 2]);
        counted.extend([Repeated {
            ns: 5,
            count: u64::from(u32::MAX),
        }]);
        counted.sort();
        assert_eq!(
            (counted.nearest_rank(0.5), counted.len()),
            (Some(5), 4_294_967_297)
        );
    }
}
