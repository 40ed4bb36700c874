//! Verdicts: whether outputs are right, and whether one arm is really faster than the other.
//!
//! The order is fixed: validity, then correctness, then performance. A run whose conditions did not
//! hold is void, an engine whose outputs are wrong is never called faster, and a comparison that
//! cannot tell says so. Everything here is a pure function of numbers already recorded, so a
//! finished run can be judged again by a newer judge.

pub mod ab;
pub mod compare;
pub mod diagnose;
pub mod gate;
pub mod leak;
pub mod numerics;
pub mod real;
pub mod remote;
pub mod run;
pub mod suite;
pub mod tasks;
pub mod verdict;

#[cfg(test)]
#[path = "../../bench/src/schema/check.rs"]
mod schema_check;

pub use verdict::{Interval, Verdict};
