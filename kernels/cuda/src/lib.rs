//! The CUDA kernels, and a machine that runs them without a GPU.
//!
//! `cu/` holds the kernels, one operation a file. They are compiled at run time: by NVRTC for a
//! device, or by the host's C++ compiler for the [`Emulator`], which executes the very same files
//! thread by thread and checks every access to memory for bounds, for data never written and for
//! races. What the emulator cannot show is time, and the rounding inside a tensor core's sum.
//!
//! [`ops`] has one wrapper per operation: it checks shapes and launches on any [`Device`]: the
//! [`Emulator`], or a GPU ([`CudaDevice`]), whose driver and libraries are looked for at run time
//! only. [`check`] judges every operation on any device against f64.
//!
//! ```no_run
//! use pb_kernels_cuda::{Device, DeviceExt, Emulator, Library, ops};
//! use half::bf16;
//!
//! let library = Library::build(std::path::Path::new("target"))?;
//! let device = Emulator::new(&library);
//! let x = device.upload("x", &[3.0f32, 4.0, 0.0, 0.0])?;
//! let weight = device.input("weight", &[bf16::ONE; 4])?;
//! let out = device.empty::<bf16>("out", 4)?;
//! ops::rmsnorm(&device, &x, &weight, 0.0, &out)?;
//! assert_eq!(device.download(&out)?[0], bf16::from_f32(3.0 / 2.5));
//! # Ok::<(), pb_kernels_cuda::KernelError>(())
//! ```

pub mod check;
mod checksum;
mod cuda;
mod device;
mod elem;
mod emulate;
mod error;
mod graphs;
mod lanes;
mod memory;
pub mod ops;
mod profile;
pub mod source;

pub use checksum::checksum;
pub use cuda::{CudaDevice, CudaOptions, compile_all};
pub use device::{Buffer, BufferState, Device, DeviceExt, Launch, Mark, Product, VendorGemm};
pub use elem::{E4m3, E4m3Out, Elem, GemmOut, StoreElem};
pub use emulate::{Emulator, Fault, FaultKind, Library, Schedule};
pub use error::KernelError;
pub use graphs::{Graph, Graphs};
pub use lanes::{Event, Lane, Lanes, Pinned};
pub use memory::{Allocated, DeviceMemory, PoolMemory, Purpose, WholeMemory};
pub use profile::{KernelTime, Profile, Profiler};
