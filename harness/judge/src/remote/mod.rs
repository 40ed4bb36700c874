//! Do two servers, or two states of one server, answer with the same distributions?
//!
//! A server that is reached over HTTP shows no logits: for each position it lists the `k` most
//! likely tokens with their log-probabilities, and the token that stands there. So there is no
//! reference and no whole row, and three things follow.
//!
//! - **What is not listed is not guessed.** The divergence of a row is the *smallest* that the two
//!   lists allow ([`RowDelta::kl`]); the mass outside the lists is reported beside it.
//! - **A first difference of greedy texts is classified**, not counted: by the margin with which
//!   each side preferred its own token it is a near tie or real ([`Flip`]).
//! - **Sensitivity is measured, not assumed.** The caller compares the server with itself on an
//!   altered context as well ([`Planted`]): had the cache returned a wrong block, the rows would
//!   look like that. Rules that accept such rows prove nothing, and the verdict says so.
//!
//! The unit of the test on likelihoods is the prompt, as in [`crate::numerics`].
//!
//! ```
//! use pb_judge::remote::{Flip, TopRow, compare};
//!
//! let row = |a: f64, b: f64| {
//!     TopRow::new(7, "1", [("1".to_owned(), a.ln()), ("2".to_owned(), b.ln())].into())
//! };
//! let delta = compare(&row(0.5, 0.3), &row(0.3, 0.5), 2, 0.1)?;
//! // 0.5 ln(5/3) + 0.3 ln(3/5), and the unlisted fifths cancel.
//! assert!((delta.kl - 0.2 * (5.0_f64 / 3.0).ln()).abs() < 1e-12);
//! assert!(matches!(delta.flip, Some(Flip::Real { .. })));
//! # Ok::<(), pb_judge::remote::RemoteError>(())
//! ```

mod divergence;
mod generated;
mod row;
mod rules;
mod stats;
mod validation;

pub use generated::{Divergence, compare_generated};
pub use row::{Flip, RemoteError, RowDelta, TopRow, compare};
pub use rules::{Precision, RemoteLimits, RemoteVerdict, judge};
pub use stats::{Flips, PromptDeltas, RemoteStats};
pub use validation::{Compared, NotCompared, Planted, RemoteValidation};
