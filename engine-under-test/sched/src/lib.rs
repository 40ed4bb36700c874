//! What runs in the next step, and nothing else.
//!
//! A policy sees the queues as plain counts and asks an [`Allocator`] for blocks. It reads no
//! clock and touches no tensor, and planning changes nothing in it, so a schedule can be
//! replayed, compared and checked without a model. What a policy learns, it learns from the
//! [`Observation`] of a step that has run. One policy a file; [`build`] makes the configured one.
//!
//! Before planning, [`arrange`] puts the waiting queue into the configured order; afterwards
//! [`laws::check_plan`] can hold a plan to what every policy must keep.
//!
//! No policy waits for ever on an admissible load. The engine refuses a request that could not
//! have the whole pool's blocks for itself, so the last remaining request always fits; whoever
//! gives way is chosen so that one request is never chosen while others remain, and that one
//! ends.
//!
//! ```
//! use pb_sched::chunk_schedule;
//! assert_eq!(chunk_schedule(512, 4, 2048, None)?, [508, 508, 508, 508, 16]);
//! # Ok::<(), pb_sched::PlanError>(())
//! ```

mod adaptive_load;
mod build;
mod chunked;
mod chunks;
mod decode_priority;
mod error;
mod faulty;
pub mod laws;
mod monolithic;
mod policy;
mod prefill_first;
mod queue;
mod reserve;
mod shrinking;
mod step;
mod step_model;
mod time_budget;
mod token_budget;

pub use build::build;
pub use chunks::{MAX_CHUNKS, chunk_schedule};
pub use error::PlanError;
pub use pb_contract::RunningOrder;
pub use policy::{Allocator, Observation, Policy, Requeue, Scheduled, SeqView, StepPlan, View};
pub use queue::{
    IN_BATCH_CHECK_TOKENS, IN_BATCH_SHARED_TOKENS, LPM_QUEUE_LIMIT, PASSED_OVER_LIMIT, QueueInfo,
    arrange,
};
pub use step::Victim;
pub use time_budget::TimeBudget;
pub use token_budget::TokenBudget;
