//! A policy against runs: may this change go in?
//!
//! The order is that of every judgement here. First the facts that need no statistics: whether the
//! requests were answered at all, whether the runs may be used, whether the outputs are right.
//! Only then limits and changes, each over blocks, each with an interval. "Not shown to be worse"
//! is no pass: a rule passes when the candidate is shown to be within its margin, fails when it is
//! shown to be worse beyond it, and is inconclusive otherwise.

mod amount;
mod checked;
mod decide;
mod floor;
mod policy;
mod propose;
mod report;

pub use amount::amount;
pub use decide::{Evidence, judge_gate};
pub use floor::{Floor, InitOptions, Proposal, aa_pairs, floors};
pub use policy::{Bound, Change, DEFAULT_SUCCESS_RATE, Limit, POLICY_SCHEMA, Policy, PolicyError};
pub use propose::policy_text;
pub use report::{GateOutcome, GateReport, Kind, PolicyReceipt, RuleResult, SCHEMA_VERSION, State};

use thiserror::Error;

use crate::compare::CompareError;

/// Runs that cannot be put to a policy. A lack of evidence is a result, not an error.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum GateError {
    /// Runs that cannot be compared.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// No candidate.
    #[error("no candidate runs: name their directories with --candidate")]
    NoCandidate,
    /// The policy compares and there is nothing to compare with.
    #[error(
        "the policy has [[change]] rules, which compare: name the runs of the version before with \
         --baseline"
    )]
    NoBaseline,
    /// A baseline that no rule looks at.
    #[error(
        "--baseline is given, and the policy has no [[change]] rule, so nothing would be compared: \
         add one, or leave --baseline out"
    )]
    UnusedBaseline,
    /// The policy asks for outputs that were checked and none were given.
    #[error(
        "the policy demands checked outputs ([outputs] required = true): give what `prefillbench \
         validate --json` printed with --validation FILE"
    )]
    NoOutputs,
    /// Too few repeats for a noise floor.
    #[error(
        "{pairs} pairs of repeats, of {runs} runs: a noise floor needs at least {need}; run one \
         version at least {} times, two or more times on each schedule",
        2 * need
    )]
    FewPairs {
        /// Runs given.
        runs: usize,
        /// Pairs found.
        pairs: usize,
        /// Pairs needed.
        need: usize,
    },
    /// A level of claims that cannot be.
    #[error("alpha = {0}: must be above 0 and below 0.5, as 0.05")]
    Level(f64),
    /// A run that must not be used.
    #[error("{run} must not be used: {problem}; leave it out or run it again")]
    Void {
        /// Its directory.
        run: String,
        /// What speaks against it.
        problem: String,
    },
    /// A statistic that cannot be had for the options given.
    #[error("the noise floor cannot be had: {0}")]
    Floor(pb_stats::StatError),
}

#[cfg(test)]
mod checked_tests;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;
