//! Stalls: the gaps a reader of a token stream notices.
//!
//! A prompt admitted in mid decode freezes every stream for the length of its prefill. The mean
//! gap hides that, and a p99 moves only when more than 1 % of gaps are hit, so stalls are counted,
//! summed and given as shares of both the gaps and the time.

/// When a gap is a stall: at least `factor` times the run's median gap and at least `floor_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallRule {
    /// Multiple of the median gap.
    pub factor: u64,
    /// Lowest threshold in nanoseconds, so that a fast stream's jitter is no stall.
    pub floor_ns: u64,
}

impl Default for StallRule {
    /// Five times the median, at least 50 ms.
    fn default() -> Self {
        Self {
            factor: 5,
            floor_ns: 50_000_000,
        }
    }
}

/// What the rule found in one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StallSummary {
    /// Gaps looked at.
    pub gaps: u64,
    /// Nearest-rank median gap in nanoseconds; None without gaps.
    pub median_gap_ns: Option<u64>,
    /// The threshold that was used, in nanoseconds; None without gaps.
    pub threshold_ns: Option<u64>,
    /// Gaps at or above the threshold.
    pub count: u64,
    /// Longest gap counted as a stall, in nanoseconds; None without stalls.
    pub longest_ns: Option<u64>,
    /// Sum of the stalled gaps in nanoseconds (saturating).
    pub total_ns: u64,
    /// `count / gaps`; None without gaps.
    pub count_share: Option<f64>,
    /// Stalled time over the time of all gaps; None when that time is 0.
    pub time_share: Option<f64>,
}

/// Finds the stalls among event gaps (nanoseconds, any order).
pub fn stalls(gaps_ns: &[u64], rule: StallRule) -> StallSummary {
    let mut sorted = gaps_ns.to_vec();
    sorted.sort_unstable();
    stalls_of_sorted(&sorted, rule)
}

/// As [`stalls`], of gaps that are in ascending order already, without a copy of them.
pub fn stalls_of_sorted(sorted: &[u64], rule: StallRule) -> StallSummary {
    let median = crate::nearest_rank(sorted, 0.5);
    let threshold = median.map(|m| m.saturating_mul(rule.factor).max(rule.floor_ns));
    let first = threshold.map_or(sorted.len(), |t| sorted.partition_point(|&gap| gap < t));
    let sum = |part: &[u64]| part.iter().map(|&gap| u128::from(gap)).sum::<u128>();
    let (all_ns, stalled_ns) = (sum(sorted), sum(&sorted[first..]));
    let count = sorted.len() - first;
    StallSummary {
        gaps: sorted.len() as u64,
        median_gap_ns: median,
        threshold_ns: threshold,
        count: count as u64,
        longest_ns: sorted[first..].last().copied(),
        total_ns: u64::try_from(stalled_ns).unwrap_or(u64::MAX),
        count_share: (!sorted.is_empty()).then(|| count as f64 / sorted.len() as f64),
        time_share: (all_ns > 0).then(|| stalled_ns as f64 / all_ns as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_floor_rules_a_fast_stream() {
        // Median 10 ms, 5 x 10 = 50 ms = floor. 50 counts, 49 does not.
        let gaps = [
            10 * MS,
            49 * MS,
            10 * MS,
            50 * MS,
            10 * MS,
            10 * MS,
            871 * MS,
        ];
        let s = stalls(&gaps, StallRule::default());
        assert_eq!(s.median_gap_ns, Some(10 * MS));
        assert_eq!(s.threshold_ns, Some(50 * MS));
        assert_eq!(
            (s.count, s.total_ns, s.longest_ns),
            (2, 921 * MS, Some(871 * MS))
        );
        assert_eq!(s.count_share, Some(2.0 / 7.0));
        assert_eq!(s.time_share, Some(921.0 / 1010.0));
    }

    #[test]
    fn the_median_rules_a_slow_stream() {
        let gaps = [40 * MS, 40 * MS, 40 * MS, 199 * MS, 200 * MS];
        let s = stalls(&gaps, StallRule::default());
        assert_eq!(
            (s.threshold_ns, s.count, s.total_ns),
            (Some(200 * MS), 1, 200 * MS)
        );
    }

    #[test]
    fn no_gaps_is_null_and_huge_gaps_saturate() {
        let s = stalls(&[], StallRule::default());
        assert_eq!((s.gaps, s.count, s.total_ns), (0, 0, 0));
        assert_eq!(
            (s.median_gap_ns, s.count_share, s.time_share),
            (None, None, None)
        );
        let huge = stalls(
            &[u64::MAX, u64::MAX],
            StallRule {
                factor: 1,
                floor_ns: 0,
            },
        );
        assert_eq!((huge.count, huge.total_ns), (2, u64::MAX));
        let zero = stalls(&[0, 0], StallRule::default());
        assert_eq!((zero.count, zero.time_share), (0, None));
    }
}
