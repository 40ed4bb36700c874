//! The files of a suite's run: `suite.json`, `plan.json`, and the document of each cell.
//!
//! Fields that this report does not use are not read, so that a later `suite.json` with further
//! keys is read as well.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use pb_record::visible;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::measure::Measure;

/// Name of the file with the verdicts.
pub const SUITE_FILE: &str = "suite.json";

/// Name of the file with the plan.
const PLAN_FILE: &str = "plan.json";

/// Name of a run's page.
const PAGE_FILE: &str = "report.html";

/// Version of the keys that is read.
const SCHEMA_VERSION: u32 = 1;

/// Pairs that any claim needs.
const LEAST_PAIRS: usize = 3;

/// Largest JSON file that is read, in bytes: 10,000 cells with long reasons are a tenth of it.
const LARGEST: u64 = 256 << 20;

/// Samples that are kept of all cells together: 160 MB. What comes after them is not pooled.
const MOST_SAMPLES: u64 = 20_000_000;

/// A suite's run that cannot be reported.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// A file that cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something else than a file of a sensible size.
    #[error("{path}: {what}: name the directory that `prefillbench run` wrote")]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A file that is not what it should be.
    #[error("{path}: {reason}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why, with line and column.
        reason: String,
    },
    /// Keys of another version.
    #[error(
        "{path}: schema_version is {found}, and this program reads {SCHEMA_VERSION}: use the \
         program that wrote it"
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// A cell that lies somewhere else.
    #[error("{path}: cells[].dir = \"{dir}\": a cell lies below the directory of its suite")]
    Outside {
        /// The file.
        path: PathBuf,
        /// What it says.
        dir: String,
    },
}

/// `suite.json`.
#[derive(Debug, Deserialize)]
pub(super) struct SuiteFile {
    pub(super) name: String,
    pub(super) question: String,
    pub(super) reading: String,
    pub(super) suite_sha256: String,
    pub(super) seed: u64,
    pub(super) tool: Value,
    pub(super) machine: Value,
    /// `complete`, `incomplete` or `interrupted`.
    pub(super) state: String,
    /// `fixed`, `sequential` or `spending`.
    pub(super) stop: String,
    pub(super) alpha: f64,
    pub(super) blocks_planned: usize,
    pub(super) blocks_run: usize,
    pub(super) cells: Vec<CellNote>,
    pub(super) comparisons: Vec<Comparison>,
    pub(super) exit_code: u8,
}

/// A cell as `suite.json` tells it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct CellNote {
    pub(super) block: usize,
    pub(super) condition: String,
    pub(super) arm: String,
    pub(super) dir: String,
    pub(super) state: String,
    pub(super) valid: Option<bool>,
    pub(super) reasons: Vec<String>,
    pub(super) schedule_sha256: Option<String>,
    pub(super) success_rate: Option<f64>,
    pub(super) gates_failed: Vec<String>,
    pub(super) wall_s: Option<f64>,
}

/// A comparison as `suite.json` tells it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Comparison {
    pub(super) hypothesis: String,
    pub(super) metric: String,
    pub(super) baseline: String,
    pub(super) candidate: String,
    pub(super) condition: String,
    pub(super) expect: Option<String>,
    pub(super) margin: f64,
    /// `ratio` or `difference`.
    pub(super) scale: String,
    pub(super) pairs: usize,
    pub(super) blocks: Vec<usize>,
    pub(super) left_out: Vec<String>,
    pub(super) baseline_values: Vec<f64>,
    pub(super) candidate_values: Vec<f64>,
    pub(super) baseline_median: Option<f64>,
    pub(super) candidate_median: Option<f64>,
    pub(super) change: Option<Interval>,
    pub(super) p: Option<f64>,
    pub(super) holm_p: f64,
    pub(super) verdict: String,
    pub(super) why: String,
    pub(super) as_expected: Option<bool>,
    /// Inconclusive for one reason only: Holm over all comparisons does not confirm a change that
    /// its own interval shows.
    #[serde(skip)]
    pub(super) seen: bool,
}

impl Comparison {
    /// Whether only the adjustment for all comparisons keeps it from being claimed.
    fn is_seen(&self, alpha: f64) -> bool {
        let (none, low, high) = match self.scale.as_str() {
            "ratio" => (1.0, 1.0 / (1.0 + self.margin), 1.0 + self.margin),
            _ => (0.0, -self.margin, self.margin),
        };
        let changed = self.change.is_some_and(|change| {
            (change.low > none || change.high < none) && (change.point < low || change.point > high)
        });
        // With too few pairs it is inconclusive for that reason.
        let enough = self.pairs >= LEAST_PAIRS && self.left_out.len() <= self.pairs;
        self.verdict == "inconclusive" && enough && changed && self.holm_p >= alpha
    }
}

/// A change with its interval: a ratio, or a difference.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(super) struct Interval {
    pub(super) point: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// A cell with what its own directory tells.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) note: CellNote,
    /// The document of its run; absent when it has none.
    pub(super) document: Option<Value>,
    /// What in its directory contradicts itself or `suite.json`.
    pub(super) contradictions: Vec<String>,
    /// Whether the document was made again from the rows.
    pub(super) from_rows: bool,
    /// Samples in ms of what the hypotheses ask about, by [`Measure::sampled`].
    pub(super) samples: BTreeMap<String, Vec<f64>>,
    /// What to open for more, below the suite's directory.
    pub(super) page: Option<String>,
}

impl Cell {
    /// Whether its numbers may be used.
    pub(super) fn is_valid(&self) -> bool {
        let note = &self.note;
        note.state == "complete" && note.valid == Some(true) && self.contradictions.is_empty()
    }

    /// One word for how it stands.
    pub(super) fn word(&self) -> &'static str {
        match self.note.state.as_str() {
            "complete" if self.is_valid() => "valid",
            "complete" if !self.contradictions.is_empty() => "BROKEN",
            "complete" => "void",
            "failed" => "FAILED",
            "interrupted" => "interrupted",
            "running" => "unfinished",
            _ => "missing",
        }
    }
}

/// The directory of a suite's run.
#[derive(Debug)]
pub(super) struct SuiteDir {
    pub(super) file: SuiteFile,
    /// `suite.json` as it is.
    pub(super) document: Value,
    pub(super) cells: Vec<Cell>,
    /// The suite as it was planned; null without a plan.
    pub(super) plan: Value,
    /// Names of the arms in the order of the plan, when there is one.
    pub(super) arms: Vec<String>,
    /// Names of the conditions in the order of the plan.
    pub(super) conditions: Vec<String>,
    /// The suite as `plan.json` has it; null without one.
    pub(super) planned: Value,
    /// Share of a cell's requests that must end well for its latencies to count.
    pub(super) least_success: f64,
    /// Attempts before that lie beside the cells.
    pub(super) attempts: usize,
}

/// Reads the run of a suite in `dir`. The numbers of each cell are made again from its rows; where
/// these are not there they are those of its `bench.json`.
pub(super) fn read(dir: &Path) -> Result<SuiteDir, SuiteError> {
    let path = dir.join(SUITE_FILE);
    let value: Value = json(&path)?;
    let version = value["schema_version"].as_u64().unwrap_or(0);
    if version != u64::from(SCHEMA_VERSION) {
        return Err(SuiteError::Schema {
            path,
            found: version,
        });
    }
    let mut file: SuiteFile =
        serde_json::from_value(value.clone()).map_err(|error| bad(&path, &error))?;
    for one in &mut file.comparisons {
        one.seen = one.is_seen(file.alpha);
    }
    for cell in &file.cells {
        let parts = Path::new(&cell.dir).components();
        let below = parts
            .clone()
            .all(|part| matches!(part, Component::Normal(_)));
        if !below || parts.count() == 0 {
            let dir = visible(&cell.dir);
            return Err(SuiteError::Outside { path, dir });
        }
    }
    let plan = dir.join(PLAN_FILE);
    let plan: Value = match plan.exists() {
        true => json(&plan)?,
        false => Value::Null,
    };
    let suite = &plan["facts"]["suite"];
    let mut cells: Vec<Cell> = Vec::with_capacity(file.cells.len());
    let asked: Vec<Measure> = file.comparisons.iter().map(Comparison::measure).collect();
    let mut room = MOST_SAMPLES;
    for note in &file.cells {
        cells.push(cell(dir, note, &asked, &mut room)?);
    }
    cells.sort_by(|a, b| key(&a.note).cmp(&key(&b.note)));
    Ok(SuiteDir {
        document: value,
        arms: keys(&suite["arms"]),
        conditions: keys(&suite["conditions"]),
        least_success: suite["run"]["least_success"].as_f64().unwrap_or(1.0),
        planned: suite.clone(),
        attempts: file.cells.iter().map(|cell| attempts(dir, cell)).sum(),
        plan: suite.clone(),
        file,
        cells,
    })
}

fn key(note: &CellNote) -> (usize, &str, &str) {
    (note.block, &note.condition, &note.arm)
}

fn keys(table: &Value) -> Vec<String> {
    let table = table.as_object().into_iter().flatten();
    table.map(|(name, _)| name.clone()).collect()
}

fn cell(
    dir: &Path,
    note: &CellNote,
    asked: &[Measure],
    room: &mut u64,
) -> Result<Cell, SuiteError> {
    let place = dir.join(&note.dir);
    let mut cell = Cell {
        note: note.clone(),
        document: None,
        contradictions: Vec::new(),
        from_rows: false,
        samples: BTreeMap::new(),
        page: None,
    };
    let document = place.join(pb_bench::DOCUMENT_FILE);
    for file in [place.join(PAGE_FILE), document.clone()] {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if cell.page.is_none() && file.is_file() {
            cell.page = Some(format!("{}/{name}", note.dir));
        }
    }
    if note.state != "complete" {
        return Ok(cell);
    }
    // Without the rows of the tokens a run has been thinned out on purpose, to be small.
    let rows = ["manifest.json", "requests.csv", "tokens.csv"].map(|file| place.join(file));
    if rows.iter().all(|file| file.is_file()) {
        match pb_bench::files::read(&place) {
            Err(error) => cell.contradictions.push(visible(&error.to_string())),
            Ok(run) => {
                let value = serde_json::to_value(&run.document);
                cell.document = Some(value.map_err(|error| bad(&document, &error))?);
                cell.from_rows = true;
                for measure in asked.iter().filter(|m| m.percentile().is_some()) {
                    let key = measure.sampled();
                    if cell.samples.contains_key(&key) {
                        continue;
                    }
                    if let Some(samples) = measure.all_samples(&run.tally, *room) {
                        *room -= samples.len() as u64;
                        cell.samples.insert(key, samples);
                    }
                }
                cell.contradictions.extend(run.findings.reasons());
            }
        }
    } else if document.is_file() {
        cell.document = Some(json(&document)?);
    }
    agrees(&mut cell);
    Ok(cell)
}

/// Holds what `suite.json` says of a cell against the cell.
fn agrees(cell: &mut Cell) {
    let Some(document) = &cell.document else {
        let lost = "its document is not there, and suite.json calls it complete";
        if cell.contradictions.is_empty() {
            cell.contradictions.push(lost.to_owned());
        }
        return;
    };
    let note = &cell.note;
    let mut found = Vec::new();
    let valid = document["validity"]["valid"].as_bool();
    if note.valid == Some(true) && valid != Some(true) {
        found.push("suite.json calls it valid, and its document does not".to_owned());
    }
    let schedule = document["schedule_sha256"].as_str();
    if note.schedule_sha256.as_deref() != schedule {
        found.push("suite.json has another schedule_sha256 than its document".to_owned());
    }
    cell.contradictions.extend(found);
}

/// Directories beside that of a cell that hold attempts before.
fn attempts(dir: &Path, note: &CellNote) -> usize {
    let beside = |n: usize| dir.join(format!("{}~{n}", note.dir));
    (1..).take_while(|&n| beside(n).is_dir()).count()
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, SuiteError> {
    let read = |source| SuiteError::Read {
        path: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(read)?;
    let what = match (metadata.is_file(), metadata.len() > LARGEST) {
        (false, _) => "no regular file",
        (true, true) => "larger than 256 MiB",
        (true, false) => {
            let bytes = std::fs::read(path).map_err(read)?;
            return serde_json::from_slice(&bytes).map_err(|error| bad(path, &error));
        }
    };
    Err(SuiteError::NoFile {
        path: path.to_owned(),
        what,
    })
}

fn bad(path: &Path, error: &serde_json::Error) -> SuiteError {
    SuiteError::Json {
        path: path.to_owned(),
        reason: visible(&error.to_string()),
    }
}
