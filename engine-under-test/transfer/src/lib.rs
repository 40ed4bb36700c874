//! Moving the KV cache of a request from the engine that prefilled it to the one that decodes it.
//!
//! A prefill engine (the *source*) holds blocks, a decode engine (the *sink*) needs their contents
//! in blocks of its own. `docs/TRANSFER.md` has the protocol and its reasons. In short:
//!
//! - [`agree`] compares the two engines field by field and refuses what cannot be bridged;
//!   [`Relayout`] bridges block size, element type and degree of tensor parallelism.
//! - [`Source`] and [`Sink`] are state machines without clock, thread or socket: who owns the
//!   blocks when, what is sent, what is believed, when decode may start.
//! - A [`Transport`] moves bytes: within a process, through shared memory, over TCP.
//!   [`SourceAgent`] and [`SinkAgent`] drive machine and transport together.
//! - [`Region`] says where blocks lie in a [`Memory`], and merges neighbours.
//!
//! ```
//! use pb_contract::{BlockId, Nanos, RequestId};
//! use pb_transfer::{
//!     Defect, Granularity, Lend, Message, Mode, Order, Source, SourceAction, SourceConfig,
//! };
//!
//! let config = SourceConfig {
//!     layers: 2,
//!     order: Order::BlockMajor,
//!     lease: Nanos::from_secs(1),
//!     frame_cells: 64,
//!     frames_in_flight: 4,
//!     defect: Defect::None,
//! };
//! let mut source = Source::new(config, 1);
//! let lend = Lend {
//!     request: RequestId(7),
//!     tokens: 16,
//!     blocks: vec![BlockId(3)],
//!     mode: Mode::Pull,
//!     granularity: Granularity::Bulk,
//! };
//! source.lend(Nanos::ZERO, lend);
//! let offer = source.next_action();
//! assert!(matches!(offer, Some(SourceAction::Send(Message::Offer(_)))));
//! // Nobody answers: the lease ends, and the block is the pool's again.
//! source.tick(Nanos::from_secs(1));
//! let abort = source.next_action();
//! assert!(matches!(abort, Some(SourceAction::Send(Message::Abort { .. }))));
//! let Some(SourceAction::Free { blocks, .. }) = source.next_action() else { panic!() };
//! assert_eq!(blocks, [BlockId(3)]);
//! ```

mod agent;
mod assembly;
mod cells;
mod codec;
mod convert;
mod frame;
mod geometry;
mod handshake;
mod memory;
mod message;
mod relayout;
mod row;
pub mod service;
mod sink;
mod source;
mod transport;

pub use agent::{
    AgentError, SinkAgent, SinkEvent, SinkOptions, SourceAgent, SourceEvent, SourceOptions,
};
pub use assembly::{Assembled, Assembly};
pub use cells::{CellSet, Order, Span};
pub use convert::{Conversion, needed};
pub use frame::{
    FrameError, FrameHead, HEADER_BYTES, MAX_BODY_BYTES, MAX_FRAME_CELLS, MAX_PAYLOAD_BYTES,
    checksum, encode_frame, fuzz_frames,
};
pub use geometry::{
    GeometryError, KvGeometry, Leg, MAX_BLOCK_TOKENS, MAX_DIMENSION, MAX_TP_DEGREE, Segment, Side,
    legs,
};
pub use handshake::{Agreement, Allow, Peer, Refusal, agree};
pub use memory::{
    Descriptor, HostMemory, Memory, MemoryError, MemoryKind, Region, gather, scatter,
};
pub use message::{Cause, DataHead, Granularity, Message, Mode, Offer, TransferId};
pub use relayout::{Relayout, RelayoutError};
pub use row::{Defect, Ended, TransferRow};
pub use sink::{Sink, SinkAction, SinkConfig, Unused};
pub use source::{Late, Lend, Posted, ProtocolError, Source, SourceAction, SourceConfig};
pub use transport::{
    CellBytes, Incoming, LocalTransport, MemoryFile, MemoryId, MooncakeEngine, MooncakeListener,
    MooncakeOptions, MooncakeSlots, MooncakeTransport, NixlListener, NixlOptions, NixlSlots,
    NixlTransport, ShmListener, ShmOptions, ShmTransport, SlotStore, SlotTransport, Tap,
    TapVerdict, TcpOptions, TcpTransport, TcpTransportListener, Transport, TransportError,
    TransportKind,
};
