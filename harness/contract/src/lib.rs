//! The seam between the harness and the engine.
//!
//! The harness measures and the engine is measured; neither may know the other. What both must
//! agree on lives here and nowhere else: time, randomness, identifiers, the engine's
//! configuration, the rows that a run leaves behind and the wire types of the HTTP interface.
//! There is no engine, no client and no file access in this crate.
//!
//! ```
//! use pb_contract::{Clock, Nanos, VirtualClock};
//! let clock = VirtualClock::new();
//! clock.advance_to(Nanos::from_millis(5));
//! assert_eq!(clock.now(), Nanos(5_000_000));
//! ```

pub mod chat;
pub mod clock;
pub mod config;
pub mod fail;
pub mod formulas;
pub mod ids;
pub mod manifest;
pub mod plan;
pub mod request;
pub mod rng;
pub mod rows;
pub mod transfer;
pub mod wire;

pub use clock::{Clock, Nanos, VirtualClock, WallClock};
pub use config::{
    AdaptiveLoadOptions, CacheOptions, EngineConfig, Eviction, Fault, FaultClass, FreePlacement,
    HashAlgorithm, KvDtype, Numerics, PolicyKind, Preemption, PrefixCacheKind, Preset, QueueOrder,
    ReservedDecodeOptions, RunningOrder, Scheduling, ShrinkingOptions, TierOptions,
    TimeBudgetOptions,
};
pub use fail::FailKind;
pub use ids::{BlockId, RequestId, TokenId};
pub use manifest::RunManifest;
pub use request::{EngineEvent, EngineRequest, FinishReason, SamplingParams, TokenLogprobs};
pub use rng::Stream;
pub use rows::{Buckets, RequestRow, RequestStatus, StepRow, TokenRow};
pub use transfer::{TransferEnd, TransferLine, TransferRow};
