//! Judging the kernels on any device: what each must give, in f64 by its definition, and how far
//! from it it may be.

pub mod case;
pub mod formulas;
mod found;
pub mod fp8;
mod judge;
pub mod lora;
mod memory;
pub mod shapes;
mod suite;
mod timing;
mod values;

pub use found::{Found, NotAvailable};
pub use judge::{Expected, Verdict, gamma, judge};
pub use suite::{Judged, validate};
pub use timing::{Ceilings, Shares, Timed, ceilings, time_all};
pub use values::{Rng, Stored, Value, bits, f64s, rounded, typed};
