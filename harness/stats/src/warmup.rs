//! Where the warm-up ends, decided by the data and not by a round number.
//!
//! MSER-5 (White 1997; White, Cobb and Spratt 2000) takes means of five, and cuts where the
//! standard error of what is left would be smallest: early enough to keep data, late enough to lose
//! the transient. Its own rule of validity matters as much as the cut: a minimum in the second half
//! means that the run never settled, and then no cut is good.

use crate::error::{StatError, check_sample};

/// Values in a batch; the "5" of the method's name.
pub const MSER_BATCH: usize = 5;

/// Batches never cut off: with fewer left, their spread is small by chance.
const KEPT_BATCHES: usize = 5;

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
    let batches: Vec<f64> = values
        .chunks_exact(MSER_BATCH)
        .map(|batch| batch.iter().sum::<f64>() / MSER_BATCH as f64)
        .collect();
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
        if k - cut >= KEPT_BATCHES && statistic <= best.0 {
            best = (statistic, cut);
        }
    }
    let (statistic, cut) = best;
    Ok(WarmUp {
        cut: cut * MSER_BATCH,
        steady: 2 * cut <= k,
        statistic,
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
}
