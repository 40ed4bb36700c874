//! Why a statistic could not be computed. A caller turns these into "inconclusive", never into 0.

use std::fmt;

/// The reason a statistic has no value for the data given.
#[derive(Debug, Clone, PartialEq)]
pub enum StatError {
    /// Fewer independent units than the method needs.
    TooFew {
        /// Units given.
        got: usize,
        /// Units the method needs at least.
        need: usize,
    },
    /// More units than an exact method can enumerate.
    TooMany {
        /// Units given.
        got: usize,
        /// Units the method accepts at most.
        limit: usize,
    },
    /// Paired slices of different length.
    LengthMismatch {
        /// Length of the first slice.
        a: usize,
        /// Length of the second slice.
        b: usize,
    },
    /// A value that is NaN or infinite.
    NotFinite {
        /// Index of the first such value.
        index: usize,
    },
    /// A value that is zero or negative where a logarithm is taken.
    NotPositive {
        /// Index of the first such value.
        index: usize,
    },
    /// A parameter outside its range.
    BadParameter {
        /// The parameter's name.
        name: &'static str,
        /// The value given.
        value: f64,
    },
    /// The data allow no finite interval (for example all resamples are alike).
    Degenerate,
}

impl fmt::Display for StatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFew { got, need } => write!(f, "{got} units given, at least {need} needed"),
            Self::TooMany { got, limit } => write!(f, "{got} units given, at most {limit} allowed"),
            Self::LengthMismatch { a, b } => write!(f, "paired samples of length {a} and {b}"),
            Self::NotFinite { index } => write!(f, "value {index} is not finite"),
            Self::NotPositive { index } => write!(f, "value {index} is not positive"),
            Self::BadParameter { name, value } => write!(f, "{name} = {value} is out of range"),
            Self::Degenerate => write!(f, "the data allow no finite interval"),
        }
    }
}

impl std::error::Error for StatError {}

/// Checks that every value is finite.
pub(crate) fn check_finite(values: &[f64]) -> Result<(), StatError> {
    match values.iter().position(|v| !v.is_finite()) {
        Some(index) => Err(StatError::NotFinite { index }),
        None => Ok(()),
    }
}

/// Checks that a probability-like parameter lies strictly between 0 and 1.
pub(crate) fn check_open_unit(name: &'static str, value: f64) -> Result<(), StatError> {
    if value > 0.0 && value < 1.0 {
        Ok(())
    } else {
        Err(StatError::BadParameter { name, value })
    }
}

/// Checks that there are at least `need` values and that all are finite.
pub(crate) fn check_sample(values: &[f64], need: usize) -> Result<(), StatError> {
    if values.len() < need {
        return Err(StatError::TooFew {
            got: values.len(),
            need,
        });
    }
    check_finite(values)
}
