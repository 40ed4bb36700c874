//! A router in front of prefill and decode workers.
//!
//! One endpoint for clients; behind it, prompts are computed by some workers and continued by
//! others. What to send where is decided by a state machine without clock, socket or thread,
//! [`Router`], so that the same rules run in virtual time ([`sim`]) and over HTTP ([`http`]).
//!
//! ```
//! use pb_contract::{Nanos, RequestId};
//! use pb_router::{Ask, Command, Pool, Router, RouterConfig, WorkerSpec};
//!
//! let mut router = Router::new(RouterConfig::default())?;
//! let prefill = router.add_worker(WorkerSpec::new(Pool::Prefill, 16));
//! let decode = router.add_worker(WorkerSpec::new(Pool::Decode, 16));
//! let ask = Ask { prompt_tokens: 100, splittable: true, ..Ask::default() };
//! router.arrive(Nanos(0), RequestId(7), ask);
//! let started = router.poll();
//! assert!(matches!(started, Some(Command::Start { at, whole: false, .. }) if at == prefill));
//! router.prefilled(Nanos(5), RequestId(7)); // the first token is there
//! assert_eq!(router.poll(), Some(Command::Hand { id: RequestId(7), to: decode }));
//! # Ok::<(), pb_router::ConfigError>(())
//! ```

mod config;
mod cost;
pub mod http;
mod index;
mod machine;
mod predict;
pub mod sim;
mod stats;
mod worker;

pub use config::{ConfigError, Policy, PoolParams, RouterConfig};
pub use cost::{CostInput, CostParams};
pub use index::{CacheChange, CacheEvent, EventPage, Intake, KvIndex};
pub use machine::{Command, Router};
pub use stats::{Outcome, Refusal, Stats};
pub use worker::{Ask, Pool, WorkerId, WorkerSpec, WorkerView};
