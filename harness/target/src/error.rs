//! Why a target cannot be used as asked.

use pb_load::LoadError;

/// A step around a run that failed; the cell must not be measured.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// A control request failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The server still works on requests.
    #[error(
        "the server is not idle after {seconds} s: {running} running, {waiting} waiting; stop \
         what else uses it, or raise the limit"
    )]
    NotIdle {
        /// The limit.
        seconds: f64,
        /// Requests running.
        running: f64,
        /// Requests waiting.
        waiting: f64,
    },
    /// The server refuses to empty its cache.
    #[error(
        "{route} was refused {attempts} times within {seconds} s: {answer}; the cell is aborted, \
         because its cache state would be unknown"
    )]
    ResetRefused {
        /// Method and path.
        route: String,
        /// Requests sent.
        attempts: u32,
        /// The limit.
        seconds: f64,
        /// What it answered last.
        answer: String,
    },
    /// An answer that is not what it should be.
    #[error("{request}: {reason}")]
    Answer {
        /// Method and path.
        request: String,
        /// What is wrong.
        reason: String,
    },
    /// A prompt that cannot be salted or probed.
    #[error("{0}")]
    Prompt(String),
}
