//! What can be wrong with a trace, and where.

use std::fmt;
use std::sync::Arc;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the file as the caller gave it.
    pub file: Arc<str>,
    /// Line, from 1; 0 for the file as a whole.
    pub line: u64,
}

impl Place {
    /// A file as a whole.
    pub(crate) fn whole(file: impl Into<Arc<str>>) -> Place {
        Place {
            file: file.into(),
            line: 0,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
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
    /// The file does not say what must be known, or contradicts what was set.
    #[error("{place}: {message}")]
    Ambiguous {
        /// Where.
        place: Place,
        /// What cannot be told, why, and what to set.
        message: String,
        /// The parameter that settles it, if one does: `format`, `unit` or `block_size`.
        key: Option<&'static str>,
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
    /// The parameter that is wrong, or that would settle it: `unit`, `format`, `block_size`,
    /// `time_scale` and so on. Programs call it by names of their own.
    pub fn key(&self) -> Option<&'static str> {
        match self {
            TraceError::Parameter { key, .. } => Some(key),
            TraceError::Ambiguous { key, .. } => *key,
            TraceError::Io { .. } | TraceError::Line { .. } | TraceError::Value { .. } => None,
        }
    }

    /// A value that cannot be; a long one is cut.
    pub(crate) fn value(
        place: &Place,
        key: &str,
        value: impl fmt::Display,
        fix: impl Into<String>,
    ) -> Self {
        TraceError::Value {
            place: place.clone(),
            key: key.to_owned(),
            value: shortened(value),
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

/// A value as a message shows it.
pub(crate) fn shortened(value: impl fmt::Display) -> String {
    const SHOWN_CHARS: usize = 60;
    let mut value = value.to_string();
    if let Some((at, _)) = value.char_indices().nth(SHOWN_CHARS) {
        value.truncate(at);
        value.push_str("...");
    }
    value
}
