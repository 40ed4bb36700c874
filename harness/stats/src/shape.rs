//! Shapes for plots: empirical distribution functions and histograms with fixed bins.
//!
//! Bins are fixed by the caller, never by the data, so that two arms share one axis and a bar in
//! one plot can be compared with the bar above it.

use crate::error::StatError;
use crate::quantile::nearest_rank;

/// One step of an empirical distribution function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CdfPoint {
    /// Value, in the data's unit.
    pub value: f64,
    /// Share of samples at or below it.
    pub share: f64,
}

/// All steps of the empirical distribution function of ascending samples, one per distinct value.
pub fn ecdf(sorted: &[f64]) -> Vec<CdfPoint> {
    let n = sorted.len() as f64;
    let mut points: Vec<CdfPoint> = Vec::new();
    for (i, &value) in sorted.iter().enumerate() {
        let share = (i + 1) as f64 / n;
        match points.last_mut() {
            Some(last) if last.value == value => last.share = share,
            _ => points.push(CdfPoint { value, share }),
        }
    }
    points
}

/// The same function thinned for a plot: even in the middle, and dense towards 1, where p99 and
/// p99.9 live. Returns at most `3 * per_segment + 2` points; every value is a sample.
pub fn ecdf_thinned(sorted: &[f64], per_segment: usize) -> Vec<CdfPoint> {
    let steps = per_segment.max(1);
    if sorted.len() <= 3 * steps + 2 {
        return ecdf(sorted);
    }
    let mut shares = vec![0.0];
    for (from, to) in [(0.0, 0.9), (0.9, 0.99), (0.99, 0.999)] {
        shares.extend((1..=steps).map(|i| from + (to - from) * i as f64 / steps as f64));
    }
    shares.push(1.0);
    let mut points: Vec<CdfPoint> = Vec::with_capacity(shares.len());
    for share in shares {
        let Some(value) = nearest_rank(sorted, share) else {
            continue;
        };
        // The share drawn is the true one at that value, not the one asked for.
        let at_or_below = sorted.partition_point(|&v| v <= value);
        let share = at_or_below as f64 / sorted.len() as f64;
        if points.last().is_none_or(|last| last.value < value) {
            points.push(CdfPoint { value, share });
        }
    }
    points
}

/// Log-spaced bin edges shared by every histogram of one plot.
#[derive(Debug, Clone, PartialEq)]
pub struct LogBins {
    edges: Vec<f64>,
}

impl LogBins {
    /// Most bins that a plot may ask for.
    pub const MAX_BINS: usize = 10_000;

    /// Edges from `low` to at least `high`, `per_decade` bins to each factor of ten. Needs
    /// `0 < low < high`, both finite, and at most [`LogBins::MAX_BINS`] bins.
    pub fn new(low: f64, high: f64, per_decade: usize) -> Result<Self, StatError> {
        if !(low.is_finite() && low > 0.0) {
            return Err(StatError::BadParameter {
                name: "low",
                value: low,
            });
        }
        if !(high.is_finite() && high > low) {
            return Err(StatError::BadParameter {
                name: "high",
                value: high,
            });
        }
        // The small slack keeps 1 to 1000 at three decades in spite of rounding.
        let bins = ((high.log10() - low.log10()) * per_decade as f64 - 1e-9)
            .ceil()
            .max(1.0);
        if per_decade == 0 || bins > Self::MAX_BINS as f64 {
            return Err(StatError::BadParameter {
                name: "per_decade",
                value: per_decade as f64,
            });
        }
        let edges = (0..=bins as usize)
            .map(|i| low * 10.0_f64.powf(i as f64 / per_decade as f64))
            .collect();
        Ok(Self { edges })
    }

    /// Bin edges, ascending; bin `i` holds `edges[i] <= value < edges[i + 1]`.
    pub fn edges(&self) -> &[f64] {
        &self.edges
    }

    /// Counts values into the bins; everything is counted somewhere.
    pub fn count(&self, values: &[f64]) -> LogHistogram {
        let mut histogram = LogHistogram {
            counts: vec![0; self.edges.len() - 1],
            below: 0,
            above: 0,
            not_finite: 0,
        };
        for &value in values {
            let passed = self.edges.partition_point(|&edge| edge <= value);
            if !value.is_finite() {
                histogram.not_finite += 1;
            } else if passed == 0 {
                histogram.below += 1;
            } else if passed == self.edges.len() {
                histogram.above += 1;
            } else {
                histogram.counts[passed - 1] += 1;
            }
        }
        histogram
    }
}

/// Counts over [`LogBins`]. The four parts always sum to the number of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHistogram {
    /// Values per bin.
    pub counts: Vec<u64>,
    /// Values under the first edge.
    pub below: u64,
    /// Values at or over the last edge.
    pub above: u64,
    /// NaN and infinite values.
    pub not_finite: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn ecdf_by_hand() {
        let points = ecdf(&[1.0, 2.0, 2.0, 5.0]);
        let want = [(1.0, 0.25), (2.0, 0.75), (5.0, 1.0)];
        assert_eq!(points.len(), 3);
        for (point, (value, share)) in points.iter().zip(want) {
            assert_eq!((point.value, point.share), (value, share));
        }
        assert!(ecdf(&[]).is_empty());
    }

    #[test]
    fn thinning_keeps_ends_tail_and_true_shares() {
        let sorted: Vec<f64> = (1..=10_000).map(f64::from).collect();
        let points = ecdf_thinned(&sorted, 10);
        assert!(points.len() <= 32);
        assert_eq!(
            (points[0].value, points[points.len() - 1].value),
            (1.0, 10_000.0)
        );
        assert!(
            points.iter().any(|p| p.value == 9_900.0) && points.iter().any(|p| p.value == 9_990.0)
        );
        for p in &points {
            assert_eq!(p.share, p.value / 10_000.0);
        }
        assert_eq!(
            ecdf_thinned(&[3.0, 3.0], 10),
            vec![CdfPoint {
                value: 3.0,
                share: 1.0
            }]
        );
    }

    #[test]
    fn log_bins_by_hand() {
        let bins = LogBins::new(1.0, 1000.0, 1).unwrap();
        for (edge, want) in bins.edges().iter().zip([1.0, 10.0, 100.0, 1000.0]) {
            close(*edge, want, 1e-12, 0.0);
        }
        assert_eq!(bins.edges().len(), 4);
        let h = bins.count(&[0.5, 1.0, 9.99, 10.5, 500.0, 1000.5, f64::NAN, f64::INFINITY]);
        assert_eq!(h.counts, vec![2, 1, 1]);
        assert_eq!((h.below, h.above, h.not_finite), (1, 1, 2));
        assert!(LogBins::new(0.0, 1.0, 5).is_err() && LogBins::new(2.0, 1.0, 5).is_err());
        assert!(LogBins::new(1.0, 10.0, 0).is_err() && LogBins::new(1.0, 10.0, 20_000).is_err());
    }
}
