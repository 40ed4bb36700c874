//! The oracle of what events mean: whole documents, looked up by name.

use pb_contract::{FailKind, Nanos};
use serde_json::Value;

use crate::events::{StreamOutcome, StreamReading};
use crate::sse::SseEvent;

/// Characters of a finish reason that are kept, as docs/BENCH.md says; the rest is cut off.
const REASON_CHARS: usize = 200;

/// What a stream means, without instants and messages.
#[derive(Debug, Default, PartialEq)]
struct Meaning {
    /// Tokens of each event with content.
    content: Vec<u32>,
    text: String,
    finish: Option<String>,
    done: bool,
    failure: Option<FailKind>,
}

/// Reads `data`, whose events are `events`, whole and in single bytes, and panics when the two or
/// the oracle disagree.
pub(super) fn check(data: &[u8], events: &[SseEvent]) {
    let whole = read(data, data.len().max(1));
    assert_eq!(read(data, 1), whole, "meaning byte by byte");
    // A name given twice is refused by the reader; a document keeps the last one.
    let message = whole.failure.as_ref().map_or("", |(_, message)| message);
    if message.contains("duplicate field") {
        return;
    }
    let (oracle, sure) = meaning(events);
    let read = Meaning {
        content: whole.content.iter().map(|event| event.tokens).collect(),
        text: whole.text,
        finish: whole.finish_reason,
        done: whole.done,
        failure: whole.failure.map(|(kind, _)| kind),
    };
    if sure {
        assert_eq!(read, oracle, "meaning against the oracle");
    } else {
        // From here on the reader skips over what a document refuses.
        assert!(
            read.content.starts_with(&oracle.content),
            "content before a doubtful event"
        );
    }
}

fn read(data: &[u8], piece: usize) -> StreamOutcome {
    let mut reading = StreamReading::new(usize::MAX).keeping_text();
    for part in data.chunks(piece) {
        reading.bytes(Nanos(1), part);
    }
    reading.abandon()
}

/// The meaning, and whether it holds: a value that only a whole document checks (a number that is
/// too large, a broken escape, deep nesting) may be in a part that the reader skips.
fn meaning(events: &[SseEvent]) -> (Meaning, bool) {
    let mut meaning = Meaning::default();
    let mut count = Count::default();
    for event in events {
        let data = event.data.trim();
        let in_band = event.error.is_some() || (event.event == "error" && data != "[DONE]");
        if in_band {
            meaning.failure = Some(FailKind::InBandError);
            return (meaning, true);
        }
        if data == "[DONE]" {
            meaning.done = true;
            continue;
        }
        let Ok(body) = serde_json::from_str::<Value>(&event.data) else {
            meaning.failure = Some(FailKind::Protocol);
            return (meaning, !data.starts_with('{'));
        };
        if !body.is_object() {
            meaning.failure = Some(FailKind::Protocol);
            return (meaning, true);
        }
        if !body["error"].is_null() {
            meaning.failure = Some(FailKind::InBandError);
            return (meaning, true);
        }
        count.event(&body, &mut meaning);
    }
    (meaning, true)
}

/// Running counts.
#[derive(Default)]
struct Count {
    counted: u64,
    pending: u64,
}

impl Count {
    fn event(&mut self, body: &Value, meaning: &mut Meaning) {
        let choices = body["choices"].as_array().map_or(&[][..], Vec::as_slice);
        if choices.is_empty() {
            return;
        }
        for choice in choices {
            if let Some(reason) = filled(&choice["finish_reason"]) {
                meaning.finish = Some(reason.chars().take(REASON_CHARS).collect());
            }
            meaning.text += text(choice).unwrap_or("");
        }
        self.pending += self.tokens(body, choices);
        if choices.iter().any(has_content) && self.pending > 0 {
            meaning.content.push(self.pending as u32);
            self.pending = 0;
        }
    }

    /// New tokens by the best evidence: ids, usage, log-probabilities, one for each text.
    fn tokens(&mut self, body: &Value, choices: &[Value]) -> u64 {
        let sum = |lengths: Vec<Option<u64>>| -> Option<u64> {
            let known: Vec<u64> = lengths.into_iter().flatten().collect();
            (!known.is_empty()).then(|| known.iter().sum())
        };
        let ids = sum(choices
            .iter()
            .map(|choice| length(&choice["token_ids"]))
            .collect());
        let logprobs = |choice: &Value| {
            let lists = &choice["logprobs"];
            length(&lists["tokens"]).or(length(&lists["content"]))
        };
        let listed = sum(choices.iter().map(logprobs).collect());
        let total = usage_total(&body["usage"]);
        let tokens = match (ids, total) {
            (Some(ids), _) => ids,
            (None, Some(total)) => total.saturating_sub(self.counted),
            (None, None) => {
                let each = choices.iter().filter(|choice| has_content(choice)).count();
                listed.unwrap_or(each as u64)
            }
        };
        self.counted += tokens;
        tokens
    }
}

/// Output tokens of a usage that is one: its counts are whole numbers of 32 bits.
fn usage_total(usage: &Value) -> Option<u64> {
    serde_json::from_value::<pb_contract::wire::Usage>(usage.clone())
        .ok()
        .filter(|_| usage.is_object())
        .map(|usage| u64::from(usage.completion_tokens))
}

fn length(list: &Value) -> Option<u64> {
    list.as_array().map(|list| list.len() as u64)
}

fn filled(text: &Value) -> Option<&str> {
    text.as_str().filter(|text| !text.is_empty())
}

fn text(choice: &Value) -> Option<&str> {
    filled(&choice["text"]).or(filled(&choice["delta"]["content"]))
}

fn has_content(choice: &Value) -> bool {
    let delta = &choice["delta"];
    let called = delta["tool_calls"].as_array().is_some_and(|calls| {
        let function = |call: &Value| {
            filled(&call["function"]["name"]).is_some()
                || filled(&call["function"]["arguments"]).is_some()
        };
        calls.iter().any(function)
    });
    text(choice).is_some()
        || called
        || filled(&delta["reasoning"]).is_some()
        || filled(&delta["reasoning_content"]).is_some()
        || length(&choice["token_ids"]).is_some_and(|count| count > 0)
}
