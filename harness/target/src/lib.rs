//! What kind of server the target is, what state its cache is in, and what it says of itself.
//!
//! A latency says little while nobody knows whether the prompts were in the server's cache.
//! Servers differ in how a cache is emptied, in whether an answer 200 means that it was, and in
//! whether they tell what they found, so nothing here is taken on trust: the kind of a server
//! follows from evidence ([`detect`]), a reset counts only when a probe shows that it worked
//! ([`proof`]), and the hits that a workload planned are compared with those measured ([`hits`]).
//! What a server does not say stays unknown; it never becomes zero.
//!
//! The server's own figures come from its metrics page ([`prometheus`], [`scrape`]), are mapped
//! to one vocabulary ([`stats`]) and give, beside the client's, the part of a latency that arose
//! outside the server ([`gap`]). A histogram is read with the error of its buckets
//! ([`histogram`]).
//!
//! ```
//! use pb_target::{Exposition, Recovered, ServerStats};
//!
//! let page = "vllm:num_requests_running{engine=\"0\"} 2\n\
//!             vllm:time_to_first_token_seconds_bucket{le=\"0.1\"} 1\n\
//!             vllm:time_to_first_token_seconds_bucket{le=\"0.25\"} 4\n\
//!             vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 4\n\
//!             vllm:time_to_first_token_seconds_sum 0.6\n\
//!             vllm:time_to_first_token_seconds_count 4\n";
//! let stats = ServerStats::read(&Exposition::parse(page));
//! assert_eq!(stats.running, Some(2.0));
//! let ttft = stats.latencies.ttft.unwrap();
//! assert_eq!(ttft.quantile(0.5), Recovered::Between { low_s: 0.1, high_s: 0.25 });
//! ```

pub mod adapter;
pub mod detect;
pub mod error;
mod fuzz;
pub mod gap;
pub mod histogram;
pub mod hits;
pub mod kind;
pub mod probe;
pub mod prometheus;
pub mod proof;
pub mod reset;
pub mod salt;
pub mod scrape;
pub mod stats;
pub mod target;

pub use adapter::Adapter;
pub use detect::{Clue, Detection};
pub use error::TargetError;
pub use fuzz::fuzz_prometheus;
pub use gap::TtftGap;
pub use histogram::{Histogram, Recovered};
pub use hits::{HitCheck, HitFlag, HitVerdict, check_hits};
pub use kind::ServerKind;
pub use probe::{HitSource, ProbeAnswer};
pub use prometheus::{Exposition, Sample};
pub use proof::{CacheProof, ColdMethod, ColdState, Evidence};
pub use reset::{IdleReport, ResetOutcome};
pub use salt::{SaltMaker, first_block_clash};
pub use scrape::{Edge, Scrape, ScrapeReader, ScrapeSummary};
pub use stats::{Counters, Latencies, ServerStats, ServerWindow};
pub use target::{Patience, Target};
