//! Downstream scores of two servers on the same questions.
//!
//! Two arms answer the same items, so the items that *changed* carry the comparison
//! ([`pb_stats::mcnemar`]), and "no significant change" is not the claim: a pass needs the loss to
//! be shown small ([`PairedScores::judge`]). What a file of items holds and how an answer is read
//! is in [`Item`] and [`numeric_answer`].

mod item;
mod paired;

pub use item::{Item, ItemError, Question, numeric_answer, parse_items};
pub use paired::{PairedScores, PairedVerdict, Perplexity, Share, TaskLimits};
