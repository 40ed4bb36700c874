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

/// The body of a recorded response as `(arrival, bytes)`, its chunked encoding undone: a piece is
/// what one chunk carried, stamped with the read that completed it.
pub(crate) fn body(name: &str) -> Vec<(Nanos, Vec<u8>)> {
    let path = repository("golden/streams").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap();
    let recording: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (mut raw, mut pieces) = (Vec::new(), Vec::new());
    let mut in_body = false;
    for read in recording["reads"].as_array().unwrap() {
        let at = Nanos((read[0].as_f64().unwrap() * 1e6).round() as u64);
        let bytes = base64::engine::general_purpose::STANDARD.decode(read[1].as_str().unwrap());
        raw.extend(bytes.unwrap());
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
