//! Which format a file has, by its contents.

use std::io::BufRead;
use std::path::Path;

use crate::trace::error::{Place, TraceError};
use crate::trace::formats::{Dialect, Fields, TraceFormat, dialect_of};
use crate::trace::reader::open_file;
use crate::trace::records::{Framing, Records};
use crate::trace::time::Decimal;

/// A format and why it is the one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detection {
    /// The format.
    pub format: TraceFormat,
    /// What in the file says so.
    pub evidence: String,
}

/// Rows of the file that are looked at to tell Mooncake's whole milliseconds from fractions.
const ROWS_LOOKED_AT: usize = 200;

/// Keys that only AIPerf's rows have.
const AIPERF_KEYS: [&str; 7] = [
    "session_id",
    "delay",
    "text_input",
    "messages",
    "payload",
    "message_mode",
    "extra",
];

/// Detects the format of a file or directory.
///
/// # Errors
/// It cannot be read, or is of no known format.
pub fn detect(path: &Path) -> Result<Detection, TraceError> {
    if path.is_dir() {
        return Ok(Detection {
            format: TraceFormat::ServeGen,
            evidence: "a directory".into(),
        });
    }
    let name = path.display().to_string();
    let mut source = open_file(path)?;
    let start = source.fill_buf().map(<[u8]>::to_vec).unwrap_or_default();
    let start = String::from_utf8_lossy(&start);
    let start = start.trim_start_matches('\u{feff}').trim_start();
    match start.chars().next() {
        Some('{' | '[') => json(source, &name),
        _ => csv(start, &name),
    }
}

fn csv(start: &str, name: &str) -> Result<Detection, TraceError> {
    let header = start.lines().next().unwrap_or("");
    let format = match dialect_of(header) {
        Some(Dialect::Azure) => TraceFormat::Azure,
        Some(Dialect::BurstGpt) => TraceFormat::BurstGpt,
        Some(Dialect::Simulator) => TraceFormat::Simulator,
        Some(Dialect::Lengths) => TraceFormat::Lengths,
        None => return Err(unknown(name, header)),
    };
    Ok(Detection {
        format,
        evidence: format!("the header `{}`", shortened(header)),
    })
}

fn json<R: BufRead>(source: R, name: &str) -> Result<Detection, TraceError> {
    let mut records = Records::new(source, name, Framing::Values);
    let Some((record, place)) = records.next()? else {
        return Err(unknown(name, ""));
    };
    let fields = Fields::parse(record, place)?;
    let keys: Vec<String> = fields.keys().map(str::to_owned).collect();
    let has = |key: &str| keys.iter().any(|k| k == key);
    let found = |format, evidence: String| Ok(Detection { format, evidence });
    if has("conversations") {
        return found(TraceFormat::ShareGpt, "the key `conversations`".into());
    }
    if has("requests") {
        return found(TraceFormat::Weka, "the key `requests`".into());
    }
    if has("chat_id") || has("parent_chat_id") {
        return found(TraceFormat::Bailian, "the key `chat_id`".into());
    }
    if let Some(key) = AIPERF_KEYS.into_iter().find(|key| has(key)) {
        return found(TraceFormat::AiPerf, format!("the key `{key}`"));
    }
    if has("prompt") {
        return found(TraceFormat::VllmCustom, "the key `prompt`".into());
    }
    if !has("input_length") {
        let record = shortened(record).to_owned();
        return Err(unknown(name, &record));
    }
    if !["timestamp", "output_length", "hash_ids"]
        .into_iter()
        .all(has)
    {
        let evidence = "`input_length` without all of timestamp, output_length, hash_ids";
        return found(TraceFormat::AiPerf, evidence.into());
    }
    let first = fields.time("timestamp")?;
    named_blocks(first, records)
}

/// Mooncake, AIPerf or vLLM's timed trace: the first rows have the same keys.
fn named_blocks<R: BufRead>(
    first: Option<Decimal>,
    mut records: Records<R>,
) -> Result<Detection, TraceError> {
    let mut fractional = first.is_some_and(Decimal::is_fractional);
    for _ in 1..ROWS_LOOKED_AT {
        // A broken row is the reader's to report.
        let Ok(Some((record, place))) = records.next() else {
            break;
        };
        let Ok(fields) = Fields::parse(record, place) else {
            break;
        };
        if let Some(key) = AIPERF_KEYS.into_iter().find(|key| fields.has(key)) {
            return Ok(Detection {
                format: TraceFormat::AiPerf,
                evidence: format!("the key `{key}` in line {}", place.line),
            });
        }
        let time = fields.time("timestamp").ok().flatten();
        fractional |= time.is_some_and(Decimal::is_fractional);
    }
    let (format, times) = match fractional {
        true => (TraceFormat::VllmTimed, "fractional"),
        false => (TraceFormat::Mooncake, "whole"),
    };
    Ok(Detection {
        format,
        evidence: format!(
            "the keys timestamp, input_length, output_length, hash_ids and {times} timestamps"
        ),
    })
}

fn unknown(name: &str, start: &str) -> TraceError {
    let known: Vec<&str> = TraceFormat::ALL.map(TraceFormat::name).to_vec();
    TraceError::Ambiguous {
        place: Place::whole(name),
        key: (!start.is_empty()).then_some("format"),
        message: match start.is_empty() {
            true => "the file is empty: is it the right one?".to_owned(),
            false => format!(
                "of no known format: it starts with `{}`; set its format to one of {}",
                shortened(start),
                known.join(", ")
            ),
        },
    }
}

fn shortened(text: &str) -> &str {
    const SHOWN_CHARS: usize = 80;
    let text = text.trim();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => &text[..at],
        None => text,
    }
}
