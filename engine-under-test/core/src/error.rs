//! Why a request is refused, and why a step failed.

use pb_contract::RequestId;

/// Why a request is refused at once. The text is meant for the person who sent it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AdmitError {
    /// No prompt.
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,
    /// A token that the model does not have.
    #[error("prompt token {token} at position {position} is not below the vocabulary size {vocab}")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// Where it stands.
        position: usize,
        /// Vocabulary size.
        vocab: usize,
    },
    /// Longer than the context.
    #[error(
        "This model's maximum context length is {max_model_len} tokens. However, your prompt \
         contains {prompt_tokens} input tokens, which leaves no room for an output token. \
         Please reduce the length of the input prompt."
    )]
    PromptTooLong {
        /// Prompt length.
        prompt_tokens: usize,
        /// Context length.
        max_model_len: usize,
    },
    /// More blocks than the pool has.
    #[error(
        "the request may need {needed_blocks} KV blocks but the pool has {pool_blocks}: reduce \
         the prompt or max_tokens, or start the server with more blocks"
    )]
    NeverFits {
        /// Blocks for prompt and output.
        needed_blocks: usize,
        /// Blocks in the pool.
        pool_blocks: usize,
    },
    /// A sampling parameter out of range.
    #[error("{key} = {value}: {problem}")]
    Sampling {
        /// Name of the parameter.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        problem: &'static str,
    },
    /// No such adapter is loaded.
    #[error("adapter = {name:?}: not loaded; {}", loaded_list(loaded))]
    UnknownAdapter {
        /// The name asked for.
        name: String,
        /// The names that could have been asked for.
        loaded: Vec<String>,
    },
    /// A fork with another prompt, salt or adapter than its origin.
    #[error(
        "request {id} cannot fork from request {fork_of}: prompt, cache salt and adapter must be \
         the same"
    )]
    ForkMismatch {
        /// The request.
        id: RequestId,
        /// Its origin.
        fork_of: RequestId,
    },
    /// More sequences of one prompt than may run at once.
    #[error(
        "n = {sequences} sequences of one prompt: at most {max_num_seqs} may run at once; lower \
         n or raise max_num_seqs"
    )]
    TooManySequences {
        /// Sequences asked for so far.
        sequences: usize,
        /// Sequences allowed.
        max_num_seqs: usize,
    },
    /// KV of another prompt.
    #[error("the KV is of {held_tokens} tokens, the prompt has {prompt_tokens}")]
    KvTokens {
        /// Tokens of the KV.
        held_tokens: usize,
        /// Tokens of the prompt.
        prompt_tokens: usize,
    },
    /// The engine does not take part in transfers of this direction.
    #[error("this engine does not {verb} KV: start it with --role {role} or both")]
    NoTransfer {
        /// What it does not do.
        verb: &'static str,
        /// Who does.
        role: &'static str,
    },
    /// The id is in use.
    #[error("request id {0} is already in use")]
    DuplicateId(RequestId),
}

fn loaded_list(names: &[String]) -> String {
    match names {
        [] => "no adapter is loaded, leave the key out".to_owned(),
        names => format!("loaded are {}", names.join(", ")),
    }
}

/// Why a step could not be executed. The requests of the step are removed and their blocks
/// released; the others go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("engine step failed: {message}")]
pub struct ExecError {
    /// What the backend said.
    pub message: String,
    /// Requests that were removed.
    pub failed: Vec<RequestId>,
}
