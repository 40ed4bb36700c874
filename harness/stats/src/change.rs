//! One change of level within a run: whether, where and how large.
//!
//! A frequency step, a neighbour that starts, a cache that fills: the run is two runs. The
//! cumulative sum of deviations from the mean (Page 1954, Taylor 2000) peaks at the change; how
//! high a peak chance makes is found by shuffling. Stretches of `stretch` neighbours are shuffled
//! as one, because correlated values shuffled singly look like a change far too often.

use crate::error::{StatError, check_sample};
use crate::rng::{RandomSource, uniform_index};

/// A change of level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangePoint {
    /// Values before the change.
    pub at: usize,
    /// Mean before it, in the data's unit.
    pub before: f64,
    /// Mean after it, in the data's unit.
    pub after: f64,
    /// The largest absolute cumulative sum, in the data's unit.
    pub statistic: f64,
    /// Share of shuffles that reach it, the observed order included: at least
    /// `1 / (permutations + 1)`.
    pub p: f64,
}

/// The most likely change point with its permutation p-value. Needs four stretches and 99
/// permutations; values after the last full stretch keep their place. Same seed, same p-value.
pub fn change_point(
    values: &[f64],
    stretch: usize,
    permutations: usize,
    rng: &mut impl RandomSource,
) -> Result<ChangePoint, StatError> {
    for (name, value, least) in [("stretch", stretch, 1), ("permutations", permutations, 99)] {
        if value < least {
            let value = value as f64;
            return Err(StatError::BadParameter { name, value });
        }
    }
    check_sample(values, 4 * stretch)?;
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let mut centred: Vec<f64> = values.iter().map(|v| v - mean).collect();
    let (statistic, at) = peak(&centred);
    let full = centred.len() / stretch;
    // An order that ties with the observed one must count in spite of rounding.
    let scale = centred.iter().map(|v| v.abs()).fold(0.0, f64::max);
    let bar = statistic - 1e-12 * scale * values.len() as f64;
    let mut reached = 0_usize;
    for _ in 0..permutations {
        for last in (1..full).rev() {
            let other = uniform_index(rng, last + 1);
            for k in 0..stretch {
                centred.swap(last * stretch + k, other * stretch + k);
            }
        }
        reached += usize::from(peak(&centred).0 >= bar);
    }
    let part = |slice: &[f64]| slice.iter().sum::<f64>() / slice.len() as f64;
    Ok(ChangePoint {
        at,
        before: part(&values[..at]),
        after: part(&values[at..]),
        statistic,
        p: (reached + 1) as f64 / (permutations + 1) as f64,
    })
}

/// The largest absolute cumulative sum before the end, and how many values it spans.
fn peak(centred: &[f64]) -> (f64, usize) {
    let (mut sum, mut best) = (0.0_f64, (0.0_f64, 1));
    for (i, value) in centred[..centred.len() - 1].iter().enumerate() {
        sum += value;
        if sum.abs() > best.0 {
            best = (sum.abs(), i + 1);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;
    use crate::simulate::normal;
    use crate::testing::close;

    #[test]
    fn a_clean_step_by_hand() {
        // Mean 2; deviations -1 x 4, then +1 x 4: the sum is -4 after four values. Only the two
        // sorted orders of 8-choose-4 = 70 reach 4, so p is near 2/70.
        let values = [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0];
        let c = change_point(&values, 1, 20_000, &mut SplitMix64::new(1)).unwrap();
        assert_eq!((c.at, c.before, c.after, c.statistic), (4, 1.0, 3.0, 4.0));
        // Binomial standard error sqrt(2/70 * 68/70 / 20000) = 0.0012.
        close(c.p, 2.0 / 70.0, 0.0, 0.005);
    }

    #[test]
    fn the_level_holds_and_stretches_protect_it_under_correlation() {
        let alarms = |phi: f64, stretch: usize| {
            let mut rng = SplitMix64::new(77);
            (0..400)
                .filter(|_| {
                    let mut state = normal(&mut rng);
                    let values: Vec<f64> = (0..400)
                        .map(|_| {
                            state = phi * state + (1.0 - phi * phi).sqrt() * normal(&mut rng);
                            state
                        })
                        .collect();
                    change_point(&values, stretch, 199, &mut rng).unwrap().p <= 0.05
                })
                .count()
        };
        // 20 of 400 expected, binomial sd 4.4.
        let clean = alarms(0.0, 1);
        assert!((6..=34).contains(&clean), "{clean}");
        let (single, whole) = (alarms(0.6, 1), alarms(0.6, 20));
        assert!(single > 100, "single values must fail here: {single}");
        assert!(whole < 40, "{whole}");
    }

    #[test]
    fn a_five_percent_step_is_found_at_its_place() {
        let mut rng = SplitMix64::new(78);
        let values: Vec<f64> = (0..600)
            .map(|i| 100.0 + if i >= 250 { 5.0 } else { 0.0 } + 3.0 * normal(&mut rng))
            .collect();
        let c = change_point(&values, 5, 999, &mut rng).unwrap();
        assert_eq!(c.p, 0.001);
        assert!(c.at.abs_diff(250) <= 5, "{c:?}");
        close(c.after - c.before, 5.0, 0.15, 0.0);
    }

    #[test]
    fn no_variation_and_bad_input() {
        let mut rng = SplitMix64::new(1);
        let flat = change_point(&[2.0; 12], 3, 99, &mut rng).unwrap();
        assert_eq!((flat.p, flat.statistic), (1.0, 0.0));
        assert!(change_point(&[1.0; 7], 2, 99, &mut rng).is_err());
        assert!(change_point(&[1.0; 8], 0, 99, &mut rng).is_err());
        assert!(change_point(&[1.0; 8], 1, 98, &mut rng).is_err());
    }
}
