//! The engine's executor on a device: the forward pass by the kernels of `pb_kernels_cuda`.
//!
//! It stands behind the same seam as the CPU's ([`pb_core::Executor`]), so scheduler, caches,
//! swapping and server are the very same code. The device is a GPU or the emulated machine, which
//! runs the same kernels thread by thread on the host.
//!
//! Two ways to compute, named as on the CPU:
//!
//! - `exact`: batch invariant. Products are our kernel's and all attention is the prefill kernel's,
//!   single queries included, so the bits of a row depend on nothing but its own tokens: not on
//!   chunking, batch, preemption or block order. The arithmetic is that of the element type.
//! - `fast`: the vendor's products where there are any, and for balance keys are split: those of
//!   single tokens, and of chunks that would leave a device idle.
//!
//! Weights and activations are bf16 (f16 with an f16 cache), the residual stream and all sums f32,
//! the cache bf16, f16 or E4M3. A block image has the bytes of the CPU engine's.

mod adapters;
mod batch;
mod build;
pub mod check;
mod error;
mod executor;
mod forward;
mod graphs;
mod head;
mod memory;
mod mover;
mod plans;
mod pool;
mod times;
mod weights;

pub use adapters::rounded_adapters;
pub use build::{DeviceKind, GpuOptions, StepOptions, build, emulated, engine, open};
pub use error::GpuError;
pub use executor::GpuExecutor;
pub use weights::rounded;
