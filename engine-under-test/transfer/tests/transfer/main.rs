//! The transfer library against oracles, models and seeded schedules.

mod engines;
mod handshake;
mod relayout;
mod scalars;
