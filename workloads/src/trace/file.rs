//! A trace file with everything found out that its reading needs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use crate::trace::TraceRow;
use crate::trace::blocks::{BlockRule, BlockSurvey};
use crate::trace::detect::detect;
use crate::trace::error::{Place, TraceError};
use crate::trace::formats::{FileTime, TraceFormat};
use crate::trace::reader::{TraceReader, open_file};
use crate::trace::records::Records;
use crate::trace::servegen::{ServeGen, ServeGenParams};
use crate::trace::time::TimeUnit;
use crate::trace::units::TimeSurvey;

/// What is set by hand; the rest is found out.
#[derive(Clone, Debug, Default)]
pub struct TraceOptions {
    /// Format.
    pub format: Option<TraceFormat>,
    /// Unit of the time column.
    pub unit: Option<TimeUnit>,
    /// Tokens that a name stands for.
    pub block_tokens: Option<usize>,
    /// What to generate from a directory of client models.
    pub servegen: ServeGenParams,
}

/// A trace whose format, unit and blocks are known.
#[derive(Clone, Debug)]
pub struct TraceFile {
    path: PathBuf,
    /// Its format.
    pub format: TraceFormat,
    /// Unit of its time column; `None` where it holds dates or no times.
    pub unit: Option<TimeUnit>,
    /// Whether any row has a time.
    pub has_arrivals: bool,
    /// Its blocks; `None` where it names none.
    pub blocks: Option<BlockRule>,
    /// Why each of them is what it is, one sentence each.
    pub evidence: Vec<String>,
    servegen: ServeGenParams,
}

impl TraceFile {
    /// Looks at a whole file, in memory that does not grow with it, and decides what it holds.
    ///
    /// # Errors
    /// The file cannot be read or parsed, or a unit or block size cannot be told: the message says
    /// what speaks for what, and what to set.
    pub fn open(path: &Path, options: &TraceOptions) -> Result<Self, TraceError> {
        TraceFile::open_start(path, options, u64::MAX)
    }

    /// Looks at the first `rows` rows only, for a replay that takes no more of a very long file.
    ///
    /// # Errors
    /// As [`TraceFile::open`]; what comes after these rows is not looked at.
    pub fn open_start(path: &Path, options: &TraceOptions, rows: u64) -> Result<Self, TraceError> {
        let (format, mut evidence) = match options.format {
            Some(format) => (format, vec![format!("format {format}: as set")]),
            None => {
                let found = detect(path)?;
                let evidence = format!("format {}: {}", found.format, found.evidence);
                (found.format, vec![evidence])
            }
        };
        if format == TraceFormat::ServeGen {
            let models = ServeGen::open(path)?;
            evidence.push(models.summary());
            return Ok(TraceFile {
                path: path.to_owned(),
                format,
                unit: None,
                has_arrivals: true,
                blocks: None,
                evidence,
                servegen: options.servegen.clone(),
            });
        }
        let survey = Survey::of(path, format, rows)?;
        if survey.cut {
            evidence.push(format!("looked at the first {rows} rows"));
        }
        let refuse = |key, message: String| TraceError::Ambiguous {
            place: Place::whole(path.display().to_string()),
            message,
            key: Some(key),
        };
        let mut unit = None;
        if survey.times.any() {
            let decided = survey.times.decide(format, options.unit);
            let (decided, why) = decided.map_err(|why| refuse("unit", why))?;
            evidence.push(format!("unit {decided}: {why}"));
            unit = Some(decided);
        }
        let mut blocks = None;
        if survey.blocks.named_rows > 0 {
            let stated = stated_block_tokens(path);
            let decided = survey.blocks.decide(format, options.block_tokens, stated);
            let (rule, why) = decided.map_err(|why| refuse("block_size", why))?;
            evidence.push(format!("block size {}: {why}", rule.tokens));
            blocks = Some(rule);
        }
        Ok(TraceFile {
            path: path.to_owned(),
            format,
            unit,
            has_arrivals: survey.times.any() || survey.dates,
            blocks,
            evidence,
            servegen: options.servegen.clone(),
        })
    }

    /// Reads the rows, one at a time.
    ///
    /// # Errors
    /// The file cannot be opened, or client models cannot be read.
    pub fn rows(&self) -> Result<Rows, TraceError> {
        if self.format == TraceFormat::ServeGen {
            let made = ServeGen::open(&self.path)?.generate(&self.servegen)?;
            return Ok(Rows::Made {
                rows: made.rows.into_iter(),
                dropped: made.dropped,
            });
        }
        Ok(Rows::Read(TraceReader::with(
            open_file(&self.path)?,
            &self.path.display().to_string(),
            self.format,
            self.unit.unwrap_or(TimeUnit::S),
            self.blocks.unwrap_or(BlockRule::documented(self.format)),
        )))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The rows of a trace, read or generated.
#[derive(Debug)]
pub enum Rows {
    /// From a file.
    Read(TraceReader<BufReader<File>>),
    /// From client models.
    Made {
        /// Rows to come.
        rows: std::vec::IntoIter<TraceRow>,
        /// Requests that could not be made, by reason.
        dropped: BTreeMap<&'static str, u64>,
    },
}

impl Rows {
    /// Requests so far that cannot be replayed, by reason.
    pub fn dropped(&self) -> &BTreeMap<&'static str, u64> {
        match self {
            Rows::Read(reader) => reader.dropped(),
            Rows::Made { dropped, .. } => dropped,
        }
    }
}

impl Iterator for Rows {
    type Item = Result<TraceRow, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Rows::Read(reader) => reader.next(),
            Rows::Made { rows, .. } => rows.next().map(Ok),
        }
    }
}

/// Block size in a name such as `qwen_traceA_blksz_16.jsonl`.
fn stated_block_tokens(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    let (_, rest) = name.split_once("blksz_")?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok().filter(|&size| size > 0)
}

/// One pass over a file.
#[derive(Debug, Default)]
struct Survey {
    times: TimeSurvey,
    blocks: BlockSurvey,
    dates: bool,
    /// There may be more rows than were looked at.
    cut: bool,
}

impl Survey {
    fn of(path: &Path, format: TraceFormat, rows: u64) -> Result<Self, TraceError> {
        let source = open_file(path)?;
        let name = path.display().to_string();
        let mut records = Records::new(source, &name, format.framing());
        let mut parser = format.parser();
        let mut survey = Survey::default();
        let mut seen = 0;
        while let Some((record, place)) = records.next()? {
            if seen >= rows {
                survey.cut = true;
                break;
            }
            for file_row in parser.parse(record, place)?.rows {
                seen += 1;
                match file_row.at {
                    FileTime::Units(at) => survey.times.add(at),
                    FileTime::Instant(_) => survey.dates = true,
                    FileTime::Delay(_) | FileTime::Absent => {}
                }
                let row = file_row.row;
                survey
                    .blocks
                    .add(row.input_tokens, row.block_ids.len(), place.line);
            }
        }
        Ok(survey)
    }
}
