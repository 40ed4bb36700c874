//! Files of text: ShareGPT conversations and vLLM's custom JSON lines. They hold no lengths; a
//! tokenizer gives them later.

use crate::trace::error::{Place, TraceError};
use crate::trace::formats::{Fields, FileRow, FileTime, Found, RecordParser};
use crate::trace::{RowPrompt, TraceRow};

/// Parser of ShareGPT: the first question and its answer of each conversation, as `vllm bench
/// serve` takes them.
#[derive(Debug)]
pub(crate) struct ShareGpt;

/// The turns of a conversation, each with its speaker, without what a system message says before
/// them.
pub(crate) fn conversation(
    record: &str,
    place: &Place,
) -> Result<Vec<(String, String)>, TraceError> {
    let fields = Fields::parse(record, place)?;
    let key = match fields.has("conversations") {
        true => "conversations",
        false => "messages",
    };
    let mut turns = Vec::new();
    for value in fields.list(key)? {
        let turn = Fields::nested(value, place)?;
        let speaker = turn.text("from")?.or(turn.text("role")?);
        let text = turn.text("value")?.or(turn.text("content")?);
        match (speaker, text) {
            (Some(speaker), Some(text)) => turns.push((speaker, text)),
            _ => {
                let fix = "a turn must have from and value, or role and content";
                return Err(turn.error("turn", value, fix));
            }
        }
    }
    // What the first one says to the model stands before the question.
    let skip = usize::from(turns.first().is_some_and(|(from, _)| from == "system"));
    turns.drain(..skip);
    Ok(turns)
}

/// Whether a turn is the user's.
pub(crate) fn is_user(speaker: &str) -> bool {
    ["human", "user"].contains(&speaker)
}

impl RecordParser for ShareGpt {
    fn parse(&mut self, record: &str, place: &Place) -> Result<Found, TraceError> {
        let mut turns = conversation(record, place)?.into_iter();
        let mut found = Found::default();
        let (Some((asker, question)), Some((_, answer))) = (turns.next(), turns.next()) else {
            found.dropped.push("fewer_than_two_turns");
            return Ok(found);
        };
        if !is_user(&asker) {
            found.dropped.push("first_turn_not_human");
            return Ok(found);
        }
        let row = TraceRow {
            output_unknown: true,
            prompt: Some(RowPrompt::Text(question)),
            answer: Some(answer),
            ..TraceRow::default()
        };
        found.rows.push(FileRow {
            at: FileTime::Absent,
            row,
        });
        Ok(found)
    }
}

/// Parser of vLLM's custom data set.
#[derive(Debug)]
pub(crate) struct VllmCustom;

impl RecordParser for VllmCustom {
    fn parse(&mut self, record: &str, place: &Place) -> Result<Found, TraceError> {
        let fields = Fields::parse(record, place)?;
        fields.required("prompt")?;
        let output = fields.tokens("output_tokens", 1)?;
        let row = TraceRow {
            output_tokens: output.unwrap_or(0),
            output_unknown: output.is_none(),
            prompt: fields.text("prompt")?.map(RowPrompt::Text),
            ..TraceRow::default()
        };
        Ok(Found {
            rows: vec![FileRow {
                at: FileTime::Absent,
                row,
            }],
            dropped: Vec::new(),
        })
    }
}
