//! Why there is no schedule, or no policy.

use crate::chunks::MAX_CHUNKS;

/// Why there is no schedule, or no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The decodes take the whole budget.
    #[error(
        "max_batched_tokens = {budget} with {decodes} active decodes: no token is left for \
         prefill, so the prompt can make no progress; raise max_batched_tokens above {decodes}"
    )]
    NoPrefillBudget {
        /// Tokens in a step.
        budget: usize,
        /// Decodes, one token each.
        decodes: usize,
    },
    /// A limit is zero.
    #[error("{key} = 0: must be at least 1")]
    Zero {
        /// Name of the limit.
        key: &'static str,
    },
    /// The schedule is too long to write out.
    #[error("{prompt} tokens in chunks of {chunk}: more than {MAX_CHUNKS} chunks")]
    TooManyChunks {
        /// Prompt tokens.
        prompt: usize,
        /// Tokens in a chunk.
        chunk: usize,
    },
    /// Without chunking a prompt has to fit into one step.
    #[error(
        "max_batched_tokens = {budget} is below max_model_len = {max_model_len} with chunking \
         off: a longer prompt could never be scheduled; raise max_batched_tokens or turn \
         chunking on"
    )]
    MonolithicBudget {
        /// Tokens in a step.
        budget: usize,
        /// Longest sequence.
        max_model_len: usize,
    },
    /// A setting that does not go with the others.
    #[error("{key} = {value}: {problem}; {fix}")]
    Setting {
        /// Name of the setting, as it is configured.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
        /// What to change.
        fix: &'static str,
    },
}
