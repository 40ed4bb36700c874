//! Engines that share requests: prefill here, decode there, in one process.

#[path = "../engine/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;

mod aborts;
mod arrival;
mod back_pressure;
mod deaths;
mod equal;
mod hooked;
mod images;
mod layers;
mod pair;
mod streams;

/// Layers of the toy.
const LAYERS: usize = 3;
