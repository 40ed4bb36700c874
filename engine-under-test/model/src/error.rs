//! Errors that name the file's field, where it is, and what it said.
//!
//! A model file comes from the outside world and may be truncated, of a newer format, or of a
//! family that this engine does not compute. Each case must tell its reader which key or offset
//! to look at, because the alternative (a wrong shape deep in the forward pass) tells nothing.

use std::path::PathBuf;

/// The result of everything that reads or writes a model.
pub type Result<T> = std::result::Result<T, ModelError>;

/// Why a model could not be read, written or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A GGUF file is malformed or uses something unsupported.
    #[error("GGUF field `{field}` at byte {offset}: {problem}")]
    Gguf {
        /// Which count, key, tensor or length.
        field: String,
        /// Byte offset in the file where the field starts.
        offset: u64,
        /// The value found and why it cannot be used.
        problem: String,
    },
    /// A configuration key has a value that this engine cannot use.
    #[error("{origin}: key `{key}` = {value}: {problem}")]
    Config {
        /// The file, or "model config" once resolved.
        origin: String,
        /// The key.
        key: String,
        /// The value found, or "(missing)".
        value: String,
        /// Why it cannot be used.
        problem: String,
    },
    /// A tensor is missing, or has a wrong shape, type or length.
    #[error("tensor `{name}`: {problem}")]
    Tensor {
        /// The tensor's name in its file.
        name: String,
        /// The value found and why it cannot be used.
        problem: String,
    },
    /// A safetensors or JSON file does not parse.
    #[error("{origin}: {problem}")]
    Format {
        /// The file's name.
        origin: String,
        /// What the parser said.
        problem: String,
    },
    /// The tokenizer cannot be built, or refused a text.
    #[error("tokenizer: {what}: {problem}")]
    Tokenizer {
        /// The key or operation.
        what: String,
        /// The value found and why it cannot be used.
        problem: String,
    },
    /// The chat template is missing, does not parse, or raised an error.
    #[error("chat template: {0}")]
    Template(String),
}

impl ModelError {
    /// An I/O error at `path`.
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> ModelError {
        ModelError::Io {
            path: path.into(),
            source,
        }
    }

    /// A tensor error.
    pub(crate) fn tensor(name: impl Into<String>, problem: impl Into<String>) -> ModelError {
        ModelError::Tensor {
            name: name.into(),
            problem: problem.into(),
        }
    }

    /// A tokenizer error.
    pub(crate) fn tokenizer(what: impl Into<String>, problem: impl ToString) -> ModelError {
        ModelError::Tokenizer {
            what: what.into(),
            problem: problem.to_string(),
        }
    }

    /// A parse error of a whole file.
    pub(crate) fn format(origin: impl Into<String>, problem: impl ToString) -> ModelError {
        ModelError::Format {
            origin: origin.into(),
            problem: problem.to_string(),
        }
    }
}
