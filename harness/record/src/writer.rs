//! Writing a run directory so that a crash costs nothing that had ended.
//!
//! Each call appends its rows with one write to a file opened for appending. The operating system
//! keeps what a killed process had written, so after `kill -9` every request whose call returned
//! is there, and at most one line of each table is cut off.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use pb_contract::manifest::{RunManifest, RunState};
use pb_contract::{RequestRow, StepRow, TokenRow, TransferLine};
use serde::Serialize;

use crate::atomic::{write_atomic, write_json_atomic};
use crate::error::RecordError;
use crate::step::{FlatStep, STEP_COLUMNS};
use crate::table;
use crate::tables::{Digesting, Receipts, TABLES_FILE};
use crate::transfer::{FlatTransfer, TRANSFER_COLUMNS};

/// Name of the manifest.
pub(crate) const MANIFEST: &str = "manifest.json";

/// A table open for appending.
#[derive(Debug)]
struct Appender {
    path: PathBuf,
    file: File,
    digesting: Digesting,
    rows: u64,
}

impl Appender {
    fn create(path: PathBuf, columns: &[&str]) -> Result<Self, RecordError> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(&path)
            .map_err(RecordError::io("create", &path))?;
        let mut appender = Appender {
            path,
            file,
            digesting: Digesting::default(),
            rows: 0,
        };
        appender.append(table::header(columns).as_bytes())?;
        Ok(appender)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        self.file
            .write_all(bytes)
            .map_err(RecordError::io("append to", &self.path))?;
        self.digesting.update(bytes);
        Ok(())
    }

    fn rows<T: Serialize>(&mut self, rows: &[T]) -> Result<(), RecordError> {
        if rows.is_empty() {
            return Ok(());
        }
        let bytes = table::encode(rows, &self.path)?;
        self.append(&bytes)?;
        self.rows += rows.len() as u64;
        Ok(())
    }

    fn sync(&self) -> Result<(), RecordError> {
        self.file
            .sync_all()
            .map_err(RecordError::io("sync", &self.path))
    }
}

/// The writer of one run directory.
#[derive(Debug)]
pub struct RunWriter {
    dir: PathBuf,
    manifest: RunManifest,
    requests: Appender,
    tokens: Appender,
    steps: Appender,
    /// Made with the first row: most servers have no transfers.
    transfers: Option<Appender>,
}

impl RunWriter {
    /// Makes the directory (and its parents) with a manifest in state running and empty tables.
    ///
    /// # Errors
    /// A directory that already holds a run; whatever the file system says.
    pub fn create(dir: &Path, mut manifest: RunManifest) -> Result<RunWriter, RecordError> {
        std::fs::create_dir_all(dir).map_err(RecordError::io("create directory", dir))?;
        if dir.join(MANIFEST).exists() || dir.join(table::REQUESTS).exists() {
            return Err(RecordError::Exists(dir.to_owned()));
        }
        manifest.state = RunState::Running;
        write_json_atomic(&dir.join(MANIFEST), &manifest)?;
        let open = |name, columns| Appender::create(dir.join(name), columns);
        Ok(RunWriter {
            dir: dir.to_owned(),
            manifest,
            requests: open(table::REQUESTS, table::REQUEST_COLUMNS)?,
            tokens: open(table::TOKENS, table::TOKEN_COLUMNS)?,
            steps: open(table::STEPS, STEP_COLUMNS)?,
            transfers: None,
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The manifest as last written.
    pub fn manifest(&self) -> &RunManifest {
        &self.manifest
    }

    /// Changes the manifest (arms and schedules become known as a run goes on) and rewrites it.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn update_manifest(
        &mut self,
        change: impl FnOnce(&mut RunManifest),
    ) -> Result<(), RecordError> {
        change(&mut self.manifest);
        write_json_atomic(&self.dir.join(MANIFEST), &self.manifest)
    }

    /// Appends a request that has ended and its content events. The events go first: a request
    /// row says that its events are complete.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn request(&mut self, row: &RequestRow, tokens: &[TokenRow]) -> Result<(), RecordError> {
        self.tokens.rows(&table::one_line_tokens(tokens))?;
        self.requests.rows(&[table::one_line(row)])
    }

    /// Appends steps of an arm in a block.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn steps(&mut self, arm: &str, block: u32, rows: &[StepRow]) -> Result<(), RecordError> {
        let mut arm = arm.to_owned();
        table::flatten(&mut arm);
        let flat: Vec<FlatStep> = rows
            .iter()
            .map(|row| FlatStep::new(&arm, block, row))
            .collect();
        self.steps.rows(&flat)
    }

    /// Appends KV transfers of an arm in a block; without any the table is not made.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn transfers(
        &mut self,
        arm: &str,
        block: u32,
        lines: &[TransferLine],
    ) -> Result<(), RecordError> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut arm = arm.to_owned();
        table::flatten(&mut arm);
        let flat: Vec<FlatTransfer> = lines
            .iter()
            .map(|line| FlatTransfer::new(&arm, block, line))
            .collect();
        let table = match &mut self.transfers {
            Some(table) => table,
            none => none.insert(Appender::create(
                self.dir.join(table::TRANSFERS),
                TRANSFER_COLUMNS,
            )?),
        };
        table.rows(&flat)
    }

    /// Stores a value as `name` (for example `notes.json`), atomically.
    ///
    /// # Errors
    /// A name with a directory in it; whatever the file system says.
    pub fn write_json<T: Serialize + ?Sized>(
        &self,
        name: &str,
        value: &T,
    ) -> Result<(), RecordError> {
        write_json_atomic(&plain(&self.dir, name)?, value)
    }

    /// Stores a text as `name` (for example `report.html`), atomically.
    ///
    /// # Errors
    /// As [`RunWriter::write_json`].
    pub fn write_text(&self, name: &str, text: &str) -> Result<(), RecordError> {
        write_atomic(&plain(&self.dir, name)?, text.as_bytes())
    }

    /// Makes everything durable and writes what the tables hold, then the manifest in its final
    /// state.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn finish(mut self, state: RunState) -> Result<RunManifest, RecordError> {
        let mut receipts = Receipts::new();
        let always = [
            (table::REQUESTS, &self.requests),
            (table::TOKENS, &self.tokens),
            (table::STEPS, &self.steps),
        ];
        let transfers = self.transfers.iter().map(|table| (table::TRANSFERS, table));
        for (name, table) in always.into_iter().chain(transfers) {
            table.sync()?;
            receipts.insert(name.to_owned(), table.digesting.receipt(table.rows));
        }
        self.write_json(TABLES_FILE, &receipts)?;
        self.update_manifest(|manifest| manifest.state = state)?;
        Ok(self.manifest)
    }
}

/// `dir/name`, when `name` is one plain component.
pub(crate) fn plain(dir: &Path, name: &str) -> Result<PathBuf, RecordError> {
    let is_plain = !name.is_empty() && Path::new(name).file_name() == Some(name.as_ref());
    if is_plain {
        Ok(dir.join(name))
    } else {
        Err(RecordError::Name(name.to_owned()))
    }
}
