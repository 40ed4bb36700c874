//! The noise floor: what the same build shows against itself.
//!
//! A fixed threshold on a noisy machine fails good changes; one picked by eye hides bad ones. An
//! A/A experiment, the same build in both arms, measures what the machine does by itself, and from
//! that follow the smallest threshold worth having and the number of blocks to plan.

use crate::dist::t_quantile;
use crate::error::{StatError, check_open_unit, check_sample};
use crate::gamma::chi2_quantile;
use crate::moments::Moments;
use crate::paired::{Estimate, mean_interval};
use crate::power::minimum_detectable_effect;

/// What an A/A experiment of `pairs` pairs says about a comparison of `blocks` blocks. Everything
/// is in the unit of the values given: logarithms of ratios, or differences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NoiseFloor {
    /// A/A pairs used.
    pub pairs: usize,
    /// Blocks of the comparison planned.
    pub blocks: usize,
    /// Mean over the A/A pairs with its interval at `1 - alpha`. When it excludes 0 the rig
    /// favours one arm (order, cache, port) and no comparison on it is valid.
    pub bias: Estimate,
    /// Standard deviation of one pair.
    pub sd: f64,
    /// One-sided upper 95 % bound of the standard deviation (chi-square; normal values assumed).
    pub sd_upper: f64,
    /// A comparison of `blocks` A/A blocks exceeds this mean in absolute value with probability
    /// `alpha`, the uncertainty of `sd` included: the smallest threshold that does not flake.
    pub threshold: f64,
    /// The true mean that `blocks` blocks find with the power asked for, at the measured `sd`.
    pub detectable: f64,
    /// The same at `sd_upper`.
    pub detectable_upper: f64,
}

impl NoiseFloor {
    /// Whether the rig itself favours one arm.
    pub fn is_biased(&self) -> bool {
        self.bias.excludes(0.0)
    }
}

/// The noise floor from per-pair values of an A/A experiment (logarithms of ratios, as from
/// [`aa_log_ratios`], or differences). Needs three pairs, `blocks >= 2` and values that differ.
pub fn noise_floor(
    units: &[f64],
    blocks: usize,
    alpha: f64,
    power: f64,
) -> Result<NoiseFloor, StatError> {
    check_open_unit("alpha", alpha)?;
    check_sample(units, 3)?;
    let bias = mean_interval(units, 1.0 - alpha)?;
    let sd = Moments::of(units).sd().unwrap_or(0.0);
    if sd == 0.0 {
        // A simulated run repeats exactly; such a machine has no noise to take a floor from.
        return Err(StatError::Degenerate);
    }
    let df = (units.len() - 1) as f64;
    let sd_upper = sd * (df / chi2_quantile(0.05, df)).sqrt();
    let effect = minimum_detectable_effect(blocks, alpha, power)?;
    Ok(NoiseFloor {
        pairs: units.len(),
        blocks,
        bias,
        sd,
        sd_upper,
        threshold: threshold(sd, df, blocks, alpha),
        detectable: effect * sd,
        detectable_upper: effect * sd_upper,
    })
}

/// The mean of `blocks` new pairs over their standard error, as estimated by `sd`, is Student's t.
fn threshold(sd: f64, df: f64, blocks: usize, alpha: f64) -> f64 {
    t_quantile(1.0 - 0.5 * alpha, df) * sd / (blocks as f64).sqrt()
}

/// Logarithms of the ratios of neighbouring repeated runs of one build: run 1 against 0, 3 against
/// 2, and so on, so that the pairs are independent and slow drift cancels. The last of an odd
/// number is left out. Values must be positive.
pub fn aa_log_ratios(runs: &[f64]) -> Result<Vec<f64>, StatError> {
    check_sample(runs, 2)?;
    if let Some(index) = runs.iter().position(|&value| value <= 0.0) {
        return Err(StatError::NotPositive { index });
    }
    Ok(runs
        .chunks_exact(2)
        .map(|pair| (pair[1] / pair[0]).ln())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;
    use crate::simulate::normal;
    use crate::testing::close;

    #[test]
    fn a_hand_worked_floor() {
        // Mean 0, squares 1 + 1 + 4 + 4 = 10, sd = sqrt(10/3); t(0.975, 3) = 3.182446;
        // chi2(0.05, 3) = 0.351846; 2.127949 sd found by 4 blocks in 80 %.
        let floor = noise_floor(&[1.0, -1.0, 2.0, -2.0], 4, 0.05, 0.8).unwrap();
        let sd = (10.0_f64 / 3.0).sqrt();
        close(floor.sd, sd, 1e-13, 0.0);
        close(floor.threshold, 3.182_446 * sd / 2.0, 1e-6, 0.0);
        close(
            floor.sd_upper,
            sd * (3.0_f64 / 0.351_846_3).sqrt(),
            1e-6,
            0.0,
        );
        close(floor.detectable, 2.127_949_3 * sd, 1e-6, 0.0);
        assert!(!floor.is_biased() && floor.bias.point == 0.0);
        assert!(
            noise_floor(&[5.0, 5.1, 4.9, 5.0], 4, 0.05, 0.8)
                .unwrap()
                .is_biased()
        );
    }

    #[test]
    fn the_threshold_flakes_as_often_as_stated() {
        // Fresh floor from 10 pairs, then one A/A comparison of 6 blocks: exceeded in 5 %.
        let mut rng = SplitMix64::new(17);
        let mut exceeded = 0;
        for _ in 0..4_000 {
            let units: Vec<f64> = (0..10).map(|_| normal(&mut rng)).collect();
            let sd = Moments::of(&units).sd().unwrap();
            let mean = (0..6).map(|_| normal(&mut rng)).sum::<f64>() / 6.0;
            exceeded += u32::from(mean.abs() > threshold(sd, 9.0, 6, 0.05));
        }
        // 200 expected, binomial sd 13.8.
        assert!((155..=245).contains(&exceeded), "{exceeded}");
    }

    #[test]
    fn neighbouring_runs_make_independent_pairs() {
        let ratios = aa_log_ratios(&[1.0, 2.0, 8.0, 4.0, 3.0]).unwrap();
        assert_eq!(ratios.len(), 2);
        close(ratios[0], 2.0_f64.ln(), 1e-15, 0.0);
        close(ratios[1], -(2.0_f64.ln()), 1e-15, 0.0);
        assert_eq!(
            aa_log_ratios(&[1.0, 0.0]),
            Err(StatError::NotPositive { index: 1 })
        );
        assert_eq!(
            noise_floor(&[0.0; 4], 4, 0.05, 0.8),
            Err(StatError::Degenerate)
        );
        assert!(noise_floor(&[0.1, 0.2], 4, 0.05, 0.8).is_err());
    }
}
