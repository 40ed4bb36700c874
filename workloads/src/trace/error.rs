//! What can be wrong with a trace, and where.

use std::fmt;
use std::sync::Arc;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the file as the caller gave it.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Why a trace cannot be read or realised.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{place}: cannot be read: {source}")]
    Io {
        /// Where reading stopped.
        place: Place,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The line is not in the format.
    #[error("{place}: {message}")]
    Line {
        /// Where.
        place: Place,
        /// What is wrong with it, and the fix.
        message: String,
    },
    /// A value that cannot be.
    #[error("{place}: {key} = {value}: {fix}")]
    Value {
        /// Where.
        place: Place,
        /// Name of the field.
        key: String,
        /// What it holds, shortened.
        value: String,
        /// What it must be.
        fix: String,
    },
    /// The file as a whole does not say what must be known.
    #[error("{file}: {message}")]
    Ambiguous {
        /// Name of the file.
        file: String,
        /// What cannot be told, why, and what to set.
        message: String,
    },
    /// A parameter of the realisation.
    #[error("{key} = {value}: {fix}")]
    Parameter {
        /// Name of the parameter.
        key: &'static str,
        /// What it was set to.
        value: String,
        /// What it must be.
        fix: String,
    },
}

impl TraceError {
    /// A value that cannot be; a long one is cut.
    pub(crate) fn value(
        place: &Place,
        key: &str,
        value: impl fmt::Display,
        fix: impl Into<String>,
    ) -> Self {
        const SHOWN_CHARS: usize = 60;
        let mut value = value.to_string();
        if let Some((at, _)) = value.char_indices().nth(SHOWN_CHARS) {
            value.truncate(at);
            value.push_str("...");
        }
        TraceError::Value {
            place: place.clone(),
            key: key.to_owned(),
            value,
            fix: fix.into(),
        }
    }

    pub(crate) fn line(place: &Place, message: impl Into<String>) -> Self {
        TraceError::Line {
            place: place.clone(),
            message: message.into(),
        }
    }
}
