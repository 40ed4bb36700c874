//! The records of a run one after the other, so that a run of any size can be read.
//!
//! The writer appends the content events of a request and then its row, so both tables have the
//! requests in one order and can be read side by side. Memory is one request at a time, and
//! sixteen bytes for each request to see one that comes twice.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use pb_contract::{RequestRow, RunManifest, TokenRow};
use serde::de::DeserializeOwned;

use crate::error::RecordError;
use crate::lines::WholeLines;
use crate::reader::read_manifest;
use crate::table;

/// A request that has ended, with its content events in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The request.
    pub row: RequestRow,
    /// Its content events.
    pub tokens: Vec<TokenRow>,
}

/// Reads the records of a run directory.
#[derive(Debug)]
pub struct RecordStream {
    manifest: RunManifest,
    requests: Rows<RequestRow>,
    tokens: Rows<TokenRow>,
    /// The next content event, read ahead to see whose it is.
    ahead: Option<TokenRow>,
    seen: BTreeSet<(u64, u32, u64)>,
    arms: Vec<String>,
    orphans: u64,
    notes: Vec<String>,
}

impl RecordStream {
    /// Opens a run directory, finished or not.
    ///
    /// # Errors
    /// No manifest, or one of an unknown version; whatever the file system says.
    pub fn open(dir: &Path) -> Result<RecordStream, RecordError> {
        let manifest = read_manifest(dir)?;
        let mut notes = Vec::new();
        let requests = Rows::open(dir, table::REQUESTS, &mut notes)?;
        let tokens = Rows::open(dir, table::TOKENS, &mut notes)?;
        Ok(RecordStream {
            manifest,
            requests,
            tokens,
            ahead: None,
            seen: BTreeSet::new(),
            arms: Vec::new(),
            orphans: 0,
            notes,
        })
    }

    /// The manifest.
    pub fn manifest(&self) -> &RunManifest {
        &self.manifest
    }

    /// What a reader of the run should know; complete when the last record has been read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// A whole row that does not parse, two rows for one request, content events that stand
    /// elsewhere than before their request.
    pub fn next_record(&mut self) -> Result<Option<Record>, RecordError> {
        let Some(row) = self.requests.read()? else {
            self.end()?;
            return Ok(None);
        };
        let key = self.key(&row.arm, row.block, row.request.0);
        if !self.seen.insert(key) {
            return Err(RecordError::Duplicate {
                path: self.requests.path.clone(),
                arm: row.arm,
                block: row.block,
                request: row.request.0,
            });
        }
        let mut tokens = Vec::new();
        while let Some(token) = self.next_token_of(&row)? {
            tokens.push(token);
        }
        Ok(Some(Record { row, tokens }))
    }

    fn next_token_of(&mut self, row: &RequestRow) -> Result<Option<TokenRow>, RecordError> {
        if self.ahead.is_none() {
            self.ahead = self.tokens.read()?;
        }
        let of_row = |token: &mut TokenRow| {
            (token.request, token.block) == (row.request, row.block) && token.arm == row.arm
        };
        Ok(self.ahead.take_if(of_row))
    }

    /// Requests by number: arms are few, requests are many.
    fn key(&mut self, arm: &str, block: u32, request: u64) -> (u64, u32, u64) {
        let known = self.arms.iter().position(|name| name == arm);
        let number = known.unwrap_or_else(|| {
            self.arms.push(arm.to_owned());
            self.arms.len() - 1
        });
        (number as u64, block, request)
    }

    fn next_orphan(&mut self) -> Result<Option<TokenRow>, RecordError> {
        match self.ahead.take() {
            Some(token) => Ok(Some(token)),
            None => self.tokens.read(),
        }
    }

    /// What is left of the content events belongs to requests that never ended; one of a request
    /// that did end means that the tables are not in one order.
    fn end(&mut self) -> Result<(), RecordError> {
        while let Some(token) = self.next_orphan()? {
            let key = self.key(&token.arm, token.block, token.request.0);
            if self.seen.contains(&key) {
                return Err(RecordError::Order {
                    path: self.requests.path.with_file_name(table::TOKENS),
                    arm: token.arm,
                    block: token.block,
                    request: token.request.0,
                });
            }
            self.orphans += 1;
        }
        if self.orphans > 0 {
            let orphans = std::mem::take(&mut self.orphans);
            self.notes.push(format!(
                "{orphans} content events left out: their requests had not ended"
            ));
        }
        for (name, partial) in [
            (table::REQUESTS, &mut self.requests.partial),
            (table::TOKENS, &mut self.tokens.partial),
        ] {
            if std::mem::take(partial) {
                let note = format!("{name}: the last line was cut off and is left out");
                self.notes.push(note);
            }
        }
        Ok(())
    }
}

/// The rows of a table, whole lines only.
#[derive(Debug)]
struct Rows<T> {
    path: PathBuf,
    reader: Option<csv::Reader<WholeLines<File>>>,
    headers: csv::StringRecord,
    record: csv::StringRecord,
    /// A last line was cut off; known at the end.
    partial: bool,
    row: std::marker::PhantomData<T>,
}

impl<T: DeserializeOwned> Rows<T> {
    fn open(dir: &Path, name: &str, notes: &mut Vec<String>) -> Result<Rows<T>, RecordError> {
        let path = dir.join(name);
        let file = match File::open(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                notes.push(format!("{name} is missing: read as empty"));
                None
            }
            Err(error) => return Err(RecordError::io("open", &path)(error)),
        };
        let mut reader = file.map(|file| csv::Reader::from_reader(WholeLines::new(file)));
        let headers = match &mut reader {
            Some(reader) => reader
                .headers()
                .map_err(|error| table::record_error(&path, &error))?
                .clone(),
            None => csv::StringRecord::new(),
        };
        Ok(Rows {
            path,
            reader,
            headers,
            record: csv::StringRecord::new(),
            partial: false,
            row: std::marker::PhantomData,
        })
    }

    fn read(&mut self) -> Result<Option<T>, RecordError> {
        let Some(reader) = &mut self.reader else {
            return Ok(None);
        };
        let more = reader
            .read_record(&mut self.record)
            .map_err(|error| table::record_error(&self.path, &error))?;
        if !more {
            self.partial = reader.get_ref().partial();
            self.reader = None;
            return Ok(None);
        }
        let row = self.record.deserialize(Some(&self.headers));
        row.map(Some)
            .map_err(|error| table::value_error(&self.path, &self.headers, &self.record, &error))
    }
}

/// All rows of a further table of a run directory, for example of a server's gauges; `None` when
/// there is no such file. A cut-off last line is left out.
///
/// # Errors
/// A name with a directory in it; a whole row that does not parse.
pub fn read_rows<T: DeserializeOwned>(
    dir: &Path,
    name: &str,
) -> Result<Option<Vec<T>>, RecordError> {
    crate::writer::plain(dir, name)?;
    let mut notes = Vec::new();
    let mut table: Rows<T> = Rows::open(dir, name, &mut notes)?;
    if table.reader.is_none() {
        return Ok(None);
    }
    let mut rows = Vec::new();
    while let Some(row) = table.read()? {
        rows.push(row);
    }
    Ok(Some(rows))
}
