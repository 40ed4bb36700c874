//! Run directories from outside: written, read, broken, killed.

mod common;
mod directory;
mod kill;
mod metrics;
mod stream;
mod transfers;
