//! Suites: experiments written down before they are run.
//!
//! A suite file says what is asked, of which servers (arms), under which loads (conditions), how
//! often (blocks) and what would be an answer (hypotheses). `bench --suite` runs one cell of it,
//! `run` the whole.

mod design;
mod engine;
mod file;
mod hypothesis;
mod resolve;
mod select;

pub(crate) use file::{Fresh, SuiteReceipt};
pub(crate) use hypothesis::Comparison;
pub(crate) use resolve::{Arm, Resolved, Way};
pub(crate) use select::Selector;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::args::BenchOptions;

/// Reads and resolves the suite in `path`.
///
/// # Errors
/// A file that cannot be read or is no suite; the message has the file, and the line where there
/// is one.
pub(crate) fn read(path: &Path) -> Result<Resolved> {
    let text = std::fs::read_to_string(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    Resolved::of(file::parse(&text)?, folder)
}

/// The settings of one cell of the suite in `path`, for `bench`: its seed is the suite's.
///
/// # Errors
/// As [`read`]; a name that is not exactly one cell.
pub(crate) fn cell(path: &Path, name: Option<&str>) -> Result<(BenchOptions, SuiteReceipt)> {
    let place = || format!("--suite {}", path.display());
    let suite = read(path).with_context(place)?;
    suite.chosen(name).with_context(place)
}

/// The options with their input files beside the suite.
fn beside(mut options: BenchOptions, folder: &Path) -> BenchOptions {
    let files: [&mut Option<PathBuf>; 4] = [
        &mut options.dataset_path,
        &mut options.tokenizer,
        &mut options.ca_file,
        &mut options.api_key_file,
    ];
    for file in files.into_iter().flatten() {
        // An absolute path stays as it is.
        *file = folder.join(&*file);
    }
    options
}

#[cfg(test)]
mod tests;
