//! Counts of successes: exact intervals, and paired answers that changed.
//!
//! Success rates sit near 1 and error rates near 0, where the usual `p +- 2 sqrt(p q / n)` gives
//! intervals of no width or beyond the end. Clopper and Pearson (1934) invert the binomial itself.
//! Two arms that answer the *same* questions are compared by McNemar (1947) on the answers that
//! changed only; those both got right or both wrong say nothing about a difference.

use crate::error::{StatError, check_open_unit};
use crate::special::{incomplete_beta, ln_gamma};

/// A share with its exact interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Proportion {
    /// Successes over trials.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The Clopper-Pearson interval: coverage is never below `confidence`. Needs a trial.
pub fn proportion(successes: u64, trials: u64, confidence: f64) -> Result<Proportion, StatError> {
    check_open_unit("confidence", confidence)?;
    if trials == 0 {
        return Err(StatError::TooFew { got: 0, need: 1 });
    }
    if successes > trials {
        let (name, value) = ("successes", successes as f64);
        return Err(StatError::BadParameter { name, value });
    }
    let tail = 0.5 * (1.0 - confidence);
    let (k, n) = (successes as f64, trials as f64);
    let low = if successes == 0 {
        0.0
    } else {
        beta_quantile(tail, k, n - k + 1.0)
    };
    let high = if successes == trials {
        1.0
    } else {
        // The upper end mirrors the lower end of the failures, whose tail is the small one.
        1.0 - beta_quantile(tail, n - k, k + 1.0)
    };
    Ok(Proportion {
        value: k / n,
        low,
        high,
    })
}

/// Answers that changed between two arms on the same questions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct McNemar {
    /// Right in A, wrong in B.
    pub lost: u64,
    /// Wrong in A, right in B.
    pub gained: u64,
    /// Two-sided p-value of "a change is as often a loss as a gain": exact, doubled, at most 1.
    pub p: f64,
}

/// The exact McNemar test. Without any change p is 1.
pub fn mcnemar(lost: u64, gained: u64) -> McNemar {
    let n = lost + gained;
    let fewer = lost.min(gained);
    let ln_half = -(n as f64) * std::f64::consts::LN_2;
    let ln_factorial = |k: u64| ln_gamma(k as f64 + 1.0);
    let term = |k: u64| (ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k) + ln_half).exp();
    let p = if lost == gained {
        1.0
    } else {
        (2.0 * (0..=fewer).map(term).sum::<f64>()).min(1.0)
    };
    McNemar { lost, gained, p }
}

/// The x with `I_x(a, b) = p`, by bisection.
fn beta_quantile(p: f64, a: f64, b: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return middle;
        }
        if incomplete_beta(a, b, middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn ends_have_closed_forms() {
        // No success in n: high = 1 - tail^(1/n). All: low = tail^(1/n).
        let none = proportion(0, 20, 0.95).unwrap();
        close(none.high, 1.0 - 0.025_f64.powf(0.05), 1e-12, 0.0);
        assert_eq!((none.value, none.low), (0.0, 0.0));
        let all = proportion(20, 20, 0.95).unwrap();
        close(all.low, 0.025_f64.powf(0.05), 1e-12, 0.0);
        assert_eq!(all.high, 1.0);
        assert!(proportion(0, 0, 0.95).is_err() && proportion(3, 2, 0.95).is_err());
    }

    #[test]
    fn the_exact_interval_never_covers_less() {
        // Exact coverage at n = 30 for a grid of true shares, by summing the binomial.
        for step in 1..40 {
            let truth = f64::from(step) / 40.0;
            let mut weight = (1.0 - truth).powi(30);
            let mut covered = 0.0;
            for k in 0..=30_u64 {
                let interval = proportion(k, 30, 0.95).unwrap();
                if interval.low <= truth && truth <= interval.high {
                    covered += weight;
                }
                weight *= (30 - k) as f64 / (k + 1) as f64 * truth / (1.0 - truth);
            }
            assert!(covered >= 0.95, "{truth}: {covered}");
        }
    }

    #[test]
    fn mcnemar_by_hand() {
        // 1 loss and 5 gains: 2 (1 + 6) / 64.
        close(mcnemar(1, 5).p, 14.0 / 64.0, 1e-12, 0.0);
        close(mcnemar(8, 0).p, 2.0 / 256.0, 1e-12, 0.0);
        assert_eq!((mcnemar(0, 0).p, mcnemar(4, 4).p), (1.0, 1.0));
    }
}
