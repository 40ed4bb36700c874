//! What is asked of a server: pure makers of request plans.
//!
//! A workload is fixed before the first request is sent, so that every arm of an experiment gets
//! the very same bytes at the very same offsets and a reader can rebuild it from a seed. Makers
//! take named random streams and token ids and return a [`pb_contract::plan::Plan`]; they know
//! no server, no clock and no tokenizer.
//!
//! ```
//! use pb_workloads::{InterferenceParams, TextSource, interference};
//! let mut text = TextSource::new((0..5_000).map(|i| i % 997).collect(), 1).unwrap();
//! let plan = interference(&InterferenceParams::default(), &mut text, 7).unwrap();
//! assert!(!plan.open.is_empty() && plan.closed.len() == 1);
//! ```

pub mod arrivals;
pub mod dataset;
pub mod error;
pub mod interference;
pub mod length;
mod plain;
mod plan;
pub mod ramp;
mod realise;
pub mod repeats;
pub mod shape;
pub mod shared_prefix;
pub mod source;
pub mod text;
pub mod trace;

pub use arrivals::Arrivals;
pub use dataset::{
    AgentParams, Answers, CustomParams, Dataset, GeneratedSharedPrefix, MixtureClass,
    PrefixRepetitionParams, RandomParams, ServegenParams, SessionParams, SharegptParams,
    SyntheticParams, TimedTraceParams, TraceArrivals, TraceParams, TraceTurns,
};
pub use error::{DatasetError, WorkloadError};
pub use interference::{
    DecodeCoverage, InterferenceControl, InterferenceDataset, InterferenceParams, StepSample,
    decode_coverage, interference,
};
pub use length::{Dist, Length, Real};
pub use plain::plain;
pub use plan::{
    CacheStart, Facts, HitKnowledge, MAX_PLAN_BYTES, MAX_REQUESTS, PlanOptions, Planned,
    ideal_hits, plan,
};
pub use ramp::{IndexRamp, Leg, Ramp, Stage};
pub use repeats::{all_bodies, first_blocks_unique, longest_common_prefix};
pub use shape::{ArrivalKind, LoadShape};
pub use shared_prefix::{
    SharedPrefix, SharedPrefixParams, planned_hit_tokens, sequential, shared_prefix,
};
pub use source::{Form, Source, TokenSource, Tokenizer};
pub use text::{NONCE_TOKENS, PROSE, TextSource};
