//! Intervals for percentiles of a whole experiment: samples pooled, blocks resampled.
//!
//! Two estimands are in use and they differ. The mean over blocks of each block's own p99 has a
//! simple t interval ([`crate::paired_ratio`]), but a block of 100 samples has its p99 at its
//! maximum. The p99 of all samples together is what a user of the server sees, and it is the one
//! treated here. The samples of a block share the state of the machine, so the block is resampled
//! as a whole, arm A and arm B together. To resample single samples instead would take ten thousand
//! tokens of eight blocks for ten thousand observations, and the interval would be far too narrow.
//!
//! What the method can do with few blocks is limited: `n` blocks have only
//! [`distinct_resamples`]`(n)` different resamples (126 for five). All but the jackknife refuse
//! fewer than [`Method::least_blocks`].

use crate::bootstrap::bias_correction;
use crate::dist::{normal_cdf, t_quantile};
use crate::error::{StatError, check_open_unit};
use crate::moments::Moments;
use crate::paired::Estimate;
use crate::pooled::PooledBlocks;
use crate::quantile::nearest_rank;
use crate::rng::{RandomSource, uniform_index};

/// How an interval is made from the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Leave-one-block-out standard error with a t quantile (Tukey 1958). No randomness.
    Jackknife,
    /// Bootstrap-t with the jackknife's standard error in each resample (Efron 1979, Hall 1988).
    Studentised,
    /// Bias-corrected and accelerated (Efron 1987), its tails widened for few blocks as Hesterberg
    /// (2015) proposes: the normal quantile becomes `t * sqrt(n / (n - 1))`.
    Bca,
    /// Highest-density interval of the Bayesian bootstrap (Rubin 1981): random weights from a
    /// flat Dirichlet instead of draws. A credible interval; narrow with few blocks.
    BayesianHdi,
}

impl Method {
    /// Fewest blocks the method accepts.
    pub fn least_blocks(self) -> usize {
        match self {
            Self::Jackknife => 3,
            Self::Studentised | Self::Bca | Self::BayesianHdi => 5,
        }
    }
}

/// Confidence and effort of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resampling {
    /// Confidence level, such as 0.95.
    pub confidence: f64,
    /// Resamples drawn, at least 200; the jackknife ignores it.
    pub resamples: usize,
}

impl Default for Resampling {
    /// 95 % from 2,000 resamples.
    fn default() -> Self {
        Self {
            confidence: 0.95,
            resamples: 2_000,
        }
    }
}

/// What two arms are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contrast {
    /// Percentile of B minus that of A, in the data's unit.
    Difference,
    /// Percentile of B over that of A; worked on logarithms, so the samples must be positive.
    Ratio,
}

/// How many different resamples `n` blocks have, `C(2n - 1, n)`, as a float. A 95 % end point of a
/// bootstrap with three blocks (ten resamples) is one of ten numbers.
pub fn distinct_resamples(n: usize) -> f64 {
    (1..n).fold(1.0, |product, k| product * (n + k) as f64 / k as f64)
}

/// Interval for the percentile `p` of one arm's pooled samples. `se` is the jackknife's for
/// [`Method::Jackknife`] and [`Method::Studentised`], otherwise the replicates' deviation.
pub fn pooled_percentile(
    arm: &PooledBlocks,
    p: f64,
    method: Method,
    plan: Resampling,
    rng: &mut impl RandomSource,
) -> Result<Estimate, StatError> {
    check(arm.blocks(), p, method, plan)?;
    let statistic = |weights: &[f64]| arm.weighted_quantile(weights, p).unwrap_or(f64::NAN);
    interval(arm.blocks(), &statistic, method, plan, rng)
}

/// Interval for the percentile `p` of arm B's pooled samples against that of arm A's. Block `i` of
/// both arms is one pair and is resampled as one. For a ratio `se` is that of its logarithm.
pub fn paired_percentile(
    a: &PooledBlocks,
    b: &PooledBlocks,
    p: f64,
    contrast: Contrast,
    method: Method,
    plan: Resampling,
    rng: &mut impl RandomSource,
) -> Result<Estimate, StatError> {
    let n = a.blocks();
    if n != b.blocks() {
        let b = b.blocks();
        return Err(StatError::LengthMismatch { a: n, b });
    }
    check(n, p, method, plan)?;
    if contrast == Contrast::Ratio {
        for arm in [a, b] {
            if arm.quantile(0.0).is_none_or(|least| least <= 0.0) {
                return Err(StatError::NotPositive { index: 0 });
            }
        }
    }
    let statistic = |weights: &[f64]| {
        let of = |arm: &PooledBlocks| arm.weighted_quantile(weights, p).unwrap_or(f64::NAN);
        match contrast {
            Contrast::Difference => of(b) - of(a),
            Contrast::Ratio => of(b).ln() - of(a).ln(),
        }
    };
    let estimate = interval(n, &statistic, method, plan, rng)?;
    Ok(match contrast {
        Contrast::Difference => estimate,
        Contrast::Ratio => estimate.exp(),
    })
}

fn check(n: usize, p: f64, method: Method, plan: Resampling) -> Result<(), StatError> {
    check_open_unit("p", p)?;
    check_open_unit("confidence", plan.confidence)?;
    let need = method.least_blocks();
    if n < need {
        return Err(StatError::TooFew { got: n, need });
    }
    if method != Method::Jackknife && plan.resamples < 200 {
        return Err(StatError::BadParameter {
            name: "resamples",
            value: plan.resamples as f64,
        });
    }
    Ok(())
}

fn interval(
    n: usize,
    statistic: &impl Fn(&[f64]) -> f64,
    method: Method,
    plan: Resampling,
    rng: &mut impl RandomSource,
) -> Result<Estimate, StatError> {
    let point = statistic(&vec![1.0; n]);
    let (low, high, se) = match method {
        Method::Jackknife => {
            let se = jackknife_se(statistic, &vec![1.0; n]);
            let t = t_quantile(0.5 * (1.0 + plan.confidence), (n - 1) as f64);
            (point - t * se, point + t * se, se)
        }
        Method::Studentised => studentised(n, point, statistic, plan, rng)?,
        Method::Bca => bca(n, point, statistic, plan, rng)?,
        Method::BayesianHdi => hdi(n, statistic, plan, rng)?,
    };
    if ![point, low, high, se].iter().all(|v| v.is_finite()) {
        return Err(StatError::Degenerate);
    }
    Ok(Estimate {
        point,
        low,
        high,
        se,
        n,
        confidence: plan.confidence,
    })
}

/// Jackknife standard error under whole-number weights: each of the drawn blocks is left out once,
/// and a block drawn twice gives the same value twice.
fn jackknife_se(statistic: &impl Fn(&[f64]) -> f64, weights: &[f64]) -> f64 {
    let mut without = weights.to_vec();
    let mut left_out = Vec::with_capacity(weights.len());
    for (i, &weight) in weights.iter().enumerate() {
        if weight > 0.0 {
            without[i] = weight - 1.0;
            left_out.push((statistic(&without), weight));
            without[i] = weight;
        }
    }
    let n: f64 = weights.iter().sum();
    let mean = left_out.iter().map(|(v, w)| v * w).sum::<f64>() / n;
    let spread: f64 = left_out.iter().map(|(v, w)| w * (v - mean).powi(2)).sum();
    (spread * (n - 1.0) / n).sqrt()
}

fn studentised(
    n: usize,
    point: f64,
    statistic: &impl Fn(&[f64]) -> f64,
    plan: Resampling,
    rng: &mut impl RandomSource,
) -> Result<(f64, f64, f64), StatError> {
    let se = jackknife_se(statistic, &vec![1.0; n]);
    if se == 0.0 {
        return Ok((point, point, 0.0));
    }
    let mut roots = Vec::with_capacity(plan.resamples);
    let mut weights = vec![0.0; n];
    for _ in 0..plan.resamples {
        draw(&mut weights, rng);
        let shift = statistic(&weights) - point;
        let own = jackknife_se(statistic, &weights);
        // A resample of one block only has no error of its own: an infinite root, not none.
        roots.push(if own > 0.0 {
            shift / own
        } else if shift == 0.0 {
            0.0
        } else {
            shift.signum() * f64::INFINITY
        });
    }
    roots.sort_unstable_by(f64::total_cmp);
    let tail = 0.5 * (1.0 - plan.confidence);
    let (lower, upper) = (at(&roots, tail)?, at(&roots, 1.0 - tail)?);
    Ok((point - upper * se, point - lower * se, se))
}

fn bca(
    n: usize,
    point: f64,
    statistic: &impl Fn(&[f64]) -> f64,
    plan: Resampling,
    rng: &mut impl RandomSource,
) -> Result<(f64, f64, f64), StatError> {
    let mut weights = vec![0.0; n];
    let mut replicates = Vec::with_capacity(plan.resamples);
    for _ in 0..plan.resamples {
        draw(&mut weights, rng);
        replicates.push(statistic(&weights));
    }
    replicates.sort_unstable_by(f64::total_cmp);
    let se = Moments::of(&replicates).sd().unwrap_or(0.0);
    if replicates[0] == replicates[replicates.len() - 1] {
        return Ok((point, point, se));
    }
    let bias = bias_correction(&replicates, point);
    let acceleration = acceleration(n, statistic);
    let size = n as f64;
    let t = t_quantile(0.5 * (1.0 + plan.confidence), size - 1.0);
    let reach = t * (size / (size - 1.0)).sqrt();
    let end = |z: f64| {
        let shifted = bias + z;
        let scale = 1.0 - acceleration * shifted;
        if scale <= 0.0 {
            // So skewed that the correction turns back on itself: there is no such end.
            return Err(StatError::Degenerate);
        }
        at(&replicates, normal_cdf(bias + shifted / scale))
    };
    Ok((end(-reach)?, end(reach)?, se))
}

/// Skewness over six of the leave-one-out values. Zero without spread.
fn acceleration(n: usize, statistic: &impl Fn(&[f64]) -> f64) -> f64 {
    let mut weights = vec![1.0; n];
    let left_out: Vec<f64> = (0..n)
        .map(|i| {
            weights[i] = 0.0;
            let value = statistic(&weights);
            weights[i] = 1.0;
            value
        })
        .collect();
    let mean = left_out.iter().sum::<f64>() / n as f64;
    let square: f64 = left_out.iter().map(|v| (mean - v).powi(2)).sum();
    let cube: f64 = left_out.iter().map(|v| (mean - v).powi(3)).sum();
    if square > 0.0 {
        cube / (6.0 * square.powf(1.5))
    } else {
        0.0
    }
}

fn hdi(
    n: usize,
    statistic: &impl Fn(&[f64]) -> f64,
    plan: Resampling,
    rng: &mut impl RandomSource,
) -> Result<(f64, f64, f64), StatError> {
    let mut weights = vec![0.0; n];
    let mut draws = Vec::with_capacity(plan.resamples);
    for _ in 0..plan.resamples {
        // Exponentials are a flat Dirichlet up to scale, and the scale cancels.
        for weight in &mut weights {
            *weight = -crate::simulate::uniform_open(rng).ln();
        }
        draws.push(statistic(&weights));
    }
    draws.sort_unstable_by(f64::total_cmp);
    let se = Moments::of(&draws).sd().unwrap_or(0.0);
    let (low, high) = shortest(&draws, plan.confidence).ok_or(StatError::Degenerate)?;
    Ok((low, high, se))
}

/// The shortest interval that holds at least a share `confidence` of ascending draws; the first of
/// equals.
pub(crate) fn shortest(sorted: &[f64], confidence: f64) -> Option<(f64, f64)> {
    let held = ((confidence * sorted.len() as f64).ceil() as usize).max(1);
    sorted
        .windows(held)
        .min_by(|x, y| (x[held - 1] - x[0]).total_cmp(&(y[held - 1] - y[0])))
        .map(|window| (window[0], window[held - 1]))
}

fn draw(weights: &mut [f64], rng: &mut impl RandomSource) {
    weights.fill(0.0);
    for _ in 0..weights.len() {
        weights[uniform_index(rng, weights.len())] += 1.0;
    }
}

fn at(sorted: &[f64], p: f64) -> Result<f64, StatError> {
    nearest_rank(sorted, p).ok_or(StatError::Degenerate)
}

#[cfg(test)]
#[path = "percentile_tests.rs"]
mod tests;
