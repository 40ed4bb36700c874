//! Data sets that replay recorded requests: traces, vLLM's timed trace, ServeGen's models.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pb_contract::Nanos;
use serde::{Deserialize, Serialize};

use crate::dataset::drawn::TOO_LONG;
use crate::dataset::files::has_path;
use crate::dataset::{Ask, Drawn, Talk, TalkTurn, Want};
use crate::error::{DatasetError, WorkloadError};
use crate::plan::{check_bytes, check_requests};
use crate::realise::{Message, Name, Part, Slice};
use crate::trace::{
    LengthScale, RowPrompt, ServeGenParams, TimeUnit, TraceFile, TraceFormat, TraceOptions,
    TraceRow, output_of, spread_arrivals, time_scale,
};

/// Rows that a file is judged by when only a part of it is going to be replayed.
const ROWS_LOOKED_AT: u64 = 1_000_000;

/// What is done with arrivals that the recorder rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceArrivals {
    /// They are replayed as they are.
    #[default]
    AsIs,
    /// Those of one bin are spread over it.
    Spread,
}

/// When the turns of a recorded conversation are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceTurns {
    /// Each at its recorded time, whatever became of the one before.
    Open,
    /// Each after the end of the one before, by the recorded delay, or by the recorded time between
    /// the two where no delay is recorded.
    Sessions,
}

/// Parameters of `trace`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TraceParams {
    /// File, or directory of ServeGen models.
    pub path: PathBuf,
    /// Format; found out without it.
    pub format: Option<TraceFormat>,
    /// Unit of its times; found out without it.
    pub unit: Option<TimeUnit>,
    /// Tokens that one of its block names stands for; found out without it.
    pub block_size: Option<usize>,
    /// What is done with rounded arrivals.
    pub arrivals: TraceArrivals,
    /// Above 1 stretches, below 1 compresses the time.
    pub time_scale: f64,
    /// Scales prompts and outputs, for a small context.
    pub length_scale: f64,
    /// Rows that are read, at most.
    pub max_rows: Option<usize>,
    /// When turns are due; without it sessions where the file has delays or local times.
    pub turns: Option<TraceTurns>,
    /// Output of rows that record none; without it they are dropped.
    pub output_len: Option<u32>,
    /// Of ServeGen models: start within their time, in seconds.
    pub start_s: u64,
    /// Of ServeGen models: length, in seconds.
    pub duration_s: u64,
    /// Of ServeGen models: all rates are multiplied by this.
    pub rate_scale: f64,
}

impl Default for TraceParams {
    fn default() -> Self {
        TraceParams {
            path: PathBuf::new(),
            format: None,
            unit: None,
            block_size: None,
            arrivals: TraceArrivals::AsIs,
            time_scale: 1.0,
            length_scale: 1.0,
            max_rows: None,
            turns: None,
            output_len: None,
            start_s: 0,
            duration_s: 600,
            rate_scale: 1.0,
        }
    }
}

/// Parameters of `timed-trace`, those of `vllm bench serve`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimedTraceParams {
    /// File.
    pub path: PathBuf,
    /// Times are multiplied by this to give seconds; found out without it.
    pub sec_multiplier: Option<f64>,
    /// Tokens that one of its block names stands for; found out without it.
    pub chunk_size: Option<usize>,
}

/// Parameters of `servegen`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServegenParams {
    /// Directory of client models.
    pub path: PathBuf,
    /// Start within their time, in seconds.
    pub start_s: u64,
    /// Length, in seconds.
    pub duration_s: u64,
    /// All rates are multiplied by this.
    pub rate_scale: f64,
}

impl Default for ServegenParams {
    fn default() -> Self {
        ServegenParams {
            path: PathBuf::new(),
            start_s: 0,
            duration_s: 600,
            rate_scale: 1.0,
        }
    }
}

impl TimedTraceParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        // A unit is exact where a factor is rounded.
        let (unit, factor) = match self.sec_multiplier {
            None => (None, 1.0),
            Some(1.0) => (Some(TimeUnit::S), 1.0),
            Some(1e-3) => (Some(TimeUnit::Ms), 1.0),
            Some(1e-6) => (Some(TimeUnit::Us), 1.0),
            Some(factor) => (Some(TimeUnit::S), factor),
        };
        if self.chunk_size == Some(0) {
            return Err(WorkloadError::parameter("chunk_size", 0, "must be at least 1").into());
        }
        let params = TraceParams {
            path: self.path.clone(),
            format: Some(TraceFormat::VllmTimed),
            unit,
            block_size: self.chunk_size,
            time_scale: factor,
            ..TraceParams::default()
        };
        params.draw_as("timed-trace", want)
    }
}

impl ServegenParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        let params = TraceParams {
            path: self.path.clone(),
            format: Some(TraceFormat::ServeGen),
            start_s: self.start_s,
            duration_s: self.duration_s,
            rate_scale: self.rate_scale,
            ..TraceParams::default()
        };
        params.draw_as("servegen", want)
    }
}

impl TraceParams {
    pub(crate) fn draw(&self, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        self.draw_as("trace", want)
    }

    fn draw_as(&self, class: &str, want: &Want<'_>) -> Result<Drawn, DatasetError> {
        has_path(&self.path)?;
        let options = TraceOptions {
            format: self.format,
            unit: self.unit,
            block_tokens: self.block_size,
            servegen: ServeGenParams {
                start_s: self.start_s,
                duration_s: self.duration_s,
                rate_scale: self.rate_scale,
                seed: want.seed,
            },
        };
        if self.block_size == Some(0) {
            return Err(WorkloadError::parameter("block_size", 0, "must be at least 1").into());
        }
        let part_is_enough = want.count < usize::MAX || want.until.is_some();
        let looked_at = match (self.max_rows, part_is_enough) {
            (Some(rows), _) => rows as u64,
            (None, true) => ROWS_LOOKED_AT,
            (None, false) => u64::MAX,
        };
        let file = TraceFile::open_start(&self.path, &options, looked_at)?;
        let mut drawn = Drawn {
            shares: file.blocks.is_some() || file.format == TraceFormat::AiPerf,
            evidence: file.evidence.clone(),
            has_arrivals: file.has_arrivals,
            ..Drawn::default()
        };
        let mut rows = self.read(&file, want, &mut drawn)?;
        match self.arrivals {
            TraceArrivals::AsIs => drawn.evidence.push("arrivals as recorded".into()),
            TraceArrivals::Spread => {
                spread_arrivals(&mut rows, want.seed);
                let why = "arrivals of one bin spread over it";
                drawn.evidence.push(why.into());
            }
        }
        if let Some(until) = want.until {
            rows.retain(|row| row.arrival_ns < until);
        }
        let silent = rows.iter().filter(|row| row.output_tokens == 0).count();
        if silent > 0 {
            let why = format!("{silent} rows generated nothing: they ask for one token");
            drawn.evidence.push(why);
        }
        let delays = |row: &TraceRow| row.turn.as_ref().is_some_and(|t| t.delay_ns.is_some());
        let turns = self.turns.unwrap_or_else(|| {
            match file.format.has_local_times() || rows.iter().any(delays) {
                true => TraceTurns::Sessions,
                false => TraceTurns::Open,
            }
        });
        match turns {
            TraceTurns::Open => {
                rows.sort_by_key(|row| (row.arrival_ns, row.number));
                drawn.asks = rows.into_iter().map(|row| ask(class, row)).collect();
            }
            TraceTurns::Sessions => sessions(class, rows, &mut drawn),
        }
        Ok(drawn)
    }

    /// The rows that fit, as many as are wanted, scaled.
    fn read(
        &self,
        file: &TraceFile,
        want: &Want<'_>,
        drawn: &mut Drawn,
    ) -> Result<Vec<TraceRow>, DatasetError> {
        let stretch = time_scale(self.time_scale)?;
        let block = file.blocks.map_or(0, |rule| rule.tokens);
        let shrink = match self.length_scale == 1.0 {
            true => None,
            false => Some(LengthScale::new(self.length_scale, block)?),
        };
        let sorted = !file.format.has_local_times();
        let mut source = file.rows()?;
        let (mut rows, mut tokens) = (Vec::new(), 0u64);
        while rows.len() < want.count && self.max_rows.is_none_or(|m| drawn.rows_read < m as u64) {
            let Some(row) = source.next() else {
                break;
            };
            let mut row = row?;
            row.count_tokens(&mut |text| want.count_text(text));
            stretch(&mut row);
            if sorted && want.until.is_some_and(|until| row.arrival_ns >= until) {
                break;
            }
            drawn.rows_read += 1;
            if row.output_unknown {
                let Some(output) = self.output_len else {
                    drawn.drop_row("output_not_recorded");
                    continue;
                };
                row.output_tokens = output as usize;
            }
            if let Some(shrink) = shrink {
                shrink.apply(&mut row);
            }
            if !want.fits(row.input_tokens as u64, u64::from(output_of(&row))) {
                drawn.drop_row(TOO_LONG);
                continue;
            }
            tokens += row.input_tokens as u64;
            check_bytes(tokens * size_of::<u32>() as u64)?;
            check_requests(rows.len())?;
            rows.push(row);
        }
        for (reason, count) in source.dropped() {
            *drawn.dropped.entry((*reason).to_owned()).or_default() += count;
        }
        Ok(rows)
    }
}

fn ask(class: &str, row: TraceRow) -> Ask {
    Ask {
        class: class.to_owned(),
        max_tokens: output_of(&row),
        due: row.arrival_ns,
        messages: messages(row),
    }
}

/// What a row says, or the slices that stand for it.
fn messages(row: TraceRow) -> Vec<Message> {
    match row.prompt {
        Some(RowPrompt::Text(text)) => vec![Message::user(Part::Text(text))],
        Some(RowPrompt::Chat(turns)) => {
            let message = |turn: crate::trace::ChatTurn| Message {
                role: turn.role,
                part: Part::Text(turn.content),
            };
            turns.into_iter().map(message).collect()
        }
        None => vec![Message::user(Part::Slices(slices(&row)))],
    }
}

fn slices(row: &TraceRow) -> Vec<Slice> {
    let block = |(index, &id): (usize, &u64)| Slice {
        name: Name::Shared(id),
        tokens: row.tokens_in_block(index) as u32,
    };
    let mut slices: Vec<Slice> = row.block_ids.iter().enumerate().map(block).collect();
    let named: u32 = slices.iter().map(|slice| slice.tokens).sum();
    let rest = (row.input_tokens as u32).saturating_sub(named);
    if rest > 0 {
        slices.push(Slice {
            name: Name::Own(row.number),
            tokens: rest,
        });
    }
    slices.retain(|slice| slice.tokens > 0);
    slices
}

/// Rows of one conversation as a session; rows of none as requests.
fn sessions(class: &str, rows: Vec<TraceRow>, drawn: &mut Drawn) {
    let mut at: BTreeMap<String, (usize, Nanos)> = BTreeMap::new();
    for row in rows {
        let Some(turn) = row.turn.clone() else {
            drawn.asks.push(ask(class, row));
            continue;
        };
        let arrival = row.arrival_ns;
        let place = at.entry(turn.session).or_insert_with(|| {
            drawn.talks.push(Talk {
                due: arrival,
                ..Talk::default()
            });
            (drawn.talks.len() - 1, arrival)
        });
        let (index, before) = (place.0, std::mem::replace(&mut place.1, arrival));
        let talk = &mut drawn.talks[index];
        talk.live |= turn.live_answers;
        let between = arrival.saturating_sub(before);
        let max_tokens = output_of(&row);
        talk.turns.push(TalkTurn {
            class: class.to_owned(),
            think_ns: match talk.turns.is_empty() {
                true => Nanos::ZERO,
                false => turn.delay_ns.unwrap_or(between),
            },
            new: messages(row),
            answer: Part::Slices(Vec::new()),
            max_tokens,
            complete: !turn.live_answers,
        });
    }
    drawn.talks.sort_by_key(|talk| talk.due);
}
