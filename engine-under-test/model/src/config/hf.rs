//! [`LlamaConfig`] from Hugging Face's `config.json`.

use serde_json::{Map, Value};

use super::{Arch, LlamaConfig, RopeScaling};
use crate::error::{ModelError, Result};

/// The file that errors name.
const ORIGIN: &str = "config.json";
/// transformers' default base of the rotary frequencies.
const DEFAULT_ROPE_THETA: f64 = 10_000.0;

/// See [`LlamaConfig::from_hf_json`].
pub(super) fn parse(json: &str) -> Result<LlamaConfig> {
    let value: Value = serde_json::from_str(json).map_err(|e| ModelError::format(ORIGIN, e))?;
    let map = value
        .as_object()
        .ok_or_else(|| ModelError::format(ORIGIN, "not an object"))?;
    let keys = Keys { map };
    let arch = keys
        .text("model_type")?
        .and_then(Arch::from_name)
        .ok_or_else(|| keys.bad("model_type", "this engine computes llama and qwen2"))?;
    keys.refuse_unsupported(arch)?;
    let hidden = keys.size("hidden_size")?;
    let q_heads = keys.size("num_attention_heads")?;
    let config = LlamaConfig {
        arch,
        hidden,
        layers: keys.size("num_hidden_layers")?,
        q_heads,
        kv_heads: keys.size_or("num_key_value_heads", q_heads)?,
        d_head: keys.head_size(hidden, q_heads)?,
        ffn: keys.size("intermediate_size")?,
        vocab: keys.size("vocab_size")?,
        rope_theta: keys.rope_theta()?,
        rope_scaling: keys.rope_scaling()?,
        rms_eps: keys.real_or("rms_norm_eps", 1e-6)?,
        max_position: keys.size_or("max_position_embeddings", 2048)?,
        tied_embeddings: keys.flag_or("tie_word_embeddings", false)?,
        qkv_bias: arch == Arch::Qwen2,
        bos_id: keys.token_ids("bos_token_id")?.first().copied(),
        eos_ids: keys.token_ids("eos_token_id")?,
    };
    config.validate()?;
    Ok(config)
}

/// `eos_token_id` of `generation_config.json`, which names end-of-turn ids that `config.json`
/// may lack.
pub(crate) fn generation_eos_ids(json: &str) -> Result<Vec<u32>> {
    let origin = "generation_config.json";
    let value: Value = serde_json::from_str(json).map_err(|e| ModelError::format(origin, e))?;
    let map = value
        .as_object()
        .ok_or_else(|| ModelError::format(origin, "not an object"))?;
    Keys { map }.token_ids("eos_token_id")
}

/// A JSON object whose `null` entries count as missing.
struct Keys<'a> {
    map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    /// The value of `key`, `null` being nothing.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The error about `key` and what it holds.
    fn bad(&self, key: &str, problem: impl Into<String>) -> ModelError {
        let value = self
            .map
            .get(key)
            .map_or("(missing)".to_string(), Value::to_string);
        // A config may hold a whole table under the key; the start of it is enough to find it.
        let value = value.chars().take(120).collect();
        ModelError::Config {
            origin: ORIGIN.into(),
            key: key.into(),
            value,
            problem: problem.into(),
        }
    }

    /// A required count.
    fn size(&self, key: &str) -> Result<usize> {
        self.get(key)
            .and_then(Value::as_u64)
            .and_then(|v| usize::try_from(v).ok())
            .ok_or_else(|| self.bad(key, "must be a whole number"))
    }

    /// A count with a default.
    fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.get(key).is_some() {
            self.size(key)
        } else {
            Ok(default)
        }
    }

    /// A real number with a default.
    fn real_or(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value
                .as_f64()
                .ok_or_else(|| self.bad(key, "must be a number")),
        }
    }

    /// A required real number.
    fn real(&self, key: &str) -> Result<f64> {
        self.get(key)
            .and_then(Value::as_f64)
            .ok_or_else(|| self.bad(key, "must be a number"))
    }

    /// A boolean with a default.
    fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.bad(key, "must be true or false")),
        }
    }

    /// An optional string.
    fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value
                .as_str()
                .map(Some)
                .ok_or_else(|| self.bad(key, "must be a string")),
        }
    }

    /// One id, a list of ids, or nothing; repeats are dropped.
    fn token_ids(&self, key: &str) -> Result<Vec<u32>> {
        let listed = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        let mut ids = Vec::new();
        for item in listed {
            let id = item
                .as_u64()
                .and_then(|v| u32::try_from(v).ok())
                .ok_or_else(|| self.bad(key, "must be a token id or a list of them"))?;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// Refuses options that would be ignored and so computed wrongly.
    fn refuse_unsupported(&self, arch: Arch) -> Result<()> {
        match self.text("hidden_act")? {
            None | Some("silu") | Some("swish") => {}
            Some(_) => return Err(self.bad("hidden_act", "only silu is supported")),
        }
        if self.get("quantization_config").is_some() {
            let problem = "quantised safetensors are unsupported; use a GGUF file";
            return Err(self.bad("quantization_config", problem));
        }
        // Llama's switch puts a bias on the output projection too, which no released model has.
        if arch == Arch::Llama && self.flag_or("attention_bias", false)? {
            return Err(self.bad("attention_bias", "biased llama attention is unsupported"));
        }
        for key in ["mlp_bias", "use_sliding_window"] {
            if self.flag_or(key, false)? {
                return Err(self.bad(key, "must be false"));
            }
        }
        if self.real_or("partial_rotary_factor", 1.0)? != 1.0 {
            return Err(self.bad("partial_rotary_factor", "must be 1"));
        }
        Ok(())
    }

    /// `head_dim`, or the hidden size shared out among the query heads.
    fn head_size(&self, hidden: usize, q_heads: usize) -> Result<usize> {
        if self.get("head_dim").is_some() {
            return self.size("head_dim");
        }
        if q_heads == 0 || !hidden.is_multiple_of(q_heads) {
            let problem = format!("does not divide hidden_size = {hidden}");
            return Err(self.bad("num_attention_heads", problem));
        }
        Ok(hidden / q_heads)
    }

    /// The object with the rotary options: `rope_parameters` in new files, `rope_scaling` in old.
    fn rope_object(&self) -> Result<Option<Keys<'a>>> {
        for key in ["rope_parameters", "rope_scaling"] {
            if let Some(value) = self.get(key) {
                let map = value
                    .as_object()
                    .ok_or_else(|| self.bad(key, "must be an object"))?;
                return Ok(Some(Keys { map }));
            }
        }
        Ok(None)
    }

    /// `rope_theta`, at the top or among the rotary options.
    fn rope_theta(&self) -> Result<f64> {
        let nested = match self.rope_object()? {
            Some(rope) => rope.real_or("rope_theta", DEFAULT_ROPE_THETA)?,
            None => DEFAULT_ROPE_THETA,
        };
        self.real_or("rope_theta", nested)
    }

    /// The rope scaling, by its kind.
    fn rope_scaling(&self) -> Result<RopeScaling> {
        let Some(rope) = self.rope_object()? else {
            return Ok(RopeScaling::None);
        };
        let key = if rope.get("rope_type").is_some() {
            "rope_type"
        } else {
            "type"
        };
        match rope.text(key)? {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear {
                factor: rope.real("factor")?,
            }),
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: rope.real("factor")?,
                low_freq_factor: rope.real("low_freq_factor")?,
                high_freq_factor: rope.real("high_freq_factor")?,
                original_max_position: rope.size("original_max_position_embeddings")?,
            }),
            Some(_) => Err(rope.bad(key, "supported are default, linear and llama3")),
        }
    }
}
