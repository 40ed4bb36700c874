//! Analyses of paired differences that assume symmetry only, not a normal shape.
//!
//! They stand beside the t interval as a check on it: one wild block moves a mean, not a median
//! of Walsh averages, and the sign-flip p-value is exact whatever the noise looks like.

use crate::error::{StatError, check_open_unit, check_sample};

/// Most blocks for which [`sign_flip_p`] enumerates every sign pattern (2^20, about a million).
pub const SIGN_FLIP_MAX_BLOCKS: usize = 20;

/// Most blocks for which the signed-rank interval is computed; it is quadratic in memory.
const RANK_MAX_BLOCKS: usize = 500;

/// A rank-based interval. The level is discrete, so the one reached is given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankInterval {
    /// Hodges-Lehmann estimate, in the data's unit.
    pub point: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Blocks used.
    pub n: usize,
    /// Confidence reached, at least the one asked for.
    pub achieved: f64,
}

/// All averages `(d_i + d_j) / 2` with `i <= j`, ascending: `n (n + 1) / 2` values.
pub fn walsh_averages(differences: &[f64]) -> Vec<f64> {
    let n = differences.len();
    let mut averages = Vec::with_capacity(n * (n + 1) / 2);
    for i in 0..n {
        // Halving first cannot overflow.
        averages.extend(
            differences[i..]
                .iter()
                .map(|d| 0.5 * differences[i] + 0.5 * d),
        );
    }
    averages.sort_unstable_by(f64::total_cmp);
    averages
}

/// Hodges-Lehmann shift (median of the Walsh averages) with the exact Wilcoxon signed-rank
/// interval. Errors when `n` blocks cannot reach the confidence (six are needed for 95 %) or when
/// there are more than 500.
pub fn hodges_lehmann(differences: &[f64], confidence: f64) -> Result<RankInterval, StatError> {
    check_open_unit("confidence", confidence)?;
    check_sample(differences, 1)?;
    let n = differences.len();
    if n > RANK_MAX_BLOCKS {
        return Err(StatError::TooMany {
            got: n,
            limit: RANK_MAX_BLOCKS,
        });
    }
    let tail = 0.5 * (1.0 - confidence);
    let probability = signed_rank_probabilities(n);
    // Drop the k smallest and largest Walsh averages, k as large as P(W < k) <= tail allows.
    let mut below = 0.0;
    let mut k = 0;
    // The tiny slack keeps exact ties such as 1/64 <= 0.015625 from being lost to rounding.
    while k < probability.len() && below + probability[k] <= tail * (1.0 + 1e-12) {
        below += probability[k];
        k += 1;
    }
    if k == 0 {
        // One block halves the smallest tail, 2^-n.
        let need = (-tail.log2()).ceil() as usize;
        return Err(StatError::TooFew {
            got: n,
            need: need.max(n + 1),
        });
    }
    let averages = walsh_averages(differences);
    let Some(point) = crate::linear(&averages, 0.5) else {
        return Err(StatError::TooFew { got: n, need: 1 });
    };
    Ok(RankInterval {
        point,
        low: averages[k - 1],
        high: averages[averages.len() - k],
        n,
        achieved: 1.0 - 2.0 * below,
    })
}

/// `P(W = w)` for the Wilcoxon signed-rank statistic under the null, w from 0 to n(n+1)/2.
fn signed_rank_probabilities(n: usize) -> Vec<f64> {
    let mut probability = vec![0.0; n * (n + 1) / 2 + 1];
    probability[0] = 1.0;
    let mut reach = 0;
    for rank in 1..=n {
        reach += rank;
        // Each rank joins the sum with probability one half; going down reads the old values.
        for w in (0..=reach).rev() {
            let with_rank = if w >= rank {
                probability[w - rank]
            } else {
                0.0
            };
            probability[w] = 0.5 * (probability[w] + with_rank);
        }
    }
    probability
}

/// Exact two-sided p-value of "the differences are symmetric about zero": the share of all `2^n`
/// sign patterns whose absolute sum reaches the observed one. At most
/// [`SIGN_FLIP_MAX_BLOCKS`] blocks. With n blocks it cannot go below `2 / 2^n`.
pub fn sign_flip_p(differences: &[f64]) -> Result<f64, StatError> {
    check_sample(differences, 1)?;
    let n = differences.len();
    if n > SIGN_FLIP_MAX_BLOCKS {
        return Err(StatError::TooMany {
            got: n,
            limit: SIGN_FLIP_MAX_BLOCKS,
        });
    }
    let scale = differences.iter().map(|d| d.abs()).fold(0.0, f64::max);
    if scale == 0.0 {
        return Ok(1.0);
    }
    let scaled: Vec<f64> = differences.iter().map(|d| d / scale).collect();
    let observed = scaled.iter().sum::<f64>().abs();
    // Patterns tied with the observed one must count in spite of rounding.
    let bar = observed - 1e-12 * n as f64;
    // The mirrored patterns have the same absolute sum, so the first sign may stay fixed.
    let reached = count_reaching(&scaled[1..], scaled[0], bar);
    Ok(reached as f64 / (1_u64 << (n - 1)) as f64)
}

fn count_reaching(rest: &[f64], sum: f64, bar: f64) -> u64 {
    match rest.split_first() {
        None => u64::from(sum.abs() >= bar),
        Some((d, rest)) => count_reaching(rest, sum + d, bar) + count_reaching(rest, sum - d, bar),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn walsh_averages_by_hand() {
        assert_eq!(
            walsh_averages(&[3.0, 1.0, 8.0]),
            vec![1.0, 2.0, 3.0, 4.5, 5.5, 8.0]
        );
        assert!(walsh_averages(&[]).is_empty());
    }

    // One of the published scores happens to be 3.14.
    #[allow(clippy::approx_constant)]
    #[test]
    fn depression_data_as_published() {
        // Hollander and Wolfe, table 3.1 (Hamilton depression scale). R: wilcox.test(x, y,
        // paired = TRUE, conf.int = TRUE): pseudomedian 0.46, 95 % interval 0.01 to 0.786.
        let x = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30];
        let y = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29];
        let d: Vec<f64> = x.iter().zip(y).map(|(x, y)| x - y).collect();
        let hl = hodges_lehmann(&d, 0.95).unwrap();
        close(hl.point, 0.46, 1e-9, 0.0);
        close(hl.low, 0.01, 1e-9, 0.0);
        close(hl.high, 0.786, 1e-9, 0.0);
        // P(W <= 5) for n = 9 is 10/512, so the level reached is 1 - 20/512.
        close(hl.achieved, 1.0 - 20.0 / 512.0, 1e-12, 0.0);
    }

    #[test]
    fn five_blocks_cannot_reach_95_percent_but_six_can() {
        let five = hodges_lehmann(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95);
        assert_eq!(five, Err(StatError::TooFew { got: 5, need: 6 }));
        let six = hodges_lehmann(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.95).unwrap();
        assert_eq!((six.low, six.high), (1.0, 6.0));
        close(six.achieved, 1.0 - 2.0 / 64.0, 1e-12, 0.0);
    }

    #[test]
    fn sign_flip_by_hand() {
        // 1, 2, 3 all positive: only +++ and --- reach 6, so p = 2/8.
        assert_eq!(sign_flip_p(&[1.0, 2.0, 3.0]), Ok(0.25));
        // Sum 4 of {-1, 2, 3}: patterns with |sum| >= 4 are +-(1+2+3), +-(-1+2+3): 4/8.
        assert_eq!(sign_flip_p(&[-1.0, 2.0, 3.0]), Ok(0.5));
        assert_eq!(sign_flip_p(&[0.0, 0.0]), Ok(1.0));
        assert_eq!(sign_flip_p(&[0.1; 8]), Ok(2.0 / 256.0));
        assert!(sign_flip_p(&[1.0; 21]).is_err() && sign_flip_p(&[]).is_err());
    }

    #[test]
    fn darwins_maize_as_published() {
        // Fisher (1935): 863 of 16384 one-sided patterns reach the observed sum, p = 0.05267.
        let d = [
            49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0,
            -48.0,
        ];
        close(sign_flip_p(&d).unwrap(), 1726.0 / 32768.0, 1e-12, 0.0);
    }
}
