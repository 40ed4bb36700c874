//! [`LlamaConfig`] from GGUF metadata.

use super::{Arch, LlamaConfig, RopeScaling};
use crate::error::{ModelError, Result};
use crate::gguf::Header;

/// The value of rope scaling's base when a file says nothing (the original Llama's).
const DEFAULT_ROPE_THETA: f64 = 10_000.0;

/// See [`LlamaConfig::from_gguf`].
pub(super) fn parse(header: &Header) -> Result<LlamaConfig> {
    let name = header.text("general.architecture")?;
    let arch = name.and_then(Arch::from_name).ok_or_else(|| {
        let problem = "this engine computes llama and qwen2";
        header.bad_key("general.architecture", problem)
    })?;
    let keys = Keys { header, arch };
    keys.refuse_unsupported()?;
    let hidden = keys.size("embedding_length")?;
    let q_heads = keys.size("attention.head_count")?;
    let kv_heads = keys.size_or("attention.head_count_kv", q_heads)?;
    let config = LlamaConfig {
        arch,
        hidden,
        layers: keys.size("block_count")?,
        q_heads,
        kv_heads,
        d_head: keys.head_size(hidden, q_heads)?,
        ffn: keys.size("feed_forward_length")?,
        vocab: keys.vocab()?,
        rope_theta: keys.real_or("rope.freq_base", DEFAULT_ROPE_THETA)?,
        rope_scaling: keys.rope_scaling()?,
        rms_eps: keys.real("attention.layer_norm_rms_epsilon")?,
        max_position: keys.size("context_length")?,
        tied_embeddings: header.tensor("output.weight").is_none(),
        qkv_bias: header.tensor("blk.0.attn_q.bias").is_some(),
        bos_id: token_id(header, "tokenizer.ggml.bos_token_id")?,
        eos_ids: eos_ids(header)?,
    };
    config.validate()?;
    Ok(config)
}

/// Metadata keys under the architecture's prefix.
struct Keys<'a> {
    header: &'a Header,
    arch: Arch,
}

impl Keys<'_> {
    /// The full name of `key`.
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.arch.name())
    }

    /// A required count.
    fn size(&self, key: &str) -> Result<usize> {
        let full = self.full(key);
        let value = self.header.uint(&full)?;
        let value = value.ok_or_else(|| self.header.bad_key(&full, "is required"))?;
        usize::try_from(value).map_err(|_| self.header.bad_key(&full, "is too large"))
    }

    /// A count with a default.
    fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        match self.header.get(&self.full(key)) {
            Some(_) => self.size(key),
            None => Ok(default),
        }
    }

    /// A required real number.
    fn real(&self, key: &str) -> Result<f64> {
        let full = self.full(key);
        self.header
            .real(&full)?
            .ok_or_else(|| self.header.bad_key(&full, "is required"))
    }

    /// A real number with a default.
    fn real_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.header.real(&self.full(key))?.unwrap_or(default))
    }

    /// Refuses what would be computed wrongly: experts and partial rotary embedding.
    fn refuse_unsupported(&self) -> Result<()> {
        if self.size_or("expert_count", 0)? > 0 {
            return Err(self
                .header
                .bad_key(&self.full("expert_count"), "no mixture of experts"));
        }
        Ok(())
    }

    /// Head size, which must be the same for keys, values and rotary embedding.
    fn head_size(&self, hidden: usize, q_heads: usize) -> Result<usize> {
        let d_head = match self.header.get(&self.full("attention.key_length")) {
            Some(_) => self.size("attention.key_length")?,
            None if q_heads > 0 && hidden.is_multiple_of(q_heads) => hidden / q_heads,
            None => {
                let problem = format!("does not divide embedding_length = {hidden}");
                return Err(self
                    .header
                    .bad_key(&self.full("attention.head_count"), problem));
            }
        };
        for key in ["attention.value_length", "rope.dimension_count"] {
            if self.size_or(key, d_head)? != d_head {
                let problem = format!("must equal the head size {d_head}");
                return Err(self.header.bad_key(&self.full(key), problem));
            }
        }
        Ok(d_head)
    }

    /// Rows of the embedding tensor, which `vocab_size` must not contradict.
    fn vocab(&self) -> Result<usize> {
        let tensor = self
            .header
            .tensor("token_embd.weight")
            .ok_or_else(|| ModelError::tensor("token_embd.weight", "is missing"))?;
        let rows = tensor.dims.get(1).copied().unwrap_or(0);
        let rows = usize::try_from(rows)
            .map_err(|_| ModelError::tensor("token_embd.weight", "has too many rows"))?;
        if self.size_or("vocab_size", rows)? != rows {
            let problem = format!("token_embd.weight has {rows} rows");
            return Err(self.header.bad_key(&self.full("vocab_size"), problem));
        }
        Ok(rows)
    }

    /// Rope scaling from the metadata; see [`LlamaConfig::from_gguf`] for `Factors`.
    fn rope_scaling(&self) -> Result<RopeScaling> {
        let key = self.full("rope.scaling.type");
        match self.header.text(&key)? {
            None => match self.header.real(&self.full("rope.scale_linear"))? {
                Some(factor) if factor != 1.0 => Ok(RopeScaling::Linear { factor }),
                _ => Ok(RopeScaling::None),
            },
            Some("none") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear {
                factor: self.real("rope.scaling.factor")?,
            }),
            Some(_) => Err(self.header.bad_key(&key, "supported are none and linear")),
        }
    }
}

/// A token id, if the key is there.
fn token_id(header: &Header, key: &str) -> Result<Option<u32>> {
    let Some(value) = header.uint(key)? else {
        return Ok(None);
    };
    u32::try_from(value)
        .map(Some)
        .map_err(|_| header.bad_key(key, "is not a token id"))
}

/// The ids that end a sequence or a turn.
fn eos_ids(header: &Header) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let id = token_id(header, &format!("tokenizer.ggml.{name}_token_id"))?;
        ids.extend(id.filter(|id| !ids.contains(id)));
    }
    Ok(ids)
}
