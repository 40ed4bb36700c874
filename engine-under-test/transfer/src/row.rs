//! What is recorded of each transfer.

pub use pb_contract::TransferEnd as Ended;
pub use pb_contract::TransferRow;
use pb_contract::{Nanos, RequestId};

use crate::message::{Cause, Granularity, Mode, TransferId};

/// A defect planted on purpose, for tests of the tests. A server has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Defect {
    /// None.
    #[default]
    None,
    /// The source frees blocks twice.
    FreeTwice,
    /// The source frees blocks that the transport still reads.
    FreeInFlight,
    /// The source keeps blocks of an aborted transfer.
    LeakOnAbort,
    /// The source sends what is not computed yet.
    SendUnsealed,
    /// The sink believes every cell.
    SkipChecksum,
    /// The sink starts with a cell missing.
    StartIncomplete,
    /// The sink keeps its blocks when a transfer fails.
    KeepOnFailure,
    /// The sink forgets to tell that a transfer failed.
    LoseRequest,
}

/// The row of a transfer that begins at `now`: nothing is sent yet.
pub(crate) fn start(
    id: TransferId,
    request: RequestId,
    [mode, granularity]: [&'static str; 2],
    tokens: u64,
    blocks: u32,
    now: Nanos,
) -> TransferRow {
    TransferRow {
        id: id.0,
        request,
        mode: mode.into(),
        granularity: granularity.into(),
        tokens,
        blocks,
        offered_ns: now,
        ..TransferRow::default()
    }
}

/// Notes how a transfer ended.
pub(crate) fn set_end(row: &mut TransferRow, ended: Ended, cause: Option<Cause>) {
    row.ended = ended;
    row.cause = cause.map(|cause| cause.name().into());
}

impl Mode {
    /// As in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Pull => "pull",
            Mode::Push => "push",
        }
    }
}

impl Granularity {
    /// As in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Granularity::Bulk => "bulk",
            Granularity::Chunk => "chunk",
            Granularity::Layer => "layer",
        }
    }
}
