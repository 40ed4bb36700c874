//! Records of a file into rows.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use pb_contract::Nanos;

use crate::trace::TraceRow;
use crate::trace::blocks::BlockRule;
use crate::trace::error::{Place, TraceError, shortened};
use crate::trace::formats::{FileRow, FileTime, RecordParser, TraceFormat};
use crate::trace::records::Records;
use crate::trace::time::TimeUnit;

/// Later times than this, a year, are dates and not offsets.
const MAX_OFFSET_NS: u64 = 366 * 86_400 * 1_000_000_000;

/// An iterator over the rows of a trace; it ends after the first error.
#[derive(Debug)]
pub struct TraceReader<R> {
    records: Records<R>,
    parser: Box<dyn RecordParser>,
    unit: TimeUnit,
    blocks: BlockRule,
    local_times: bool,
    /// Rows of the record that is being handed out.
    pending: VecDeque<FileRow>,
    dropped: BTreeMap<&'static str, u64>,
    rows: u64,
    /// The instant that arrivals are counted from.
    origin_ns: Option<u64>,
    last_ns: u64,
    ended: bool,
}

/// Opens a file for reading; `name` of the place in an error is its path.
pub(crate) fn open_file(path: &Path) -> Result<BufReader<File>, TraceError> {
    let opened = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
        true => Err(std::io::Error::other("it is a directory")),
        false => Ok(file),
    });
    let file = opened.map_err(|source| TraceError::Io {
        place: Place::whole(path.display().to_string()),
        source,
    })?;
    Ok(BufReader::with_capacity(1 << 16, file))
}

impl TraceReader<BufReader<File>> {
    /// Opens a file whose format, unit and blocks are as documented.
    /// [`TraceFile`](crate::trace::TraceFile) finds them out instead.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path, format: TraceFormat) -> Result<Self, TraceError> {
        let source = open_file(path)?;
        Ok(TraceReader::new(
            source,
            &path.display().to_string(),
            format,
        ))
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads `source` with the documented unit and blocks of `format` (seconds where none is
    /// documented); `name` stands for it in errors.
    pub fn new(source: R, name: &str, format: TraceFormat) -> Self {
        let unit = format.documented_unit().unwrap_or(TimeUnit::S);
        TraceReader::with(source, name, format, unit, BlockRule::documented(format))
    }

    /// Reads `source` with the given unit and blocks.
    pub fn with(
        source: R,
        name: &str,
        format: TraceFormat,
        unit: TimeUnit,
        blocks: BlockRule,
    ) -> Self {
        TraceReader {
            records: Records::new(source, name, format.framing()),
            parser: format.parser(),
            unit,
            blocks,
            local_times: format.has_local_times(),
            pending: VecDeque::new(),
            dropped: BTreeMap::new(),
            rows: 0,
            origin_ns: None,
            last_ns: 0,
            ended: false,
        }
    }

    /// Requests so far that cannot be replayed, by reason.
    pub fn dropped(&self) -> &BTreeMap<&'static str, u64> {
        &self.dropped
    }

    fn next_row(&mut self) -> Result<Option<TraceRow>, TraceError> {
        while self.pending.is_empty() {
            let Some((record, place)) = self.records.next()? else {
                return Ok(None);
            };
            let found = self.parser.parse(record, place)?;
            for reason in found.dropped {
                *self.dropped.entry(reason).or_default() += 1;
            }
            self.pending.extend(found.rows);
        }
        let Some(FileRow { at, mut row }) = self.pending.pop_front() else {
            return Ok(None);
        };
        row.arrival_ns = self.arrival(at, &mut row)?;
        row.block_tokens = match row.block_ids.is_empty() {
            true => 0,
            false => self.blocks.tokens,
        };
        self.blocks.check(&row, self.records.place())?;
        row.number = self.rows;
        self.rows += 1;
        Ok(Some(row))
    }

    /// The arrival, checked against the row before.
    fn arrival(&mut self, at: FileTime, row: &mut TraceRow) -> Result<Nanos, TraceError> {
        let place = self.records.place();
        let in_ns = |value: crate::trace::time::Decimal| {
            let too_late = || TraceError::Ambiguous {
                place: place.clone(),
                message: format!(
                    "timestamp = {}: too late when counted in {}; set its unit",
                    shortened(value),
                    self.unit
                ),
                key: Some("unit"),
            };
            value.ns(self.unit).ok_or_else(too_late)
        };
        let ns = match at {
            FileTime::Absent => {
                row.untimed = true;
                return Ok(Nanos(self.last_ns));
            }
            FileTime::Delay(delay) => {
                let delay = Nanos(in_ns(delay)?);
                if let Some(turn) = &mut row.turn {
                    turn.delay_ns = Some(delay);
                }
                row.untimed = true;
                return Ok(Nanos(self.last_ns));
            }
            FileTime::Units(value) => in_ns(value)?,
            FileTime::Instant(ns) => ns,
        };
        let is_date = matches!(at, FileTime::Instant(_)) || ns > MAX_OFFSET_NS;
        let origin = *self.origin_ns.get_or_insert(if is_date { ns } else { 0 });
        let offset = ns.checked_sub(origin);
        match offset.filter(|&offset| self.local_times || offset >= self.last_ns) {
            Some(offset) => {
                self.last_ns = offset;
                Ok(Nanos(offset))
            }
            None => {
                let fix = "must not be earlier than the row before: sort the file by time";
                let shown = format!("{} s", ns as f64 / 1e9);
                Err(TraceError::value(place, "timestamp", shown, fix))
            }
        }
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<TraceRow, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let row = self.next_row();
        self.ended = !matches!(row, Ok(Some(_)));
        row.transpose()
    }
}
