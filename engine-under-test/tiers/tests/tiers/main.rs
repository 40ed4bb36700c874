//! The laws of a tier, held by every one, and what each of them has to survive by itself.

mod conformance;
mod disk;
mod host;
mod redis;
mod server;
mod setup;
mod stack;
