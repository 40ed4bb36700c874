//! A generated model as a folder that transformers and this crate's loader can read.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};

use super::{Kind, Size, generate, model_name, vocab};
use crate::config::LlamaConfig;
use crate::error::{ModelError, Result};
use crate::hf;
use crate::weights::{Weights, named_tensors};

/// Writes the generated model to `dir`, which is created if need be.
///
/// `config.json` is written last: a folder without it is not loadable, so an interrupted write
/// cannot pass for a model.
///
/// # Errors
/// [`ModelError::Io`].
pub fn write_dir(dir: &Path, kind: Kind, size: Size, seed: u64) -> Result<()> {
    let (config, weights, tokenizer_json) = generate(kind, size, seed);
    std::fs::create_dir_all(dir).map_err(|e| ModelError::io(dir, e))?;
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|e| ModelError::io(path, e))
    };
    put("model.safetensors", &safetensors_bytes(&weights)?)?;
    put("tokenizer.json", tokenizer_json.as_bytes())?;
    put(
        "tokenizer_config.json",
        pretty(&tokenizer_config(&config)).as_bytes(),
    )?;
    put(
        "config.json",
        pretty(&config_json(&config, &model_name(kind, size, seed))).as_bytes(),
    )
}

/// The weights as one safetensors file in f32.
pub(super) fn safetensors_bytes(weights: &Weights) -> Result<Vec<u8>> {
    let named = named_tensors(weights, &hf::NAMES);
    let encoded: Vec<Vec<u8>> = named
        .iter()
        .map(|tensor| tensor.data.iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let mut views = Vec::new();
    for (tensor, bytes) in named.iter().zip(&encoded) {
        let view = TensorView::new(Dtype::F32, tensor.shape.clone(), bytes)
            .map_err(|e| ModelError::tensor(&tensor.name, e.to_string()))?;
        views.push((tensor.name.clone(), view));
    }
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    serialize(views, Some(format)).map_err(|e| ModelError::format("model.safetensors", e))
}

/// `config.json` for transformers.
fn config_json(config: &LlamaConfig, name: &str) -> Value {
    json!({
        "_name_or_path": name,
        "architectures": [hf::class_name(config.arch)],
        "model_type": config.arch.name(),
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.q_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.d_head,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_position,
        "rope_theta": config.rope_theta,
        "rope_scaling": null,
        "rms_norm_eps": config.rms_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": false,
        "mlp_bias": false,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "use_cache": true,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_ids.first(),
        "pad_token_id": vocab::PAD,
    })
}

/// `tokenizer_config.json` for transformers.
fn tokenizer_config(config: &LlamaConfig) -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position,
        "bos_token": vocab::name(vocab::START),
        "eos_token": vocab::name(vocab::END),
        "pad_token": vocab::name(vocab::PAD),
        "clean_up_tokenization_spaces": false,
        "chat_template": vocab::CHAT_TEMPLATE,
    })
}

/// Indented JSON with a final newline.
fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
