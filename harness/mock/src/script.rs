//! Answers event by event, from a JSON file.
//!
//! ```
//! let script = pb_mock::Script::parse(r#"{"streams": [{
//!     "match": {"path": "/v1/chat/completions"},
//!     "events": [
//!         {"at_ms": 50, "role": "assistant"},
//!         {"at_ms": 200, "content": "A"},
//!         {"at_ms": 300, "content": "BCD", "tokens": 3},
//!         {"at_ms": 301, "finish": "stop", "usage": true, "done": true}
//!     ]}]}"#);
//! assert!(script.is_ok());
//! ```

use std::collections::BTreeMap;

use base64::Engine as _;
use serde::Deserialize;
use serde_json::Value;

use crate::error::MockError;
use crate::event::{End, Event, UsageCounts, UsageNote};

/// A parsed script.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub(crate) rules: Vec<Rule>,
}

/// One answer and the requests that get it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) path: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) class: Option<String>,
    /// Requests that get it at most.
    pub(crate) times: Option<u32>,
    pub(crate) status: u16,
    pub(crate) content_type: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    /// When the head goes out; none: as the server does otherwise.
    pub(crate) head_at_ns: Option<u64>,
    /// A body of no events.
    pub(crate) body: Option<String>,
    pub(crate) events: Vec<Event>,
    pub(crate) end: End,
}

impl Rule {
    /// Whether it is for such a request.
    pub(crate) fn fits(&self, path: &str, model: &str, class: Option<&str>) -> bool {
        self.path.as_deref().is_none_or(|p| p == path)
            && self.model.as_deref().is_none_or(|m| m == model)
            && (self.class.is_none() || self.class.as_deref() == class)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireScript {
    streams: Vec<WireRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireRule {
    #[serde(default, rename = "match")]
    matches: WireMatch,
    times: Option<u32>,
    status: Option<u16>,
    content_type: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    head_at_ms: Option<f64>,
    body: Option<String>,
    #[serde(default)]
    events: Vec<WireEvent>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireMatch {
    path: Option<String>,
    model: Option<String>,
    class: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireEvent {
    at_ms: f64,
    bytes: Option<String>,
    base64: Option<String>,
    role: Option<String>,
    content: Option<String>,
    reasoning: Option<String>,
    tool_arguments: Option<String>,
    tokens: Option<u32>,
    usage: Option<WireUsage>,
    finish: Option<String>,
    #[serde(default)]
    done: bool,
    error: Option<Value>,
    #[serde(default)]
    error_field: bool,
    comment: Option<String>,
    #[serde(default)]
    close: bool,
    #[serde(default)]
    reset: bool,
    #[serde(default)]
    stall: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WireUsage {
    Served(bool),
    Stated {
        prompt_tokens: u32,
        completion_tokens: u32,
        cached_tokens: Option<u32>,
    },
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// No JSON of this form, times that go back, an event after the end of its stream.
    pub fn parse(text: &str) -> Result<Script, MockError> {
        let wire: WireScript =
            serde_json::from_str(text).map_err(|e| MockError::Script(e.to_string()))?;
        let rules = wire.streams.into_iter().enumerate().map(|(i, rule)| {
            resolve(rule).map_err(|reason| MockError::Script(format!("stream {i}: {reason}")))
        });
        Ok(Script {
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// One chat stream of five tokens that tells seven load generators apart: a role at 50 ms, a
    /// token at 200, three in one event at 300, one at 400, the finish reason at 410, usage at
    /// 415, `[DONE]` at 416. True are 200 ms to the first token and 50 ms a token.
    pub fn worked_stream() -> Script {
        // The name of it on the command line is `worked-stream`.
        Script::parse(include_str!("worked_stream.json"))
            // OK because a test parses the same file.
            .expect("the built-in script is valid")
    }
}

fn resolve(wire: WireRule) -> Result<Rule, String> {
    let mut rule = Rule {
        path: wire.matches.path,
        model: wire.matches.model,
        class: wire.matches.class,
        times: wire.times,
        status: wire.status.unwrap_or(200),
        content_type: wire.content_type,
        headers: wire.headers.into_iter().collect(),
        head_at_ns: wire.head_at_ms.map(instant).transpose()?,
        body: wire.body,
        events: Vec::with_capacity(wire.events.len()),
        end: End::Finish,
    };
    if !(200..=599).contains(&rule.status) {
        return Err(format!("status {}: must be 200 to 599", rule.status));
    }
    check_headers(&rule)?;
    if rule.body.is_some() && !wire.events.is_empty() {
        return Err("has both `body` and `events`; leave one out".into());
    }
    for (i, event) in wire.events.into_iter().enumerate() {
        let place = |reason: String| format!("event {i}: {reason}");
        if rule.end != End::Finish {
            return Err(place("comes after the end of its stream; remove it".into()));
        }
        let last = rule.events.last().map_or(0, |e| e.at_ns);
        let (event, end) = resolve_event(event).map_err(place)?;
        if event.at_ns < last {
            return Err(place("`at_ms` goes back; sort the events by time".into()));
        }
        rule.events.push(event);
        rule.end = end;
    }
    Ok(rule)
}

/// A field that held a line end would be a second field.
fn check_headers(rule: &Rule) -> Result<(), String> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let value = |text: &str| text.bytes().all(|b| (b' '..=b'~').contains(&b));
    let content_type = rule.content_type.as_deref().unwrap_or("");
    for (name, text) in &rule.headers {
        if name.is_empty() || !name.bytes().all(token) || !value(text) {
            return Err(format!("header {name:?}: not a header in printable ASCII"));
        }
    }
    match value(content_type) {
        true => Ok(()),
        false => Err(format!(
            "content_type {content_type:?}: not printable ASCII"
        )),
    }
}

fn instant(ms: f64) -> Result<u64, String> {
    if ms.is_finite() && (0.0..=1e9).contains(&ms) {
        return Ok((ms * 1e6).round() as u64);
    }
    Err(format!("{ms} ms: must be 0 to 1e9"))
}

fn resolve_event(wire: WireEvent) -> Result<(Event, End), String> {
    let raw = match (wire.bytes, wire.base64) {
        (Some(_), Some(_)) => return Err("has both `bytes` and `base64`; leave one out".into()),
        (Some(text), None) => Some(text.into_bytes()),
        (None, Some(text)) => Some(
            base64::engine::general_purpose::STANDARD
                .decode(text)
                .map_err(|e| format!("`base64`: {e}"))?,
        ),
        (None, None) => None,
    };
    let generated = [&wire.content, &wire.reasoning, &wire.tool_arguments];
    let has_text = generated
        .iter()
        .any(|part| part.as_ref().is_some_and(|text| !text.is_empty()));
    let usage = match wire.usage {
        None | Some(WireUsage::Served(false)) => UsageNote::None,
        Some(WireUsage::Served(true)) => UsageNote::Served,
        Some(WireUsage::Stated {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
        }) => UsageNote::Stated(UsageCounts {
            prompt: prompt_tokens,
            completion: completion_tokens,
            cached: cached_tokens,
        }),
    };
    let end = match (wire.close, wire.reset, wire.stall) {
        (false, false, false) => End::Finish,
        (true, false, false) => End::Close,
        (false, true, false) => End::Reset,
        (false, false, true) => End::Stall,
        _ => return Err("has more than one of `close`, `reset` and `stall`".into()),
    };
    let event = Event {
        at_ns: instant(wire.at_ms)?,
        choice: 0,
        role: wire.role,
        content: wire.content,
        reasoning: wire.reasoning,
        tool_arguments: wire.tool_arguments,
        tokens: wire.tokens.unwrap_or(u32::from(has_text)),
        finish: wire.finish,
        usage,
        timings: false,
        done: wire.done,
        error: wire.error,
        error_field: wire.error_field,
        comment: wire.comment,
        raw,
    };
    Ok((event, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worked_stream_is_the_published_one() {
        let script = Script::worked_stream();
        let rule = &script.rules[0];
        let at: Vec<u64> = rule.events.iter().map(|e| e.at_ns / 1_000_000).collect();
        assert_eq!(at, [50, 200, 300, 400, 410, 415, 416]);
        let tokens: Vec<u32> = rule.events.iter().map(|e| e.tokens).collect();
        assert_eq!(tokens, [0, 1, 3, 1, 0, 0, 0]);
        assert!(rule.events[6].done && rule.end == End::Finish);
    }

    #[test]
    fn a_wrong_script_is_refused_with_the_place_and_the_reason() {
        let stream = |events: &str| format!(r#"{{"streams":[{{"events":[{events}]}}]}}"#);
        let cases = [
            ("{}".to_string(), "missing field `streams`"),
            (
                stream(r#"{"at_ms":2},{"at_ms":1}"#),
                "event 1: `at_ms` goes back",
            ),
            (stream(r#"{"at_ms":-1}"#), "event 0: -1 ms"),
            (
                stream(r#"{"at_ms":1,"close":true},{"at_ms":2}"#),
                "event 1: comes after",
            ),
            (
                stream(r#"{"at_ms":1,"close":true,"stall":true}"#),
                "more than one",
            ),
            (stream(r#"{"at_ms":1,"base64":"?"}"#), "`base64`"),
            (stream(r#"{"at_ms":1,"text":"x"}"#), "unknown field `text`"),
            (r#"{"streams":[{"status":99}]}"#.into(), "status 99"),
            (
                r#"{"streams":[{"headers":{"a":"b\r\nc: d"}}]}"#.into(),
                "header \"a\"",
            ),
            (
                r#"{"streams":[{"content_type":"a\nb"}]}"#.into(),
                "content_type",
            ),
        ];
        for (text, expected) in cases {
            let error = Script::parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_rule_fits_by_path_model_and_class() {
        let text = r#"{"streams":[{"match":{"path":"/p","class":"long"}}]}"#;
        let rule = &Script::parse(text).unwrap().rules[0];
        assert!(rule.fits("/p", "m", Some("long")));
        assert!(!rule.fits("/p", "m", None));
        assert!(!rule.fits("/q", "m", Some("long")));
    }
}
