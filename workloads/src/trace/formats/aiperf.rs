//! AIPerf's `mooncake_trace`: lengths with block names, text, or whole messages; fixed times, or
//! delays between the turns of a session.

use std::collections::BTreeMap;

use crate::trace::error::{Place, TraceError};
use crate::trace::formats::{Fields, FileRow, FileTime, Found, RecordParser};
use crate::trace::{RowPrompt, RowTurn, TraceRow};

const KEYS: [&str; 13] = [
    "timestamp",
    "delay",
    "session_id",
    "input_length",
    "output_length",
    "hash_ids",
    "text_input",
    "messages",
    "message_mode",
    "payload",
    "tools",
    "extra",
    "type",
];

/// The ways to give a prompt; a row has exactly one.
const PROMPTS: [&str; 4] = ["input_length", "text_input", "messages", "payload"];

/// Parser of the format.
#[derive(Debug, Default)]
pub(crate) struct AiPerf {
    /// Turns seen of each session.
    turns: BTreeMap<String, u32>,
}

impl RecordParser for AiPerf {
    fn parse(&mut self, record: &str, place: &Place) -> Result<Found, TraceError> {
        let fields = Fields::parse(record, place)?;
        fields.only(&KEYS, "an AIPerf trace")?;
        let given: Vec<&str> = PROMPTS.into_iter().filter(|key| fields.has(key)).collect();
        if given.len() != 1 {
            let fix = "a row must have exactly one of input_length, text_input, messages, payload";
            return Err(fields.error("prompt", format!("({})", given.join(" and ")), fix));
        }
        let output = fields.tokens("output_length", 0)?;
        let row = TraceRow {
            input_tokens: fields.tokens("input_length", 1)?.unwrap_or(0),
            output_tokens: output.unwrap_or(0),
            output_unknown: output.is_none(),
            block_ids: fields.ids("hash_ids")?.unwrap_or_default(),
            prompt: prompt(&fields, place)?,
            turn: self.turn(&fields)?,
            ..TraceRow::default()
        };
        if !row.block_ids.is_empty() && row.input_tokens == 0 {
            let fix = "names blocks of a prompt whose length is not given: add input_length";
            return Err(fields.error("hash_ids", format!("({} ids)", row.block_ids.len()), fix));
        }
        Ok(Found {
            rows: vec![FileRow {
                at: time(&fields)?,
                row,
            }],
            dropped: Vec::new(),
        })
    }
}

impl AiPerf {
    fn turn(&mut self, fields: &Fields<'_>) -> Result<Option<RowTurn>, TraceError> {
        let Some(session) = fields.identifier("session_id")? else {
            return Ok(None);
        };
        let live_answers = match fields.text("message_mode")?.as_deref() {
            None | Some("history") => false,
            Some("delta") => true,
            Some(other) => {
                let fix = "must be history or delta";
                return Err(fields.error("message_mode", other, fix));
            }
        };
        let count = self.turns.entry(session.clone()).or_default();
        let number = *count;
        *count += 1;
        Ok(Some(RowTurn {
            session,
            number,
            delay_ns: None,
            live_answers,
        }))
    }
}

fn time(fields: &Fields<'_>) -> Result<FileTime, TraceError> {
    match (fields.time("timestamp")?, fields.time("delay")?) {
        (Some(at), None) => Ok(FileTime::Units(at)),
        (None, None) => Ok(FileTime::Absent),
        (None, Some(delay)) if fields.has("session_id") => Ok(FileTime::Delay(delay)),
        (None, Some(delay)) => {
            let fix = "counts from the turn before and needs a session_id";
            Err(fields.error("delay", delay, fix))
        }
        (Some(_), Some(delay)) => {
            let fix = "a row has a timestamp or a delay, not both";
            Err(fields.error("delay", delay, fix))
        }
    }
}

/// What the row says instead of a length.
fn prompt(fields: &Fields<'_>, place: &Place) -> Result<Option<RowPrompt>, TraceError> {
    if let Some(text) = fields.text("text_input")? {
        return Ok(Some(RowPrompt::Text(text)));
    }
    if fields.has("messages") {
        return fields.messages("messages").map(Some);
    }
    let Some(payload) = fields.get("payload") else {
        return Ok(None);
    };
    let payload = Fields::nested(payload, place)?;
    if payload.has("messages") {
        return payload.messages("messages").map(Some);
    }
    match payload.text("prompt")? {
        Some(text) => Ok(Some(RowPrompt::Text(text))),
        None => Err(fields.error("payload", "(no prompt)", "must hold messages or a prompt")),
    }
}
