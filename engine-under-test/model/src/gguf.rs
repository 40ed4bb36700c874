//! GGUF files: an own reader that trusts nothing, dequantisers, and a small writer.
//!
//! A GGUF header is a list of lengths, counts and offsets that some other program wrote. A reader
//! that believes one of them allocates gigabytes or reads out of bounds, so every number is
//! checked against the file's length before it is used, and each error names the field, its
//! offset and its value.
//!
//! Files are read with positional reads rather than mapped: a mapping needs `unsafe`, and a file
//! that is truncated while mapped kills the process with a signal instead of an error. Only the
//! header and one tensor at a time are in memory next to the f32 weights.

mod cursor;
pub mod dequant;
mod export;
mod header;
mod load;
mod types;
mod value;
pub mod write;

pub use export::{MatrixType, export_bf16, metadata_from_config, write_model};
pub use header::{Header, TensorInfo};
pub use load::{GgufFile, config_and_weights};
pub use types::{TensorType, ValueType};
pub use value::{ArrayValue, Value};

#[cfg(test)]
mod tests;
