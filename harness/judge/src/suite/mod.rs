//! The verdicts on the hypotheses of a suite, from the documents of its cells.
//!
//! The unit is the pair of cells of one block and one condition: the same schedule, one after the
//! other, each in a fresh server. `prefillbench run` judges with this while it runs, and the report
//! judges again, so that a verdict that somebody wrote into `suite.json` is found out.

mod decide;
mod looks;
mod metric;
mod pairs;

pub use decide::{Judged, judged};
pub use looks::looks;
pub use metric::{Metric, Scale, UnknownFigure};
pub use pairs::{Pair, Pairs, reasons, schedule, success};

use serde::{Deserialize, Serialize};

/// Fewest pairs, one a block, for any claim.
pub const LEAST_PAIRS: usize = 3;

/// When to stop adding blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopRule {
    /// After the number of blocks given.
    Fixed,
    /// As soon as every hypothesis is settled, by an interval that is valid at every block.
    Sequential,
    /// The same at up to four planned looks, between which the error is spent.
    Spending,
}

/// What is expected of the candidate's value beside the baseline's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expect {
    /// It is lower, beyond the margin.
    Lower,
    /// It is higher, beyond the margin.
    Higher,
    /// It is shown to differ by less than the margin.
    Equivalent,
    /// No difference is claimed, as between equal arms.
    NoClaim,
}

/// What is asked of a pair of arms.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The figure.
    pub metric: Metric,
    /// What is expected.
    pub expect: Option<Expect>,
    /// Change that does not matter, on the figure's scale.
    pub margin: f64,
}

/// How comparisons are decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// When blocks stop being added.
    pub stop: StopRule,
    /// Blocks, or the most of them.
    pub blocks: usize,
    /// Chance of any false claim.
    pub alpha: f64,
    /// Share of requests that must end well.
    pub least_success: f64,
}

#[cfg(test)]
mod tests;
