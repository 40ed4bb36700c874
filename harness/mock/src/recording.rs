//! Recorded responses of real servers, replayed byte for byte with their timing.

use std::path::Path;

use base64::Engine as _;
use serde::Deserialize;

use crate::error::MockError;

/// The response to one request: raw bytes, the head included, as reads returned them.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Where it came from, for messages.
    pub name: String,
    /// Path of the request that was asked.
    pub path: String,
    /// Nanoseconds after the request was written, and what one read returned.
    pub reads: Vec<(u64, Vec<u8>)>,
}

#[derive(Deserialize)]
struct Wire {
    path: String,
    reads: Vec<(f64, String)>,
}

impl Recording {
    /// Parses the JSON of a recording: `path` and `reads`, a list of
    /// `[milliseconds, base64 of the bytes]`; other fields are ignored.
    ///
    /// # Errors
    /// Not of this form, times that go back, bytes that are no base64.
    pub fn parse(name: &str, text: &str) -> Result<Recording, MockError> {
        let error = |reason: String| MockError::Recording {
            name: name.into(),
            reason,
        };
        let wire: Wire = serde_json::from_str(text).map_err(|e| error(e.to_string()))?;
        let mut reads: Vec<(u64, Vec<u8>)> = Vec::with_capacity(wire.reads.len());
        for (i, (ms, text)) in wire.reads.iter().enumerate() {
            let at_ns = (ms * 1e6).round();
            let last = reads.last().map_or(0, |read| read.0);
            if !(at_ns.is_finite() && at_ns >= last as f64 && at_ns <= 1e15) {
                return Err(error(format!(
                    "read {i}: {ms} ms goes back or is out of range"
                )));
            }
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(text)
                .map_err(|e| error(format!("read {i}: {e}")))?;
            reads.push((at_ns as u64, bytes));
        }
        Ok(Recording {
            name: name.into(),
            path: wire.path,
            reads,
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// An unreadable file, or as [`Recording::parse`].
    pub fn read(path: &Path) -> Result<Recording, MockError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| MockError::Recording {
            name: name.clone(),
            reason: e.to_string(),
        })?;
        Recording::parse(&name, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_become_bytes_and_nanoseconds() {
        let text = r#"{"path":"/p","server":"x","reads":[[0.5,"SFQ="],[2,"VFA="]]}"#;
        let recording = Recording::parse("r", text).unwrap();
        let expected = vec![(500_000, b"HT".to_vec()), (2_000_000, b"TP".to_vec())];
        assert_eq!((recording.path.as_str(), recording.reads), ("/p", expected));
    }

    #[test]
    fn a_wrong_recording_is_refused_with_its_name() {
        for (text, expected) in [
            ("{}", "missing field `path`"),
            (
                r#"{"path":"/p","reads":[[2,""],[1,""]]}"#,
                "read 1: 1 ms goes back",
            ),
            (r#"{"path":"/p","reads":[[2,"?"]]}"#, "read 0: "),
        ] {
            let error = Recording::parse("some.json", text).unwrap_err().to_string();
            assert!(
                error.contains("some.json") && error.contains(expected),
                "{error}"
            );
        }
    }
}
