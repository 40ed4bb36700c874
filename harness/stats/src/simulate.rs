//! Experiments with a known truth, to calibrate a judge before it is believed.
//!
//! A judge that was never shown an experiment whose answer is known has an unknown error rate.
//! These are the three shapes of latency that break naive statistics: skewed, with rare stalls, and
//! autocorrelated; each with a state of the machine that all samples of a block share. Scaling arm
//! B by a factor makes that factor the exact truth for every percentile.

use crate::dist::normal_cdf;
use crate::rng::RandomSource;

/// A uniform value in the open interval (0, 1).
pub fn uniform_open(rng: &mut impl RandomSource) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// A standard normal value (Box and Muller 1958; one of the pair, so that no state is kept).
pub fn normal(rng: &mut impl RandomSource) -> f64 {
    let radius = (-2.0 * uniform_open(rng).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform_open(rng)).cos()
}

/// The shape of the samples within one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// Independent and lognormal.
    Lognormal {
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Lognormal, and a share of samples stalls: multiplied by a factor.
    Stalls {
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Probability of a stall. A percentile within a fraction of a point of `1 - share` falls
        /// into the gap between the modes and is then estimated badly by any method.
        share: f64,
        /// What a stall multiplies the sample by.
        factor: f64,
    },
    /// Lognormal, the logarithm a first-order autoregression within the run.
    Autocorrelated {
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// Correlation of neighbours, in (-1, 1).
        phi: f64,
    },
}

impl Shape {
    /// The samples of one run without a trend, in the unit of `median`, in order of time.
    pub fn samples(self, n: usize, median: f64, rng: &mut impl RandomSource) -> Vec<f64> {
        let mut state = normal(rng);
        let mut one = |_| {
            let noise = normal(rng);
            let factor = match self {
                Shape::Lognormal { sigma } => (sigma * noise).exp(),
                Shape::Stalls {
                    sigma,
                    share,
                    factor,
                } => {
                    let stalled = uniform_open(rng) < share;
                    (sigma * noise).exp() * if stalled { factor } else { 1.0 }
                }
                Shape::Autocorrelated { sigma, phi } => {
                    state = phi * state + (1.0 - phi * phi).sqrt() * noise;
                    (sigma * state).exp()
                }
            };
            median * factor
        };
        (0..n).map(&mut one).collect()
    }
}

/// How runs are made: `median * exp(machine + run) * shape`, in the unit of `median`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experiment {
    /// Shape within a run.
    pub shape: Shape,
    /// Samples of each run.
    pub samples: usize,
    /// Median of arm A.
    pub median: f64,
    /// Standard deviation of the logarithm of the machine's state; both arms of a block share it.
    pub machine_sd: f64,
    /// Standard deviation of the logarithm of what one run adds of its own.
    pub run_sd: f64,
}

impl Experiment {
    /// One block: the samples of arm A and those of arm B, whose every time is `ratio` times as
    /// long in distribution.
    pub fn block(&self, ratio: f64, rng: &mut impl RandomSource) -> (Vec<f64>, Vec<f64>) {
        let machine = self.machine_sd * normal(rng);
        let a = self.run(machine, rng);
        let mut b = self.run(machine, rng);
        b.iter_mut().for_each(|value| *value *= ratio);
        (a, b)
    }

    /// Many blocks: arm A's samples by block, and arm B's.
    pub fn blocks(
        &self,
        n: usize,
        ratio: f64,
        rng: &mut impl RandomSource,
    ) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        (0..n).map(|_| self.block(ratio, rng)).unzip()
    }

    fn run(&self, machine: f64, rng: &mut impl RandomSource) -> Vec<f64> {
        let level = self.median * (machine + self.run_sd * normal(rng)).exp();
        self.shape.samples(self.samples, level, rng)
    }

    /// The true share of arm A's samples at or below `value`, over all blocks there could be.
    pub fn cdf(&self, value: f64) -> f64 {
        let outer = self.machine_sd.powi(2) + self.run_sd.powi(2);
        let part = |sigma: f64, median: f64| {
            normal_cdf((value / median).ln() / (outer + sigma * sigma).sqrt())
        };
        match self.shape {
            Shape::Lognormal { sigma } | Shape::Autocorrelated { sigma, .. } => {
                part(sigma, self.median)
            }
            Shape::Stalls {
                sigma,
                share,
                factor,
            } => {
                (1.0 - share) * part(sigma, self.median) + share * part(sigma, self.median * factor)
            }
        }
    }

    /// The true percentile `p` of arm A, in the unit of `median`, by bisection of [`Self::cdf`].
    pub fn percentile(&self, p: f64) -> f64 {
        let (mut low, mut high) = (self.median * 1e-6, self.median * 1e6);
        for _ in 0..200 {
            let middle = (low * high).sqrt();
            if self.cdf(middle) < p {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::Moments;
    use crate::rng::SplitMix64;
    use crate::testing::close;

    #[test]
    fn normals_have_normal_moments() {
        let mut rng = SplitMix64::new(21);
        let values: Vec<f64> = (0..100_000).map(|_| normal(&mut rng)).collect();
        let m = Moments::of(&values);
        // Standard errors 0.0032 and 0.0022; the fourth moment is 3 with standard error 0.031.
        close(m.mean().unwrap(), 0.0, 0.0, 0.015);
        close(m.sd().unwrap(), 1.0, 0.0, 0.011);
        let fourth = values.iter().map(|v| v.powi(4)).sum::<f64>() / 1e5;
        close(fourth, 3.0, 0.0, 0.15);
    }

    fn experiment(shape: Shape) -> Experiment {
        Experiment {
            shape,
            samples: 200,
            median: 10.0,
            machine_sd: 0.1,
            run_sd: 0.05,
        }
    }

    #[test]
    fn the_stated_truth_is_the_long_run_share() {
        let shapes = [
            Shape::Lognormal { sigma: 0.3 },
            Shape::Stalls {
                sigma: 0.2,
                share: 0.03,
                factor: 8.0,
            },
            Shape::Autocorrelated {
                sigma: 0.3,
                phi: 0.8,
            },
        ];
        for (seed, shape) in (1..).zip(shapes) {
            let experiment = experiment(shape);
            let mut rng = SplitMix64::new(seed);
            let (a, b) = experiment.blocks(3_000, 2.0, &mut rng);
            for p in [0.5, 0.95, 0.99] {
                let truth = experiment.percentile(p);
                let share = |arm: &[Vec<f64>], limit: f64| {
                    let below = arm.iter().flatten().filter(|v| **v <= limit).count();
                    below as f64 / 600_000.0
                };
                // Blocks vary, so the error is near 0.4 / sqrt(3000) = 0.007 at the median.
                close(share(&a, truth), p, 0.0, 0.02 * (1.0 - p).sqrt());
                close(share(&b, 2.0 * truth), p, 0.0, 0.02 * (1.0 - p).sqrt());
            }
        }
    }

    #[test]
    fn lognormal_percentiles_in_closed_form() {
        // sd of the logarithm sqrt(0.3^2 + 0.1^2 + 0.05^2) = 0.32016; z(0.99) = 2.3263479.
        let e = experiment(Shape::Lognormal { sigma: 0.3 });
        let sd = (0.09_f64 + 0.01 + 0.0025).sqrt();
        close(
            e.percentile(0.99),
            10.0 * (2.326_347_9 * sd).exp(),
            1e-7,
            0.0,
        );
        close(e.percentile(0.5), 10.0, 1e-12, 0.0);
    }
}
