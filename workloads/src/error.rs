//! Why a workload cannot be made. Each message names the parameter, its value and the fix.

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
