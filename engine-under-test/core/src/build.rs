//! From a loaded model and a configuration to an engine.

use std::sync::Arc;

use pb_contract::EngineConfig;
use pb_kernels_cpu::Dot;
use pb_kv::Positional;
use pb_model::config::{LlamaConfig, RopeScaling};
use pb_model::forward::{self, ForwardError, ForwardOptions, IMAGE_HEADER_BYTES, KvScales};
use pb_model::lora::AdapterSet;
use pb_model::weights::Weights;

use crate::disagg::KvShape;
use crate::engine::{AdapterInfo, Engine, EngineSpec};
use crate::execute::{DecoderExecutor, Executor};

/// What an engine is built from.
#[derive(Clone)]
pub struct EngineParts {
    /// Weights.
    pub weights: Arc<Weights>,
    /// Hash of the weights file: part of every block's identity.
    pub identity: [u8; 32],
    /// Adapters that requests may name.
    pub adapters: Arc<AdapterSet>,
    /// Scales of an fp8 cache; `None` is 1 everywhere.
    pub kv_scales: Option<Arc<KvScales>>,
    /// How `fast` multiplies; `None` takes what is faster on this processor.
    pub dot: Option<Dot>,
}

impl EngineParts {
    /// Parts of weights whose file has the hash `identity`, without adapters.
    pub fn new(weights: Arc<Weights>, identity: [u8; 32]) -> Self {
        EngineParts {
            weights,
            identity,
            adapters: Arc::default(),
            kv_scales: None,
            dot: None,
        }
    }
}

/// Builds the CPU executor that `config` asks for.
///
/// # Errors
/// [`ForwardError`] when threads, types or the pool size cannot be had.
pub fn build_executor(
    parts: &EngineParts,
    config: &EngineConfig,
) -> Result<Box<dyn Executor>, ForwardError> {
    let options = ForwardOptions {
        numerics: config.numerics,
        kv_dtype: config.kv_dtype,
        threads: config.threads,
        block_size: config.block_size,
        num_blocks: config.num_blocks,
        dot: parts.dot,
        kv_scales: parts.kv_scales.clone(),
        fault: config.fault,
        ..ForwardOptions::default()
    };
    let decoder = forward::build(&parts.weights, &parts.adapters, options)?;
    Ok(Box::new(DecoderExecutor::new(decoder)))
}

impl EngineParts {
    /// What the core must know of the model.
    pub fn spec(&self) -> EngineSpec {
        let c = &self.weights.config;
        let adapters = (0..self.adapters.len()).filter_map(|index| self.adapters.get(index));
        EngineSpec {
            vocab: c.vocab,
            max_position: c.max_position,
            eos_ids: c.eos_ids.clone(),
            identity: self.identity,
            positional: positional(c),
            kv_scales: self.kv_scales.as_ref().map_or_else(Vec::new, |s| s.flat()),
            backend: format!("cpu {} {:?}", env!("CARGO_PKG_VERSION"), self.dot),
            adapters: adapters
                .map(|adapter| AdapterInfo {
                    name: adapter.name.clone(),
                    digest: adapter.digest,
                })
                .collect(),
        }
    }

    /// Shape of the blocks that a CPU executor has.
    pub fn kv_shape(&self) -> KvShape {
        let c = &self.weights.config;
        KvShape {
            layers: c.layers,
            kv_heads: c.kv_heads,
            d_head: c.d_head,
            header_bytes: IMAGE_HEADER_BYTES,
        }
    }

    /// Builds an engine with a CPU executor.
    ///
    /// # Errors
    /// A sentence that names the setting at fault; a planted fault is one.
    pub fn build(&self, config: EngineConfig) -> Result<Engine, String> {
        config.validate()?;
        let executor = build_executor(self, &config).map_err(|e| e.to_string())?;
        Engine::new(config, self.spec(), executor)
    }

    /// As [`EngineParts::build`], and a planted fault is allowed.
    ///
    /// # Errors
    /// A sentence that names the setting at fault.
    pub fn build_under_test(&self, config: EngineConfig) -> Result<Engine, String> {
        config.validate()?;
        let executor = build_executor(self, &config).map_err(|e| e.to_string())?;
        Engine::new_under_test(config, self.spec(), executor)
    }
}

/// How positions enter the keys of a model.
fn positional(config: &LlamaConfig) -> Positional {
    let named = |pairs: &[(&str, f64)]| {
        let pairs = pairs.iter().map(|&(name, value)| (name.to_owned(), value));
        pairs.collect()
    };
    let rope_scaling = match &config.rope_scaling {
        RopeScaling::None => Vec::new(),
        RopeScaling::Linear { factor } => named(&[("linear.factor", *factor)]),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position,
        } => named(&[
            ("llama3.factor", *factor),
            ("llama3.low_freq_factor", *low_freq_factor),
            ("llama3.high_freq_factor", *high_freq_factor),
            (
                "llama3.original_max_position",
                *original_max_position as f64,
            ),
        ]),
        RopeScaling::Factors(factors) => factors
            .iter()
            .map(|&factor| ("factors".to_owned(), f64::from(factor)))
            .collect(),
    };
    Positional {
        rope_theta: config.rope_theta,
        rope_scaling,
        max_position: config.max_position,
        ..Positional::default()
    }
}
