//! Rows as lines of another format.

use serde_json::{Map, Value, json};

use crate::trace::error::TraceError;
use crate::trace::{RowPrompt, TraceRow};

/// Formats that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetFormat {
    /// Mooncake: whole milliseconds; a fraction is cut.
    Mooncake,
    /// AIPerf's `mooncake_trace`: whole milliseconds, delays, text and messages.
    AiPerf,
    /// vLLM's `timed_trace`: seconds, exact.
    VllmTimed,
}

/// Block size of names that are made up because a trace has none.
const MADE_BLOCK_TOKENS: usize = 512;

/// Writes one trace.
#[derive(Debug)]
pub struct TraceWriter {
    target: TargetFormat,
    /// Next name for a block that nothing shares.
    fresh: u64,
}

impl TraceWriter {
    /// A writer. `has_names` tells whether any row names blocks: names that are made up then keep
    /// away from them.
    pub fn new(target: TargetFormat, has_names: bool) -> Self {
        let fresh = if has_names { 1 << 62 } else { 0 };
        TraceWriter { target, fresh }
    }

    /// The line of a row, without its end. Formats that must name blocks get a new name for each
    /// block that the row does not name, so that no sharing is invented.
    ///
    /// # Errors
    /// The format cannot hold the row: it has text, or a delay and no arrival.
    pub fn line(&mut self, row: &TraceRow) -> Result<String, TraceError> {
        let fields = match self.target {
            TargetFormat::AiPerf => aiperf(row),
            TargetFormat::Mooncake => {
                let ms = json!(row.arrival_ns.0 / 1_000_000);
                self.named(ms, row, "mooncake")?
            }
            TargetFormat::VllmTimed => {
                let (whole, rest) = (
                    row.arrival_ns.0 / 1_000_000_000,
                    row.arrival_ns.0 % 1_000_000_000,
                );
                // Parsed from its digits, so that no arithmetic rounds it.
                let seconds: f64 = format!("{whole}.{rest:09}").parse().unwrap_or(0.0);
                self.named(json!(seconds), row, "vllm-timed")?
            }
        };
        Ok(Value::Object(fields).to_string())
    }

    fn named(
        &mut self,
        timestamp: Value,
        row: &TraceRow,
        name: &'static str,
    ) -> Result<Map<String, Value>, TraceError> {
        let refused = match (row.input_tokens, &row.turn) {
            (0, _) => Some("the prompt is text: give a tokenizer, or convert to aiperf"),
            (_, Some(turn)) if turn.delay_ns.is_some() => {
                Some("the row has a delay and no arrival: convert to aiperf")
            }
            _ => None,
        };
        if let Some(why) = refused {
            return Err(TraceError::Parameter {
                key: "to",
                value: name.to_owned(),
                fix: format!("cannot hold row {}: {why}", row.number),
            });
        }
        let block = match row.block_tokens {
            0 => MADE_BLOCK_TOKENS,
            tokens => tokens,
        };
        let mut ids = row.block_ids.clone();
        while ids.len() < row.input_tokens.div_ceil(block) {
            ids.push(self.fresh);
            self.fresh += 1;
        }
        let mut fields = Map::new();
        fields.insert("timestamp".into(), timestamp);
        fields.insert("input_length".into(), json!(row.input_tokens));
        fields.insert("output_length".into(), json!(row.output_tokens));
        fields.insert("hash_ids".into(), json!(ids));
        Ok(fields)
    }
}

/// AIPerf joins the turns of a session into one prompt. Prompts that already hold their history
/// therefore lose their session.
fn aiperf(row: &TraceRow) -> Map<String, Value> {
    let mut fields = Map::new();
    let turn = row.turn.as_ref();
    let delay = turn.and_then(|turn| turn.delay_ns);
    let continued =
        turn.filter(|turn| delay.is_some() || turn.live_answers || row.prompt.is_some());
    if let Some(turn) = continued {
        fields.insert("session_id".into(), json!(turn.session));
        if turn.live_answers {
            fields.insert("message_mode".into(), json!("delta"));
        }
    }
    match delay {
        Some(delay) => {
            fields.insert("delay".into(), json!(delay.0 / 1_000_000));
        }
        None if row.untimed => {}
        None => {
            fields.insert("timestamp".into(), json!(row.arrival_ns.0 / 1_000_000));
        }
    }
    match &row.prompt {
        Some(RowPrompt::Text(text)) => {
            fields.insert("text_input".into(), json!(text));
        }
        Some(RowPrompt::Chat(turns)) => {
            let message =
                |turn: &crate::trace::ChatTurn| json!({"role": turn.role, "content": turn.content});
            let messages: Vec<Value> = turns.iter().map(message).collect();
            fields.insert("messages".into(), json!(messages));
        }
        None => {
            fields.insert("input_length".into(), json!(row.input_tokens));
        }
    }
    if !row.output_unknown {
        fields.insert("output_length".into(), json!(row.output_tokens));
    }
    if !row.block_ids.is_empty() {
        fields.insert("hash_ids".into(), json!(row.block_ids));
    }
    fields
}
