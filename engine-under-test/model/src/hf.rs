//! Hugging Face folders: `config.json`, safetensors shards, and what generation adds.
//!
//! The header of a safetensors file is JSON with byte ranges. It is parsed here rather than by
//! the `safetensors` crate because that crate wants the whole file in memory or mapped; ranges
//! are checked against the file's length before anything is read, one tensor at a time.

mod shard;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::{Arch, LlamaConfig, hf};
use crate::error::{ModelError, Result};
use crate::weights::{LayerPart, TensorNames, TensorSource, Weights, assemble};
pub use shard::{Shard, parse_header};

/// Hugging Face's tensor names.
pub(crate) const NAMES: TensorNames = TensorNames {
    embed: "model.embed_tokens.weight",
    final_norm: "model.norm.weight",
    lm_head: "lm_head.weight",
    layer: layer_name,
};

/// The name of a layer's tensor.
fn layer_name(index: usize, part: LayerPart) -> String {
    let name = match part {
        LayerPart::AttnNorm => "input_layernorm.weight",
        LayerPart::Q => "self_attn.q_proj.weight",
        LayerPart::K => "self_attn.k_proj.weight",
        LayerPart::V => "self_attn.v_proj.weight",
        LayerPart::O => "self_attn.o_proj.weight",
        LayerPart::QBias => "self_attn.q_proj.bias",
        LayerPart::KBias => "self_attn.k_proj.bias",
        LayerPart::VBias => "self_attn.v_proj.bias",
        LayerPart::MlpNorm => "post_attention_layernorm.weight",
        LayerPart::Gate => "mlp.gate_proj.weight",
        LayerPart::Up => "mlp.up_proj.weight",
        LayerPart::Down => "mlp.down_proj.weight",
    };
    format!("model.layers.{index}.{name}")
}

/// Reads a small text file of the folder; `None` when it does not exist.
pub(crate) fn read_optional(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(ModelError::io(path, e)),
    }
}

/// Reads `config.json`, completed by `generation_config.json`'s end-of-sequence ids.
///
/// # Errors
/// [`ModelError::Io`], [`ModelError::Format`] or [`ModelError::Config`].
pub fn read_config(dir: &Path) -> Result<LlamaConfig> {
    let path = dir.join("config.json");
    let json = std::fs::read_to_string(&path).map_err(|e| ModelError::io(&path, e))?;
    let mut config = LlamaConfig::from_hf_json(&json)?;
    if let Some(json) = read_optional(&dir.join("generation_config.json"))? {
        for id in hf::generation_eos_ids(&json)? {
            if !config.eos_ids.contains(&id) {
                config.eos_ids.push(id);
            }
        }
        config.validate()?;
    }
    Ok(config)
}

/// The part of `model.safetensors.index.json` that matters.
#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

/// The safetensors files of a folder, in name order.
///
/// # Errors
/// [`ModelError::Format`] when the index does not parse or names a file outside the folder, or
/// when the folder has no safetensors file.
pub fn weight_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let index_name = "model.safetensors.index.json";
    if let Some(json) = read_optional(&dir.join(index_name))? {
        let index: ShardIndex =
            serde_json::from_str(&json).map_err(|e| ModelError::format(index_name, e))?;
        let mut names: Vec<&String> = index.weight_map.values().collect();
        names.sort();
        names.dedup();
        if let Some(bad) = names
            .iter()
            .find(|n| n.contains(['/', '\\']) || n.starts_with('.'))
        {
            return Err(ModelError::format(
                index_name,
                format!("{bad:?} leaves the folder"),
            ));
        }
        return Ok(names.into_iter().map(|name| dir.join(name)).collect());
    }
    let single = dir.join("model.safetensors");
    if !single.is_file() {
        let problem = format!("has neither model.safetensors nor {index_name}");
        return Err(ModelError::format(dir.display().to_string(), problem));
    }
    Ok(vec![single])
}

/// Reads the weights that `config` calls for.
///
/// # Errors
/// [`ModelError::Io`], [`ModelError::Format`] or [`ModelError::Tensor`].
pub fn read_weights(dir: &Path, config: &LlamaConfig) -> Result<Weights> {
    let files = weight_files(dir)?;
    let shards = files.iter().map(|path| Shard::open(path));
    let shards = Shards {
        shards: shards.collect::<Result<Vec<Shard>>>()?,
    };
    assemble(config, &shards, &NAMES, false)
}

/// Weights of one safetensors file in memory, for tests and fuzzing.
///
/// # Errors
/// [`ModelError::Format`] or [`ModelError::Tensor`].
pub fn weights_from_bytes(config: &LlamaConfig, file: &[u8]) -> Result<Weights> {
    let shard = Shard::from_bytes(file)?;
    assemble(
        config,
        &Shards {
            shards: vec![shard],
        },
        &NAMES,
        false,
    )
}

/// Several safetensors files seen as one.
struct Shards {
    shards: Vec<Shard>,
}

impl TensorSource for Shards {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let shard = self
            .shards
            .iter()
            .find(|shard| shard.contains(name))
            .ok_or_else(|| ModelError::tensor(name, "is missing"))?;
        shard.read(name, shape)
    }
}

/// The architecture's class in transformers, for written configs.
pub(crate) fn class_name(arch: Arch) -> &'static str {
    match arch {
        Arch::Llama => "LlamaForCausalLM",
        Arch::Qwen2 => "Qwen2ForCausalLM",
    }
}
