//! JSON lines with one name for each block of a prompt: Mooncake's release, and vLLM's
//! `timed_trace`, which has the same keys.
//!
//! `{"timestamp": TIME, "input_length": TOKENS, "output_length": TOKENS, "hash_ids": [ID, ...]}`
//!
//! Other keys are refused: a Bailian trace has the same four and more, but counts seconds and
//! blocks of 16 tokens.

use crate::trace::TraceRow;
use crate::trace::error::{Place, TraceError};
use crate::trace::formats::{Fields, FileRow, FileTime, Found, RecordParser};

const KEYS: [&str; 4] = ["timestamp", "input_length", "output_length", "hash_ids"];

/// Parser of both.
#[derive(Debug)]
pub(crate) struct NamedBlocks;

impl RecordParser for NamedBlocks {
    fn parse(&mut self, record: &str, place: &Place) -> Result<Found, TraceError> {
        let fields = Fields::parse(record, place)?;
        fields.only(&KEYS, "a Mooncake trace")?;
        let at = FileTime::Units(fields.required_time("timestamp")?);
        let input_tokens = fields.required_tokens("input_length", 1)?;
        let output_tokens = fields.required_tokens("output_length", 0)?;
        fields.required("hash_ids")?;
        let row = TraceRow {
            input_tokens,
            output_tokens,
            block_ids: fields.ids("hash_ids")?.unwrap_or_default(),
            ..TraceRow::default()
        };
        Ok(Found {
            rows: vec![FileRow { at, row }],
            dropped: Vec::new(),
        })
    }
}
