//! The first words of a report: what was found, not whether the program is content.
//!
//! "Pass" only says that a run is valid, its outputs right and a question answered; the answer may
//! be that everything got slower. A reader must never take it for "the candidate is better", so the
//! headline counts the answers instead.

use super::verdict::{Outcome, Performance, RunVerdict};
use crate::ab::Claim;

/// How the primary metrics of a comparison came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrimaryCounts {
    /// Metrics in which the candidate is better.
    pub better: usize,
    /// Metrics in which it is worse.
    pub worse: usize,
    /// Metrics that are the same within their margin.
    pub unchanged: usize,
    /// Metrics without a conclusion, or whose conclusion is void.
    pub undecided: usize,
}

impl PrimaryCounts {
    /// Counts the claims of the primary metrics.
    pub fn of(performance: &Performance) -> PrimaryCounts {
        let mut counts = PrimaryCounts::default();
        for metric in performance.metrics.iter().filter(|m| m.spec.primary) {
            *match metric.verdict.claim {
                Claim::Better => &mut counts.better,
                Claim::Worse => &mut counts.worse,
                Claim::Equivalent => &mut counts.unchanged,
                Claim::Inconclusive | Claim::Void => &mut counts.undecided,
            } += 1;
        }
        counts
    }

    /// All primary metrics.
    pub fn total(&self) -> usize {
        self.better + self.worse + self.unchanged + self.undecided
    }

    /// The counts in words, for example `3 better, 1 worse`. Both of these are always named.
    pub fn words(&self) -> String {
        let mut words = format!("{} better, {} worse", self.better, self.worse);
        for (count, word) in [(self.unchanged, "unchanged"), (self.undecided, "undecided")] {
            if count > 0 {
                words.push_str(&format!(", {count} {word}"));
            }
        }
        words
    }
}

impl RunVerdict {
    /// The finding in a few words, for example `VALID: 3 better, 1 worse`.
    pub fn headline(&self) -> String {
        match self.outcome {
            Outcome::Void => "VOID".to_owned(),
            Outcome::Inconclusive => "INCONCLUSIVE".to_owned(),
            Outcome::Fail if self.correctness.is_only_more_accurate() => {
                "OUTPUTS NOT EQUIVALENT".to_owned()
            }
            Outcome::Fail => "OUTPUTS WRONG".to_owned(),
            Outcome::Pass if self.performance.comparison.is_none() => {
                "VALID: cold and warm cache compared".to_owned()
            }
            Outcome::Pass => {
                format!("VALID: {}", PrimaryCounts::of(&self.performance).words())
            }
        }
    }
}
