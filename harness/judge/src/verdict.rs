//! The three answers a gate can give, and the interval they rest on.

use pb_stats::Estimate;
use serde::{Deserialize, Serialize};

/// The outcome of a gate. "Cannot tell" is an answer of its own, never a pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Every rule is met.
    Pass,
    /// At least one rule is broken.
    Fail {
        /// One sentence for each broken rule.
        reasons: Vec<String>,
    },
    /// No rule is broken, but at least one has too little data to be met.
    Inconclusive {
        /// One sentence for each rule that cannot be decided.
        why: Vec<String>,
    },
}

impl Verdict {
    /// A verdict from the broken and the undecided rules: broken ones win.
    pub fn from_findings(reasons: Vec<String>, why: Vec<String>) -> Self {
        if !reasons.is_empty() {
            Self::Fail { reasons }
        } else if !why.is_empty() {
            Self::Inconclusive { why }
        } else {
            Self::Pass
        }
    }

    /// Whether every rule is met.
    pub fn is_pass(&self) -> bool {
        matches!(self, Self::Pass)
    }

    /// Whether a rule is broken.
    pub fn is_fail(&self) -> bool {
        matches!(self, Self::Fail { .. })
    }

    /// Process exit code: 0 pass, 1 fail, 3 inconclusive (2 is bad usage, which is no verdict).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail { .. } => 1,
            Self::Inconclusive { .. } => 3,
        }
    }
}

/// A point with its interval, as stored in verdict files.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Point estimate.
    pub point: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Standard error; for a ratio, of its logarithm.
    pub se: f64,
    /// Independent units (block pairs) used.
    pub n: usize,
    /// Confidence level, such as 0.95.
    pub confidence: f64,
}

impl Interval {
    /// Whether `value` lies outside the closed interval.
    pub fn excludes(&self, value: f64) -> bool {
        value < self.low || value > self.high
    }

    /// Whether the interval lies within `[low, high]`.
    pub fn within(&self, low: f64, high: f64) -> bool {
        self.low >= low && self.high <= high
    }
}

impl From<Estimate> for Interval {
    fn from(e: Estimate) -> Self {
        Self {
            point: e.point,
            low: e.low,
            high: e.high,
            se: e.se,
            n: e.n,
            confidence: e.confidence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_rule_beats_an_undecided_one() {
        let (broken, open) = (vec!["a".to_owned()], vec!["b".to_owned()]);
        let fail = Verdict::from_findings(broken.clone(), open.clone());
        assert_eq!(fail, Verdict::Fail { reasons: broken });
        assert!(fail.is_fail() && !fail.is_pass());
        let unclear = Verdict::from_findings(vec![], open.clone());
        assert_eq!(unclear, Verdict::Inconclusive { why: open });
        let pass = Verdict::from_findings(vec![], vec![]);
        assert_eq!(
            [fail.exit_code(), unclear.exit_code(), pass.exit_code()],
            [1, 3, 0]
        );
    }

    #[test]
    fn verdicts_read_back_as_written() {
        let fail = Verdict::Fail {
            reasons: vec!["max z".to_owned()],
        };
        let text = serde_json::to_string(&fail).unwrap();
        assert_eq!(text, r#"{"verdict":"fail","reasons":["max z"]}"#);
        assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), fail);
    }
}
