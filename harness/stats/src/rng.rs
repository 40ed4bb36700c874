//! The one door through which randomness enters: a caller-owned, seeded source.

/// A source of uniform 64-bit values. Any `FnMut() -> u64` is one.
pub trait RandomSource {
    /// The next value, uniform over all of `u64`.
    fn next_u64(&mut self) -> u64;
}

impl<F: FnMut() -> u64> RandomSource for F {
    fn next_u64(&mut self) -> u64 {
        self()
    }
}

/// SplitMix64 (Steele, Lea and Flood): tiny, full period, good enough to pick resamples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator whose whole stream follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }
}

impl RandomSource for SplitMix64 {
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// An unbiased index in `0..bound` (Lemire's multiply with rejection). `bound` must not be 0.
pub fn uniform_index(rng: &mut impl RandomSource, bound: usize) -> usize {
    assert!(bound > 0, "an index needs a non-empty range");
    let bound = bound as u64;
    // Values below this threshold would make some indices more likely than others.
    let threshold = bound.wrapping_neg() % bound;
    loop {
        let product = u128::from(rng.next_u64()) * u128::from(bound);
        if product as u64 >= threshold {
            return (product >> 64) as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_matches_the_published_stream() {
        // First outputs of the reference C program for seed 1234567.
        let mut rng = SplitMix64::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn indices_cover_the_range_evenly() {
        let mut rng = SplitMix64::new(9);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[uniform_index(&mut rng, 7)] += 1;
        }
        // Binomial sd is 92.6, so 500 is more than five of them.
        assert!(
            counts.iter().all(|&c| c.abs_diff(10_000) < 500),
            "{counts:?}"
        );
    }

    #[test]
    fn a_biased_draw_is_rejected() {
        // For a bound of 3 the threshold is 2^64 mod 3 = 1, so the raw value 0 is drawn again.
        let mut values = [0_u64, u64::MAX].into_iter();
        let mut source = move || values.next().unwrap();
        assert_eq!(uniform_index(&mut source, 3), 2);
    }
}
