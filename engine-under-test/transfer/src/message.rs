//! What source and sink say to each other.

use pb_contract::RequestId;

use crate::cells::Span;
use crate::handshake::Peer;

/// Names a transfer. A source never uses one twice, so what comes late is known to be late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransferId(pub u64);

impl std::fmt::Display for TransferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Who sets the pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The sink asks for a window of cells at a time.
    Pull,
    /// The sink asks for everything once it has room; the source sends what is there.
    Push,
}

/// What must have been computed before a cell is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// The whole prompt.
    Bulk,
    /// All layers of its block.
    Chunk,
    /// The cell.
    Layer,
}

/// A source has blocks, or will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Names the transfer from here on.
    pub id: TransferId,
    /// The request, as the router names it.
    pub request: RequestId,
    /// Tokens.
    pub tokens: u64,
    /// Blocks of the source that hold them.
    pub blocks: u32,
    /// Pace.
    pub mode: Mode,
    /// Granularity.
    pub granularity: Granularity,
    /// How long the source holds the blocks after it last heard of the transfer, ns.
    pub lease_ns: u64,
}

/// What a frame of cells says about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataHead {
    /// The transfer.
    pub id: TransferId,
    /// The cells, in the order of [`Span::iter`].
    pub span: Span,
    /// Checksum of each, see [`crate::checksum`].
    pub sums: Vec<u64>,
}

/// Why a transfer ended without its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The request was cancelled.
    Cancelled,
    /// The source heard nothing for the time of the lease.
    Expired,
    /// No cell came for longer than the sink waits.
    Stalled,
    /// A cell did not have its checksum, as often as the sink tries.
    Corrupt,
    /// A value does not fit the sink's element type.
    OutOfRange,
    /// The sink takes no transfer of this size, or not so many.
    NoRoom,
    /// A message that makes no sense.
    Protocol,
    /// Memory could not be read or written.
    Memory,
    /// The source holds the KV of something else under the name that was claimed.
    Mismatch,
    /// The connection is gone, and with it perhaps the peer.
    LinkDown,
}

impl Cause {
    /// All, in the order of their codes.
    pub const ALL: [Cause; 10] = [
        Cause::Cancelled,
        Cause::Expired,
        Cause::Stalled,
        Cause::Corrupt,
        Cause::OutOfRange,
        Cause::NoRoom,
        Cause::Protocol,
        Cause::Memory,
        Cause::LinkDown,
        Cause::Mismatch,
    ];

    /// As in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Cancelled => "cancelled",
            Cause::Expired => "expired",
            Cause::Stalled => "stalled",
            Cause::Corrupt => "corrupt",
            Cause::OutOfRange => "out_of_range",
            Cause::NoRoom => "no_room",
            Cause::Protocol => "protocol",
            Cause::Memory => "memory",
            Cause::LinkDown => "link_down",
            Cause::Mismatch => "mismatch",
        }
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// First on a connection: which of several connections of one peer this is.
    Join {
        /// Drawn by the side that connects.
        session: u64,
        /// Number of the connection.
        index: u32,
        /// Connections in all.
        of: u32,
    },
    /// Who is speaking.
    Hello(Box<Peer>),
    /// The other side's hello is not accepted.
    Refuse {
        /// For people.
        reason: String,
    },
    /// From the source.
    Offer(Offer),
    /// From the sink: send these cells, now or when they are computed; again, if they were sent.
    Want {
        /// The transfer.
        id: TransferId,
        /// The cells.
        span: Span,
    },
    /// From the source: cells.
    Data(DataHead),
    /// From the source: cells that lie in a slot of the shared file.
    DataInSlot {
        /// Which.
        slot: u32,
        /// Bytes of the cells.
        bytes: u32,
        /// The cells.
        head: DataHead,
    },
    /// The slot was read.
    Credit {
        /// Which.
        slot: u32,
    },
    /// From the sink: still there, hold the blocks.
    Renew {
        /// The transfer.
        id: TransferId,
    },
    /// From the sink: all cells are here and verified.
    Ack {
        /// The transfer.
        id: TransferId,
        /// How many cells that were.
        cells: u64,
    },
    /// From the sink: offer what is held under this ticket, if it is the KV of this content.
    Claim {
        /// What the source called it when it told of it.
        ticket: u64,
        /// Digest of tokens, adapter and salt.
        digest: [u8; 32],
        /// Whether it may come sooner than what it claims, and waits for it a while.
        early: bool,
    },
    /// From the source: it will not be offered.
    Decline {
        /// What was claimed.
        ticket: u64,
        /// Why.
        cause: Cause,
    },
    /// From either: the transfer is over.
    Abort {
        /// The transfer.
        id: TransferId,
        /// Why.
        cause: Cause,
    },
}
