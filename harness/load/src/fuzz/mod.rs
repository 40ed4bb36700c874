//! Checks that hold for any bytes, for the fuzzer and for the replay of its corpus.
//!
//! The oracle is a second parser that is written the slow, obvious way: the whole stream as text,
//! cut into lines, field by field. The incremental parser must agree with it however the bytes
//! are split. What the events mean is checked in the same way ([`meaning`]).

mod meaning;
mod response;

pub use response::fuzz_response;

use crate::sse::{SseEvent, SseParser};

/// Parses `data` whole, byte by byte and in pieces whose lengths `data` itself decides, and
/// panics when any of the results differs from the oracle's.
pub fn fuzz_sse(data: &[u8]) {
    let expected = parse_whole(data);
    let whole = parse_pieces(data, |_| usize::MAX);
    assert_eq!(whole, expected, "whole stream against the oracle");
    let single = parse_pieces(data, |_| 1);
    assert_eq!(single, expected, "byte by byte");
    let pieces = parse_pieces(data, |at| 1 + usize::from(data[at] % 7));
    assert_eq!(pieces, expected, "in pieces");
    meaning::check(data, &expected);
    // A tiny limit may refuse the stream, but it must not panic or give other events first.
    let mut limited = Vec::new();
    let mut parser = SseParser::new(16);
    let result = parser.feed(data, &mut |event| limited.push(event.clone()));
    assert!(
        expected.starts_with(&limited),
        "a limit changed the events before it"
    );
    assert!(
        result.is_err() || limited == expected,
        "a limit dropped events silently"
    );
}

fn parse_pieces(data: &[u8], length_at: impl Fn(usize) -> usize) -> Vec<SseEvent> {
    let mut parser = SseParser::new(usize::MAX);
    let mut events = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let end = at.saturating_add(length_at(at)).min(data.len());
        let fed = parser.feed(&data[at..end], &mut |event| events.push(event.clone()));
        assert!(fed.is_ok(), "an unlimited parser never fails");
        at = end;
    }
    events
}

/// The oracle.
fn parse_whole(data: &[u8]) -> Vec<SseEvent> {
    let text = String::from_utf8_lossy(data.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(data));
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    // What follows the last line feed is an unfinished line.
    let lines = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let (mut events, mut id) = (Vec::new(), String::new());
    let (mut kind, mut data, mut errors) = (String::new(), Vec::new(), Vec::new());
    if text.is_empty() || !text.contains('\n') {
        return events;
    }
    for line in lines.split('\n') {
        let (name, value) = match line.find(':') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, ""),
        };
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match name {
            _ if line.is_empty() => {
                let joined = data.join("\n");
                if !joined.is_empty() || !errors.is_empty() {
                    let error = (!errors.is_empty()).then(|| join_errors(&errors));
                    let event = std::mem::take(&mut kind);
                    let last_event_id = id.clone();
                    events.push(SseEvent {
                        event,
                        data: joined,
                        last_event_id,
                        error,
                    });
                }
                kind.clear();
                data.clear();
                errors.clear();
            }
            "data" => data.push(value),
            "event" => kind = value,
            "id" if !value.contains('\0') => id = value,
            "error" => errors.push(value),
            _ => {}
        }
    }
    events
}

/// Error values one a line; leading empty ones leave no line behind.
fn join_errors(errors: &[String]) -> String {
    let first = errors
        .iter()
        .position(|error| !error.is_empty())
        .unwrap_or(errors.len() - 1);
    errors[first..].join("\n")
}
