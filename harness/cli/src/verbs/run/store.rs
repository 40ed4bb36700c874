//! The directory of a suite's run: its plan, its cells, and what of them can be kept.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pb_bench::Steadiness;
use pb_contract::Nanos;
use pb_contract::manifest::RunState;
use pb_judge::compare::fingerprint;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::plan::{CellId, Plan};

/// Name of the file with the plan.
const PLAN_FILE: &str = "plan.json";

/// Name of the file that says what a cell is and how it ended.
const CELL_FILE: &str = "cell.json";

/// Name of the file with the verdicts.
pub(crate) const SUITE_FILE: &str = "suite.json";

/// Name of the log of a server.
const LOG_FILE: &str = "server.log";

/// Differences that are told of a suite that was changed.
const TOLD: usize = 8;

/// How a cell ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CellState {
    /// It runs, or whoever ran it was killed.
    Running,
    /// Its run directory is whole. Whether its numbers may be used says `bench.json`.
    Complete,
    /// Its server did not start, or could not be measured.
    Failed,
    /// It was stopped by hand.
    Interrupted,
}

/// What a cell is and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CellFile {
    /// Hash of the suite that it belongs to.
    pub(crate) suite_sha256: String,
    /// Number of its block.
    pub(crate) block: usize,
    /// Name of its condition.
    pub(crate) condition: String,
    /// Name of its arm.
    pub(crate) arm: String,
    /// Seed of its schedule.
    pub(crate) seed: u64,
    /// How it ended.
    pub(crate) state: CellState,
    /// Why it did not end well.
    pub(crate) why: Option<String>,
    /// From the start of its server to the end of its run.
    pub(crate) wall_ns: Nanos,
}

/// A cell that is finished.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// The document of its run.
    pub(crate) document: Value,
    /// What it took, with its server.
    pub(crate) wall_ns: Nanos,
    /// Hash of its instants; absent of a cell that was measured by this process.
    pub(crate) fingerprint: Option<u64>,
}

impl Done {
    /// What speaks against its numbers; nothing when they may be used.
    pub(crate) fn reasons(&self) -> Vec<String> {
        pb_judge::suite::reasons(&self.document)
    }

    /// Figures by which it has no steady state, with the number; none of a run of an earlier day,
    /// which does not say.
    pub(crate) fn drifts(&self) -> Vec<String> {
        let all = serde_json::from_value::<Vec<Steadiness>>(self.document["steadiness"].clone());
        let all = all.unwrap_or_default();
        let flagged = all.iter().filter(|one| one.is_flagged());
        flagged.map(Steadiness::words).collect()
    }

    /// Share of its requests that ended well.
    pub(crate) fn success(&self) -> Option<f64> {
        pb_judge::suite::success(&self.document)
    }

    /// Hash of its schedule.
    pub(crate) fn schedule(&self) -> &str {
        pb_judge::suite::schedule(&self.document)
    }
}

/// The directory of a suite's run. It is locked for as long as this lives.
pub(crate) struct Store {
    dir: PathBuf,
    /// Of one that may write.
    _lock: Option<File>,
}

impl Store {
    /// Opens the directory for `plan`: a new one, or one that was begun with the same suite.
    ///
    /// # Errors
    /// A directory of another suite, or of one that was changed: the message says what differs.
    /// One that another process works in; one that cannot be written.
    pub(crate) fn open(dir: &Path, plan: &Plan) -> Result<Store> {
        let place = || format!("--out {}", dir.display());
        // First, because `new/..` is no directory before `new` is one; then it has what lies there.
        std::fs::create_dir_all(dir).with_context(place)?;
        let begun = is_begun(dir, plan)?;
        let lock = File::create(dir.join("lock")).with_context(place)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!("{}: another run works in it", place()),
            Err(TryLockError::Error(error)) => return Err(error).with_context(place),
        }
        if !begun {
            let facts = json!({"schema_version": 1, "sha256": plan.sha256, "facts": plan.facts});
            pb_record::write_json_atomic(&dir.join(PLAN_FILE), &facts)?;
        }
        Ok(Store {
            dir: dir.to_owned(),
            _lock: Some(lock),
        })
    }

    /// The cells that `dir` has finished already; changes nothing there.
    ///
    /// # Errors
    /// As [`Store::open`], but for a directory that cannot be written or is in use.
    pub(crate) fn finished(dir: &Path, plan: &Plan) -> Result<Vec<CellId>> {
        if !is_begun(dir, plan)? {
            return Ok(Vec::new());
        }
        let store = Store {
            dir: dir.to_owned(),
            _lock: None,
        };
        let mut finished = Vec::new();
        for cell in plan.chosen(&[])? {
            if store.done(plan, cell)?.is_some() {
                finished.push(cell);
            }
        }
        Ok(finished)
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of a cell.
    pub(crate) fn cell(&self, plan: &Plan, cell: CellId) -> PathBuf {
        self.dir.join(plan.folder(cell))
    }

    /// Where the words of a server go that serves `cell` first, `alone` or with others.
    pub(crate) fn log(&self, plan: &Plan, cell: CellId, alone: bool) -> Result<PathBuf> {
        let path = if alone {
            self.cell(plan, cell).join(LOG_FILE)
        } else {
            let name = format!("server-{}.log", plan.suite.arms[cell.arm].name);
            self.dir
                .join(format!("cells/block-{:03}", cell.block))
                .join(name)
        };
        if let Some(folder) = path.parent() {
            let place = || format!("cannot create {}", folder.display());
            std::fs::create_dir_all(folder).with_context(place)?;
        }
        Ok(path)
    }

    /// Makes room for a cell that is run: what an attempt before left is kept beside it.
    pub(crate) fn begin(&self, plan: &Plan, cell: CellId) -> Result<()> {
        let dir = self.cell(plan, cell);
        let place = || format!("cannot create {}", dir.display());
        if dir.exists() {
            let beside = (1..).map(|n| PathBuf::from(format!("{}~{n}", dir.display())));
            let free = beside.into_iter().find(|path| !path.exists());
            std::fs::rename(&dir, free.unwrap_or_default()).with_context(place)?;
        }
        std::fs::create_dir_all(&dir).with_context(place)?;
        self.note(plan, cell, CellState::Running, None, Nanos::ZERO)
    }

    /// Writes how a cell stands.
    pub(crate) fn note(
        &self,
        plan: &Plan,
        cell: CellId,
        state: CellState,
        why: Option<String>,
        wall_ns: Nanos,
    ) -> Result<()> {
        let file = CellFile {
            suite_sha256: plan.sha256.clone(),
            block: cell.block,
            condition: plan.suite.conditions[cell.condition].name.clone(),
            arm: plan.suite.arms[cell.arm].name.clone(),
            seed: plan.blocks[cell.block].seed,
            state,
            why,
            wall_ns,
        };
        pb_record::write_json_atomic(&self.cell(plan, cell).join(CELL_FILE), &file)?;
        Ok(())
    }

    /// What is written of a cell; nothing when it was never begun.
    ///
    /// # Errors
    /// A file that cannot be read or is none of ours.
    pub(crate) fn told(&self, plan: &Plan, cell: CellId) -> Result<Option<CellFile>> {
        let path = self.cell(plan, cell).join(CELL_FILE);
        if !path.exists() {
            return Ok(None);
        }
        // A file that was cut off, as by a full disk, is of a cell that was not finished.
        let text = std::fs::read(&path).with_context(|| format!("{}", path.display()))?;
        Ok(serde_json::from_slice(&text).ok())
    }

    /// The cell, when it is finished: its run is whole and belongs to this suite.
    ///
    /// # Errors
    /// As [`Store::told`].
    pub(crate) fn done(&self, plan: &Plan, cell: CellId) -> Result<Option<Done>> {
        let Some(file) = self.told(plan, cell)? else {
            return Ok(None);
        };
        let own = file.suite_sha256 == plan.sha256 && file.seed == plan.blocks[cell.block].seed;
        if file.state != CellState::Complete || !own {
            return Ok(None);
        }
        let dir = self.cell(plan, cell);
        // Its numbers are made again from the rows, and files that disagree make it void.
        let Ok(run) = pb_bench::files::read(&dir) else {
            return Ok(None);
        };
        if run.manifest.state != RunState::Complete {
            return Ok(None);
        }
        Ok(Some(Done {
            document: serde_json::to_value(&run.document)?,
            wall_ns: file.wall_ns,
            fingerprint: fingerprint(run.tally.rows()),
        }))
    }
}

/// Whether the suite of `plan` was begun in `dir`.
///
/// # Errors
/// Something else lies there: other files, or a suite that differs.
fn is_begun(dir: &Path, plan: &Plan) -> Result<bool> {
    let place = || format!("--out {}", dir.display());
    let path = dir.join(PLAN_FILE);
    if path.exists() {
        let known = read_json(&path)?;
        if known["sha256"] != plan.sha256.as_str() {
            bail!("{}", changed(dir, &known["facts"], &plan.facts));
        }
        return Ok(true);
    }
    if dir.exists() {
        let mut entries = std::fs::read_dir(dir).with_context(place)?;
        if entries.any(|entry| entry.is_ok_and(|e| e.file_name() != "lock")) {
            bail!(
                "{}: no run of a suite lies there, but something else: use another",
                place()
            );
        }
    }
    Ok(false)
}

fn read_json(path: &Path) -> Result<Value> {
    let place = || format!("cannot read {}", path.display());
    let text = std::fs::read_to_string(path).with_context(place)?;
    serde_json::from_str(&text).with_context(place)
}

/// What to say of a suite that is not the one that the directory was begun with.
fn changed(dir: &Path, before: &Value, now: &Value) -> String {
    let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
    flatten("", before, &mut old);
    flatten("", now, &mut new);
    let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let value = |side: &BTreeMap<String, String>, key: &String| {
        let found = side.get(key).map_or("absent", String::as_str);
        pb_record::visible(found)
    };
    let differ: Vec<String> = keys
        .into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| {
            format!(
                "  {key}: {} then, {} now",
                value(&old, key),
                value(&new, key)
            )
        })
        .collect();
    let mut told = format!(
        "--out {}: it was begun with another suite, program or machine, and cells of two cannot be \
         judged together; use another directory, or undo the change:",
        dir.display()
    );
    for line in differ.iter().take(TOLD) {
        told.push('\n');
        told.push_str(line);
    }
    match differ.len() {
        0 => told.push_str("\n  a value under env (values are not kept, as they may be keys)"),
        n if n > TOLD => told.push_str(&format!("\n  and {} more", n - TOLD)),
        _ => {}
    }
    told
}

/// Every value of a document by its path.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let below = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                flatten(&below(key), value, into);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for (i, value) in list.iter().enumerate() {
                flatten(&below(&i.to_string()), value, into);
            }
        }
        other => {
            into.insert(path.to_owned(), other.to_string());
        }
    }
}
