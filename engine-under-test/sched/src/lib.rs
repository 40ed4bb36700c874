//! What runs in the next step, and nothing else.
//!
//! A policy sees the queues as plain counts and asks an [`Allocator`] for blocks. It holds no
//! state, reads no clock and touches no tensor, so a schedule can be replayed, compared and
//! checked without a model. One policy a file.
//!
//! ```
//! use pb_sched::chunk_schedule;
//! assert_eq!(chunk_schedule(512, 4, 2048, None)?, [508, 508, 508, 508, 16]);
//! # Ok::<(), pb_sched::PlanError>(())
//! ```

mod chunks;
mod policy;
mod token_budget;

pub use chunks::{MAX_CHUNKS, PlanError, chunk_schedule};
pub use policy::{Allocator, Policy, Scheduled, SeqView, StepPlan, View};
pub use token_budget::{RunningOrder, TokenBudget};
