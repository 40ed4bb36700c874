//! Reports: the verdict of a run for people, in a terminal, in Markdown and as one HTML page.
//!
//! All three are made from the same tables, so that no number exists in one of them only. The
//! order of a report is the order of the gates: whether the run is valid, whether the outputs are
//! right, and only then who was faster. The first sentence says what was compared and what changed,
//! with its interval; whoever reads nothing else has read the result.

pub mod bench;
mod diagnosis;
pub mod diff;
mod format;
mod html;
pub mod perfetto;
mod plots;
mod sections;
pub mod suite;
mod svg;
mod table;
mod text;
mod tone;
pub mod versus;

pub use diagnosis::diagnosis_terminal;

use pb_judge::run::RunVerdict;
use pb_record::RunData;

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The page's template refused its values: a fault of this program.
    #[error("the report template failed: {0}")]
    Template(#[from] minijinja::Error),
}

/// The report for a terminal of `width` columns (at least 40); colours only when asked for.
pub fn terminal(verdict: &RunVerdict, width: u16, color: bool) -> String {
    text::terminal(verdict, width.max(40), color)
}

/// The report as Markdown (`report.md`).
pub fn markdown(verdict: &RunVerdict) -> String {
    text::markdown(verdict)
}

/// The report as one self-contained HTML page (`report.html`), with pictures made from the rows.
///
/// # Errors
/// [`ReportError::Template`] only.
pub fn html(data: &RunData, verdict: &RunVerdict) -> Result<String, ReportError> {
    html::render(data, verdict)
}
