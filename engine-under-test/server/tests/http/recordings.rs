//! Recorded responses of a real vLLM server, as raw bytes in base64.

use std::path::Path;

use serde_json::Value;

use crate::client::{Reply, parse_response};

/// What vLLM has beyond this engine: routing, transfer, multimodal and such.
const VENDOR_KEYS: [&str; 9] = [
    "routed_experts",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
    "created_cache_tokens",
    "multimodal_tokens",
    "completion_tokens_details",
    "prompt_text",
    "root",
];
/// What differs from answer to answer.
const FRESH_KEYS: [&str; 4] = ["id", "created", "system_fingerprint", "owned_by"];

/// A recording: the body sent and the response.
pub(crate) struct Recording {
    pub(crate) body: Value,
    pub(crate) reply: Reply,
}

pub(crate) fn load(name: &str) -> Recording {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/streams");
    let file = folder.join(format!("vllm_{name}.json"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file:?}: {e}"));
    let json: Value = serde_json::from_str(&text).unwrap();
    let reads = json["reads"].as_array().unwrap().iter();
    let raw: Vec<u8> = reads
        .flat_map(|read| base64(read[1].as_str().unwrap()))
        .collect();
    Recording {
        body: json["body"].clone(),
        reply: parse_response(&raw),
    }
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("not base64: {c}"),
    };
    let digits: Vec<u8> = text.bytes().filter(|&c| c != b'=').map(digit).collect();
    let mut out = Vec::new();
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0u32, |bits, &d| bits << 6 | u32::from(d));
        let bytes = (bits << (6 * (4 - group.len()))).to_be_bytes();
        out.extend(&bytes[1..group.len()]);
    }
    out
}

/// The value without vendor keys and with fresh values blanked.
pub(crate) fn plain(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let kept = object
                .iter()
                .filter(|(key, _)| !VENDOR_KEYS.contains(&key.as_str()));
            let plained = kept.map(|(key, value)| {
                let fresh = FRESH_KEYS.contains(&key.as_str()) && !value.is_null();
                // Model lists name the model by its id.
                let fresh = fresh && value.as_str() != Some("smollm2");
                (
                    key.clone(),
                    if fresh {
                        Value::from("fresh")
                    } else {
                        plain(value)
                    },
                )
            });
            Value::Object(plained.collect())
        }
        Value::Array(list) => list.iter().map(plain).collect(),
        other => other.clone(),
    }
}

/// The keys of every object, in order, for comparing the order of keys.
pub(crate) fn keys(value: &Value) -> Vec<String> {
    match value {
        Value::Object(object) => object
            .iter()
            .flat_map(|(key, value)| std::iter::once(key.clone()).chain(keys(value)))
            .collect(),
        Value::Array(list) => list.iter().flat_map(keys).collect(),
        _ => Vec::new(),
    }
}
