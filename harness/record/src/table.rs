//! Tables as CSV: a row is a line.
//!
//! Every row ends in exactly one line feed and contains no other, so that a file cut off by a
//! crash is whole up to its last line feed and the reader can tell where. Text fields lose their
//! line breaks on the way in (they become spaces); nothing else is changed.

use std::path::Path;

use pb_contract::{RequestRow, TokenRow};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::RecordError;

/// File of the request rows.
pub const REQUESTS: &str = "requests.csv";
/// File of the token rows.
pub const TOKENS: &str = "tokens.csv";
/// File of the step rows.
pub const STEPS: &str = "steps.csv";
/// File of the rows of KV transfers; only where there were some.
pub const TRANSFERS: &str = "transfers.csv";

/// Columns of `requests.csv`.
pub(crate) const REQUEST_COLUMNS: &[&str] = &[
    "arm",
    "block",
    "request",
    "class",
    "intended_ns",
    "sent_ns",
    "headers_ns",
    "first_event_ns",
    "first_token_ns",
    "last_token_ns",
    "closed_ns",
    "status",
    "fail",
    "http_status",
    "fail_message",
    "finish_reason",
    "prompt_tokens_planned",
    "prompt_tokens",
    "cached_tokens",
    "max_tokens",
    "completion_tokens",
    "streamed_tokens",
];

/// Columns of `tokens.csv`.
pub(crate) const TOKEN_COLUMNS: &[&str] = &["arm", "block", "request", "event", "at_ns", "tokens"];

/// Rows as CSV lines without a header.
pub(crate) fn encode<T: Serialize>(rows: &[T], path: &Path) -> Result<Vec<u8>, RecordError> {
    let mut writer = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(Vec::new());
    for row in rows {
        writer
            .serialize(row)
            .map_err(|error| unwritable(path, &error))?;
    }
    writer
        .into_inner()
        .map_err(|error| unwritable(path, error.error()))
}

fn unwritable(path: &Path, error: &dyn std::error::Error) -> RecordError {
    RecordError::Row {
        path: path.to_owned(),
        line: 0,
        column: "?".to_owned(),
        value: String::new(),
        reason: error.to_string(),
    }
}

/// The header line of a table.
pub(crate) fn header(columns: &[&str]) -> String {
    columns.join(",") + "\n"
}

/// A request row whose text fields have no line breaks.
pub(crate) fn one_line(row: &RequestRow) -> RequestRow {
    let mut row = row.clone();
    for text in [&mut row.arm, &mut row.class] {
        flatten(text);
    }
    for text in [&mut row.fail_message, &mut row.finish_reason]
        .into_iter()
        .flatten()
    {
        flatten(text);
    }
    // An empty field and an absent one look the same in CSV: absent is the one that is meant.
    row.fail_message = row.fail_message.filter(|text| !text.is_empty());
    row.finish_reason = row.finish_reason.filter(|text| !text.is_empty());
    row
}

/// Token rows whose text fields have no line breaks.
pub(crate) fn one_line_tokens(rows: &[TokenRow]) -> Vec<TokenRow> {
    let mut rows = rows.to_vec();
    rows.iter_mut().for_each(|row| flatten(&mut row.arm));
    rows
}

/// Replaces line breaks by spaces.
pub(crate) fn flatten(text: &mut String) {
    if text.contains(['\n', '\r']) {
        *text = text.replace("\r\n", " ").replace(['\n', '\r'], " ");
    }
}

/// A table as read back.
pub(crate) struct Table<T> {
    /// Its whole rows.
    pub(crate) rows: Vec<T>,
    /// Whether a cut-off last line was left out.
    pub(crate) partial: bool,
}

/// Parses the whole lines of a table; an unfinished last line is left out and reported.
pub(crate) fn decode<T: DeserializeOwned>(
    bytes: &[u8],
    path: &Path,
) -> Result<Table<T>, RecordError> {
    let end = bytes
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    let partial = end < bytes.len();
    let mut reader = csv::ReaderBuilder::new().from_reader(&bytes[..end]);
    let headers = reader
        .headers()
        .map_err(|error| record_error(path, &error))?
        .clone();
    let mut rows = Vec::new();
    let mut record = csv::StringRecord::new();
    while reader
        .read_record(&mut record)
        .map_err(|error| record_error(path, &error))?
    {
        let row = record
            .deserialize(Some(&headers))
            .map_err(|error| value_error(path, &headers, &record, &error))?;
        rows.push(row);
    }
    Ok(Table { rows, partial })
}

/// An error of the CSV layer: a wrong number of fields, text that is not UTF-8.
pub(crate) fn record_error(path: &Path, error: &csv::Error) -> RecordError {
    RecordError::Row {
        path: path.to_owned(),
        line: error.position().map_or(0, csv::Position::line),
        column: "?".to_owned(),
        value: String::new(),
        reason: error.to_string(),
    }
}

/// An error of one value, with its column and its text.
pub(crate) fn value_error(
    path: &Path,
    headers: &csv::StringRecord,
    record: &csv::StringRecord,
    error: &csv::Error,
) -> RecordError {
    let (field, reason) = match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => (err.field(), err.kind().to_string()),
        _ => (None, error.to_string()),
    };
    let field = field.map(|index| index as usize);
    RecordError::Row {
        path: path.to_owned(),
        line: record.position().map_or(0, csv::Position::line),
        column: field
            .and_then(|index| headers.get(index))
            .unwrap_or("?")
            .to_owned(),
        value: field
            .and_then(|index| record.get(index))
            .unwrap_or("")
            .to_owned(),
        reason,
    }
}
