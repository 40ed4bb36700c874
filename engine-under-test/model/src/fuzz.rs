//! Entry points for fuzzing: each takes arbitrary bytes and must return.
//!
//! The same functions serve an external fuzzer and the deterministic mutation loops of the test
//! run, so that a finding of the former becomes a seed of the latter. They exercise everything
//! that loading does with a file's content, in memory; errors are the expected outcome.

use crate::chat::ChatMessage;
use crate::config::LlamaConfig;
use crate::gguf::{Header, config_and_weights};
use crate::hf;
use crate::tokenizer::Tokenizer;

/// Treats `data` as a GGUF file: header, configuration, weights, tokenizer, chat template.
pub fn fuzz_gguf(data: &[u8]) {
    let Ok(header) = Header::parse(data) else {
        return;
    };
    if let Ok((config, weights)) = config_and_weights(&header, data) {
        assert_eq!(
            weights.layers.len(),
            config.layers,
            "a loaded model is complete"
        );
        // A file byte holds at most two weights (4-bit codes).
        assert!(
            weights.parameter_count() <= 2 * data.len(),
            "weights out of thin air"
        );
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&header) {
        exercise(&tokenizer);
    }
}

/// Treats `data` as a safetensors file for the model that `config` describes.
pub fn fuzz_safetensors(config: &LlamaConfig, data: &[u8]) {
    if let Ok(weights) = hf::weights_from_bytes(config, data) {
        assert!(
            weights.parameter_count() <= data.len(),
            "weights out of thin air"
        );
    }
}

/// Treats `text` as a `config.json`; also computes what the forward pass derives from it.
pub fn fuzz_hf_config(text: &str) {
    if let Ok(config) = LlamaConfig::from_hf_json(text) {
        // Derived tables are proportional to the head size, which only weights can vouch for.
        if config.d_head <= 4096 {
            assert_eq!(config.inv_freq().len(), config.d_head / 2);
        }
    }
}

/// Treats `text` as a `tokenizer.json`.
pub fn fuzz_tokenizer_json(text: &str) {
    if let Ok(tokenizer) = Tokenizer::from_json(text) {
        exercise(&tokenizer);
    }
}

/// Encodes, decodes and renders a little of everything.
fn exercise(tokenizer: &Tokenizer) {
    let text = "Hi 42 \u{e9}\u{20ac}\u{1f600}\n\n  <|im_start|>x<|im_end|>";
    for add_special in [false, true] {
        if let Ok(ids) = tokenizer.encode(text, add_special) {
            // Whatever the vocabulary, the text must come out without a panic.
            let _ = tokenizer.decode(&ids, add_special);
        }
    }
    let _ = tokenizer.decode(&[0, 1, u32::MAX], true);
    let _ = tokenizer.apply_chat_template(&[ChatMessage::new("user", "x")], true);
}
