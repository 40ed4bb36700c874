//! What is declared before a comparison, and what comes out of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::verdict::Interval;

/// Which way is an improvement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Latencies, stalls, errors.
    LowerIsBetter,
    /// Throughput, goodput, hit rate.
    HigherIsBetter,
}

/// The scale on which arms are compared, with its practical margin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "scale", rename_all = "snake_case")]
pub enum Scale {
    /// B over A, on logarithms. Values that are not positive leave their pair out.
    Ratio {
        /// Relative margin: 0.03 means that factors from 1/1.03 to 1.03 do not matter.
        margin: f64,
    },
    /// B minus A, for metrics that may be zero (stall counts, shares).
    Difference {
        /// Absolute margin in the metric's unit.
        margin: f64,
    },
}

/// A metric, declared before its values are looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricSpec {
    /// Its key among the values.
    pub name: String,
    /// Its unit, for display.
    pub unit: String,
    /// Which way is an improvement.
    pub direction: Direction,
    /// How arms are compared.
    pub scale: Scale,
    /// Whether it belongs to the primary family. The others are adjusted over all metrics.
    pub primary: bool,
}

impl MetricSpec {
    /// A primary metric where lower is better, compared by ratio with a margin of 3 %.
    pub fn latency(name: &str, unit: &str) -> Self {
        Self {
            name: name.to_owned(),
            unit: unit.to_owned(),
            direction: Direction::LowerIsBetter,
            scale: Scale::Ratio { margin: 0.03 },
            primary: true,
        }
    }

    /// A primary metric where higher is better, compared by ratio with a margin of 3 %.
    pub fn rate(name: &str, unit: &str) -> Self {
        Self {
            direction: Direction::HigherIsBetter,
            ..Self::latency(name, unit)
        }
    }

    /// A primary metric where lower is better and zero is a value, with a margin in its unit.
    pub fn count(name: &str, unit: &str, margin: f64) -> Self {
        Self {
            scale: Scale::Difference { margin },
            ..Self::latency(name, unit)
        }
    }

    /// The same metric outside the primary family.
    pub fn secondary(self) -> Self {
        Self {
            primary: false,
            ..self
        }
    }
}

/// One metric's values, one per block in each arm; index i of both is block i. None where the
/// block has no value, for example because no request succeeded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmValues {
    /// Arm A, the baseline.
    pub a: Vec<Option<f64>>,
    /// Arm B, the candidate.
    pub b: Vec<Option<f64>>,
}

/// Values of all metrics by name.
pub(crate) type Values = BTreeMap<String, ArmValues>;

/// Levels and settings of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AbRules {
    /// Family-wise level of claims. Claims also need the `1 - alpha` interval to exclude no
    /// change, and equivalence the `1 - 2 alpha` interval to lie within the margin.
    pub alpha: f64,
    /// Fewest block pairs for any verdict.
    pub min_pairs: usize,
    /// Power at which the detectable change is reported; None leaves it out.
    pub power: Option<f64>,
    /// Resamples of the studentised bootstrap shown beside the t interval; 0 leaves it out.
    pub resamples: usize,
    /// Seed of the bootstrap.
    pub seed: u64,
}

impl Default for AbRules {
    fn default() -> Self {
        Self {
            alpha: 0.05,
            min_pairs: 3,
            power: Some(0.8),
            resamples: 2000,
            seed: 1,
        }
    }
}

/// What may be said about B against A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// B is better, beyond the margin.
    Better,
    /// B is worse, beyond the margin.
    Worse,
    /// B is the same within the margin.
    Equivalent,
    /// The data cannot tell.
    Inconclusive,
    /// The run's conditions did not hold.
    Void,
}

/// Block pairs left out, by reason; the first reason that applies counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Excluded {
    /// Arm A has no finite value (and perhaps neither has B).
    pub missing_a: usize,
    /// Only arm B has no finite value.
    pub missing_b: usize,
    /// A value is zero or negative where a ratio is taken.
    pub not_positive: usize,
}

impl Excluded {
    /// All pairs left out.
    pub fn total(&self) -> usize {
        self.missing_a + self.missing_b + self.not_positive
    }
}

/// One metric's result. Intervals are None when fewer than two pairs are left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricVerdict {
    /// The declaration.
    pub spec: MetricSpec,
    /// Median over the kept blocks of arm A, in the metric's unit (mean of the middle two).
    pub a: Option<f64>,
    /// The same for arm B.
    pub b: Option<f64>,
    /// Blocks given.
    pub blocks: usize,
    /// Pairs used.
    pub pairs: usize,
    /// Pairs left out.
    pub excluded: Excluded,
    /// Mean of B minus A with its `1 - alpha` paired t interval, in the metric's unit.
    pub difference: Option<Interval>,
    /// Geometric mean of B over A with its `1 - alpha` interval; None on the difference scale if a
    /// value is not positive.
    pub ratio: Option<Interval>,
    /// The `1 - 2 alpha` interval on the metric's own scale, which equivalence looks at.
    pub equivalence: Option<Interval>,
    /// Studentised bootstrap interval on the metric's own scale, `1 - alpha`: a check on the t
    /// interval, not part of the rule. None when too few pairs make it infinite.
    pub bootstrap: Option<Interval>,
    /// Two-sided paired t p-value on the metric's own scale.
    pub p: Option<f64>,
    /// The same, Holm adjusted. A metric without a p-value counts as 1 in its family.
    pub holm_p: f64,
    /// Exact sign-flip p-value, for up to 20 pairs: another check, not part of the rule.
    pub sign_flip_p: Option<f64>,
    /// Smallest change that this design would have found with the stated power, given the spread
    /// seen and no adjustment: a factor above 1 on the ratio scale, else in the metric's unit.
    pub detectable: Option<f64>,
    /// What may be said.
    pub claim: Claim,
    /// Why, in one sentence.
    pub why: String,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AbReport {
    /// The rules applied.
    pub rules: AbRules,
    /// Why the run is void; empty if it is valid.
    pub void: Vec<String>,
    /// One result per declared metric, in the order declared.
    pub metrics: Vec<MetricVerdict>,
}

impl AbReport {
    /// The result of a metric by name.
    pub fn metric(&self, name: &str) -> Option<&MetricVerdict> {
        self.metrics.iter().find(|m| m.spec.name == name)
    }

    /// Whether any metric claims a difference, in either direction.
    pub fn claims_difference(&self) -> bool {
        self.metrics
            .iter()
            .any(|m| matches!(m.claim, Claim::Better | Claim::Worse))
    }
}
