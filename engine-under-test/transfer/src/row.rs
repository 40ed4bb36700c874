//! What is recorded of each transfer.

use pb_contract::RequestId;
use serde::Serialize;

use crate::message::{Cause, Granularity, Mode, TransferId};

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The sink has everything.
    Acknowledged,
    /// Nothing was heard for the time of the lease.
    Expired,
    /// Either side gave up; see the cause.
    Aborted,
    /// The connection is gone.
    PeerDead,
}

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

/// One transfer, as its source saw it, on the source's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransferRow {
    /// The transfer.
    pub id: u64,
    /// The request.
    pub request: RequestId,
    /// `pull` or `push`.
    pub mode: &'static str,
    /// `bulk`, `chunk` or `layer`.
    pub granularity: &'static str,
    /// Tokens.
    pub tokens: u64,
    /// Blocks of the source.
    pub blocks: u32,
    /// Cells sent, those sent again included.
    pub cells: u64,
    /// Cells that were sent again.
    pub resent_cells: u64,
    /// Bytes of those cells.
    pub bytes: u64,
    /// Frames.
    pub frames: u64,
    /// Ranges of memory that were read for them.
    pub descriptors: u64,
    /// From the offer until the sink first asked, ns; none when it never did.
    pub queue_wait_ns: Option<u64>,
    /// Reading memory, ns, summed over frames.
    pub copy_ns: u64,
    /// From handing a frame to the connection until the transport is done with it, ns, summed over
    /// frames: those that wait for each other count more than once.
    pub wire_ns: u64,
    /// From the offer to the end, ns.
    pub total_ns: u64,
    /// From the end of the prefill to the end, ns; none when the prefill did not end before.
    pub exposed_ns: Option<u64>,
    /// How it ended.
    pub ended: Ended,
    /// Why, when it was aborted.
    pub cause: Option<&'static str>,
}

impl TransferRow {
    pub(crate) fn set_end(&mut self, ended: Ended, cause: Option<Cause>) {
        self.ended = ended;
        self.cause = cause.map(Cause::name);
    }

    pub(crate) fn start(
        id: TransferId,
        request: RequestId,
        [mode, granularity]: [&'static str; 2],
        tokens: u64,
        blocks: u32,
    ) -> TransferRow {
        TransferRow {
            id: id.0,
            request,
            mode,
            granularity,
            tokens,
            blocks,
            cells: 0,
            resent_cells: 0,
            bytes: 0,
            frames: 0,
            descriptors: 0,
            queue_wait_ns: None,
            copy_ns: 0,
            wire_ns: 0,
            total_ns: 0,
            exposed_ns: None,
            ended: Ended::Aborted,
            cause: None,
        }
    }
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
