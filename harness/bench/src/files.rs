//! Run directories: the document made again from the rows, shards joined.
//!
//! Rows are read one request at a time and never held as a whole, so that the size of a run is
//! bounded by what a [`Tally`] keeps.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pb_contract::manifest::RunState;
use pb_contract::{Nanos, RunManifest};
use pb_record::hlog::Logs;
use pb_record::{RecordError, RecordStream, RunWriter, write_atomic, write_json_atomic};

use crate::conditions::{CONDITIONS_FILE, Conditions, Frame, Identity};
use crate::document::{DOCUMENT_FILE, Document};
use crate::merge::{MergeError, Offset, ShardInput, merge};
use crate::tally::{Tally, WARMUP_ARM};

/// File of the document as a table.
pub const CSV_FILE: &str = "bench.csv";

/// Runs that cannot be read or joined.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A directory that cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Runs that do not belong together.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// A run of another kind.
    #[error("{path}: a run of kind {kind:?}, not of `bench`: name a run that `bench` wrote")]
    Kind {
        /// The directory.
        path: PathBuf,
        /// Its kind.
        kind: String,
    },
    /// Two shards with the same request.
    #[error(
        "{path}: request {request} of block {block} is in {first} too: the shards overlap; run \
         them again as parts i/n of one n"
    )]
    Overlap {
        /// The second shard.
        path: PathBuf,
        /// The first.
        first: PathBuf,
        /// Block.
        block: u32,
        /// Request.
        request: u64,
    },
    /// A file that is not what it should be.
    #[error("{path}: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why, with line and column.
        reason: String,
    },
}

/// A run as its directory tells it.
#[derive(Debug)]
pub struct RunFiles {
    /// Its receipt.
    pub manifest: RunManifest,
    /// What its numbers rest on.
    pub conditions: Conditions,
    /// Its records.
    pub tally: Tally,
    /// Its numbers, from the rows.
    pub document: Document,
    /// What a reader should know: cut-off lines, an unfinished run.
    pub notes: Vec<String>,
}

/// Reads a run of `bench`, finished or not, and makes its document from the rows.
///
/// # Errors
/// A directory that holds no such run, a whole row that does not parse.
pub fn read(dir: &Path) -> Result<RunFiles, FileError> {
    let mut stream = open(dir)?;
    let manifest = stream.manifest().clone();
    let mut conditions = conditions(dir, &manifest)?;
    match manifest.state {
        RunState::Complete => {}
        // A joined run that lacks a part says so already.
        RunState::Interrupted => conditions.interrupted |= !conditions.partial,
        RunState::Running => conditions.partial = true,
    }
    let mut tally = conditions.tally();
    while let Some(record) = stream.next_record()? {
        tally.add(record.row, &record.tokens);
    }
    let mut notes = stream.notes().to_vec();
    if conditions.frame.start == Nanos(0) && !tally.rows().is_empty() {
        let arrivals = tally.rows().iter().map(|row| row.intended_ns);
        conditions.frame.start = arrivals.min().unwrap_or_default();
        notes.push("the start is not stored: rates count from the first arrival".to_owned());
    }
    let document = Document::of(&tally, &conditions);
    Ok(RunFiles {
        manifest,
        conditions,
        tally,
        document,
        notes,
    })
}

fn open(dir: &Path) -> Result<RecordStream, FileError> {
    let stream = RecordStream::open(dir)?;
    match stream.manifest().kind.as_str() {
        "bench" => Ok(stream),
        kind => Err(FileError::Kind {
            path: dir.to_owned(),
            kind: kind.to_owned(),
        }),
    }
}

/// The conditions of a run; what can be told from the manifest when their file is missing.
fn conditions(dir: &Path, manifest: &RunManifest) -> Result<Conditions, FileError> {
    let path = dir.join(CONDITIONS_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Conditions {
                frame: Frame {
                    schedule_sha256: only(&manifest.schedule_sha256),
                    seed: manifest.seed,
                    ..Frame::default()
                },
                identity: Identity {
                    model: manifest.model.name.clone(),
                    created: manifest.created.clone(),
                    ..Identity::default()
                },
                reasons: vec![format!(
                    "{CONDITIONS_FILE} is missing: what was asked is not known"
                )],
                ..Conditions::default()
            });
        }
        Err(error) => return Err(json_error(&path, &error)),
    };
    serde_json::from_slice(&bytes).map_err(|error| json_error(&path, &error))
}

fn only(schedules: &std::collections::BTreeMap<String, String>) -> String {
    schedules.values().next().cloned().unwrap_or_default()
}

fn json_error(path: &Path, reason: &dyn std::fmt::Display) -> FileError {
    FileError::Json {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// How shards are joined.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// Take what is there when shards are missing or did not reach their end.
    pub allow_partial: bool,
    /// The command line, for the manifest.
    pub command: Vec<String>,
}

/// Joins the shards of one schedule into the new run directory `out`.
///
/// # Errors
/// Shards that do not fit, overlap or cannot be read; `out` holds a run already. Nothing is
/// written when the shards do not fit.
pub fn join(runs: &[PathBuf], out: &Path, options: &JoinOptions) -> Result<Document, FileError> {
    let (mut inputs, mut manifests) = (Vec::new(), Vec::new());
    for dir in runs {
        let (input, manifest) = shard(dir)?;
        inputs.push(input);
        manifests.push(manifest);
    }
    let merged = merge(&inputs, options.allow_partial)?;
    let mut conditions = merged.conditions;
    let mut manifest = manifests.swap_remove(0);
    manifest.command.clone_from(&options.command);
    manifest.created.clone_from(&conditions.identity.created);
    let mut joint = Joint {
        writer: RunWriter::create(out, manifest)?,
        tally: conditions.tally(),
        logs: Logs::new(),
        seen: BTreeSet::new(),
    };
    for (number, dir) in runs.iter().enumerate() {
        let rows = joint.take(runs, number, merged.offsets[number])?;
        let part = inputs[number].conditions.shard;
        let note = conditions
            .shards
            .iter_mut()
            .find(|note| Some(note.shard) == part);
        if let Some(note) = note {
            note.rows = rows.0;
        }
        let named = rows
            .1
            .into_iter()
            .map(|note| format!("{}: {note}", dir.display()));
        conditions.warnings.extend(named);
    }
    let document = Document::of(&joint.tally, &conditions);
    write_json_atomic(&out.join(CONDITIONS_FILE), &conditions)?;
    write_json_atomic(&out.join(DOCUMENT_FILE), &document)?;
    write_atomic(&out.join(CSV_FILE), crate::csv::text(&document).as_bytes())?;
    joint.logs.write(out, &conditions.identity.created)?;
    let state = match conditions.partial || conditions.interrupted {
        true => RunState::Interrupted,
        false => RunState::Complete,
    };
    joint.writer.finish(state)?;
    Ok(document)
}

/// A shard without its rows.
fn shard(dir: &Path) -> Result<(ShardInput, RunManifest), FileError> {
    let mut stream = open(dir)?;
    let manifest = stream.manifest().clone();
    let conditions = conditions(dir, &manifest)?;
    let mut first_arrival = None;
    if conditions.frame.start == Nanos(0) {
        while let Some(record) = stream.next_record()? {
            let arrival = record.row.intended_ns;
            first_arrival = Some(first_arrival.map_or(arrival, |first: Nanos| first.min(arrival)));
        }
    }
    let input = ShardInput {
        name: dir.display().to_string(),
        conditions,
        state: manifest.state,
        rows: 0,
        first_arrival,
    };
    Ok((input, manifest))
}

/// The joined run under construction.
struct Joint {
    writer: RunWriter,
    tally: Tally,
    logs: Logs,
    /// Requests so far, with the number of their shard.
    seen: BTreeSet<(u32, u64, usize)>,
}

impl Joint {
    /// Takes the rows of a shard in; says how many and what a reader should know of them. The
    /// warm-up of a shard is no part of the joined run.
    fn take(
        &mut self,
        runs: &[PathBuf],
        number: usize,
        offset: Offset,
    ) -> Result<(u64, Vec<String>), FileError> {
        let mut stream = RecordStream::open(&runs[number])?;
        let mut rows = 0;
        while let Some(mut record) = stream.next_record()? {
            if record.row.arm == WARMUP_ARM {
                continue;
            }
            let (block, request) = (record.row.block, record.row.request.0);
            let twin = self
                .seen
                .range((block, request, 0)..=(block, request, usize::MAX))
                .next();
            if let Some(&(_, _, first)) = twin {
                return Err(FileError::Overlap {
                    path: runs[number].clone(),
                    first: runs[first].clone(),
                    block,
                    request,
                });
            }
            self.seen.insert((block, request, number));
            record.row = offset.request(record.row);
            record
                .tokens
                .iter_mut()
                .for_each(|token| offset.token(token));
            self.writer.request(&record.row, &record.tokens)?;
            let added = self.logs.add(&record.row, &record.tokens);
            added.map_err(|reason| json_error(&runs[number], &reason))?;
            self.tally.add(record.row, &record.tokens);
            rows += 1;
        }
        Ok((rows, stream.notes().to_vec()))
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
