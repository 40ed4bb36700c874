//! Rows of KV transfers between engines, as a server tells them and as a run keeps them.
//!
//! One schema for all: a server's `GET /transfers` gives [`TransferLine`] as JSON, one a line, and
//! `transfers.csv` of a run directory has the same columns behind `arm, block`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::ids::RequestId;

/// How a transfer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferEnd {
    /// The sink has everything.
    Acknowledged,
    /// Nothing was heard for the time of the lease.
    Expired,
    /// Either side gave up; see the cause.
    #[default]
    Aborted,
    /// The connection is gone.
    PeerDead,
}

impl TransferEnd {
    /// As in rows and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            TransferEnd::Acknowledged => "acknowledged",
            TransferEnd::Expired => "expired",
            TransferEnd::Aborted => "aborted",
            TransferEnd::PeerDead => "peer_dead",
        }
    }
}

/// One transfer, as its source saw it, on the source's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferRow {
    /// The transfer; 0 when nobody claimed what was held.
    pub id: u64,
    /// The request; between servers the ticket under which its KV was held.
    pub request: RequestId,
    /// `pull` or `push`.
    pub mode: Cow<'static, str>,
    /// `bulk`, `chunk` or `layer`.
    pub granularity: Cow<'static, str>,
    /// Tokens whose keys and values these are.
    pub tokens: u64,
    /// Blocks of the source.
    pub blocks: u32,
    /// Cells sent, those sent again included.
    pub cells: u64,
    /// Cells that were sent again.
    pub resent_cells: u64,
    /// Bytes of those cells.
    pub bytes: u64,
    /// Of these, bytes that were handed to the connection before the prefill had ended.
    #[serde(default)]
    pub early_bytes: u64,
    /// Frames.
    pub frames: u64,
    /// Ranges of memory that were read for them.
    pub descriptors: u64,
    /// When it was offered; of what nobody claimed, since when it was held.
    #[serde(default)]
    pub offered_ns: Nanos,
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
    pub ended: TransferEnd,
    /// Why, when it was not acknowledged.
    pub cause: Option<Cow<'static, str>>,
}

/// A row as a server tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferLine {
    /// Its number at whoever tells it; each is larger than the one before.
    pub seq: u64,
    /// When it was known there, on that server's clock.
    pub told_ns: Nanos,
    /// The worker that sent the KV, where a router tells it.
    #[serde(default)]
    pub worker: Option<u32>,
    /// The row.
    #[serde(flatten)]
    pub row: TransferRow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_flat_and_read_back() {
        let text = r#"{"seq":3,"told_ns":9,"worker":1,"id":18446744073709551615,"request":7,
            "mode":"pull","granularity":"bulk","tokens":40,"blocks":3,"cells":6,"resent_cells":0,
            "bytes":96,"early_bytes":32,"frames":1,"descriptors":2,"offered_ns":5,
            "queue_wait_ns":null,"copy_ns":1,"wire_ns":2,"total_ns":4,
            "exposed_ns":3,"ended":"peer_dead","cause":"link_down"}"#;
        let line: TransferLine = serde_json::from_str(text).unwrap();
        assert_eq!((line.worker, line.told_ns), (Some(1), Nanos(9)));
        assert_eq!(line.row.ended, TransferEnd::PeerDead);
        assert_eq!(line.row.id, u64::MAX);
        let again: serde_json::Value = serde_json::to_value(&line).unwrap();
        let given: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(again, given);
        for end in ["acknowledged", "expired", "aborted", "peer_dead"] {
            let parsed: TransferEnd = serde_json::from_value(end.into()).unwrap();
            assert_eq!(parsed.name(), end);
        }
    }
}
