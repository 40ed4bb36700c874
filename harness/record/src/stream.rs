//! The records of a run one after the other, so that a run of any size can be read.
//!
//! The writer appends the content events of a request and then its row, so both tables have the
//! requests in one order and can be read side by side. Memory is one request at a time, and some
//! forty bytes for each request of the run: where it stands, found out by a first look at the
//! request rows. So a row or an event that is missing costs no other request its events.
//!
//! A row that does not fit is left out and told as a finding; reading goes on, because a damaged
//! run still has to be understood. Its numbers support no claim.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use pb_contract::manifest::RunState;
use pb_contract::{RequestRow, RunManifest, TokenRow};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::check::{Fault, Findings, check_record, in_words};
use crate::error::RecordError;
use crate::lines::WholeLines;
use crate::reader::{only_files, read_manifest};
use crate::table;
use crate::tables::{Digested, TABLES_FILE, TableReceipt, difference, receipts};

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
    dir: PathBuf,
    manifest: RunManifest,
    requests: Rows<RequestRow>,
    tokens: Rows<TokenRow>,
    places: Places,
    /// The next content event, read ahead to see whose it is.
    ahead: Option<TokenRow>,
    /// Places of rows that could not be read: their events are nobody's.
    unread: BTreeSet<u64>,
    orphans: Orphans,
    notes: Vec<String>,
    findings: Findings,
    ended: bool,
}

/// Content events whose request has no row.
#[derive(Debug, Default)]
struct Orphans {
    count: u64,
    first: Option<String>,
    /// An event of a request with a row came after one of them.
    within: bool,
}

impl RecordStream {
    /// Opens a run directory, finished or not.
    ///
    /// # Errors
    /// No manifest, or one of an unknown version; a table without one of its columns; whatever
    /// the file system says.
    pub fn open(dir: &Path) -> Result<RecordStream, RecordError> {
        only_files(dir)?;
        let manifest = read_manifest(dir)?;
        let places = Places::read(dir)?;
        Ok(RecordStream {
            dir: dir.to_owned(),
            manifest,
            requests: Rows::open(dir, table::REQUESTS, table::REQUEST_COLUMNS)?,
            tokens: Rows::open(dir, table::TOKENS, table::TOKEN_COLUMNS)?,
            places,
            ahead: None,
            unread: BTreeSet::new(),
            orphans: Orphans::default(),
            notes: Vec::new(),
            findings: Findings::default(),
            ended: false,
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

    /// What contradicts itself; complete when the last record has been read.
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// The requests that have a row, as arm, block and number; known from the start.
    pub fn requests(&self) -> impl Iterator<Item = (&str, u32, u64)> {
        let named = |&(arm, block, request): &Key| {
            (self.places.arms[arm as usize].as_str(), block, request)
        };
        self.places.of.keys().map(named)
    }

    /// The next record; `None` at the end. Rows that cannot be read and requests that come again
    /// are left out and are among the findings.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn next_record(&mut self) -> Result<Option<Record>, RecordError> {
        while !self.ended {
            let Some(read) = self.requests.read()? else {
                self.end()?;
                break;
            };
            let at = self.requests.count - 1;
            let row = match read {
                Ok(row) => row,
                Err(error) => {
                    self.findings.add(Fault::UnreadableRow, || error.in_run());
                    self.unread.insert(at);
                    continue;
                }
            };
            let whose = || in_words(&row.arm, row.block, row.request.0);
            match self.places.find(&row.arm, row.block, row.request.0) {
                Some(place) if place == at => {}
                Some(_) => {
                    self.findings.add(Fault::DuplicateRequest, whose);
                    continue;
                }
                // Appended since the first look, by a run that goes on.
                None => {
                    self.end()?;
                    break;
                }
            }
            let tokens = self.tokens_of(&row, at)?;
            check_record(&row, &tokens, &mut self.findings);
            return Ok(Some(Record { row, tokens }));
        }
        Ok(None)
    }

    /// The content events of the row at a place. What stands before them belongs to no row that
    /// is still to come.
    fn tokens_of(&mut self, row: &RequestRow, at: u64) -> Result<Vec<TokenRow>, RecordError> {
        let mut tokens: Vec<TokenRow> = Vec::new();
        while let Some(token) = self.next_token()? {
            let own = (token.request, token.block) == (row.request, row.block);
            if own && token.arm == row.arm {
                self.orphans.within |= self.orphans.count > 0;
                tokens.push(token);
                continue;
            }
            let place = self.places.find(&token.arm, token.block, token.request.0);
            if place.is_some_and(|place| place > at) {
                self.ahead = Some(token);
                break;
            }
            self.leave_out(&token, place);
        }
        Ok(tokens)
    }

    fn next_token(&mut self) -> Result<Option<TokenRow>, RecordError> {
        if let Some(token) = self.ahead.take() {
            return Ok(Some(token));
        }
        while let Some(read) = self.tokens.read()? {
            match read {
                Ok(token) => return Ok(Some(token)),
                Err(error) => self.findings.add(Fault::UnreadableRow, || error.in_run()),
            }
        }
        Ok(None)
    }

    fn leave_out(&mut self, token: &TokenRow, place: Option<u64>) {
        let whose = || {
            let request = in_words(&token.arm, token.block, token.request.0);
            format!("event {} of {request}", token.event)
        };
        match place {
            Some(place) => {
                self.orphans.within |= self.orphans.count > 0;
                if !self.unread.contains(&place) {
                    self.findings.add(Fault::DisplacedTokens, whose);
                }
            }
            None => {
                self.orphans.count += 1;
                self.orphans.first.get_or_insert_with(whose);
            }
        }
    }

    /// What is left of the content events belongs to requests that have no row. Of a run that was
    /// killed these are the requests that had not ended; then they come last.
    fn end(&mut self) -> Result<(), RecordError> {
        self.ended = true;
        while let Some(token) = self.next_token()? {
            let place = self.places.find(&token.arm, token.block, token.request.0);
            self.leave_out(&token, place);
        }
        let running = self.manifest.state == RunState::Running;
        let orphans = std::mem::take(&mut self.orphans);
        if orphans.count > 0 && running && !orphans.within {
            self.notes.push(format!(
                "{} content events left out: their requests had not ended",
                orphans.count
            ));
        } else if let Some(first) = &orphans.first {
            let (fault, count) = (Fault::UnknownTokens, orphans.count);
            self.findings.add_many(fault, count, || first.clone());
        }
        for (name, state) in [
            (table::REQUESTS, self.requests.state),
            (table::TOKENS, self.tokens.state),
        ] {
            let (fault, words) = match state {
                TableState::Whole => continue,
                TableState::Missing => (Fault::MissingTable, "is missing: read as empty"),
                TableState::Headless => (Fault::MissingTable, "has no header: read as empty"),
                TableState::Cut => (Fault::CutLine, "the last line was cut off and is left out"),
            };
            match running {
                true => self.notes.push(match state {
                    TableState::Missing | TableState::Headless => format!("{name} {words}"),
                    _ => format!("{name}: {words}"),
                }),
                false => self.findings.add(fault, || name.to_owned()),
            }
        }
        if !running {
            self.compare_receipts();
        }
        Ok(())
    }

    fn compare_receipts(&mut self) {
        let receipts = match receipts(&self.dir) {
            Ok(Some(receipts)) => receipts,
            Ok(None) => {
                self.notes.push(format!(
                    "{TABLES_FILE} is missing: rows that were taken out or changed since the run \
                     may not be noticed"
                ));
                return;
            }
            Err(reason) => return self.findings.add(Fault::ChangedTable, || reason),
        };
        for (name, found) in [
            (table::REQUESTS, self.requests.receipt()),
            (table::TOKENS, self.tokens.receipt()),
        ] {
            let differs = match (receipts.get(name), found) {
                (Some(receipt), Some(found)) => difference(name, &found, receipt),
                (None, _) => Some(format!("{TABLES_FILE} says nothing of {name}")),
                // That it is missing has been said.
                (_, None) => None,
            };
            if let Some(what) = differs {
                self.findings.add(Fault::ChangedTable, || what);
            }
        }
    }
}

/// Arm by its number, block, request.
type Key = (u32, u32, u64);

/// Where the row of each request stands, from 0.
#[derive(Debug, Default)]
struct Places {
    /// Arms are few, requests are many.
    arms: Vec<String>,
    of: BTreeMap<Key, u64>,
}

/// The columns that name a request.
#[derive(Deserialize)]
struct Named {
    arm: String,
    block: u32,
    request: u64,
}

impl Places {
    fn read(dir: &Path) -> Result<Places, RecordError> {
        let mut rows: Rows<Named> = Rows::open(dir, table::REQUESTS, table::REQUEST_COLUMNS)?;
        let mut places = Places::default();
        while let Some(read) = rows.read()? {
            // One that cannot be read is told of when its turn comes.
            let Ok(Named {
                arm,
                block,
                request,
            }) = read
            else {
                continue;
            };
            let known = places.arms.iter().position(|name| *name == arm);
            let arm = known.unwrap_or_else(|| {
                places.arms.push(arm);
                places.arms.len() - 1
            });
            let key = (arm as u32, block, request);
            places.of.entry(key).or_insert(rows.count - 1);
        }
        Ok(places)
    }

    fn find(&self, arm: &str, block: u32, request: u64) -> Option<u64> {
        let arm = self.arms.iter().position(|name| name == arm)?;
        self.of.get(&(arm as u32, block, request)).copied()
    }
}

/// How a table ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableState {
    Whole,
    Missing,
    /// Not even its first line is there.
    Headless,
    /// A last line was cut off.
    Cut,
}

/// The rows of a table, whole lines only.
#[derive(Debug)]
struct Rows<T> {
    path: PathBuf,
    reader: Option<csv::Reader<WholeLines<Digested<File>>>>,
    headers: csv::StringRecord,
    record: csv::StringRecord,
    /// Rows so far, those that could not be read included.
    count: u64,
    /// Known at the end.
    state: TableState,
    /// Known at the end of a table that is there.
    receipt: Option<TableReceipt>,
    row: std::marker::PhantomData<T>,
}

impl<T: DeserializeOwned> Rows<T> {
    fn open(dir: &Path, name: &str, columns: &[&str]) -> Result<Rows<T>, RecordError> {
        let path = dir.join(name);
        let file = match File::open(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(RecordError::io("open", &path)(error)),
        };
        let whole = |file| csv::Reader::from_reader(WholeLines::new(Digested::new(file)));
        let mut reader = file.map(whole);
        let headers = match &mut reader {
            Some(reader) => reader
                .headers()
                .map_err(|error| table::record_error(&path, &error))?
                .clone(),
            None => csv::StringRecord::new(),
        };
        let lacks = |column: &&&str| !headers.iter().any(|header| header == **column);
        if let Some(column) = columns.iter().find(lacks)
            && !headers.is_empty()
        {
            return Err(RecordError::Column {
                path,
                column: (*column).to_owned(),
            });
        }
        Ok(Rows {
            path,
            state: match &reader {
                None => TableState::Missing,
                Some(_) => TableState::Whole,
            },
            reader,
            headers,
            record: csv::StringRecord::new(),
            count: 0,
            receipt: None,
            row: std::marker::PhantomData,
        })
    }

    /// The next row, or what is wrong with it; `None` at the end.
    fn read(&mut self) -> Result<Option<Result<T, RecordError>>, RecordError> {
        let Some(reader) = &mut self.reader else {
            return Ok(None);
        };
        let more = match reader.read_record(&mut self.record) {
            Ok(more) => more,
            Err(error) => {
                let told = table::record_error(&self.path, &error);
                if error.is_io_error() {
                    return Err(told);
                }
                self.count += 1;
                return Ok(Some(Err(told)));
            }
        };
        if !more {
            let lines = reader.get_ref();
            self.state = match (lines.partial(), self.headers.is_empty()) {
                (true, _) => TableState::Cut,
                (false, true) => TableState::Headless,
                (false, false) => TableState::Whole,
            };
            self.receipt = Some(lines.inner().digesting().receipt(self.count));
            self.reader = None;
            return Ok(None);
        }
        self.count += 1;
        let row = self.record.deserialize(Some(&self.headers));
        let wrong = |error| table::value_error(&self.path, &self.headers, &self.record, &error);
        Ok(Some(row.map_err(wrong)))
    }

    /// What the table holds; `None` while it has not been read to its end.
    fn receipt(&self) -> Option<TableReceipt> {
        self.receipt.clone()
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
    let mut table: Rows<T> = Rows::open(dir, name, &[])?;
    if table.reader.is_none() {
        return Ok(None);
    }
    let mut rows = Vec::new();
    while let Some(row) = table.read()? {
        rows.push(row?);
    }
    Ok(Some(rows))
}
