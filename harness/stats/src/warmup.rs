//! Where the warm-up ends, decided by the data and not by a round number.
//!
//! MSER-5 (White 1997; White, Cobb and Spratt 2000) takes means of five, and cuts where the
//! standard error of what is left would be smallest: early enough to keep data, late enough to lose
//! the transient. Its own rule of validity matters as much as the cut: a minimum in the second half
//! means that the run never settled, and then no cut is good.

use crate::error::{StatError, check_sample};
use crate::rng::{RandomSource, uniform_index};

/// Values in a batch; the "5" of the method's name.
pub const MSER_BATCH: usize = 5;

/// Batches never cut off: with fewer left, their spread is small by chance.
const KEPT_BATCHES: usize = 5;

/// Most batches that are shuffled.
const MOST_BATCHES: usize = 1_000;

/// Where a run becomes steady.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmUp {
    /// Values to drop from the front, a multiple of five.
    pub cut: usize,
    /// Whether the cut lies in the first half. When not, the run never became steady: judge it as
    /// void, do not cut.
    pub steady: bool,
    /// The statistic at the cut, in squared units of the data.
    pub statistic: f64,
}

/// MSER-5 on values in order of time. The remainder after the last full batch plays no part. Needs
/// 50 values; the first of equal minima counts.
pub fn mser5(values: &[f64]) -> Result<WarmUp, StatError> {
    check_sample(values, 2 * MSER_BATCH * KEPT_BATCHES)?;
    let batches = batch_means(values, MSER_BATCH);
    let k = batches.len();
    let (statistic, cut) = least(&batches, k);
    Ok(WarmUp {
        cut: cut * MSER_BATCH,
        steady: 2 * cut <= k,
        statistic,
    })
}

fn batch_means(values: &[f64], size: usize) -> Vec<f64> {
    let batches = values.chunks_exact(size);
    batches
        .map(|batch| batch.iter().sum::<f64>() / size as f64)
        .collect()
}

/// The least statistic among cuts up to `latest`, and that cut.
fn least(batches: &[f64], latest: usize) -> (f64, usize) {
    let k = batches.len();
    // From the back, so that one pass serves every cut (Welford's update).
    let (mut mean, mut squares) = (0.0, 0.0);
    let mut best = (f64::INFINITY, 0);
    for (cut, batch) in batches.iter().enumerate().rev() {
        let left = (k - cut) as f64;
        let delta = batch - mean;
        mean += delta / left;
        squares += delta * (batch - mean);
        let statistic = squares / (left * left);
        if cut <= latest && k - cut >= KEPT_BATCHES && statistic <= best.0 {
            best = (statistic, cut);
        }
    }
    best
}

/// A warm-up with the chance that steady values look like one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transient {
    /// Values to drop from the front, by MSER among cuts of the first half.
    pub cut: usize,
    /// Mean of the values before the cut over that of the values after it, less 1: 0.5 for a start
    /// that is half as long again. 0 without a cut. Not the median, because MSER often cuts more
    /// than the start, and then half of what it cuts is steady.
    pub excess: f64,
    /// Share of shuffles whose best cut sets apart as much, the order observed included.
    pub p: f64,
}

/// MSER always cuts somewhere, also where nothing is to be cut. So the contrast between what its
/// best cut drops and keeps (difference of the means over its standard error) is held against that
/// of `permutations` orders of the same values, each at a best cut of its own, shuffled in
/// stretches of at least `stretch` neighbours, which must be longer than their correlation. Batches
/// are of five values, and longer beyond 5,000 values, so that there are at most 1,000. Needs 50
/// values whose mean is positive, and 99 permutations.
pub fn transient(
    values: &[f64],
    stretch: usize,
    permutations: usize,
    rng: &mut impl RandomSource,
) -> Result<Transient, StatError> {
    check_sample(values, 2 * MSER_BATCH * KEPT_BATCHES)?;
    for (name, value, least) in [("stretch", stretch, 1), ("permutations", permutations, 99)] {
        if value < least {
            let value = value as f64;
            return Err(StatError::BadParameter { name, value });
        }
    }
    let size = MSER_BATCH.max(values.len().div_ceil(MOST_BATCHES));
    let mut batches = batch_means(values, size);
    let (half, stretch) = (batches.len() / 2, stretch.div_ceil(size));
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    // Without the spread of all batches, which is the same in every order.
    let contrast = |batches: &[f64]| {
        let (_, at) = least(batches, half);
        let (dropped, kept) = batches.split_at(at);
        if dropped.is_empty() {
            return (0.0, 0);
        }
        let weight = (at * kept.len()) as f64 / batches.len() as f64;
        ((mean(dropped) - mean(kept)).abs() * weight.sqrt(), at)
    };
    let (observed, at) = contrast(&batches);
    let cut = at * size;
    let level = mean(&values[cut..]);
    if level <= 0.0 {
        return Err(StatError::NotPositive { index: cut });
    }
    let excess = match cut {
        0 => 0.0,
        cut => mean(&values[..cut]) / level - 1.0,
    };
    let full = batches.len() / stretch;
    let mut reached = 0_usize;
    for _ in 0..permutations {
        for last in (1..full).rev() {
            let other = uniform_index(rng, last + 1);
            for k in 0..stretch {
                batches.swap(last * stretch + k, other * stretch + k);
            }
        }
        // An order that ties with the observed one must count in spite of rounding.
        reached += usize::from(contrast(&batches).0 >= observed * (1.0 - 1e-12));
    }
    Ok(Transient {
        cut,
        excess,
        p: (reached + 1) as f64 / (permutations + 1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;
    use crate::simulate::normal;

    #[test]
    fn a_step_is_cut_exactly_where_it_ends() {
        // Twelve batches of 9 then 28 of 1 and 3 in turn: the cut is at batch 12 = value 60.
        // With it: 28 batches of variance 1, statistic 28 / 28^2 = 1/28.
        let mut values = vec![9.0; 60];
        for batch in 0..28 {
            values.extend([if batch % 2 == 0 { 1.0 } else { 3.0 }; 5]);
        }
        let w = mser5(&values).unwrap();
        assert_eq!((w.cut, w.steady), (60, true));
        assert!((w.statistic - 1.0 / 28.0).abs() < 1e-12);
    }

    #[test]
    fn a_steady_run_keeps_most_and_a_drifting_run_is_refused() {
        let mut rng = SplitMix64::new(31);
        let (mut kept, mut refused) = (0, 0);
        for _ in 0..200 {
            let steady: Vec<f64> = (0..500).map(|_| 20.0 + normal(&mut rng)).collect();
            let w = mser5(&steady).unwrap();
            kept += u32::from(w.steady && w.cut <= 150);
            let drifting: Vec<f64> = (0..500)
                .map(|i| 20.0 + 0.02 * f64::from(i) + normal(&mut rng))
                .collect();
            refused += u32::from(!mser5(&drifting).unwrap().steady);
        }
        assert!(kept >= 170, "{kept}");
        assert!(refused >= 190, "{refused}");
    }

    #[test]
    fn an_exponential_transient_is_found() {
        // 30 e^(-i/25) over noise of sd 1 falls below a tenth of it near i = 140.
        let mut rng = SplitMix64::new(32);
        let mut near = 0;
        for _ in 0..200 {
            let values: Vec<f64> = (0..1_000)
                .map(|i| 20.0 + 30.0 * (-f64::from(i) / 25.0).exp() + normal(&mut rng))
                .collect();
            let w = mser5(&values).unwrap();
            near += u32::from(w.steady && (60..=250).contains(&w.cut));
        }
        assert!(near >= 180, "{near}");
    }

    #[test]
    fn too_short_is_an_error() {
        let few = StatError::TooFew { got: 49, need: 50 };
        assert_eq!(mser5(&[1.0; 49]), Err(few));
        let flat = mser5(&[1.0; 50]).unwrap();
        assert_eq!((flat.cut, flat.steady, flat.statistic), (0, true, 0.0));
    }

    #[test]
    fn a_transient_is_told_from_the_cut_that_is_always_found() {
        // 1 % of steady runs may look like a start at p <= 0.01: of 400 at most 11 (99.9 %).
        let mut rng = SplitMix64::new(33);
        let (mut false_alarms, mut found) = (0, 0);
        for _ in 0..400 {
            let noise: Vec<f64> = (0..150).map(|_| 20.0 + normal(&mut rng)).collect();
            let t = transient(&noise, 1, 199, &mut rng).unwrap();
            false_alarms += u32::from(t.p <= 0.01);
            // The first 30 take twice as long.
            let warming = noise.iter().enumerate();
            let warming: Vec<f64> = warming
                .map(|(i, v)| if i < 30 { 2.0 * v } else { *v })
                .collect();
            let t = transient(&warming, 1, 199, &mut rng).unwrap();
            // MSER sometimes cuts much more than the start, which then stands out less.
            found += u32::from(t.p <= 0.01 && t.cut >= 25 && t.excess > 0.3);
        }
        assert!(false_alarms <= 11, "{false_alarms}");
        assert!(found >= 320, "{found}");
    }

    #[test]
    fn single_correlated_values_must_not_be_shuffled() {
        // The planted fault: a stretch of one for values that follow one another closely.
        let shape = crate::simulate::Shape::Autocorrelated {
            sigma: 0.2,
            phi: 0.95,
        };
        let mut rng = SplitMix64::new(34);
        let (mut single, mut whole) = (0, 0);
        for _ in 0..200 {
            let values = shape.samples(400, 20.0, &mut rng);
            single += u32::from(transient(&values, 1, 99, &mut rng).unwrap().p <= 0.05);
            whole += u32::from(transient(&values, 80, 99, &mut rng).unwrap().p <= 0.05);
        }
        assert!(single > 60, "{single}");
        assert!(whole <= 20, "{whole}");
    }

    #[test]
    fn nothing_to_shuffle_and_bad_input() {
        let mut rng = SplitMix64::new(1);
        let flat = transient(&[2.0; 50], 5, 99, &mut rng).unwrap();
        assert_eq!((flat.cut, flat.excess, flat.p), (0, 0.0, 1.0));
        assert!(transient(&[2.0; 49], 5, 99, &mut rng).is_err());
        assert!(transient(&[-2.0; 50], 5, 99, &mut rng).is_err());
        assert!(transient(&[2.0; 50], 0, 99, &mut rng).is_err());
        assert!(transient(&[2.0; 50], 5, 98, &mut rng).is_err());
    }
}
