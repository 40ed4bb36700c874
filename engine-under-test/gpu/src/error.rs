//! Why an executor could not be built.

use pb_contract::{KvDtype, Numerics};
use pb_kernels_cuda::KernelError;

/// A refused configuration, or a device that is missing or fails.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The kernels have no such cache.
    #[error("kv_dtype = {kv_dtype:?}: this backend stores Bf16, F16 or Fp8E4m3")]
    KvDtype {
        /// Requested type.
        kv_dtype: KvDtype,
    },
    /// The f64 reference is the CPU's.
    #[error("numerics = {numerics:?}: this backend computes Exact and Fast")]
    Numerics {
        /// Requested arithmetic.
        numerics: Numerics,
    },
    /// The kernels do not take the model's shape, or the pool's.
    #[error("{key} = {value}: the kernels take {expected}")]
    Shape {
        /// Which size.
        key: &'static str,
        /// Its value.
        value: usize,
        /// What would do.
        expected: &'static str,
    },
    /// An adapter was loaded for a model of another shape.
    #[error(transparent)]
    Adapter(#[from] pb_model::ModelError),
    /// The scales are not those of the model or of the type, or the reference cannot be built.
    #[error(transparent)]
    Options(#[from] pb_model::forward::ForwardError),
    /// The engine refuses its configuration.
    #[error("{problem}")]
    Engine {
        /// A sentence that names the setting at fault.
        problem: String,
    },
    /// A forward pass failed.
    #[error("forward pass: {problem}")]
    Forward {
        /// The backend's message.
        problem: String,
    },
    /// The device.
    #[error(transparent)]
    Device(#[from] KernelError),
}
