//! What validation and timing find, one shape at a time.

use super::suite::Judged;
use super::timing::Timed;

/// A kernel at one shape.
#[derive(Clone, Debug)]
pub enum Found {
    /// It was run and judged, or it failed.
    Judged(Judged),
    /// It was timed.
    Timed(Timed),
    /// It was not run: the device or its library does not have it.
    NotAvailable(NotAvailable),
}

/// What was not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAvailable {
    /// Kernel.
    pub kernel: &'static str,
    /// Shape, in words.
    pub shape: String,
    /// Why, in words.
    pub why: &'static str,
}
