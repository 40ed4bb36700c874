//! Are the outputs of a chunked or cached prefill those of a monolithic one?
//!
//! In floating point the two need not be equal, so a fixed tolerance either fails a correct engine
//! or passes a broken one. Three questions are asked instead, each against an f64 reference:
//!
//! - **T0, exact** ([`BitDifference`]): is the variant bit-equal to the monolithic pass?
//! - **T1, structure** ([`judge`] with [`Limits::default`]): is the variant's error as large as the
//!   monolithic pass's own error, in the mean, for the worst prompt and for the worst row?
//! - **T2, deployment** ([`calibrate`]): the same with limits that a benign ensemble has shown.
//!
//! Logits are never kept: a row is scored ([`ReferenceRow::score`]) and thrown away, and only a
//! handful of numbers per row stay ([`PromptScores`]). Every position of every prompt counts, since
//! a stale cache slot shows in the first rows after a boundary and in almost no other.
//!
//! ```
//! use pb_judge::numerics::{ConfigStats, Limits, PromptScores, ReferenceRow, judge};
//!
//! // One prompt of three rows over a vocabulary of four; chunks of one token.
//! let mut prompt = PromptScores::new("p0", 1);
//! for position in 0..3 {
//!     let reference = [0.0, 1.0, 2.0, 3.0];
//!     let row = ReferenceRow::new(&reference, Some(3))?;
//!     let mono = [1e-6_f32, 1.0, 2.0, 3.0];
//!     let chunked = [0.0_f32, 1.000001, 2.0, 3.0];
//!     prompt.push_logits(position, &row, &mono, &chunked)?;
//! }
//! let stats = ConfigStats::of(&[prompt])?;
//! // One prompt proves nothing about the mean over prompts.
//! assert_eq!(judge("chunk 1", stats, &Limits::default())?.verdict.exit_code(), 3);
//! # Ok::<(), pb_judge::numerics::NumericsError>(())
//! ```

mod bits;
mod config;
mod ensemble;
mod error;
mod prompt;
mod row;
mod rules;
mod validation;
mod words;

pub use bits::{BitDifference, BitLocus};
pub use config::{ConfigStats, Flips, KlSummary, RowLocus, WorstPrompt, WorstRow};
pub use ensemble::{BenignVariant, LeaveOneOut, MIN_VARIANTS, calibrate, leave_one_out};
pub use error::NumericsError;
pub use prompt::{PromptRho, PromptScores, ScoredRow};
pub use row::{Logit, ReferenceRow, ReferenceSummary, RowScore, decidable};
pub use rules::{Check, CheckName, ConfigVerdict, Limits, Outcome, judge, judge_run, overall};
pub use validation::{BitCheck, Calibration, Checked, FaultCheck, Validation};
pub use words::{grouped, plain};

pub(crate) use config::{kl_summary, rms};
pub(crate) use rules::{Mean, below, none_of};
pub(crate) use words::verdict_of;

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
pub(crate) mod synthetic;
