//! The transfer library against oracles, models and seeded schedules.

mod conformance;
mod engines;
mod failures;
mod frames;
mod handshake;
mod links;
mod mooncake;
mod outgoing;
mod reconnect;
mod relayout;
mod rigs;
mod runs;
mod scalars;
mod schedules;
mod skipping;
mod sockets;
mod world;
