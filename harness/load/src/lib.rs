//! The load driver and the client of an HTTP endpoint.
//!
//! A load generator is the instrument of every number that follows, so its own delays must show
//! and not hide: arrivals are fixed before the run, latency counts from the intended arrival,
//! bytes are stamped when they are read from the socket, and a request that fails, is cut off or
//! is never sent is a row like any other. When to send is a pure state machine ([`driver`]) that
//! runs under a virtual clock ([`shell_sim`]) and over HTTP ([`shell_wall`]); what the bytes of a
//! stream mean is pure too ([`sse`], [`events`]).
//!
//! ```
//! use pb_contract::plan::{ClosedLoop, Plan, PlannedBody};
//! use pb_contract::{Nanos, RequestId};
//! use pb_load::shell_sim::{FixedServer, SimOptions, run_sim};
//!
//! let body = PlannedBody::of_ids("x", vec![1, 2, 3], 2);
//! let part = ClosedLoop { streams: 1, first_id: RequestId(0), bodies: vec![body; 3] };
//! let second = Nanos::from_secs(1);
//! let closed = vec![part];
//! let plan = Plan { closed, horizon_ns: second, drain_ns: second, ..Plan::default() };
//! let mut server = FixedServer::new(Nanos::from_millis(5), Nanos::from_millis(1), 1);
//! let records = run_sim(plan, Default::default(), &mut server, &SimOptions::default()).unwrap();
//! assert_eq!(records[2].row.intended_ns, Nanos::from_millis(12));
//! ```

mod arrival;
mod body;
mod chunked;
mod connect;
pub mod control;
mod descriptors;
pub mod driver;
pub mod endpoint;
pub mod error;
pub mod error_body;
pub mod events;
pub mod follow;
mod fuzz;
mod http;
mod http1;
mod http2;
mod lag;
mod payload;
mod prepare;
mod request;
mod response;
pub mod rows;
pub mod schedule;
mod secrets;
pub mod shell_sim;
pub mod shell_wall;
pub mod sse;
mod stamps;
pub mod steps;
mod timer_wall;
mod usual;
mod wait;
mod wire;

pub use connect::ConnectTimes;
pub use control::{Control, Probe, ResetReport};
pub use descriptors::{ensure_descriptors, ensure_ports};
pub use driver::{Action, Driver, PlanError, SendOrder};
pub use endpoint::{ControlLimits, Endpoint, HttpVersion};
pub use error::LoadError;
pub use fuzz::{fuzz_response, fuzz_sse};
pub use lag::{Lag, ReadLag};
pub use request::Limits;
pub use rows::{Record, RunContext};
pub use secrets::Secrets;
pub use shell_wall::{
    RunOptions, RunSummary, StopSignal, run_plan, run_plan_blocking, run_plan_by, run_plan_with,
};
pub use steps::{StepEnd, StepItem, StepReader, read_steps};
