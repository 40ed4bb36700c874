//! WEKA conversations: `{"id": ..., "requests": [{"t": S, "in": N, "out": N, "hash_ids": [...]}]}`.
//!
//! Names and times are local to a conversation, so names are made the conversation's own here. A
//! conversation may hold others under `type: "subagent"`. Their names are those of the whole
//! conversation; their times count from its start, or in some editions from their own.

use serde_json::Value;

use crate::trace::error::{Place, TraceError};
use crate::trace::formats::{Fields, FileRow, FileTime, Found, RecordParser};
use crate::trace::prompt::mix;
use crate::trace::time::Decimal;
use crate::trace::{RowTurn, TraceRow};

/// Conversations within conversations: more than any agent nests.
const MAX_DEPTH: usize = 8;

/// Parser of the format.
#[derive(Debug, Default)]
pub(crate) struct Weka {
    conversations: u64,
}

impl RecordParser for Weka {
    fn parse(&mut self, record: &str, place: &Place) -> Result<Found, TraceError> {
        let fields = Fields::parse(record, place)?;
        let number = self.conversations.to_string();
        let session = fields.identifier("id")?.unwrap_or(number);
        let mut conversation = Conversation {
            space: mix(self.conversations.wrapping_add(1)),
            session,
            turns: 0,
            found: Found::default(),
            place,
        };
        conversation.requests(&fields, Decimal::ZERO, 0)?;
        self.conversations += 1;
        let mut found = conversation.found;
        // Stable: requests of one instant stay in file order.
        found.rows.sort_by_key(|row| match row.at {
            FileTime::Units(at) => Some(at),
            _ => None,
        });
        Ok(found)
    }
}

struct Conversation<'a> {
    /// Makes names the conversation's own.
    space: u64,
    session: String,
    turns: u32,
    found: Found,
    place: &'a Place,
}

impl Conversation<'_> {
    /// `start` is added to every time.
    fn requests(
        &mut self,
        fields: &Fields<'_>,
        start: Decimal,
        depth: usize,
    ) -> Result<(), TraceError> {
        for request in fields.list("requests")? {
            self.request(request, start, depth)?;
        }
        Ok(())
    }

    fn request(&mut self, request: &Value, start: Decimal, depth: usize) -> Result<(), TraceError> {
        let fields = Fields::nested(request, self.place)?;
        if fields.has("requests") {
            if depth >= MAX_DEPTH {
                let fix = "conversations within conversations, too deep";
                return Err(fields.error("requests", format!("(depth {depth})"), fix));
            }
            let own = fields.time("t")?.unwrap_or(Decimal::ZERO);
            // Times before its own start can only count from there.
            let start = match self
                .earliest(&fields)?
                .is_some_and(|earliest| earliest < own)
            {
                true => start.plus(own),
                false => start,
            };
            return self.requests(&fields, start, depth + 1);
        }
        let at = FileTime::Units(fields.required_time("t")?.plus(start));
        let input_tokens = fields.required_tokens("in", 0)?;
        if input_tokens == 0 {
            self.found.dropped.push("empty_input");
            return Ok(());
        }
        let ids = fields.ids("hash_ids")?.unwrap_or_default();
        let row = TraceRow {
            input_tokens,
            output_tokens: fields.required_tokens("out", 0)?,
            // A bijection of the names of one conversation.
            block_ids: ids.into_iter().map(|id| mix(self.space ^ id)).collect(),
            turn: Some(RowTurn {
                session: self.session.clone(),
                number: self.turns,
                delay_ns: None,
                live_answers: false,
            }),
            ..TraceRow::default()
        };
        self.turns += 1;
        self.found.rows.push(FileRow { at, row });
        Ok(())
    }

    fn earliest(&self, fields: &Fields<'_>) -> Result<Option<Decimal>, TraceError> {
        let mut earliest = None;
        for request in fields.list("requests")? {
            let at = Fields::nested(request, self.place)?.time("t")?;
            earliest = match (earliest, at) {
                (Some(a), Some(b)) => Some(std::cmp::min(a, b)),
                (a, b) => a.or(b),
            };
        }
        Ok(earliest)
    }
}
