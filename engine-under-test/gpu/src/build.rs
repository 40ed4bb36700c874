//! From a configuration to an executor on a device.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use half::{bf16, f16};
use pb_contract::{EngineConfig, KvDtype, Numerics};
use pb_core::{Engine, EngineParts, EngineSpec, Executor};
use pb_kernels_cuda::{CudaDevice, CudaOptions, Device, E4m3, Emulator, KernelError, Library};
use pb_model::Weights;
use pb_model::config::LlamaConfig;
use pb_model::forward::KvScales;
use pb_model::lora::AdapterSet;

use crate::error::GpuError;
use crate::executor::GpuExecutor;

/// What to compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// An NVIDIA GPU.
    Cuda,
    /// The host, executing the GPU's kernels thread by thread: right, and slow.
    Emulated,
}

/// What an executor is built for.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// `Exact` (batch invariant) or `Fast`.
    pub numerics: Numerics,
    /// `Bf16`, `F16` or `Fp8E4m3`.
    pub kv_dtype: KvDtype,
    /// Tokens per block: 8, 16, 32 or 64.
    pub block_size: usize,
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Scales of an fp8 cache; `None` is 1 everywhere.
    pub kv_scales: Option<Arc<KvScales>>,
    /// Adapters that rows may have, by index.
    pub adapters: Arc<AdapterSet>,
    /// How steps are launched and timed.
    pub steps: StepOptions,
}

/// How steps are launched and timed: no token depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepOptions {
    /// Rows of the largest decode step that is recorded and run again as a graph, a power of two;
    /// 0 records none.
    pub graph_rows: usize,
    /// Every so many steps one is timed kernel by kernel; 0 times none. A timed step runs no graph.
    pub time_every: u64,
}

/// A recorded step has memory for all its rows.
const GRAPH_ROWS_MAX: usize = 1024;

impl Default for StepOptions {
    /// Graphs of up to 64 rows, no times.
    fn default() -> Self {
        StepOptions {
            graph_rows: 64,
            time_every: 0,
        }
    }
}

impl GpuOptions {
    /// Those of an engine.
    pub fn new(config: &EngineConfig, parts: &EngineParts) -> Self {
        GpuOptions {
            numerics: config.numerics,
            kv_dtype: config.kv_dtype,
            block_size: config.block_size,
            num_blocks: config.num_blocks,
            kv_scales: parts.kv_scales.clone(),
            adapters: Arc::clone(&parts.adapters),
            steps: StepOptions::default(),
        }
    }

    fn check(&self, c: &LlamaConfig) -> Result<(), GpuError> {
        let rows = self.steps.graph_rows;
        if rows > GRAPH_ROWS_MAX || (rows > 0 && !rows.is_power_of_two()) {
            return Err(GpuError::Shape {
                key: "graph_rows",
                value: rows,
                expected: "0 or a power of two, at most 1024",
            });
        }
        let (numerics, kv_dtype) = (self.numerics, self.kv_dtype);
        if numerics == Numerics::F64 {
            return Err(GpuError::Numerics { numerics });
        }
        if !matches!(kv_dtype, KvDtype::Bf16 | KvDtype::F16 | KvDtype::Fp8E4m3) {
            return Err(GpuError::KvDtype { kv_dtype });
        }
        let (of_8, block) = ("a multiple of 8", self.block_size);
        let sizes = [
            (
                matches!(c.d_head, 64 | 128),
                "d_head",
                c.d_head,
                "64 or 128",
            ),
            (
                c.group() <= 16,
                "query heads of a group",
                c.group(),
                "at most 16",
            ),
            (c.hidden.is_multiple_of(8), "hidden", c.hidden, of_8),
            (c.ffn.is_multiple_of(8), "ffn", c.ffn, of_8),
            (
                c.vocab.is_multiple_of(2),
                "vocab",
                c.vocab,
                "an even number",
            ),
            (
                matches!(block, 8 | 16 | 32 | 64),
                "block_size",
                block,
                "8, 16, 32 or 64",
            ),
        ];
        if let Some((_, key, value, expected)) = sizes.into_iter().find(|(good, ..)| !good) {
            return Err(GpuError::Shape {
                key,
                value,
                expected,
            });
        }
        self.adapters.iter().try_for_each(|a| a.check_fits(c))?;
        match &self.kv_scales {
            Some(scales) => Ok(scales.check(self.kv_dtype, c.layers)?),
            None => Ok(()),
        }
    }
}

/// The executor for `options` on `device`.
///
/// # Errors
/// [`GpuError`] when the kernels do not take the model or the options, or the device has no room.
pub fn build<D: Device + Send + 'static>(
    device: D,
    weights: &Weights,
    options: &GpuOptions,
) -> Result<Box<dyn Executor>, GpuError> {
    options.check(&weights.config)?;
    Ok(match options.kv_dtype {
        KvDtype::Bf16 => Box::new(GpuExecutor::<D, bf16, bf16>::new(device, weights, options)?),
        KvDtype::F16 => Box::new(GpuExecutor::<D, f16, f16>::new(device, weights, options)?),
        KvDtype::Fp8E4m3 => Box::new(GpuExecutor::<D, bf16, E4m3>::new(device, weights, options)?),
        kv_dtype => return Err(GpuError::KvDtype { kv_dtype }),
    })
}

/// An emulated device. The kernels are compiled into `cache` by the host's C++ compiler, unless
/// they are there, and stay loaded for the life of the process.
///
/// # Errors
/// [`KernelError::NoCompiler`] where there is none; others when building fails.
pub fn emulated(cache: &Path) -> Result<Emulator<'static>, KernelError> {
    static LOADED: Mutex<Option<&'static Library>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let library = match *loaded {
        Some(library) => library,
        // Once a process: there is nothing to give back.
        None => *loaded.insert(Box::leak(Box::new(Library::build(cache)?))),
    };
    Ok(Emulator::new(library))
}

/// The executor that `config` asks for, and the name of its device. Compiled kernels are kept in
/// `cache`.
///
/// # Errors
/// As [`build`]; [`GpuError::Device`] with `NoDevice` or `NoCompiler` without a device.
pub fn open(
    kind: DeviceKind,
    cache: &Path,
    parts: &EngineParts,
    config: &EngineConfig,
    steps: StepOptions,
) -> Result<(Box<dyn Executor>, String), GpuError> {
    let options = GpuOptions {
        steps,
        ..GpuOptions::new(config, parts)
    };
    // Before a device is opened, so that a setting at fault is told without one.
    options.check(&parts.weights.config)?;
    match kind {
        DeviceKind::Emulated => {
            std::fs::create_dir_all(cache).map_err(|e| KernelError::File {
                path: cache.display().to_string(),
                problem: e.to_string(),
            })?;
            let device = emulated(cache)?;
            let name = device.name();
            Ok((build(device, &parts.weights, &options)?, name))
        }
        DeviceKind::Cuda => {
            let device = CudaDevice::open(&CudaOptions {
                ordinal: 0,
                cache: cache.to_owned(),
                defines: Vec::new(),
            })?;
            let name = device.name();
            Ok((build(device, &parts.weights, &options)?, name))
        }
    }
}

/// The engine that `config` asks for, on a device. Its blocks are told apart from those of other
/// backends and devices.
///
/// # Errors
/// As [`open`]; [`GpuError::Engine`] when the engine refuses the configuration.
pub fn engine(
    kind: DeviceKind,
    cache: &Path,
    parts: &EngineParts,
    config: EngineConfig,
    steps: StepOptions,
) -> Result<Engine, GpuError> {
    let refused = |problem: String| GpuError::Engine { problem };
    config.validate().map_err(refused)?;
    let (executor, name) = open(kind, cache, parts, &config, steps)?;
    let spec = EngineSpec {
        backend: format!("{name} {}", env!("CARGO_PKG_VERSION")),
        ..parts.spec()
    };
    Engine::new(config, spec, executor).map_err(refused)
}
