//! Percentiles of samples pooled from many blocks, fast under any weighting of the blocks.
//!
//! A bootstrap over blocks asks for the same percentile thousands of times, each time with every
//! block counted a different number of times. Sorting half a million samples anew each time would
//! take minutes. Here all samples are sorted once, each with its block's number, and how many each
//! block has in front of every 64th place is tabulated. A percentile is then a binary search in
//! that table and a scan of one stretch, and exact: the nearest rank of the merged samples.

use crate::error::{StatError, check_sample};
use crate::quantile::snapped;

/// Places between two rows of the table.
const STRETCH: usize = 64;

/// The samples of all blocks of one arm, merged and sorted.
#[derive(Debug, Clone)]
pub struct PooledBlocks {
    values: Vec<f64>,
    owners: Vec<u32>,
    /// Row `k` holds, for each block, how many of its samples lie in the first `k` stretches.
    before: Vec<u32>,
    sizes: Vec<u32>,
}

impl PooledBlocks {
    /// Merges the samples of each block (any order, any unit, finite). Every block needs one
    /// sample; errors with the index within its block on a value that is not finite.
    pub fn new<B: AsRef<[f64]>>(blocks: &[B]) -> Result<Self, StatError> {
        if blocks.is_empty() {
            return Err(StatError::TooFew { got: 0, need: 1 });
        }
        let total: usize = blocks.iter().map(|block| block.as_ref().len()).sum();
        if total > u32::MAX as usize {
            let limit = u32::MAX as usize;
            return Err(StatError::TooMany { got: total, limit });
        }
        let mut merged: Vec<(f64, u32)> = Vec::with_capacity(total);
        let mut sizes = Vec::with_capacity(blocks.len());
        for (owner, block) in (0_u32..).zip(blocks) {
            let block = block.as_ref();
            check_sample(block, 1)?;
            sizes.push(block.len() as u32);
            merged.extend(block.iter().map(|&value| (value, owner)));
        }
        // The order among equal values cannot change any percentile.
        merged.sort_unstable_by(|x, y| x.0.total_cmp(&y.0));
        let mut counts = vec![0_u32; sizes.len()];
        let mut before = counts.clone();
        for stretch in merged.chunks(STRETCH) {
            for &(_, owner) in stretch {
                counts[owner as usize] += 1;
            }
            before.extend_from_slice(&counts);
        }
        let (values, owners) = merged.into_iter().unzip();
        Ok(Self {
            values,
            owners,
            before,
            sizes,
        })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.sizes.len()
    }

    /// Number of samples in all blocks.
    pub fn samples(&self) -> usize {
        self.values.len()
    }

    /// Nearest-rank percentile `p` (0 to 1) of all samples, each block counted once.
    pub fn quantile(&self, p: f64) -> Option<f64> {
        self.weighted_quantile(&vec![1.0; self.blocks()], p)
    }

    /// The smallest sample with at least a share `p` of the weight at or below it, when every
    /// sample of block `i` weighs `weights[i]`. With whole-number weights that is the nearest rank
    /// of the samples repeated so often. None when `p` is outside `[0, 1]`, when the number of
    /// weights is not that of the blocks, or when a weight is negative or none is positive.
    pub fn weighted_quantile(&self, weights: &[f64], p: f64) -> Option<f64> {
        let good = weights.len() == self.blocks() && weights.iter().all(|w| *w >= 0.0);
        if !good || !(0.0..=1.0).contains(&p) {
            return None;
        }
        let total = dot(&self.sizes, weights);
        if !(total > 0.0 && total.is_finite()) {
            return None;
        }
        // Rounding of real weights must not push the target beyond the sum of all.
        let target = snapped(p * total).min(total * (1.0 - 4.0 * f64::EPSILON));
        let reached = |weight: f64| weight >= target && weight > 0.0;
        let row = |k: usize| &self.before[k * weights.len()..(k + 1) * weights.len()];
        // The first stretch at whose end the target is reached.
        let (mut low, mut high) = (0, self.values.len().div_ceil(STRETCH));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if reached(dot(row(middle), weights)) {
                high = middle;
            } else {
                low = middle;
            }
        }
        let mut weight = dot(row(low), weights);
        let from = low * STRETCH;
        let mut last = None;
        for (value, owner) in self.values[from..].iter().zip(&self.owners[from..]) {
            let own = weights[*owner as usize];
            weight += own;
            if reached(weight) {
                return Some(*value);
            }
            if own > 0.0 {
                last = Some(*value);
            }
        }
        last
    }
}

/// Sum of products, in four lanes so that the additions do not wait for each other.
fn dot(counts: &[u32], weights: &[f64]) -> f64 {
    let mut lanes = [0.0_f64; 4];
    let (mut c, mut w) = (counts.chunks_exact(4), weights.chunks_exact(4));
    for (counts, weights) in c.by_ref().zip(w.by_ref()) {
        for lane in 0..4 {
            lanes[lane] += f64::from(counts[lane]) * weights[lane];
        }
    }
    let rest = c.remainder().iter().zip(w.remainder());
    let tail: f64 = rest.map(|(c, w)| f64::from(*c) * w).sum();
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nearest_rank;
    use crate::rng::{RandomSource, SplitMix64, uniform_index};

    /// The plain way: repeat, sort, take the rank.
    fn oracle(blocks: &[Vec<f64>], weights: &[f64], p: f64) -> Option<f64> {
        let mut all = Vec::new();
        for (block, weight) in blocks.iter().zip(weights) {
            for _ in 0..*weight as usize {
                all.extend_from_slice(block);
            }
        }
        all.sort_unstable_by(f64::total_cmp);
        nearest_rank(&all, p)
    }

    #[test]
    fn agrees_with_repeat_sort_and_rank() {
        let mut rng = SplitMix64::new(3);
        for case in 0..200 {
            let count = 1 + uniform_index(&mut rng, 9);
            let ties = case % 2 == 0;
            let blocks: Vec<Vec<f64>> = (0..count)
                .map(|_| {
                    let size = 1 + uniform_index(&mut rng, 400);
                    let span = if ties { 20 } else { 1_000_000 };
                    (0..size)
                        .map(|_| uniform_index(&mut rng, span) as f64)
                        .collect()
                })
                .collect();
            let pooled = PooledBlocks::new(&blocks).unwrap();
            for p in [0.0, 0.01, 0.07, 0.5, 0.95, 0.99, 1.0] {
                let weights: Vec<f64> = (0..count)
                    .map(|_| uniform_index(&mut rng, 4) as f64)
                    .collect();
                let want = oracle(&blocks, &weights, p);
                assert_eq!(
                    pooled.weighted_quantile(&weights, p),
                    want,
                    "{case} {p} {weights:?}"
                );
                assert_eq!(pooled.quantile(p), oracle(&blocks, &vec![1.0; count], p));
            }
        }
    }

    #[test]
    fn real_weights_by_hand_and_scale_free() {
        let pooled = PooledBlocks::new(&[vec![1.0, 4.0], vec![2.0, 3.0]]).unwrap();
        // Weights 0.1, 0.4, 0.4, 0.1 in order of value: cumulative 0.1, 0.5, 0.9, 1.
        let at = |p| pooled.weighted_quantile(&[0.1, 0.4], p);
        assert_eq!(
            [at(0.05), at(0.3), at(0.51), at(0.95)].map(Option::unwrap),
            [1.0, 2.0, 3.0, 4.0]
        );
        let mut rng = SplitMix64::new(8);
        for _ in 0..200 {
            let w = [0, 1].map(|_| (rng.next_u64() >> 40) as f64 * 0.7 + 0.1);
            assert!(pooled.weighted_quantile(&w, 1.0) == Some(4.0));
        }
    }

    #[test]
    fn bad_input() {
        assert!(PooledBlocks::new::<Vec<f64>>(&[]).is_err());
        assert!(PooledBlocks::new(&[vec![1.0], vec![]]).is_err());
        assert!(PooledBlocks::new(&[vec![f64::NAN]]).is_err());
        let pooled = PooledBlocks::new(&[vec![1.0], vec![2.0]]).unwrap();
        assert_eq!((pooled.blocks(), pooled.samples()), (2, 2));
        assert_eq!(pooled.weighted_quantile(&[1.0], 0.5), None);
        assert_eq!(pooled.weighted_quantile(&[0.0, 0.0], 0.5), None);
        assert_eq!(pooled.weighted_quantile(&[-1.0, 2.0], 0.5), None);
        assert_eq!(pooled.quantile(1.5), None);
    }
}
