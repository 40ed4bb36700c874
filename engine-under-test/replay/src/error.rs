//! Why a line could not be done.

use pb_core::AdmitError;

/// Why a line could not be done; the answer carries its kind and its message.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The line is not a JSON object.
    #[error("not a JSON object: {0}")]
    Syntax(String),
    /// The operation does not exist in this layer.
    #[error("op = {op:?}: not an operation of this layer; use one of {known}")]
    UnknownOp {
        /// As written.
        op: String,
        /// What there is.
        known: &'static str,
    },
    /// A line came before the `config` line.
    #[error("op = {0:?}: the script must start with a config line")]
    NoConfig(String),
    /// A key that the line must have is not there.
    #[error("{0} is missing")]
    Missing(String),
    /// A key is unknown or has a wrong value.
    #[error("{key} = {value}: {problem}")]
    Field {
        /// Key.
        key: String,
        /// Value as JSON.
        value: String,
        /// What is wrong, and what to write instead.
        problem: String,
    },
    /// The configuration does not make an engine.
    #[error("{0}")]
    Config(String),
    /// No request of that name was ever added.
    #[error("id = {0:?}: no such request")]
    UnknownRequest(String),
    /// A live request has that name.
    #[error("id = {0:?}: a live request has this name")]
    DuplicateRequest(String),
    /// The engine refused a request.
    #[error("{0}")]
    Refused(#[from] AdmitError),
    /// No lock of that name is held.
    #[error("lock = {0:?}: no such lock")]
    UnknownLock(String),
    /// A lock of that name is held.
    #[error("lock = {0:?}: this lock is held")]
    DuplicateLock(String),
    /// The memory layer could not do a line.
    #[error("{0}")]
    Manager(String),
    /// A law of the engine does not hold: a defect of the engine.
    #[error("broken law: {0}")]
    BrokenLaw(String),
}

impl ReplayError {
    /// A key with a wrong value.
    pub(crate) fn field(
        key: impl Into<String>,
        value: impl std::fmt::Debug,
        problem: impl Into<String>,
    ) -> Self {
        ReplayError::Field {
            key: key.into(),
            value: format!("{value:?}"),
            problem: problem.into(),
        }
    }

    /// One word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            ReplayError::Syntax(_) => "syntax",
            ReplayError::UnknownOp { .. } => "unknown_op",
            ReplayError::NoConfig(_) => "no_config",
            ReplayError::Missing(_) | ReplayError::Field { .. } => "field",
            ReplayError::Config(_) => "config",
            ReplayError::UnknownRequest(_) => "unknown_request",
            ReplayError::DuplicateRequest(_) => "duplicate_request",
            ReplayError::Refused(error) => refusal_kind(error),
            ReplayError::UnknownLock(_) => "unknown_lock",
            ReplayError::DuplicateLock(_) => "duplicate_lock",
            ReplayError::Manager(_) => "manager",
            ReplayError::BrokenLaw(_) => "broken_law",
        }
    }

    /// Whether it tells of a defect of the engine instead of the script.
    pub fn is_broken_law(&self) -> bool {
        matches!(self, ReplayError::BrokenLaw(_))
    }
}

fn refusal_kind(error: &AdmitError) -> &'static str {
    match error {
        AdmitError::EmptyPrompt => "empty_prompt",
        AdmitError::PromptTooLong { .. } => "prompt_too_long",
        AdmitError::NeverFits { .. } => "never_fits",
        _ => "refused",
    }
}
