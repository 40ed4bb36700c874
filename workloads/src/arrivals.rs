//! When requests are due.
//!
//! Arrivals are drawn before the run and never depend on the server, because users do not wait
//! for each other: a driver that adapts to a slow server hides the very queue it should show.

use pb_contract::{Nanos, Stream};
use serde::{Deserialize, Serialize};

use crate::error::WorkloadError;

/// Shapes of gamma gaps that are accepted: beyond, all gaps are equal or all but a few nothing,
/// and what would be drawn is the rounding of the machine.
pub const SHAPES: std::ops::RangeInclusive<f64> = 1e-3..=1e6;

/// Largest scale of gaps in seconds: far beyond any run, and times any draw still a number.
const MOST_SCALE_S: f64 = 1e280;

/// What to write instead of another shape.
pub(crate) const SHAPE_FIX: &str = "must be from 0.001 to 1e6; equal gaps are arrival constant";

/// An arrival process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Arrivals {
    /// Exponential gaps.
    Poisson {
        /// Requests per second.
        rate_per_s: f64,
    },
    /// Gamma gaps: shape 1 is Poisson, below 1 burstier, above 1 more regular.
    Gamma {
        /// Requests per second.
        rate_per_s: f64,
        /// Shape of the gap distribution (its squared coefficient of variation is 1 / shape).
        shape: f64,
    },
    /// Equal gaps.
    Constant {
        /// Requests per second.
        rate_per_s: f64,
    },
    /// All at once, at the start.
    Burst {
        /// Requests.
        count: usize,
    },
}

impl Arrivals {
    /// Offsets below `horizon`, ascending, at most `max` of them. The first gap is drawn too:
    /// only a burst has an arrival at offset zero by construction.
    ///
    /// # Errors
    /// A rate that is not a positive number, a shape outside [`SHAPES`].
    pub fn offsets(
        &self,
        horizon: Nanos,
        max: usize,
        stream: &mut Stream,
    ) -> Result<Vec<Nanos>, WorkloadError> {
        self.validate()?;
        if let Arrivals::Burst { count } = *self {
            let all = if horizon > Nanos::ZERO {
                count.min(max)
            } else {
                0
            };
            return Ok(vec![Nanos::ZERO; all]);
        }
        let mut offsets = Vec::new();
        let mut at_s = 0.0;
        while offsets.len() < max {
            at_s = self.next_s(at_s, offsets.len(), stream);
            let at = Nanos::from_secs_f64(at_s);
            if at >= horizon {
                break;
            }
            offsets.push(at);
        }
        Ok(offsets)
    }

    /// The arrival after the one at `at_s` seconds; `index` arrivals came before it.
    fn next_s(&self, at_s: f64, index: usize, stream: &mut Stream) -> f64 {
        match *self {
            Arrivals::Poisson { rate_per_s } => at_s + stream.exponential(1.0 / rate_per_s),
            Arrivals::Gamma { rate_per_s, shape } => {
                // Of extreme rates no scale is left, which must be above nothing, and times a
                // draw it must stay a number: infinity times a draw of zero is none.
                let scale = 1.0 / (rate_per_s * shape);
                at_s + stream.gamma(shape, scale.clamp(f64::MIN_POSITIVE, MOST_SCALE_S))
            }
            // A multiple, not a sum, so that a million gaps do not add up a million roundings.
            Arrivals::Constant { rate_per_s } => (index + 1) as f64 / rate_per_s,
            Arrivals::Burst { .. } => 0.0,
        }
    }

    fn validate(&self) -> Result<(), WorkloadError> {
        let positive = |key, value: f64| {
            if value.is_finite() && value > 0.0 {
                return Ok(());
            }
            Err(WorkloadError::parameter(
                key,
                value,
                "must be a positive number",
            ))
        };
        match *self {
            Arrivals::Poisson { rate_per_s } | Arrivals::Constant { rate_per_s } => {
                positive("rate_per_s", rate_per_s)
            }
            Arrivals::Gamma { rate_per_s, shape } => {
                positive("rate_per_s", rate_per_s)?;
                match SHAPES.contains(&shape) {
                    true => Ok(()),
                    false => Err(WorkloadError::parameter("shape", shape, SHAPE_FIX)),
                }
            }
            Arrivals::Burst { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(arrivals: Arrivals, seconds: u64) -> Vec<Nanos> {
        let mut stream = Stream::new(11, "arrivals");
        arrivals
            .offsets(Nanos::from_secs(seconds), 1_000_000, &mut stream)
            .unwrap()
    }

    fn gap_mean_and_cv2(offsets: &[Nanos]) -> (f64, f64) {
        let gaps: Vec<f64> = offsets
            .windows(2)
            .map(|w| (w[1] - w[0]).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let var = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, var / (mean * mean))
    }

    #[test]
    fn gaps_have_the_mean_and_variation_of_their_distribution() {
        // Exponential: squared coefficient of variation 1. Gamma: 1 / shape.
        for (arrivals, cv2) in [
            (Arrivals::Poisson { rate_per_s: 20.0 }, 1.0),
            (
                Arrivals::Gamma {
                    rate_per_s: 20.0,
                    shape: 0.25,
                },
                4.0,
            ),
            (
                Arrivals::Gamma {
                    rate_per_s: 20.0,
                    shape: 4.0,
                },
                0.25,
            ),
        ] {
            let offsets = draw(arrivals, 4_000);
            let (mean, got) = gap_mean_and_cv2(&offsets);
            assert!((mean - 0.05).abs() < 0.002, "{arrivals:?}: mean {mean}");
            assert!((got / cv2 - 1.0).abs() < 0.06, "{arrivals:?}: cv2 {got}");
            assert!(offsets.is_sorted() && offsets.last() < Some(&Nanos::from_secs(4_000)));
        }
    }

    #[test]
    fn constant_gaps_do_not_drift() {
        let offsets = draw(Arrivals::Constant { rate_per_s: 3.0 }, 100);
        assert_eq!(offsets.len(), 299);
        assert_eq!(offsets[0], Nanos(333_333_333));
        assert_eq!(offsets[298], Nanos(99_666_666_667));
    }

    #[test]
    fn a_burst_is_simultaneous_and_bounded() {
        assert_eq!(draw(Arrivals::Burst { count: 3 }, 1), vec![Nanos::ZERO; 3]);
        assert!(draw(Arrivals::Burst { count: 3 }, 0).is_empty());
    }

    #[test]
    fn a_rate_that_is_no_rate_is_refused() {
        for rate_per_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let result = Arrivals::Poisson { rate_per_s }.offsets(
                Nanos::from_secs(1),
                10,
                &mut Stream::new(1, "a"),
            );
            assert!(result.is_err(), "{rate_per_s}");
        }
    }

    /// Infinity times a draw of zero was no number, and the arrival after it came first.
    #[test]
    fn arrivals_of_the_lowest_rate_ascend() {
        let arrivals = Arrivals::Gamma {
            rate_per_s: f64::MIN_POSITIVE,
            shape: 1e-3,
        };
        for seed in (0..2_000).chain([2_739_107_855_862_976_096]) {
            let mut stream = Stream::new(seed, "arrivals");
            let offsets = arrivals.offsets(Nanos::from_secs(3_600), 50, &mut stream);
            assert!(offsets.unwrap().is_sorted(), "seed {seed}");
        }
    }

    proptest::proptest! {
        /// Whatever is asked for is refused or gives ascending arrivals below the horizon.
        #[test]
        fn rates_and_shapes_of_any_size_make_arrivals_or_an_error(
            rate_bits in proptest::prelude::any::<u64>(),
            shape_bits in proptest::prelude::any::<u64>(),
            seed in proptest::prelude::any::<u64>(),
        ) {
            // All floating-point numbers there are, and the edges of the range.
            let extremes = [1e-3, 1e6, f64::MIN_POSITIVE, 5e-324, f64::MAX, 1e308];
            for shape in extremes.into_iter().chain([f64::from_bits(shape_bits)]) {
                for rate_per_s in extremes.into_iter().chain([f64::from_bits(rate_bits)]) {
                    let arrivals = Arrivals::Gamma { rate_per_s, shape };
                    let mut stream = Stream::new(seed, "arrivals");
                    let horizon = Nanos::from_secs(3_600);
                    let fine = rate_per_s.is_finite() && rate_per_s > 0.0;
                    let fine = fine && (1e-3..=1e6).contains(&shape);
                    match arrivals.offsets(horizon, 50, &mut stream) {
                        Ok(offsets) => {
                            assert!(fine && offsets.is_sorted(), "{arrivals:?}");
                            assert!(offsets.iter().all(|&at| at < horizon));
                        }
                        Err(_) => assert!(!fine, "{arrivals:?}"),
                    }
                }
            }
        }
    }
}
