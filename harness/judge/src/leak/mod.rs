//! Whether prefix reuse can be seen across tenants.
//!
//! A prefix cache answers faster when someone sent the same prompt before, and some servers say in
//! the usage how much was found. Either way one tenant can learn what another one asked (CVE
//! 2025-46570). A probe that only shows "another tenant's request is not fast" proves nothing:
//! it also passes where the cache is off (vllm #53347). So three kinds of requests are compared,
//! each sent once in every trial and in a random order: a prompt that the same tenant primed, the
//! same prompt from another tenant, and a prompt that nobody sent before. Isolation holds when
//! the first shows a hit and the second does not.
//!
//! Everything here is a pure function of what was observed; the requests are the caller's.
//!
//! * [`auc`]: how well times tell two kinds apart, with an interval that holds at 0 and 1.
//! * [`power`]: how many trials are needed, before the first is sent.
//! * [`rules`]: from the trials to the verdict.

pub mod auc;
pub mod power;
pub mod rules;

#[cfg(test)]
mod coverage_tests;
#[cfg(test)]
mod rules_tests;

pub use auc::{Auc, auc};
pub use power::{MAX_TRIALS, power_of_trials, trials_for_power};
pub use rules::{Arm, ArmFinding, Finding, LeakRules, LeakVerdict, Observation, Trial, judge};
