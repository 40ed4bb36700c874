//! Recorded responses of real servers.

use std::path::{Path, PathBuf};

use base64::Engine;
use pb_contract::Nanos;

/// A directory of the repository, from this crate's own.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// A recorded response: its path and its bytes as they were read.
pub(crate) struct Recorded {
    pub(crate) path: String,
    pub(crate) reads: Vec<(Nanos, Vec<u8>)>,
}

pub(crate) fn recorded(name: &str) -> Recorded {
    let path = repository("golden/streams").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap();
    let recording: serde_json::Value = serde_json::from_str(&text).unwrap();
    let read = |read: &serde_json::Value| {
        let at = Nanos((read[0].as_f64().unwrap() * 1e6).round() as u64);
        let bytes = base64::engine::general_purpose::STANDARD.decode(read[1].as_str().unwrap());
        (at, bytes.unwrap())
    };
    Recorded {
        path: recording["path"].as_str().unwrap().to_owned(),
        reads: recording["reads"]
            .as_array()
            .unwrap()
            .iter()
            .map(read)
            .collect(),
    }
}

/// The body of a recorded response as `(arrival, bytes)`, its chunked encoding undone: a piece is
/// what one chunk carried, stamped with the read that completed it.
pub(crate) fn body(name: &str) -> Vec<(Nanos, Vec<u8>)> {
    let (mut raw, mut pieces) = (Vec::new(), Vec::new());
    let mut in_body = false;
    for (at, bytes) in recorded(name).reads {
        raw.extend(bytes);
        if !in_body {
            let Some(end) = find(&raw, b"\r\n\r\n") else {
                continue;
            };
            raw.drain(..end + 4);
            in_body = true;
        }
        while let Some(line) = find(&raw, b"\r\n") {
            let size = std::str::from_utf8(&raw[..line]).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            if size == 0 || raw.len() < line + 2 + size + 2 {
                break;
            }
            pieces.push((at, raw[line + 2..line + 2 + size].to_vec()));
            raw.drain(..line + 2 + size + 2);
        }
    }
    pieces
}

/// The body as one piece of bytes.
pub(crate) fn whole(name: &str) -> Vec<u8> {
    body(name)
        .into_iter()
        .flat_map(|(_, bytes)| bytes)
        .collect()
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}
