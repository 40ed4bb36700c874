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
pub mod error;
pub mod interference;
pub mod repeats;
pub mod shared_prefix;
pub mod text;
pub mod trace;

pub use arrivals::Arrivals;
pub use error::WorkloadError;
pub use interference::{InterferenceParams, interference};
pub use repeats::{all_bodies, first_blocks_unique, longest_common_prefix};
pub use shared_prefix::{
    SharedPrefix, SharedPrefixParams, planned_hit_tokens, sequential, shared_prefix,
};
pub use text::{NONCE_TOKENS, PROSE, TextSource};
