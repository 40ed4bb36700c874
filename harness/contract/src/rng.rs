//! Randomness, injected and named.
//!
//! A [`Stream`] is the ChaCha8 keystream under a key made from a seed and a label, so that two
//! purposes never share draws and adding one purpose does not shift another. The algorithm is
//! named and the transforms are ours (through `libm`, not the platform's mathematics library):
//! the same seed gives the same bytes on every machine and with every later version.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A deterministic random stream for one purpose.
#[derive(Clone, Debug)]
pub struct Stream {
    rng: ChaCha8Rng,
    spare_normal: Option<f64>,
}

impl Stream {
    /// The stream of `seed` for the purpose `label`.
    pub fn new(seed: u64, label: &str) -> Self {
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let lanes = key[8..].chunks_exact_mut(8).enumerate();
        for (i, lane) in lanes {
            lane.copy_from_slice(&fnv1a_64(i as u64 + 1, label.as_bytes()).to_le_bytes());
        }
        Stream {
            rng: ChaCha8Rng::from_seed(key),
            spare_normal: None,
        }
    }

    /// Key of the ChaCha8 keystream, and how many of its 64-bit words were taken: enough for
    /// another implementation to give what [`Stream::next_u64`] would.
    pub fn place(&self) -> ([u8; 32], u64) {
        // Two 32-bit words each: nothing here takes a single one.
        (self.rng.get_seed(), (self.rng.get_word_pos() / 2) as u64)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Uniform in `0..n` without modulo bias. Panics when `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "an empty range has no element to draw");
        let zone = u64::MAX - (u64::MAX - n + 1) % n;
        loop {
            let x = self.next_u64();
            if x <= zone {
                return x % n;
            }
        }
    }

    /// Uniform in `[0, 1)` with 53 random bits.
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Exponential with the given mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.unit_f64())
    }

    /// Standard normal (Box and Muller, both values used in turn).
    pub fn normal(&mut self) -> f64 {
        if let Some(z) = self.spare_normal.take() {
            return z;
        }
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit_f64()));
        let angle = std::f64::consts::TAU * self.unit_f64();
        self.spare_normal = Some(radius * libm::sin(angle));
        radius * libm::cos(angle)
    }

    /// Gamma with the given shape and scale (Marsaglia and Tsang 2000; boosted below shape 1).
    pub fn gamma(&mut self, shape: f64, scale: f64) -> f64 {
        assert!(
            shape > 0.0 && scale > 0.0,
            "gamma needs positive parameters"
        );
        if shape < 1.0 {
            let boost = libm::pow(1.0 - self.unit_f64(), 1.0 / shape);
            return self.gamma(shape + 1.0, scale) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            let u = 1.0 - self.unit_f64();
            if libm::log(u) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v * scale;
            }
        }
    }

    /// Shuffles in place (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            items.swap(i, j);
        }
    }
}

/// FNV-1a, 64 bits, started from `basis` mixed into the offset basis.
fn fnv1a_64(basis: u64, bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ basis.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes.iter().fold(start, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_seeds_separate_streams() {
        let draw = |seed, label| {
            let mut s = Stream::new(seed, label);
            (0..8).map(|_| s.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, "arrivals"), draw(1, "arrivals"));
        assert_ne!(draw(1, "arrivals"), draw(2, "arrivals"));
        assert_ne!(draw(1, "arrivals"), draw(1, "prompts"));
    }

    #[test]
    fn a_place_in_the_keystream_is_all_there_is_to_a_stream() {
        let mut s = Stream::new(9, "place");
        for taken in 0..40 {
            let (key, words) = s.place();
            assert_eq!(words, taken);
            let mut other = ChaCha8Rng::from_seed(key);
            other.set_word_pos(2 * u128::from(words));
            assert_eq!(s.next_u64(), other.next_u64());
        }
    }

    #[test]
    fn moments_match_the_named_distributions() {
        let mut s = Stream::new(7, "moments");
        let n = 200_000;
        let mean = |xs: &[f64]| xs.iter().sum::<f64>() / xs.len() as f64;
        let var = |xs: &[f64]| {
            let m = mean(xs);
            xs.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / xs.len() as f64
        };
        let exp: Vec<f64> = (0..n).map(|_| s.exponential(3.0)).collect();
        let norm: Vec<f64> = (0..n).map(|_| s.normal()).collect();
        let gam: Vec<f64> = (0..n).map(|_| s.gamma(0.5, 2.0)).collect();
        // Means and variances by the textbook: 3, 9; 0, 1; k*theta = 1, k*theta^2 = 2.
        assert!((mean(&exp) - 3.0).abs() < 0.04 && (var(&exp) - 9.0).abs() < 0.4);
        assert!(mean(&norm).abs() < 0.01 && (var(&norm) - 1.0).abs() < 0.02);
        assert!((mean(&gam) - 1.0).abs() < 0.02 && (var(&gam) - 2.0).abs() < 0.15);
    }

    #[test]
    fn below_is_uniform_over_a_small_range() {
        let mut s = Stream::new(3, "below");
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[s.below(7) as usize] += 1;
        }
        // 10,000 expected, standard deviation about 93: six of them is a one-in-10^8 event.
        assert!(
            counts.iter().all(|&c| (9_440..=10_560).contains(&c)),
            "{counts:?}"
        );
    }
}
