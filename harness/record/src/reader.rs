//! Reading a run directory again, whole or broken off.
//!
//! A run that was killed is not lost: its manifest says `running`, its tables may end in half a
//! line, some tokens may belong to a request that never ended. The reader gives what is whole,
//! counts what is not, and says so; only a row that is whole and wrong is an error.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pb_contract::manifest::{RUN_SCHEMA_VERSION, RunManifest, RunState};
use pb_contract::{RequestId, RequestRow, TokenRow};
use serde::de::DeserializeOwned;

use crate::error::RecordError;
use crate::step::{FlatStep, StepRecord};
use crate::table;
use crate::tables::{Digesting, Receipts, TableReceipt, difference, receipts};
use crate::transfer::{FlatTransfer, TransferRecord};
use crate::writer::{MANIFEST, plain};

/// Opens run directories.
#[derive(Debug)]
pub struct RunReader;

/// Which request a row belongs to.
type Key = (String, u32, RequestId);

/// Everything that a run directory holds.
#[derive(Clone, Debug)]
pub struct RunData {
    /// The directory.
    pub dir: PathBuf,
    /// The manifest.
    pub manifest: RunManifest,
    /// Requests, ordered by block, arm as it ran, request: the order of the file.
    pub requests: Vec<RequestRow>,
    /// Content events of those requests, ordered by `(arm, block, request, event)`.
    pub tokens: Vec<TokenRow>,
    /// Engine steps, in the order of the file; empty when the server tells none.
    pub steps: Vec<StepRecord>,
    /// KV transfers, in the order of the file; empty when the server told none.
    pub transfers: Vec<TransferRecord>,
    /// What a reader of the run should know: cut-off lines, missing files, an unfinished run.
    pub notes: Vec<String>,
    /// Last lines that were cut off, over all tables.
    pub partial_lines: u64,
    /// Content events left out because their request never ended.
    pub orphan_tokens: u64,
    /// The first of these.
    pub first_orphan: Option<TokenRow>,
    /// Tables that are not as the writer of a finished run left them, each with how; empty also
    /// where the writer left no receipts.
    pub changed_tables: Vec<String>,
    index: BTreeMap<Key, Range<usize>>,
}

impl RunReader {
    /// Reads a run directory.
    ///
    /// # Errors
    /// No manifest, a manifest of an unknown version, or a whole row that does not parse: the
    /// message names file, line, column and value.
    pub fn open(dir: &Path) -> Result<RunData, RecordError> {
        only_files(dir)?;
        let manifest = read_manifest(dir)?;
        let mut notes = Vec::new();
        let mut partial_lines = 0;
        let mut found = Receipts::new();
        let mut told = (&mut notes, &mut partial_lines, &mut found);
        let requests = read_table(dir, table::REQUESTS, &mut told)?;
        let tokens = read_table(dir, table::TOKENS, &mut told)?;
        let flat: Vec<FlatStep> = read_table(dir, table::STEPS, &mut told)?;
        let steps = flat.into_iter().map(StepRecord::from).collect();
        let flat: Vec<FlatTransfer> = match dir.join(table::TRANSFERS).exists() {
            true => read_table(dir, table::TRANSFERS, &mut told)?,
            // Of no other table is that to be expected.
            false => Vec::new(),
        };
        let transfers = flat.into_iter().map(TransferRecord::from).collect();
        let mut data = RunData::from_parts(dir, manifest, requests, tokens, steps)?;
        data.transfers = transfers;
        data.notes.splice(0..0, notes);
        data.partial_lines = partial_lines;
        if data.manifest.state != RunState::Running {
            data.changed_tables = changed(dir, &found);
        }
        Ok(data)
    }
}

impl RunData {
    /// Puts rows together that did not come from files (a simulation, a test).
    ///
    /// # Errors
    /// Two rows for one request.
    pub fn from_parts(
        dir: &Path,
        manifest: RunManifest,
        requests: Vec<RequestRow>,
        mut tokens: Vec<TokenRow>,
        steps: Vec<StepRecord>,
    ) -> Result<RunData, RecordError> {
        let mut index: BTreeMap<Key, Range<usize>> = BTreeMap::new();
        for row in &requests {
            if index
                .insert((row.arm.clone(), row.block, row.request), 0..0)
                .is_some()
            {
                return Err(RecordError::Duplicate {
                    path: dir.join(table::REQUESTS),
                    arm: row.arm.clone(),
                    block: row.block,
                    request: row.request.0,
                });
            }
        }
        let before = tokens.len();
        let mut first_orphan = None;
        tokens.retain(|row| {
            let known = index.contains_key(&(row.arm.clone(), row.block, row.request));
            if !known && first_orphan.is_none() {
                first_orphan = Some(row.clone());
            }
            known
        });
        let orphan_tokens = (before - tokens.len()) as u64;
        tokens.sort_by(|a, b| {
            let key = |row: &TokenRow| (row.block, row.request, row.event);
            a.arm.cmp(&b.arm).then(key(a).cmp(&key(b)))
        });
        index_tokens(&tokens, &mut index);
        let mut data = RunData {
            dir: dir.to_owned(),
            manifest,
            requests,
            tokens,
            steps,
            transfers: Vec::new(),
            notes: Vec::new(),
            partial_lines: 0,
            orphan_tokens,
            first_orphan,
            changed_tables: Vec::new(),
            index,
        };
        data.add_notes();
        Ok(data)
    }

    /// Whether the run reached its planned end.
    pub fn complete(&self) -> bool {
        self.manifest.state == RunState::Complete
    }

    /// The content events of one request, in order; empty when it had none.
    pub fn tokens_of(&self, row: &RequestRow) -> &[TokenRow] {
        let key = (row.arm.clone(), row.block, row.request);
        self.index
            .get(&key)
            .map_or(&[], |range| &self.tokens[range.clone()])
    }

    /// A JSON file of the directory, or `None` when it does not exist.
    ///
    /// # Errors
    /// A file that is not that value.
    pub fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RecordError> {
        let path = plain(&self.dir, name)?;
        let Some(bytes) = read_if_there(&path)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| RecordError::json(&path, error))
    }

    fn add_notes(&mut self) {
        match self.manifest.state {
            RunState::Complete => {}
            RunState::Running => self.notes.push(
                "incomplete: the run is still being written, or its writer was killed".to_owned(),
            ),
            RunState::Interrupted => {
                self.notes
                    .push("incomplete: the run was stopped before its end".to_owned());
            }
        }
        if self.orphan_tokens > 0 {
            self.notes.push(format!(
                "{} content events left out: their requests had not ended",
                self.orphan_tokens
            ));
        }
    }
}

fn index_tokens(tokens: &[TokenRow], index: &mut BTreeMap<Key, Range<usize>>) {
    let mut start = 0;
    for chunk in
        tokens.chunk_by(|a, b| (a.block, a.request) == (b.block, b.request) && a.arm == b.arm)
    {
        let end = start + chunk.len();
        index.insert(
            (chunk[0].arm.clone(), chunk[0].block, chunk[0].request),
            start..end,
        );
        start = end;
    }
}

pub(crate) fn read_manifest(dir: &Path) -> Result<RunManifest, RecordError> {
    let path = dir.join(MANIFEST);
    let bytes = read_if_there(&path)?.ok_or_else(|| RecordError::NotARun(dir.to_owned()))?;
    // The version is read before anything else: a later layout may have other fields.
    let value: serde_json::Value =
        serde_json::from_slice(&bytes).map_err(|error| RecordError::json(&path, error))?;
    let version = value
        .get("schema_version")
        .and_then(serde_json::Value::as_u64);
    let Some(found) = version else {
        return Err(RecordError::json(
            &path,
            "no schema_version: this is not a run manifest",
        ));
    };
    if found != u64::from(RUN_SCHEMA_VERSION) {
        return Err(RecordError::Schema {
            path,
            found,
            known: RUN_SCHEMA_VERSION,
        });
    }
    serde_json::from_slice(&bytes).map_err(|error| RecordError::json(&path, error))
}

/// What is told of the tables as they are read: notes, cut-off lines, what they hold.
type Told<'a> = (&'a mut Vec<String>, &'a mut u64, &'a mut Receipts);

fn read_table<T: DeserializeOwned>(
    dir: &Path,
    name: &str,
    (notes, partial_lines, found): &mut Told<'_>,
) -> Result<Vec<T>, RecordError> {
    let path = dir.join(name);
    let Some(bytes) = read_if_there(&path)? else {
        notes.push(format!("{name} is missing: read as empty"));
        return Ok(Vec::new());
    };
    let table = table::decode(&bytes, &path)?;
    if table.partial {
        **partial_lines += 1;
        notes.push(format!("{name}: the last line was cut off and is left out"));
    }
    let mut digesting = Digesting::default();
    digesting.update(&bytes);
    found.insert(name.to_owned(), digesting.receipt(table.rows.len() as u64));
    Ok(table.rows)
}

/// How the tables differ from the receipts of their writer.
fn changed(dir: &Path, found: &Receipts) -> Vec<String> {
    let left = match receipts(dir) {
        Ok(Some(left)) => left,
        Ok(None) => return Vec::new(),
        Err(reason) => return vec![reason],
    };
    let differs = |(name, receipt): (&String, &TableReceipt)| match found.get(name) {
        Some(found) => difference(name, found, receipt),
        None => Some(format!("{name} is missing")),
    };
    left.iter().filter_map(differs).collect()
}

/// Refuses a run directory in which there is anything but files and directories: opening a pipe
/// waits for a writer that never comes, and a device may have no end.
///
/// # Errors
/// The first such entry. A directory that cannot be listed is the concern of whoever reads it.
pub(crate) fn only_files(dir: &Path) -> Result<(), RecordError> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return match dir.metadata() {
            Ok(found) if !found.is_dir() => Err(RecordError::NotARun(dir.to_owned())),
            _ => Ok(()),
        };
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        // What a link leads to counts; a link to nothing is not there.
        if path
            .metadata()
            .is_ok_and(|found| !found.is_file() && !found.is_dir())
        {
            return Err(RecordError::NoFile(path));
        }
    }
    Ok(())
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, RecordError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RecordError::io("read", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_is_no_file_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        assert!(only_files(dir.path()).is_ok());
        std::fs::create_dir(dir.path().join("logs")).unwrap();
        std::fs::write(dir.path().join("x.csv"), "").unwrap();
        assert!(only_files(dir.path()).is_ok());
        let place = dir.path().join("requests.csv");
        let _socket = UnixListener::bind(&place).unwrap();
        let error = RunReader::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("requests.csv is no file"), "{error}");
        // Named itself instead of a directory.
        let error = RunReader::open(&place).unwrap_err();
        assert!(matches!(error, RecordError::NotARun(_)), "{error}");
    }
}
