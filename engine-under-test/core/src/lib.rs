//! The engine core: admit, plan, execute, commit.
//!
//! The core is a state machine without a clock, a socket or a thread of its own. A server's
//! engine thread drives it under the wall clock; a simulation drives the same code under a
//! virtual one with another [`Executor`].
//!
//! One step: the policy plans which tokens of which requests are computed, allocating blocks as
//! it goes; the executor computes them; the core samples where a request's last token was
//! computed, and advances, finishes or preempts requests.

pub mod build;
pub mod engine;
pub mod error;
pub mod execute;
mod kv_adapter;
pub mod logprobs;
mod request;
pub mod sample;

pub use build::{EngineParts, build_executor};
pub use engine::{Counters, Engine, EngineSpec, LogitTap, StepOutput};
pub use error::{AdmitError, ExecError};
pub use execute::{Chunk, DecoderExecutor, Executor};
pub use pb_sched::{PlanError, chunk_schedule};
