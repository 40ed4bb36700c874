//! CPU kernels in two flavours, because validating an engine needs two different promises.
//!
//! The *exact* kernels are batch invariant: every output element is one fixed chain of fused
//! multiply-adds, so chunk size, batch composition, block size, block order, thread count and
//! instruction set never change a bit of it. With them "chunked equals monolithic" is a bitwise
//! statement, and every structural fault is a hard failure without statistics.
//!
//! The *fast* kernels (bf16 weights, online softmax, split keys) may reorder sums with the
//! shape of the batch. They are what is timed, and what the statistical tests are about. Their
//! error against [`mod@reference`] stays inside the limits derived in [`bounds`].
//!
//! [`mod@reference`] is plain f64 code. It shares no masking, position or layout code with the
//! other two, so that a mistake there cannot hide.
//!
//! ```
//! use pb_kernels_cpu::{Isa, PackedF32, Pool, gemm_exact};
//!
//! let pool = Pool::new(1).unwrap();
//! let weights = PackedF32::pack(&[1.0, 2.0, 3.0, 4.0], 2, 2);
//! let mut c = [0.0; 2];
//! gemm_exact(Isa::detect(), &pool, &[10.0, 1.0], 1, &weights, &mut c);
//! assert_eq!(c, [12.0, 34.0]);
//! ```

mod attention;
mod bandwidth;
pub mod bounds;
mod buffer;
mod elementwise;
mod gemm;
mod isa;
mod kv;
mod lanes;
mod math;
mod norm;
mod packed;
mod pool;
pub mod reference;
mod rope;
mod rows;

pub use attention::{AttnSeq, attention_exact, attention_fast};
pub use bandwidth::{copy_all, read_all};
pub use buffer::AlignedBuf;
pub use elementwise::{add, add_bias, silu_mul, silu_mul_fused};
pub use gemm::{gemm_exact, gemm_fast};
pub use isa::{Dot, Isa};
pub use kv::{
    Fp8E4m3, Fp8E5m2, KvElem, KvFormat, KvLayerMut, KvLayerView, KvScaling, KvShape, KvSlot,
    kv_read, kv_write,
};
pub use math::exp_f32;
pub use norm::{add_rmsnorm, rmsnorm};
pub use packed::{PANEL_WIDTH, PackedBf16, PackedF32};
pub use pool::{Pool, PoolError};
pub use rope::{RopeTable, rope_apply};
pub use rows::{Rows, RowsMut};
