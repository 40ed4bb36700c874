//! The engine core: admit, plan, execute, commit.
//!
//! The core is a state machine without a clock, a socket or a thread of its own. A server's
//! engine thread drives it under the wall clock; a simulation drives the same code under a
//! virtual one with another [`Executor`].
//!
//! One step: the policy plans which tokens of which requests are computed, allocating blocks as
//! it goes; block data is moved (evicted blocks to the tiers, preempted requests to the swap
//! pool, copies on write, images back in); the executor computes; the core samples where a
//! request's last token was computed, and advances, forks, finishes or preempts requests.

pub mod build;
mod device_memory;
pub mod disagg;
pub mod engine;
pub mod error;
pub mod execute;
mod kv_adapter;
pub mod logprobs;
mod request;
pub mod sample;
pub mod sim;
mod swap;
pub mod toy;

pub use build::{EngineParts, build_executor};
pub use device_memory::{DeviceMemory, PoolMemory, PurposeMemory, WholeMemory};
pub use engine::{
    AdapterInfo, Counters, Engine, EngineSpec, HandOff, Hold, HoldId, LayerTap, LogitTap, Progress,
    RequestState, Room, StepOutput,
};
pub use error::{AdmitError, ExecError};
pub use execute::{Chunk, DecoderExecutor, Executor, KernelTotal};
pub use pb_kv::Positional;
pub use pb_sched::{PlanError, Scheduled, chunk_schedule};
pub use sim::{CostModel, Script, ScriptedExecutor, SimExecutor};
pub use toy::ToyExecutor;
