//! What a source takes and gives.

use pb_contract::{BlockId, Nanos, RequestId};

use crate::cells::{Order, Span};
use crate::message::{Granularity, Message, Mode, TransferId};
use crate::row::{Defect, Ended};

/// What a source is set up with.
#[derive(Clone, Copy, Debug)]
pub struct SourceConfig {
    /// Layers.
    pub layers: u32,
    /// How memory is contiguous.
    pub order: Order,
    /// How long blocks are held after the sink was last heard of.
    pub lease: Nanos,
    /// Most cells in a frame.
    pub frame_cells: u64,
    /// Most frames that the transport works on at a time.
    pub frames_in_flight: u32,
    /// A planted defect.
    pub defect: Defect,
}

/// A message that this side never gets, or that contradicts itself. The connection is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transfer {id}: {problem}")]
pub struct ProtocolError {
    /// The transfer, 0 when none is named.
    pub id: TransferId,
    /// What is wrong.
    pub problem: &'static str,
}

/// What the shell must do.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceAction {
    /// Send a message.
    Send(Message),
    /// Send cells, and call [`Source::posted`] and [`Source::sent`].
    Post {
        /// The transfer.
        id: TransferId,
        /// The cells.
        span: Span,
    },
    /// The blocks are the pool's again.
    Free {
        /// The transfer.
        id: TransferId,
        /// The request.
        request: RequestId,
        /// The blocks.
        blocks: Vec<BlockId>,
        /// Why.
        ended: Ended,
    },
}

/// What is offered.
#[derive(Clone, Debug)]
pub struct Lend {
    /// The request.
    pub request: RequestId,
    /// Tokens.
    pub tokens: u64,
    /// The blocks that hold or will hold them.
    pub blocks: Vec<BlockId>,
    /// Pace.
    pub mode: Mode,
    /// Granularity.
    pub granularity: Granularity,
}

/// What posting a frame took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// Bytes of the cells.
    pub bytes: u64,
    /// Ranges of memory read.
    pub descriptors: u64,
    /// Reading them, ns.
    pub copy_ns: u64,
}

/// What came for leases that had ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// Acknowledgements.
    pub acks: u64,
    /// Other messages.
    pub others: u64,
}
