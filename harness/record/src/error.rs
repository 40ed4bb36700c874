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
    #[error(
        "{0} holds no manifest.json: it is not a run directory (of a suite's directory name a run \
         under cells; `run` again prints the verdicts)"
    )]
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
