//! Every kernel, executed by the emulated machine, against f64 formulas written here.
//!
//! Without a C++ compiler the tests say so and pass.

mod attention;
mod blocks;
mod case;
mod chain;
mod common;
mod elementwise;
mod faults;
mod formulas;
mod machine;
mod matrix;
mod rope;
mod sampling;
