//! The load driver and its client from outside.

mod control;
mod driver;
mod events;
mod recordings;
mod refusals;
mod schedule;
mod script;
mod sim;
mod sse;
mod wall;
