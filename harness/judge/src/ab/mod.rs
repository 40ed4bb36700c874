//! Is arm B faster than arm A, or does it only look so?
//!
//! The unit is the block: one interleaved pair of runs, with one value of each metric per arm. A
//! claim needs three things at once: a p-value that survives Holm's adjustment over the declared
//! metrics, an interval that excludes "no change", and a change larger than a practical margin.
//! Equivalence needs an interval inside that margin. All else is inconclusive, and a run whose
//! conditions did not hold is void whatever its numbers say.
//!
//! ```
//! use std::collections::BTreeMap;
//! use pb_judge::ab::{AbRules, ArmValues, Claim, MetricSpec, judge_ab};
//!
//! let metrics = [MetricSpec::latency("itl_p99", "ms")];
//! let some = |v: &[f64]| v.iter().copied().map(Some).collect::<Vec<_>>();
//! let (a, b) = (some(&[98.0, 104.0, 101.0, 99.0]), some(&[41.0, 40.0, 42.0, 39.0]));
//! let arms = ArmValues { a, b };
//! let values = BTreeMap::from([("itl_p99".to_owned(), arms)]);
//! let report = judge_ab(&metrics, &values, &[], &AbRules::default())?;
//! assert_eq!(report.metrics[0].claim, Claim::Better);
//! # Ok::<(), pb_judge::ab::AbError>(())
//! ```

mod decide;
mod measure;
mod metric;
mod pairs;

pub use decide::judge_ab;
pub use metric::{
    AbReport, AbRules, ArmValues, Claim, Direction, Excluded, MetricSpec, MetricVerdict, Scale,
};

use pb_stats::StatError;
use thiserror::Error;

/// Input that cannot be judged. A lack of data is a verdict, not an error.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AbError {
    /// A metric was declared twice.
    #[error("metric {name} is declared twice")]
    DuplicateMetric {
        /// The metric.
        name: String,
    },
    /// A declared metric has no values.
    #[error("metric {name} is declared but has no values")]
    MissingMetric {
        /// The metric.
        name: String,
    },
    /// The arms have values for different numbers of blocks.
    #[error("metric {name}: arm A has {a} blocks, arm B {b}")]
    BlockMismatch {
        /// The metric.
        name: String,
        /// Blocks of arm A.
        a: usize,
        /// Blocks of arm B.
        b: usize,
    },
    /// A margin that is negative or not finite.
    #[error("metric {name}: margin {margin} is not a finite number of at least 0")]
    BadMargin {
        /// The metric.
        name: String,
        /// The margin given.
        margin: f64,
    },
    /// A rule outside its range.
    #[error("the rules cannot be applied: {0}")]
    BadRules(StatError),
}

#[cfg(test)]
mod decide_tests;
#[cfg(test)]
mod simulation_tests;
