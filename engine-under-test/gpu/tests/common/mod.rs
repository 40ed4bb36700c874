//! A model that the kernels take, on an emulated device.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::Path;

use half::bf16;
use pb_contract::{KvDtype, Numerics, Stream, TokenId};
use pb_core::Executor;
use pb_gpu::{GpuError, GpuOptions, rounded};
use pb_kernels_cuda::{Emulator, KernelError};
use pb_model::Weights;
use pb_model::config::LlamaConfig;
use pb_model::synth::{self, Kind, Size};

/// Two layers with heads of 64, of which three share keys and values.
pub(crate) fn config() -> LlamaConfig {
    LlamaConfig {
        hidden: 128,
        layers: 2,
        q_heads: 6,
        kv_heads: 2,
        d_head: 64,
        ffn: 136,
        max_position: 512,
        ..synth::config(Size::Tiny)
    }
}

/// Weights as the device has them.
pub(crate) fn weights() -> Weights {
    rounded::<bf16>(&synth::weights(Kind::Sharp, &config(), 5))
}

/// The emulated device, or `None` with a message where no compiler is.
pub(crate) fn device() -> Option<Emulator<'static>> {
    match pb_gpu::emulated(Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels"))) {
        Ok(device) => Some(device),
        Err(e @ KernelError::NoCompiler { .. }) => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

pub(crate) fn options(numerics: Numerics, kv_dtype: KvDtype) -> GpuOptions {
    GpuOptions {
        numerics,
        kv_dtype,
        block_size: 16,
        num_blocks: 24,
        kv_scales: None,
    }
}

/// An executor on a machine of its own.
pub(crate) fn executor(weights: &Weights, options: &GpuOptions) -> Option<Box<dyn Executor>> {
    let built: Result<_, GpuError> = pb_gpu::build(device()?, weights, options);
    Some(built.unwrap())
}

/// `n` random tokens.
pub(crate) fn prompt(seed: u64, n: usize) -> Vec<TokenId> {
    let mut stream = Stream::new(seed, "prompt");
    let vocab = config().vocab as u64;
    (0..n).map(|_| stream.below(vocab) as TokenId).collect()
}
