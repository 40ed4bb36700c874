//! Whether a run has a steady state at all: a trend, a start that is still warming up, and how much
//! its values depend on one another.
//!
//! Both tests assume values that can change places. Latencies of one run cannot: neighbours wait
//! in the same queue. So the dependence is measured first, in the second half of the run, where a
//! start that warms up does not pass for correlation; batches of the trend test and stretches of
//! the shuffles are made longer than it, and a run too short for that is told to be so.

use crate::error::StatError;
use crate::quantile::linear;
use crate::rng::SplitMix64;
use crate::series::effective_sample_size;
use crate::trend::{Drift, batch_medians, drift, theil_sen};
use crate::warmup::{Transient, transient};

/// Fewest values of a run that are judged: those of MSER-5.
pub const STEADY_LEAST: usize = 50;

/// Batches of the trend test, at least and at most.
const BATCHES: (usize, usize) = (8, 20);

/// Length of a batch or a stretch, in values that count for one independent value.
const REACH: f64 = 3.0;

/// Orders that the start is held against; p-values are multiples of 1 / 2,000.
const PERMUTATIONS: usize = 1_999;

/// What is known of the steadiness of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Steadiness {
    /// Values.
    pub n: usize,
    /// Independent values that would tell the mean as well as these, a trend taken out: at most
    /// `n`, and few where neighbours are alike.
    pub independent: f64,
    /// The trend, by medians of batches; absent where the values depend on one another over so
    /// long that there are no eight batches.
    pub drift: Option<Drift>,
    /// The start against the rest; absent for the same reason.
    pub start: Option<Transient>,
}

/// Judges values in order of time. `limit` is the change over the run, as a share of its median,
/// from which a trend matters. Same values, same result: the shuffles have a seed of their own.
/// Needs [`STEADY_LEAST`] finite values with a positive median.
pub fn steadiness(values: &[f64], limit: f64) -> Result<Steadiness, StatError> {
    let n = values.len();
    if n < STEADY_LEAST {
        return Err(StatError::TooFew {
            got: n,
            need: STEADY_LEAST,
        });
    }
    let inflation = inflation(&values[n / 2..])?;
    let reach = (REACH * inflation).ceil() as usize;
    let batches = (n / reach).min(BATCHES.1);
    let told = batches >= BATCHES.0;
    let mut rng = SplitMix64::new(n as u64);
    Ok(Steadiness {
        n,
        independent: n as f64 / inflation,
        drift: match told {
            true => Some(drift(values, batches, 0.05, limit)?),
            false => None,
        },
        start: match told {
            true => Some(transient(values, reach, PERMUTATIONS, &mut rng)?),
            false => None,
        },
    })
}

/// Values that count for one independent value, 1 at least, of what is left of a line.
fn inflation(values: &[f64]) -> Result<f64, StatError> {
    let n = values.len();
    let batches = (n / 5).clamp(4, BATCHES.1);
    let medians = batch_medians(values, batches)?;
    let slope = theil_sen(&medians, 0.5).map_or(0.0, |line| line.slope) * batches as f64 / n as f64;
    let level = linear(&medians, 0.5).unwrap_or(0.0);
    let line = |i: usize| level + slope * (i as f64 - 0.5 * n as f64);
    // Logarithms, so that a stall weighs by its kind and not by its length.
    let log = |value: f64| value.max(1e-9 * level.abs()).ln();
    let left: Vec<f64> = values
        .iter()
        .enumerate()
        .map(|(i, value)| log(*value) - log(line(i)))
        .collect();
    match effective_sample_size(&left) {
        Ok(size) => Ok(n as f64 / size),
        // All alike: nothing depends on anything.
        Err(StatError::Degenerate) => Ok(1.0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Shape;

    const LOGNORMAL: Shape = Shape::Lognormal { sigma: 0.4 };
    const CORRELATED: Shape = Shape::Autocorrelated {
        sigma: 0.4,
        phi: 0.8,
    };

    /// Flagged at 1 % for both tests together, by Holm's first step.
    fn flagged(s: &Steadiness) -> (bool, bool) {
        let drifts = s.drift.is_some_and(|d| d.p < 0.005 && d.change.abs() > 0.1);
        let starts = s.start.is_some_and(|t| t.p < 0.005 && t.excess.abs() > 0.1);
        (drifts, starts)
    }

    #[test]
    fn steady_runs_are_seldom_flagged() {
        let stalls = Shape::Stalls {
            sigma: 0.2,
            share: 0.03,
            factor: 8.0,
        };
        let mut rng = SplitMix64::new(91);
        for (shape, n) in [(LOGNORMAL, 60), (stalls, 100), (CORRELATED, 400)] {
            let hits = (0..300).filter(|_| {
                let values = shape.samples(n, 100.0, &mut rng);
                let (drifts, starts) = flagged(&steadiness(&values, 0.1).unwrap());
                drifts || starts
            });
            // 1 % of 300 are 3; 10 and more have a chance of 0.1 %.
            let hits = hits.count();
            assert!(hits < 10, "{shape:?}: {hits} of 300");
        }
    }

    #[test]
    fn drifting_runs_and_warming_ones_are_flagged_as_what_they_are() {
        let mut rng = SplitMix64::new(92);
        let (mut drifts, mut starts) = (0, 0);
        for _ in 0..100 {
            let noise = LOGNORMAL.samples(400, 100.0, &mut rng);
            // Twice as long at the end.
            let drifting = noise.iter().zip(0..);
            let drifting: Vec<f64> = drifting
                .map(|(v, i)| v * (1.0 + f64::from(i) / 399.0))
                .collect();
            drifts += u32::from(flagged(&steadiness(&drifting, 0.1).unwrap()).0);
            // The first 40 take four times as long.
            let warming = noise.iter().enumerate();
            let warming: Vec<f64> = warming
                .map(|(i, v)| if i < 40 { 4.0 * v } else { *v })
                .collect();
            starts += u32::from(flagged(&steadiness(&warming, 0.1).unwrap()).1);
        }
        assert!(drifts >= 98, "{drifts} of 100");
        assert!(starts >= 90, "{starts} of 100");
    }

    #[test]
    fn correlation_costs_independent_values_and_a_short_run_is_told_to_be_short() {
        // First-order autoregression: (1 - 0.8) / (1 + 0.8) = 1/9 of the values.
        let mut rng = SplitMix64::new(93);
        let long = steadiness(&CORRELATED.samples(8_000, 100.0, &mut rng), 0.1).unwrap();
        assert!((600.0..1_300.0).contains(&long.independent), "{long:?}");
        let short = steadiness(&CORRELATED.samples(60, 100.0, &mut rng), 0.1).unwrap();
        assert_eq!((short.drift, short.start), (None, None));
        let few = StatError::TooFew { got: 49, need: 50 };
        assert_eq!(steadiness(&[1.0; 49], 0.1), Err(few));
        let flat = steadiness(&[3.0; 50], 0.1).unwrap();
        assert_eq!((flat.independent, flagged(&flat)), (50.0, (false, false)));
        assert_eq!(flat.drift.map(|d| d.change), Some(0.0));
    }
}
