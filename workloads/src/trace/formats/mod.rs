//! The formats: what a record of each holds.

mod aiperf;
mod bailian;
mod csv;
mod json;
mod named_blocks;
mod sharegpt;
mod weka;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use self::csv::{CsvParser, Dialect, dialect_of};
pub(crate) use self::json::Fields;
pub(crate) use self::sharegpt::{conversation, is_user};

use crate::trace::TraceRow;
use crate::trace::error::{Place, TraceError};
use crate::trace::records::Framing;
use crate::trace::time::{Decimal, TimeUnit};

/// When a request arrived, as its file says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FileTime {
    /// It does not say.
    Absent,
    /// A number in the file's unit.
    Units(Decimal),
    /// Nanoseconds since 1970.
    Instant(u64),
    /// This long after the end of the turn before, in the file's unit.
    Delay(Decimal),
}

/// A request of a file.
#[derive(Clone, Debug)]
pub(crate) struct FileRow {
    pub(crate) at: FileTime,
    pub(crate) row: TraceRow,
}

/// What a record holds: requests, and some that cannot be replayed with the reason.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) rows: Vec<FileRow>,
    pub(crate) dropped: Vec<&'static str>,
}

/// Reads the records of one file in order.
pub(crate) trait RecordParser: fmt::Debug {
    /// The requests of a record.
    fn parse(&mut self, record: &str, place: &Place) -> Result<Found, TraceError>;
}

/// The formats that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceFormat {
    /// JSON lines of Mooncake's FAST'25 release: whole milliseconds, blocks of 512 tokens.
    Mooncake,
    /// The same keys as vLLM's `timed_trace`: seconds times a factor, block size by flag.
    VllmTimed,
    /// AIPerf's `mooncake_trace`: lengths, text or messages; a timestamp or a delay.
    #[serde(rename = "aiperf")]
    AiPerf,
    /// Qwen-Bailian JSON lines: seconds, blocks of 16 tokens.
    Bailian,
    /// WEKA conversations: seconds and blocks of 64 tokens, both local to a conversation.
    Weka,
    /// Azure LLM inference CSV of 2023, 2024 and 2025: date and time.
    Azure,
    /// BurstGPT CSV, older and newer columns: seconds.
    #[serde(rename = "burstgpt")]
    BurstGpt,
    /// Simulator CSV of Vidur, Etalon and splitwise-sim: seconds, or no arrivals.
    Simulator,
    /// CSV with `timestamp_ms`, `input_length` and `output_length`.
    Lengths,
    /// ShareGPT conversations, with `from` and `value` or `role` and `content`.
    #[serde(rename = "sharegpt")]
    ShareGpt,
    /// vLLM's custom JSON lines: `prompt` and `output_tokens`.
    VllmCustom,
    /// A directory of ServeGen's client models, from which a trace is generated.
    #[serde(rename = "servegen")]
    ServeGen,
}

impl TraceFormat {
    /// All of them.
    pub const ALL: [TraceFormat; 12] = [
        TraceFormat::Mooncake,
        TraceFormat::VllmTimed,
        TraceFormat::AiPerf,
        TraceFormat::Bailian,
        TraceFormat::Weka,
        TraceFormat::Azure,
        TraceFormat::BurstGpt,
        TraceFormat::Simulator,
        TraceFormat::Lengths,
        TraceFormat::ShareGpt,
        TraceFormat::VllmCustom,
        TraceFormat::ServeGen,
    ];

    /// Name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            TraceFormat::Mooncake => "mooncake",
            TraceFormat::VllmTimed => "vllm-timed",
            TraceFormat::AiPerf => "aiperf",
            TraceFormat::Bailian => "bailian",
            TraceFormat::Weka => "weka",
            TraceFormat::Azure => "azure",
            TraceFormat::BurstGpt => "burstgpt",
            TraceFormat::Simulator => "simulator",
            TraceFormat::Lengths => "lengths",
            TraceFormat::ShareGpt => "sharegpt",
            TraceFormat::VllmCustom => "vllm-custom",
            TraceFormat::ServeGen => "servegen",
        }
    }

    /// The unit that its documentation names; `None` where it writes dates or no times, and for
    /// [`TraceFormat::VllmTimed`], whose unit is a flag of its reader.
    pub fn documented_unit(self) -> Option<TimeUnit> {
        match self {
            TraceFormat::Mooncake | TraceFormat::AiPerf | TraceFormat::Lengths => {
                Some(TimeUnit::Ms)
            }
            TraceFormat::Bailian
            | TraceFormat::Weka
            | TraceFormat::BurstGpt
            | TraceFormat::Simulator => Some(TimeUnit::S),
            _ => None,
        }
    }

    /// The block size that its documentation names, in tokens.
    pub fn documented_block_tokens(self) -> Option<usize> {
        match self {
            TraceFormat::Mooncake | TraceFormat::AiPerf => Some(512),
            TraceFormat::Weka => Some(64),
            TraceFormat::Bailian => Some(16),
            _ => None,
        }
    }

    /// Whether times start anew in each conversation, so that file order is not their order.
    pub fn has_local_times(self) -> bool {
        self == TraceFormat::Weka
    }

    pub(crate) fn framing(self) -> Framing {
        match self {
            TraceFormat::Weka | TraceFormat::ShareGpt => Framing::Values,
            _ => Framing::Lines,
        }
    }

    pub(crate) fn parser(self) -> Box<dyn RecordParser> {
        match self {
            TraceFormat::Mooncake | TraceFormat::VllmTimed => Box::new(named_blocks::NamedBlocks),
            TraceFormat::AiPerf => Box::new(aiperf::AiPerf::default()),
            TraceFormat::Bailian => Box::new(bailian::Bailian::default()),
            TraceFormat::Weka => Box::new(weka::Weka::default()),
            TraceFormat::Azure => Box::new(CsvParser::new(Dialect::Azure)),
            TraceFormat::BurstGpt => Box::new(CsvParser::new(Dialect::BurstGpt)),
            TraceFormat::Simulator => Box::new(CsvParser::new(Dialect::Simulator)),
            TraceFormat::Lengths => Box::new(CsvParser::new(Dialect::Lengths)),
            TraceFormat::ShareGpt => Box::new(sharegpt::ShareGpt),
            TraceFormat::VllmCustom => Box::new(sharegpt::VllmCustom),
            TraceFormat::ServeGen => Box::new(NoRecords),
        }
    }
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Stands for a format that is a directory.
#[derive(Debug)]
struct NoRecords;

impl RecordParser for NoRecords {
    fn parse(&mut self, _record: &str, place: &Place) -> Result<Found, TraceError> {
        Err(TraceError::line(
            place,
            "ServeGen models are a directory of chunk-N-trace.csv and chunk-N-dataset.json files: \
             give the directory",
        ))
    }
}
