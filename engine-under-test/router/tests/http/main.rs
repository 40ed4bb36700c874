//! The router over real sockets, between clients and scripted workers.

mod ahead;
mod choosing;
mod failing;
mod joining;
mod serving;
mod setup;
mod transfers;
mod worker;
