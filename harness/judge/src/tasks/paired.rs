//! Right and wrong answers of two arms on the same items, and likelihoods of one text.

use pb_stats::{StatError, mcnemar, proportion, tost_units};
use serde::{Deserialize, Serialize};

use crate::verdict::Verdict;

/// Limits of a comparison of scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskLimits {
    /// Level of McNemar's test, at which more losses than gains count as shown.
    pub alpha: f64,
    /// The share of items that may be lost: a pass shows less, with confidence `confidence`.
    pub margin: f64,
    /// Confidence of the one-sided bound on the lost share.
    pub confidence: f64,
    /// Equivalence margin of the mean change of NLL, nats per token.
    pub delta_nll_margin: f64,
}

impl Default for TaskLimits {
    fn default() -> Self {
        TaskLimits {
            alpha: 0.01,
            margin: 0.05,
            confidence: 0.95,
            delta_nll_margin: 5e-3,
        }
    }
}

/// Which items each arm got right, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairedScores {
    /// For each item: right in A, right in B.
    pub right: Vec<(bool, bool)>,
}

/// A share with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Right answers.
    pub right: u64,
    /// Right answers over items.
    pub value: f64,
    /// Lower end (Clopper-Pearson).
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// What the paired scores show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairedVerdict {
    /// Items.
    pub items: u64,
    /// Arm A.
    pub a: Share,
    /// Arm B.
    pub b: Share,
    /// Right in A, wrong in B.
    pub lost: u64,
    /// Wrong in A, right in B.
    pub gained: u64,
    /// McNemar's exact two-sided p-value.
    pub p: f64,
    /// Upper bound on the share of items that B loses.
    pub lost_share_high: f64,
    /// The limits applied.
    pub limits: TaskLimits,
    /// The verdict.
    pub verdict: Verdict,
}

impl PairedScores {
    /// Judges. More losses than gains at `alpha` fail; a bound on the lost share below the margin
    /// passes; everything else is inconclusive, and so are scores near chance, on which a broken
    /// arm could not lose: A must get at least as many right as the margin allows to lose, twice
    /// over. Errors without items and on limits that are none.
    pub fn judge(&self, limits: TaskLimits) -> Result<PairedVerdict, StatError> {
        let count = |pick: fn(&(bool, bool)) -> bool| -> u64 {
            self.right.iter().filter(|pair| pick(pair)).count() as u64
        };
        let items = self.right.len() as u64;
        let (lost, gained) = (count(|p| p.0 && !p.1), count(|p| !p.0 && p.1));
        let (a, b) = (count(|p| p.0), count(|p| p.1));
        let test = mcnemar(lost, gained);
        // A two-sided interval of 1 - 2 tail has this one-sided upper end.
        let bound = proportion(lost, items, 2.0 * limits.confidence - 1.0)?;
        let (mut broken, mut open) = (Vec::new(), Vec::new());
        if lost > gained && test.p < limits.alpha {
            broken.push(format!(
                "{lost} items were lost and {gained} gained, p = {:.4} by McNemar's exact test",
                test.p
            ));
        } else if bound.high >= limits.margin {
            open.push(format!(
                "{lost} of {items} items lost: up to {:.1} % cannot be excluded, the margin is \
                 {:.1} %; more --items decide",
                100.0 * bound.high,
                100.0 * limits.margin
            ));
        }
        if (a as f64) < 2.0 * limits.margin * items as f64 {
            open.push(format!(
                "arm A gets {a} of {items} right: too few to lose any; take an easier task"
            ));
        }
        Ok(PairedVerdict {
            items,
            a: share(a, items)?,
            b: share(b, items)?,
            lost,
            gained,
            p: test.p,
            lost_share_high: bound.high,
            limits,
            verdict: Verdict::from_findings(broken, open),
        })
    }
}

fn share(right: u64, items: u64) -> Result<Share, StatError> {
    let p = proportion(right, items, 0.95)?;
    Ok(Share {
        right,
        value: p.value,
        low: p.low,
        high: p.high,
    })
}

/// Likelihood of one text in two arms; the unit is a window of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Perplexity {
    /// Windows.
    pub windows: usize,
    /// Tokens scored in each arm.
    pub tokens: u64,
    /// `exp(mean NLL)` of arm A over all tokens.
    #[serde(with = "crate::real")]
    pub a: f64,
    /// Of arm B.
    #[serde(with = "crate::real")]
    pub b: f64,
    /// Mean over windows of `NLL(b) - NLL(a)`, nats per token.
    pub delta_nll: f64,
    /// Its interval, at twice the level of the test.
    pub interval: (f64, f64),
    /// The margin.
    pub margin: f64,
    /// The verdict.
    pub verdict: Verdict,
}

impl Perplexity {
    /// From the NLL of each window in nats (A, B) and its number of tokens. Errors with fewer
    /// than two windows, and on a window without tokens or with an infinite NLL.
    pub fn judge(windows: &[(f64, f64, u64)], limits: TaskLimits) -> Result<Self, StatError> {
        if let Some(bad) = windows.iter().find(|w| w.2 == 0) {
            let (name, value) = ("tokens of a window", bad.2 as f64);
            return Err(StatError::BadParameter { name, value });
        }
        let deltas: Vec<f64> = windows
            .iter()
            .map(|(a, b, n)| (b - a) / *n as f64)
            .collect();
        let test = tost_units(&deltas, limits.delta_nll_margin, limits.alpha)?;
        let tokens: u64 = windows.iter().map(|w| w.2).sum();
        let total = |pick: fn(&(f64, f64, u64)) -> f64| -> f64 {
            (windows.iter().map(pick).sum::<f64>() / tokens as f64).exp()
        };
        let margin = limits.delta_nll_margin;
        let said = format!(
            "mean change of NLL is {:.5} ({:.5} to {:.5}), margin {margin}",
            test.mean, test.low, test.high
        );
        let verdict = match (test.outside, test.equivalent) {
            (true, _) => Verdict::from_findings(vec![said], vec![]),
            (false, true) => Verdict::Pass,
            (false, false) => Verdict::from_findings(vec![], vec![said]),
        };
        Ok(Perplexity {
            windows: windows.len(),
            tokens,
            a: total(|w| w.0),
            b: total(|w| w.1),
            delta_nll: test.mean,
            interval: (test.low, test.high),
            margin,
            verdict,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `both` right in both, then `lost`, `gained`, and `neither`.
    fn scores(both: usize, lost: usize, gained: usize, neither: usize) -> PairedScores {
        let many = |pair, n| std::iter::repeat_n(pair, n);
        let right = many((true, true), both)
            .chain(many((true, false), lost))
            .chain(many((false, true), gained))
            .chain(many((false, false), neither));
        PairedScores {
            right: right.collect(),
        }
    }

    #[test]
    fn losses_fail_by_the_exact_test() {
        // Ten lost and none gained: p = 2 / 2^10.
        let v = scores(60, 10, 0, 30).judge(TaskLimits::default()).unwrap();
        assert!((v.p - 2.0 / 1024.0).abs() < 1e-12);
        assert!(v.verdict.is_fail());
        assert_eq!((v.lost, v.gained, v.a.right, v.b.right), (10, 0, 70, 60));
        // As many gained: a change, but no loss that is shown; and no small one either.
        let v = scores(60, 10, 10, 20).judge(TaskLimits::default()).unwrap();
        assert_eq!((v.p, v.verdict.exit_code()), (1.0, 3));
    }

    #[test]
    fn a_pass_needs_enough_items_and_a_task_that_can_be_lost() {
        // None lost: the upper bound is 1 - 0.05^(1/n); at 5 % that takes 59 items.
        let few = scores(58, 0, 0, 0).judge(TaskLimits::default()).unwrap();
        assert!((few.lost_share_high - (1.0 - 0.05_f64.powf(1.0 / 58.0))).abs() < 1e-9);
        assert_eq!(few.verdict.exit_code(), 3);
        let enough = scores(59, 0, 0, 0).judge(TaskLimits::default()).unwrap();
        assert!(enough.verdict.is_pass(), "{:?}", enough.verdict);
        // An arm that knows nothing cannot lose.
        let hopeless = scores(2, 0, 0, 98).judge(TaskLimits::default()).unwrap();
        assert_eq!(hopeless.verdict.exit_code(), 3);
        assert!(
            PairedScores::default()
                .judge(TaskLimits::default())
                .is_err()
        );
    }

    #[test]
    fn perplexity_by_hand() {
        // Two windows of 10 tokens with 20 and 22 nats: exp(2.1).
        let windows = [(20.0, 20.0, 10), (22.0, 22.0, 10)];
        let same = Perplexity::judge(&windows, TaskLimits::default()).unwrap();
        assert!((same.a - 2.1_f64.exp()).abs() < 1e-12 && same.verdict.is_pass());
        let worse: Vec<(f64, f64, u64)> = (0..12)
            .map(|i| (20.0, 20.5 + 0.01 * f64::from(i), 10))
            .collect();
        let worse = Perplexity::judge(&worse, TaskLimits::default()).unwrap();
        // 0.05 nats a token and more against a margin of 0.005.
        assert!(worse.verdict.is_fail() && worse.b > worse.a);
        let spread = [(20.0, 19.5, 10), (20.0, 20.5, 10), (20.0, 20.1, 10)];
        let open = Perplexity::judge(&spread, TaskLimits::default()).unwrap();
        assert_eq!(open.verdict.exit_code(), 3);
        assert!(Perplexity::judge(&windows[..1], TaskLimits::default()).is_err());
    }
}
