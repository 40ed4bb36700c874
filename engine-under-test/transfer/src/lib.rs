//! Moving the KV cache of a request from the engine that prefilled it to the one that decodes it.
//!
//! A prefill engine (the *source*) holds blocks, a decode engine (the *sink*) needs their contents
//! in blocks of its own. `docs/TRANSFER.md` has the protocol and its reasons. In short:
//!
//! - [`agree`] compares the two engines field by field and refuses what cannot be bridged;
//!   [`Relayout`] bridges block size, element type and degree of tensor parallelism.

mod convert;
mod geometry;
mod handshake;
mod relayout;

pub use convert::{Conversion, needed};
pub use geometry::{
    GeometryError, KvGeometry, Leg, MAX_BLOCK_TOKENS, MAX_DIMENSION, MAX_TP_DEGREE, Segment, Side,
    legs,
};
pub use handshake::{Agreement, Allow, Peer, Refusal, agree};
pub use relayout::{Relayout, RelayoutError};
