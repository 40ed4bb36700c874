//! What can be wrong with the numbers handed in. A wrong *output* is a finding, not an error.

use pb_stats::StatError;
use thiserror::Error;

/// Input that cannot be scored or judged.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum NumericsError {
    /// A row with fewer than two logits has no runner-up.
    #[error("a logit row of {columns} columns cannot be scored, two are needed")]
    TooFewColumns {
        /// Columns given.
        columns: usize,
    },
    /// A compared row has another vocabulary than its reference.
    #[error("logit rows of {got} and {expected} columns cannot be compared")]
    WidthMismatch {
        /// Columns of the reference.
        expected: usize,
        /// Columns of the compared row.
        got: usize,
    },
    /// The reference itself is NaN or infinite.
    #[error("the reference logit of column {column} is not finite")]
    ReferenceNotFinite {
        /// First such column.
        column: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} lies outside a vocabulary of {columns}")]
    TokenOutOfRange {
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        columns: usize,
    },
    /// Rows must come in ascending order of position, each once.
    #[error("prompt {prompt}: row {position} came after row {previous}")]
    PositionOrder {
        /// The prompt.
        prompt: String,
        /// Position of the row that was refused.
        position: u32,
        /// Position of the row before it.
        previous: u32,
    },
    /// Two prompts of one configuration share a name.
    #[error("prompt {prompt} was given twice")]
    DuplicatePrompt {
        /// The prompt.
        prompt: String,
    },
    /// A benign ensemble too small to calibrate limits.
    #[error("a benign ensemble of {got} variants is too small, {need} are needed")]
    SmallEnsemble {
        /// Variants given.
        got: usize,
        /// Variants needed.
        need: usize,
    },
    /// A benign ensemble without any variation, or with infinite errors, sets no limit.
    #[error("the benign ensemble sets no limit: its largest {statistic} is {value}")]
    DegenerateEnsemble {
        /// Which statistic.
        statistic: &'static str,
        /// Its largest value over the ensemble.
        value: f64,
    },
    /// A statistic refused its parameters (a bad limit).
    #[error("limits cannot be applied: {0}")]
    Statistic(#[from] StatError),
}
