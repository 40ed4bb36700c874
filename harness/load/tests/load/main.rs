//! The load driver and its client from outside.

mod control;
mod driver;
mod echo;
mod endless;
mod events;
mod failure_rows;
mod many;
mod recordings;
mod refusals;
mod replayed;
mod response;
mod schedule;
mod script;
mod sessions;
mod sim;
mod sse;
mod stream_rows;
mod transport;
mod wall;
mod worked;
