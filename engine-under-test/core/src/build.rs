//! From a loaded model and a configuration to an engine.

use std::sync::Arc;

use pb_contract::EngineConfig;
use pb_kernels_cpu::Dot;
use pb_model::forward::{self, ForwardError, ForwardOptions};
use pb_model::weights::Weights;

use crate::engine::{Engine, EngineSpec};
use crate::execute::{DecoderExecutor, Executor};

/// What an engine is built from.
#[derive(Clone)]
pub struct EngineParts {
    /// Weights.
    pub weights: Arc<Weights>,
    /// Hash of the weights file: part of every block's identity.
    pub identity: [u8; 32],
    /// How `fast` multiplies; `None` takes what is faster on this processor.
    pub dot: Option<Dot>,
}

impl EngineParts {
    /// Parts of weights whose file has the hash `identity`.
    pub fn new(weights: Arc<Weights>, identity: [u8; 32]) -> Self {
        EngineParts {
            weights,
            identity,
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
        isa: None,
        dot: parts.dot,
    };
    Ok(Box::new(DecoderExecutor::new(forward::build(
        &parts.weights,
        options,
    )?)))
}

impl EngineParts {
    /// What the core must know of the model.
    pub fn spec(&self) -> EngineSpec {
        let c = &self.weights.config;
        EngineSpec {
            vocab: c.vocab,
            max_position: c.max_position,
            eos_ids: c.eos_ids.clone(),
            identity: self.identity,
        }
    }

    /// Builds an engine with a CPU executor.
    ///
    /// # Errors
    /// A sentence that names the setting at fault.
    pub fn build(&self, config: EngineConfig) -> Result<Engine, String> {
        config.validate()?;
        let executor = build_executor(self, &config).map_err(|e| e.to_string())?;
        Engine::new(config, self.spec(), executor)
    }
}
