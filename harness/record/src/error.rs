//! What can go wrong with a run directory; every message names the file and the fix.

use std::path::{Path, PathBuf};

/// A run directory that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The directory already holds a run.
    #[error("{0} already holds a run: choose another directory or remove it")]
    Exists(PathBuf),
    /// The directory holds no run.
    #[error("{}", not_a_run(.0))]
    NotARun(PathBuf),
    /// Something in a run directory that is no file: reading it might never end.
    #[error("{0} is no file: a run directory holds files alone; take it out")]
    NoFile(PathBuf),
    /// A JSON file does not say what it should.
    #[error("{path}: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's words, with line and column.
        reason: String,
    },
    /// The layout is of a version that this program does not know.
    #[error(
        "{path}: schema_version = {found}, this program reads {known}: use the version of \
         prefillbench that wrote the run, or a newer one"
    )]
    Schema {
        /// The manifest.
        path: PathBuf,
        /// Version found.
        found: u64,
        /// Version known.
        known: u32,
    },
    /// A row of a table does not parse.
    #[error("{path}, line {line}, column {column}, value {value:?}: {reason}")]
    Row {
        /// The file.
        path: PathBuf,
        /// Line, from 1; the header is line 1.
        line: u64,
        /// Name of the column, or `?` when the row as a whole is at fault.
        column: String,
        /// The value as it stands there.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two rows claim to be the same request.
    #[error("{path}: request {request} of arm {arm:?}, block {block}, has two rows")]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// Arm.
        arm: String,
        /// Block.
        block: u32,
        /// Request.
        request: u64,
    },
    /// A table lacks a column.
    #[error(
        "{path}: there is no column {column}: the table was cut or is of another program; take it \
         from the run as it was written"
    )]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
    },
    /// A name that would leave the run directory.
    #[error("{0:?} is not a plain file name")]
    Name(String),
}

/// What a path is instead of a run directory, and what to name.
fn not_a_run(path: &Path) -> String {
    let shown = path.display();
    let has = |file: &str| path.join(file).is_file();
    if !path.exists() {
        format!("{shown} does not exist: name the directory that `bench --out` wrote")
    } else if !path.is_dir() {
        format!("{shown} is a file: name the run directory that it lies in")
    } else if has("plan.json") || has("suite.json") {
        format!(
            "{shown} is the directory of a suite and not of a run: name one of its runs under \
             {}, or ask `prefillbench report` for the suite as a whole",
            path.join("cells").display()
        )
    } else {
        format!(
            "{shown} holds no manifest.json, which every run has: name the directory that \
             `bench --out`, `merge --out` or `quickstart` wrote"
        )
    }
}

impl RecordError {
    /// The words of an error of a row with the name of its file alone: what is stored of a run
    /// holds no directory of this machine.
    pub(crate) fn in_run(mut self) -> String {
        if let RecordError::Row { path, .. } = &mut self
            && let Some(name) = path.file_name()
        {
            *path = PathBuf::from(name);
        }
        self.to_string()
    }

    pub(crate) fn io(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> RecordError {
        let path = path.to_owned();
        move |source| RecordError::Io {
            action,
            path,
            source,
        }
    }

    pub(crate) fn json(path: &Path, reason: impl ToString) -> RecordError {
        RecordError::Json {
            path: path.to_owned(),
            reason: crate::visible(&reason.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_run_is_called_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let said = |path: &Path| RecordError::NotARun(path.to_owned()).to_string();
        assert!(said(dir.path()).contains("holds no manifest.json"));
        assert!(said(&dir.path().join("none")).contains("does not exist"));
        let plan = dir.path().join("plan.json");
        std::fs::write(&plan, "{}").unwrap();
        let suite = said(dir.path());
        assert!(
            suite.contains("of a suite") && suite.contains("cells"),
            "{suite}"
        );
        assert!(said(&plan).contains("is a file"));
    }
}
