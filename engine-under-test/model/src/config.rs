//! One description of a Llama-family model, whatever file it came from.
//!
//! The forward pass must not care whether a model was a GGUF file or a Hugging Face folder, so
//! both are resolved into [`LlamaConfig`], and everything that the forward pass relies on (whole
//! query groups, an even head size, products that fit in `usize`) is checked here once.
//!
//! ```
//! use pb_model::config::{LlamaConfig, RopeScaling};
//!
//! let json = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
//!     "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
//!     "vocab_size": 288, "rms_norm_eps": 1e-5, "max_position_embeddings": 512}"#;
//! let config = LlamaConfig::from_hf_json(json)?;
//! assert_eq!((config.d_head, config.group()), (16, 2));
//! assert_eq!(config.rope_scaling, RopeScaling::None);
//! # Ok::<(), pb_model::ModelError>(())
//! ```

mod gguf;
pub(crate) mod hf;

use serde::{Deserialize, Serialize};

use crate::error::{ModelError, Result};

/// How rotary frequencies are stretched for contexts longer than the training length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// Plain `theta^(-2i/d)`.
    None,
    /// Every frequency is divided by `factor`.
    Linear {
        /// The divisor, above 0.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided by `factor`, high ones kept, those between blended.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the training run, in tokens.
        original_max_position: usize,
    },
    /// GGUF's `rope_freqs.weight`: one divisor for each of the `d_head / 2` frequencies.
    Factors(Vec<f32>),
}

/// The shape and constants of a Llama-family decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaConfig {
    /// Which file convention the weights follow, and with it the bias rule.
    pub arch: Arch,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Number of query heads, a multiple of `kv_heads`.
    pub q_heads: usize,
    /// Number of key/value heads.
    pub kv_heads: usize,
    /// Width of one head, even.
    pub d_head: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Rows of the embedding table; token ids are below it.
    pub vocab: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Change made to the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// Added to the mean square in RMSNorm.
    pub rms_eps: f64,
    /// Longest context, in tokens.
    pub max_position: usize,
    /// Whether the output head is the embedding table.
    pub tied_embeddings: bool,
    /// Whether q, k and v have a bias (Qwen2).
    pub qkv_bias: bool,
    /// Begin-of-sequence id, if the model names one.
    pub bos_id: Option<u32>,
    /// Ids that end a sequence, in file order, without repeats.
    pub eos_ids: Vec<u32>,
}

/// The model families that this engine computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    /// Llama; GGUF stores its query and key rows interleaved.
    Llama,
    /// Qwen2; biased q, k, v, rows in half-split order everywhere.
    Qwen2,
}

impl Arch {
    /// The name used by `general.architecture` and by `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen2 => "qwen2",
        }
    }

    /// The family called `name`, if this engine computes it.
    pub fn from_name(name: &str) -> Option<Arch> {
        [Arch::Llama, Arch::Qwen2]
            .into_iter()
            .find(|arch| arch.name() == name)
    }
}

impl LlamaConfig {
    /// Reads Hugging Face's `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming the key and its value: an architecture other than llama and
    /// qwen2, an unsupported option, a missing or impossible number.
    pub fn from_hf_json(json: &str) -> Result<LlamaConfig> {
        hf::parse(json)
    }

    /// Reads the `llama.*` or `qwen2.*` keys of a GGUF header.
    ///
    /// `Factors` rope scaling is not visible in the metadata: the loader sets it when the file
    /// has a `rope_freqs.weight` tensor.
    ///
    /// # Errors
    /// As [`LlamaConfig::from_hf_json`].
    pub fn from_gguf(header: &crate::gguf::Header) -> Result<LlamaConfig> {
        gguf::parse(header)
    }

    /// Query heads that share one key/value head.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }

    /// Width of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.q_heads * self.d_head
    }

    /// Width of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.d_head
    }

    /// The `d_head / 2` rotary frequencies in radians per position, in f64, scaling applied.
    ///
    /// Positions are multiplied by these values; element `i` turns dimensions `i` and
    /// `i + d_head / 2`.
    pub fn inv_freq(&self) -> Vec<f64> {
        let half = self.d_head / 2;
        (0..half)
            .map(|i| {
                let exponent = (2 * i) as f64 / self.d_head as f64;
                self.scaled(1.0 / libm::pow(self.rope_theta, exponent), i)
            })
            .collect()
    }

    /// Applies the rope scaling to frequency `freq` of dimension `i`.
    fn scaled(&self, freq: f64, i: usize) -> f64 {
        match &self.rope_scaling {
            RopeScaling::None => freq,
            RopeScaling::Linear { factor } => freq / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position,
            } => {
                let original = *original_max_position as f64;
                let wavelength = 2.0 * std::f64::consts::PI / freq;
                if wavelength > original / low_freq_factor {
                    freq / factor
                } else if wavelength < original / high_freq_factor {
                    freq
                } else {
                    let smooth = (original / wavelength - low_freq_factor)
                        / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * freq / factor + smooth * freq
                }
            }
            RopeScaling::Factors(factors) => freq / f64::from(factors[i]),
        }
    }

    /// Checks everything that the forward pass takes for granted.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming the first quantity that cannot work, with its value.
    pub fn validate(&self) -> Result<()> {
        for (key, value) in [
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("q_heads", self.q_heads),
            ("kv_heads", self.kv_heads),
            ("d_head", self.d_head),
            ("ffn", self.ffn),
            ("vocab", self.vocab),
            ("max_position", self.max_position),
        ] {
            if value == 0 || value > MAX_DIMENSION {
                let problem = format!("must be between 1 and {MAX_DIMENSION}");
                return Err(invalid(key, value, problem));
            }
        }
        if !self.q_heads.is_multiple_of(self.kv_heads) {
            let problem = format!("must be a multiple of kv_heads = {}", self.kv_heads);
            return Err(invalid("q_heads", self.q_heads, problem));
        }
        if !self.d_head.is_multiple_of(2) {
            return Err(invalid(
                "d_head",
                self.d_head,
                "rotary embedding needs an even size",
            ));
        }
        if self
            .q_heads
            .checked_mul(self.d_head)
            .is_none_or(|width| width > MAX_DIMENSION)
        {
            let problem = format!("times d_head = {} is above {MAX_DIMENSION}", self.d_head);
            return Err(invalid("q_heads", self.q_heads, problem));
        }
        self.validate_constants()
    }

    /// The real-valued half of [`LlamaConfig::validate`], and the token ids.
    fn validate_constants(&self) -> Result<()> {
        if !(self.rope_theta.is_finite() && self.rope_theta > 1.0) {
            return Err(invalid(
                "rope_theta",
                self.rope_theta,
                "must be finite and above 1",
            ));
        }
        if !(self.rms_eps.is_finite() && (0.0..1.0).contains(&self.rms_eps)) {
            return Err(invalid(
                "rms_eps",
                self.rms_eps,
                "must be at least 0 and below 1",
            ));
        }
        for id in self.eos_ids.iter().chain(&self.bos_id) {
            if *id as usize >= self.vocab {
                let problem = format!("must be below the vocabulary size {}", self.vocab);
                return Err(invalid("bos/eos token id", id, problem));
            }
        }
        match &self.rope_scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope_scaling.factor", *factor),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                ..
            } => {
                positive("rope_scaling.factor", *factor)?;
                positive("rope_scaling.low_freq_factor", *low_freq_factor)?;
                positive("rope_scaling.high_freq_factor", *high_freq_factor)?;
                if high_freq_factor <= low_freq_factor {
                    let problem = format!("must be above low_freq_factor = {low_freq_factor}");
                    return Err(invalid(
                        "rope_scaling.high_freq_factor",
                        high_freq_factor,
                        problem,
                    ));
                }
                Ok(())
            }
            RopeScaling::Factors(factors) => {
                if factors.len() != self.d_head / 2 {
                    let problem = format!("needs d_head / 2 = {} entries", self.d_head / 2);
                    return Err(invalid("rope_freqs length", factors.len(), problem));
                }
                factors
                    .iter()
                    .try_for_each(|f| positive("rope_freqs.weight", f64::from(*f)))
            }
        }
    }
}

/// No published dimension comes near this; it keeps every product of two of them within `usize`.
const MAX_DIMENSION: usize = 1 << 30;

/// Requires a finite value above 0.
fn positive(key: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(invalid(key, value, "must be finite and above 0"))
    }
}

/// A config error about a resolved quantity.
fn invalid(key: &str, value: impl ToString, problem: impl Into<String>) -> ModelError {
    ModelError::Config {
        origin: "model config".into(),
        key: key.into(),
        value: value.to_string(),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests;
