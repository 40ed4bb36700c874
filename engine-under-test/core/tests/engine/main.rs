//! The engine core against a toy model, in virtual time and against a real forward pass.

mod accounting;
mod common;
mod failures;
mod forks;
mod lifecycle;
mod outputs;
mod random;
mod simulation;
mod synthetic;
mod tiers;

/// Layers of the toy.
const LAYERS: usize = 1;
