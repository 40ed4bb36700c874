//! Why a workload cannot be made. Each message names the parameter, its value and the fix.

use crate::trace::TraceError;

/// A workload that cannot be made as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// A parameter is out of its range.
    #[error("{key} = {value}: {fix}")]
    Parameter {
        /// Name of the parameter.
        key: &'static str,
        /// Its value.
        value: String,
        /// What to change.
        fix: String,
    },
    /// The token source is too small to make distinct prompts.
    #[error("the prompt text has {tokens} tokens of {distinct} kinds: {fix}")]
    Text {
        /// Tokens in the text.
        tokens: usize,
        /// Distinct token ids in the text.
        distinct: usize,
        /// What to change.
        fix: &'static str,
    },
    /// Two prompts that must not share a cache block do.
    #[error(
        "prompts {first} and {second} ({class}) share their first {block_size} tokens: the server \
         would serve the later one from its prefix cache; give each its own nonce"
    )]
    Repeat {
        /// Index of the earlier prompt.
        first: usize,
        /// Index of the later prompt.
        second: usize,
        /// Class of the later prompt.
        class: String,
        /// Block size of the check, in tokens.
        block_size: usize,
    },
}

impl WorkloadError {
    /// A parameter error.
    pub(crate) fn parameter(
        key: &'static str,
        value: impl ToString,
        fix: impl Into<String>,
    ) -> Self {
        WorkloadError::Parameter {
            key,
            value: value.to_string(),
            fix: fix.into(),
        }
    }
}

impl DatasetError {
    /// The parameter that is wrong, or that would settle it. Programs call it by names of their
    /// own.
    pub fn key(&self) -> Option<&'static str> {
        match self {
            DatasetError::Workload(WorkloadError::Parameter { key, .. }) => Some(key),
            DatasetError::Trace(error) => error.key(),
            _ => None,
        }
    }
}

/// Why a data set cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A parameter, or prompts that repeat.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A file that cannot be read as what it should be.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Too few different prompts.
    #[error(
        "num_prompts = {asked}: the data set {dataset} has {unique} to send, and a prompt that is \
         sent again is found in the prefix cache: ask for fewer, or allow repeats (--allow-repeat)"
    )]
    Exhausted {
        /// Name of the data set.
        dataset: &'static str,
        /// Requests or sessions that were asked for.
        asked: usize,
        /// Requests or sessions that it has.
        unique: usize,
    },
    /// Prompts that would not fit into memory.
    #[error(
        "the planned prompts take {mib} MiB, more than the {limit_mib} MiB that a plan may hold: \
         ask for fewer requests (--num-prompts), a shorter --duration, fewer rows or shorter \
         prompts"
    )]
    TooLarge {
        /// What they would take, in MiB.
        mib: u64,
        /// What they may take, in MiB.
        limit_mib: u64,
    },
    /// Nothing to send.
    #[error("the data set {dataset} gives no request: {why}")]
    Empty {
        /// Name of the data set.
        dataset: &'static str,
        /// What took them all, and what to change.
        why: String,
    },
}
