//! A model that the kernels take, on an emulated device.

#![allow(dead_code, reason = "each test file uses some of it")]

mod watch;

use std::path::Path;
use std::sync::Arc;

use half::bf16;
use pb_contract::{KvDtype, Numerics, Stream, TokenId};
use pb_core::Executor;
use pb_gpu::{GpuError, GpuOptions, StepOptions, rounded, rounded_adapters};
use pb_kernels_cuda::{Emulator, KernelError};
use pb_model::Weights;
use pb_model::config::LlamaConfig;
use pb_model::lora::{self, AdapterSet};
use pb_model::synth::{self, Kind, Size};
pub(crate) use watch::{Watch, Watched};

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

/// Neither graphs nor times.
pub(crate) const PLAIN: StepOptions = StepOptions {
    graph_rows: 0,
    time_every: 0,
};

pub(crate) fn options(numerics: Numerics, kv_dtype: KvDtype) -> GpuOptions {
    GpuOptions {
        numerics,
        kv_dtype,
        block_size: 16,
        num_blocks: 24,
        kv_scales: None,
        adapters: Arc::default(),
        steps: PLAIN,
    }
}

/// Two adapters as the device has them, of ranks that are and are not multiples of 8.
pub(crate) fn adapters() -> Arc<AdapterSet> {
    let set = vec![
        lora::synth::adapter("a", &config(), 8, 8.0, 1),
        lora::synth::adapter("b", &config(), 3, 4.5, 2),
    ];
    Arc::new(rounded_adapters::<bf16>(&AdapterSet::new(set).unwrap()))
}

/// As [`adapters`], with a third one.
pub(crate) fn three_adapters() -> Arc<AdapterSet> {
    let mut set: Vec<_> = adapters().iter().cloned().collect();
    set.push(lora::synth::adapter("c", &config(), 16, 8.0, 3));
    Arc::new(rounded_adapters::<bf16>(&AdapterSet::new(set).unwrap()))
}

/// An executor on a machine of its own.
pub(crate) fn executor(weights: &Weights, options: &GpuOptions) -> Option<Box<dyn Executor>> {
    let built: Result<_, GpuError> = pb_gpu::build(device()?, weights, options);
    Some(built.unwrap())
}

/// An executor on a watched machine of its own, set up by `prepare`.
pub(crate) fn watched(
    weights: &Weights,
    options: &GpuOptions,
    prepare: impl FnOnce(&Emulator<'_>),
) -> Option<(Box<dyn Executor>, Arc<Watch>)> {
    let device = Watched {
        inner: device()?,
        watch: Arc::default(),
    };
    prepare(&device.inner);
    let watch = Arc::clone(&device.watch);
    Some((pb_gpu::build(device, weights, options).unwrap(), watch))
}

/// `n` random tokens.
pub(crate) fn prompt(seed: u64, n: usize) -> Vec<TokenId> {
    let mut stream = Stream::new(seed, "prompt");
    let vocab = config().vocab as u64;
    (0..n).map(|_| stream.below(vocab) as TokenId).collect()
}
