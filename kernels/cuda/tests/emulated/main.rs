//! Every kernel, executed by the emulated machine, against f64 formulas written here.
//!
//! Without a C++ compiler the tests say so and pass.

mod attention;
mod blocks;
mod chain;
mod common;
mod elementwise;
mod faults;
mod fp8;
mod gemm;
mod lanes;
mod lora;
mod machine;
mod matrix;
mod rope;
mod sampling;
mod sm90;
mod split;
mod wgmma;

use pb_kernels_cuda::check::{case, formulas, lora as lora_case};
