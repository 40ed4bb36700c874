//! Whether a trace keeps the rules that a replay relies on.

use std::path::Path;

use serde::Serialize;

use crate::trace::error::TraceError;
use crate::trace::file::{TraceFile, TraceOptions};
use crate::trace::tree::{Breaks, PrefixTree};

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of the rule.
    pub name: &'static str,
    /// Whether it holds.
    pub ok: bool,
    /// What was found.
    pub detail: String,
}

/// All rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Validation {
    /// Whether all hold.
    pub valid: bool,
    /// Rows that were read.
    pub rows: u64,
    /// The rules.
    pub checks: Vec<Check>,
    /// How format, unit and block size were found out.
    pub evidence: Vec<String>,
}

/// Checks a trace. A row that cannot be read ends the checks and fails them.
///
/// # Errors
/// The file cannot be opened, or its format, unit or block size cannot be told.
pub fn validate(path: &Path, options: &TraceOptions) -> Result<Validation, TraceError> {
    let mut validation = Validation {
        valid: true,
        rows: 0,
        checks: Vec::new(),
        evidence: Vec::new(),
    };
    let file = match TraceFile::open(path, options) {
        Ok(file) => file,
        Err(error) => return validation.unreadable(error),
    };
    validation.evidence.clone_from(&file.evidence);
    let mut tree = PrefixTree::default();
    let mut rows = file.rows()?;
    for row in &mut rows {
        match row {
            Ok(row) => {
                validation.rows += 1;
                tree.add(&row);
            }
            Err(error) => return validation.unreadable(error),
        }
    }
    let read = validation.rows;
    let dropped: u64 = rows.dropped().values().sum();
    validation.add(
        "rows",
        true,
        format!("{read} rows read, {dropped} not replayable"),
    );
    validation.add("not_empty", read > 0, format!("{read} rows to replay"));
    if file.blocks.is_some() {
        let names = tree.names();
        validation.rule("prefix_tree", tree.misplaced(), || {
            format!("{names} names, each with one depth and one parent")
        });
        validation.rule("partial_blocks", tree.resized(), || {
            "each name always stands for as many tokens".to_owned()
        });
    }
    Ok(validation)
}

impl Validation {
    fn add(&mut self, name: &'static str, ok: bool, detail: String) {
        self.valid &= ok;
        self.checks.push(Check { name, ok, detail });
    }

    fn rule(&mut self, name: &'static str, breaks: Breaks<'_>, sound: impl Fn() -> String) {
        match breaks.first {
            None => self.add(name, true, sound()),
            Some(first) => {
                let detail = format!("{} blocks break it; {first}", breaks.count);
                self.add(name, false, detail);
            }
        }
    }

    /// A bad row is a finding; a file that cannot be opened or understood is not.
    fn unreadable(mut self, error: TraceError) -> Result<Self, TraceError> {
        match error {
            TraceError::Line { .. } | TraceError::Value { .. } => {
                self.add("rows", false, error.to_string());
                Ok(self)
            }
            other => Err(other),
        }
    }
}
