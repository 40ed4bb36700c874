//! The result of a load run: from rows to numbers, documents and tables.
//!
//! Pure: no clock, no server. The rows of a run directory go in, one document comes out; what was
//! not measured is null in it, and a run that must not be used says so itself. What the numbers
//! rest on beside the rows is stored as [`Conditions`], so that the document can be made again.
//!
//! ```
//! use pb_bench::{Conditions, Document};
//! let conditions = Conditions::default();
//! let tally = conditions.tally();
//! let document = Document::of(&tally, &conditions);
//! // Nothing was measured: no percentile, no zero.
//! assert_eq!((document.ttft_ms, document.validity.valid), (None, false));
//! ```

pub mod calibration;
mod check;
pub mod conditions;
pub mod csv;
pub mod distribution;
pub mod document;
pub mod files;
#[cfg(test)]
mod further;
pub mod goodput;
#[cfg(test)]
mod joined;
pub mod load;
pub mod merge;
#[cfg(test)]
mod numbered;
pub mod offered;
pub mod sample;
#[cfg(test)]
mod schema;
pub mod select;
pub mod server;
pub mod steadiness;
pub mod table;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod validity;
pub mod views;
pub mod vllm;

pub use calibration::Calibration;
pub use conditions::{
    CONDITIONS_FILE, Cache, Conditions, Connections, Frame, Identity, LoadFacts, Shard, ShardNote,
    WorkloadFacts,
};
pub use distribution::{Distribution, Spread};
pub use document::{Class, DOCUMENT_FILE, Document, SCHEMA_VERSION};
pub use goodput::{Limited, Objective, Slo};
pub use merge::{MergeError, Merged, ShardInput, merge};
pub use offered::{Latency, Offered};
pub use select::{Metric, Selection};
pub use server::{Gauge, Gauges, SERVER_FILE, Server, ServerLatency, ServerPoint, WindowCounters};
pub use steadiness::{STEADY_ALPHA, STEADY_LIMIT, Steadiness, Steady};
pub use tally::{Stalls, Tally, Tokens, WARMUP_ARM};
pub use validity::Validity;
pub use views::Rates;
pub use vllm::vllm_result;
