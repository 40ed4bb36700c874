//! Run directories: the document made again from the rows, shards joined.
//!
//! Rows are read one request at a time and never held as a whole, so that the size of a run is
//! bounded by what a [`Tally`] keeps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pb_contract::manifest::RunState;
use pb_contract::{Nanos, RunManifest};
use pb_record::hlog::Logs;
use pb_record::{Findings, RecordError, RecordStream, RunWriter, write_atomic, write_json_atomic};
use serde_json::Value;

use crate::check::{Plan, Seen, check_document, check_logs, check_run};
use crate::conditions::{CONDITIONS_FILE, Conditions, Frame, Identity};
use crate::document::{DOCUMENT_FILE, Document};
use crate::merge::{MergeError, Offset, ShardInput, merge, state_name};
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
    /// A shard of which it is not known what was asked.
    #[error(
        "{path} is missing: it says what was asked and which shard this is, so the run cannot be \
         joined; run the shard again, or leave it out and join the others with --allow-partial"
    )]
    NoConditions {
        /// The file.
        path: PathBuf,
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
    /// Its histograms, from the rows.
    pub logs: Logs,
    /// Its numbers, from the rows. A run whose files contradict one another is not valid.
    pub document: Document,
    /// What contradicts itself in the directory.
    pub findings: Findings,
    /// What a reader should know: an unfinished run, lines that it cut off.
    pub notes: Vec<String>,
}

/// Reads a run of `bench`, finished or not, makes its document from the rows, and holds its files
/// against one another.
///
/// # Errors
/// A directory that holds no such run, a table without one of its columns, a JSON file that is
/// none.
pub fn read(dir: &Path) -> Result<RunFiles, FileError> {
    let mut stream = open(dir)?;
    let manifest = stream.manifest().clone();
    let stored = conditions(dir)?;
    let is_stored = stored.is_some();
    let mut conditions = stored.unwrap_or_else(|| from_manifest(&manifest));
    match manifest.state {
        RunState::Complete => {}
        // A joined run that lacks a part says so already.
        RunState::Interrupted => conditions.interrupted |= !conditions.partial,
        RunState::Running => conditions.partial = true,
    }
    let (mut tally, mut logs, mut seen) = (conditions.tally(), Logs::new(), Seen::default());
    while let Some(record) = stream.next_record()? {
        seen.add(&record.row);
        if record.row.arm != WARMUP_ARM {
            let added = logs.add(&record.row, &record.tokens);
            added.map_err(|reason| json_error(dir, &reason))?;
        }
        tally.add(record.row, &record.tokens);
    }
    let (mut notes, mut findings) = (stream.notes().to_vec(), stream.findings().clone());
    if is_stored {
        check_run(&manifest, &conditions, &mut seen, &mut findings);
    }
    if let Some(plan) = Plan::of(&manifest).filter(|_| manifest.state == RunState::Running) {
        let (rows, planned) = (seen.rows(), plan.sent);
        notes.push(format!(
            "unfinished: {rows} of {planned} planned requests have rows"
        ));
    }
    if let Some(first) = seen
        .first_arrival()
        .filter(|_| conditions.frame.start == Nanos(0))
    {
        conditions.frame.start = first;
        notes.push("the start is not stored: rates count from the first arrival".to_owned());
    }
    let mut document = Document::of(&tally, &conditions);
    if manifest.state != RunState::Running {
        check_logs(dir, &logs, &mut findings);
        if let Some(stored) = bytes_of(&dir.join(DOCUMENT_FILE))? {
            check_document(&stored, &document, &mut findings);
        }
    }
    if !findings.is_empty() {
        let reasons = &mut document.validity.reasons;
        reasons.splice(0..0, findings.reasons());
        document.validity.valid = false;
        conditions.reasons.splice(0..0, findings.reasons());
    }
    Ok(RunFiles {
        manifest,
        conditions,
        tally,
        logs,
        document,
        findings,
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

/// The conditions of a run; `None` when their file is missing.
fn conditions(dir: &Path) -> Result<Option<Conditions>, FileError> {
    let path = dir.join(CONDITIONS_FILE);
    let parsed = |bytes: Vec<u8>| {
        let conditions = serde_json::from_slice(&bytes);
        conditions.map_err(|error| json_error(&path, &error))
    };
    bytes_of(&path)?.map(parsed).transpose()
}

/// A file, when it is there.
fn bytes_of(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(json_error(path, &error)),
    }
}

/// What can be told from the manifest when the conditions are missing.
fn from_manifest(manifest: &RunManifest) -> Conditions {
    Conditions {
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
    }
}

fn only(schedules: &std::collections::BTreeMap<String, String>) -> String {
    schedules.values().next().cloned().unwrap_or_default()
}

fn json_error(path: &Path, reason: &dyn std::fmt::Display) -> FileError {
    FileError::Json {
        path: path.to_owned(),
        reason: pb_record::visible(&reason.to_string()),
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
    no_overlap(runs)?;
    let mut conditions = merged.conditions;
    let mut joint = Joint {
        writer: RunWriter::create(out, joined_manifest(&manifests, &conditions, options))?,
        tally: conditions.tally(),
        logs: Logs::new(),
    };
    for (number, dir) in runs.iter().enumerate() {
        let taken = joint.take(dir, &inputs[number], merged.offsets[number])?;
        let Some(shard) = inputs[number].conditions.shard else {
            continue;
        };
        for note in conditions
            .shards
            .iter_mut()
            .filter(|note| note.shard == shard)
        {
            note.rows = taken.rows;
        }
        let named = |line: String| format!("shard {shard}: {line}");
        conditions
            .reasons
            .extend(taken.reasons.into_iter().map(named));
        conditions
            .warnings
            .extend(taken.notes.into_iter().map(named));
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

/// That of the first shard, with the requests of all of them.
fn joined_manifest(
    manifests: &[RunManifest],
    conditions: &Conditions,
    options: &JoinOptions,
) -> RunManifest {
    // OK because no shard, no merge.
    let mut manifest = manifests.first().expect("a shard").clone();
    manifest.command.clone_from(&options.command);
    manifest.created.clone_from(&conditions.identity.created);
    let plans = manifests
        .iter()
        .map(|manifest| Plan::of(manifest).map(|plan| plan.sent));
    let sent: Option<u64> = plans.sum();
    let workload = &mut manifest.workload;
    if let Some(Value::Object(schedule)) = workload.get_mut("schedule") {
        schedule.insert("requests_sent".to_owned(), sent.into());
    }
    if let Value::Object(workload) = workload {
        workload.insert("shard".to_owned(), Value::Null);
    }
    manifest
}

/// A shard without its rows.
fn shard(dir: &Path) -> Result<(ShardInput, RunManifest), FileError> {
    let mut stream = open(dir)?;
    let manifest = stream.manifest().clone();
    let conditions = conditions(dir)?.ok_or_else(|| FileError::NoConditions {
        path: dir.join(CONDITIONS_FILE),
    })?;
    let mut seen = Seen::default();
    if conditions.frame.start == Nanos(0) {
        while let Some(record) = stream.next_record()? {
            seen.add(&record.row);
        }
    }
    let input = ShardInput {
        name: dir.display().to_string(),
        conditions,
        state: manifest.state,
        rows: 0,
        first_arrival: seen.first_arrival(),
    };
    Ok((input, manifest))
}

/// Refuses shards with the same request, before anything is written.
fn no_overlap(runs: &[PathBuf]) -> Result<(), FileError> {
    let mut owners: BTreeMap<(u32, u64), usize> = BTreeMap::new();
    for (number, dir) in runs.iter().enumerate() {
        let stream = RecordStream::open(dir)?;
        let measured = stream.requests().filter(|(arm, ..)| *arm != WARMUP_ARM);
        for (_, block, request) in measured {
            if let Some(first) = owners.insert((block, request), number) {
                return Err(FileError::Overlap {
                    path: dir.clone(),
                    first: runs[first].clone(),
                    block,
                    request,
                });
            }
        }
    }
    Ok(())
}

/// The joined run under construction.
struct Joint {
    writer: RunWriter,
    tally: Tally,
    logs: Logs,
}

/// What was taken from a shard.
struct Taken {
    rows: u64,
    /// What speaks against it.
    reasons: Vec<String>,
    /// What a reader should know of it.
    notes: Vec<String>,
}

impl Joint {
    /// Takes the rows of a shard in. Its warm-up is no part of the joined run.
    fn take(&mut self, dir: &Path, input: &ShardInput, offset: Offset) -> Result<Taken, FileError> {
        let mut stream = RecordStream::open(dir)?;
        let mut seen = Seen::default();
        while let Some(mut record) = stream.next_record()? {
            seen.add(&record.row);
            if record.row.arm == WARMUP_ARM {
                continue;
            }
            record.row = offset.request(record.row);
            record
                .tokens
                .iter_mut()
                .for_each(|token| offset.token(token));
            self.writer.request(&record.row, &record.tokens)?;
            let added = self.logs.add(&record.row, &record.tokens);
            added.map_err(|reason| json_error(dir, &reason))?;
            self.tally.add(record.row, &record.tokens);
        }
        let (manifest, mut findings) = (stream.manifest(), stream.findings().clone());
        check_run(manifest, &input.conditions, &mut seen, &mut findings);
        let mut reasons = findings.reasons();
        if input.state != RunState::Complete {
            let (rows, state) = (seen.rows(), state_name(input.state));
            reasons.push(match Plan::of(manifest) {
                Some(plan) => format!(
                    "the run is {state}: {rows} of {} planned requests have rows",
                    plan.sent
                ),
                None => format!("the run is {state}: {rows} requests have rows"),
            });
        }
        Ok(Taken {
            rows: seen.rows(),
            reasons,
            notes: stream.notes().to_vec(),
        })
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
