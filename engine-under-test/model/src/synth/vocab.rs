//! The vocabulary of generated models: every byte is a token, and its id is its value.

use serde_json::{Map, Value as Json, json};

use crate::gguf::{ArrayValue, Value};
use crate::tokenizer::byte_to_char;

/// Rows of the embedding table; every id has a token.
pub const SIZE: usize = 288;
/// Padding and end of document.
pub(super) const PAD: u32 = 256;
/// Begin of a message, the begin-of-sequence token.
pub(super) const START: u32 = 257;
/// End of a message, the end-of-sequence token.
pub(super) const END: u32 = 258;

/// ChatML, as SmolLM2 and Qwen2 use it.
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// The text of control token `id`.
pub(super) fn name(id: u32) -> &'static str {
    const NAMES: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    NAMES[(id - PAD) as usize]
}

/// The texts of all tokens in id order.
fn tokens() -> Vec<String> {
    let bytes = (0..=255).map(|b| byte_to_char(b).to_string());
    let control = [PAD, START, END].map(|id| name(id).to_string());
    let reserved = (END + 1..SIZE as u32).map(|id| format!("<|reserved_{id}|>"));
    bytes.chain(control).chain(reserved).collect()
}

/// The `tokenizer.json` of generated models.
pub fn tokenizer_json() -> String {
    let tokens = tokens();
    let vocab: Map<String, Json> = tokens
        .iter()
        .enumerate()
        .map(|(id, text)| (text.clone(), json!(id)))
        .collect();
    let added: Vec<Json> = tokens[PAD as usize..]
        .iter()
        .zip(PAD..)
        .map(|(text, id)| {
            json!({
                "id": id, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        })
        .collect();
    let byte_level = |use_regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": use_regex,
        })
    };
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": byte_level(true), "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [],
        },
    });
    // OK because a value built from string keys always serialises.
    serde_json::to_string_pretty(&file).expect("JSON value")
}

/// The same tokenizer as GGUF metadata; the ids of begin and end come with the configuration.
pub(super) fn gguf_metadata() -> Vec<(String, Value)> {
    let tokens = tokens();
    let control = |id: usize| if id < PAD as usize { 1 } else { 3 };
    let types = ArrayValue::of_i32s((0..tokens.len()).map(control));
    let entry = |key: &str, value| (format!("tokenizer.{key}"), value);
    vec![
        entry("ggml.model", Value::String("gpt2".into())),
        entry("ggml.pre", Value::String("gpt-2".into())),
        entry("ggml.tokens", Value::Array(ArrayValue::of_strings(&tokens))),
        entry("ggml.token_type", Value::Array(types)),
        entry(
            "ggml.merges",
            Value::Array(ArrayValue::of_strings::<&str>([])),
        ),
        entry("ggml.add_bos_token", Value::Bool(false)),
        entry("chat_template", Value::String(CHAT_TEMPLATE.into())),
    ]
}
