//! Qwen-Bailian JSON lines: seconds, and names for blocks of 16 tokens.
//!
//! `input_length` already counts the history of a chat: earlier turns are never added to it.

use std::collections::BTreeMap;

use crate::trace::error::{Place, TraceError};
use crate::trace::formats::{Fields, FileRow, FileTime, Found, RecordParser};
use crate::trace::{RowTurn, TraceRow};

const KEYS: [&str; 8] = [
    "chat_id",
    "parent_chat_id",
    "timestamp",
    "input_length",
    "output_length",
    "type",
    "turn",
    "hash_ids",
];

/// Stands for "no parent".
const ROOT: &str = "-1";

/// Parser of the format.
#[derive(Debug, Default)]
pub(crate) struct Bailian {
    /// For each request its conversation and turn, so that the next turn finds them.
    chats: BTreeMap<String, (String, u32)>,
}

impl RecordParser for Bailian {
    fn parse(&mut self, record: &str, place: &Place) -> Result<Found, TraceError> {
        let fields = Fields::parse(record, place)?;
        fields.only(&KEYS, "a Bailian trace")?;
        let at = FileTime::Units(fields.required_time("timestamp")?);
        let row = TraceRow {
            input_tokens: fields.required_tokens("input_length", 1)?,
            output_tokens: fields.required_tokens("output_length", 0)?,
            block_ids: fields.ids("hash_ids")?.unwrap_or_default(),
            turn: self.turn(&fields)?,
            ..TraceRow::default()
        };
        Ok(Found {
            rows: vec![FileRow { at, row }],
            dropped: Vec::new(),
        })
    }
}

impl Bailian {
    /// The conversation: a parent that the file does not hold starts one.
    fn turn(&mut self, fields: &Fields<'_>) -> Result<Option<RowTurn>, TraceError> {
        let Some(chat) = fields.identifier("chat_id")? else {
            return Ok(None);
        };
        let parent = fields.identifier("parent_chat_id")?;
        let parent = parent.filter(|parent| parent != ROOT);
        let (session, number) = match parent.and_then(|parent| self.chats.get(&parent)) {
            Some((session, number)) => (session.clone(), number + 1),
            None => (chat.clone(), 0),
        };
        self.chats.insert(chat, (session.clone(), number));
        Ok(Some(RowTurn {
            session,
            number,
            delay_ns: None,
            live_answers: false,
        }))
    }
}
