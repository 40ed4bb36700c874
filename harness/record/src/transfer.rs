//! Rows of KV transfers with the arm and the block that they belong to.
//!
//! The table is there when the server told of transfers. Its columns are `arm, block`, who told
//! the row, and the fields of [`TransferRow`] in their order; a reader finds them by name.

use std::borrow::Cow;
use std::path::Path;

use pb_contract::{Nanos, RequestId, TransferEnd, TransferLine, TransferRow};
use serde::{Deserialize, Serialize};

use crate::error::RecordError;
use crate::stream::read_rows;
use crate::table::TRANSFERS;

/// One transfer of one arm in one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferRecord {
    /// Arm of the experiment.
    pub arm: String,
    /// Matched block of the experiment.
    pub block: u32,
    /// The row as it was told.
    pub line: TransferLine,
}

/// Defines the flat row once and both conversions with it, so that no column can be forgotten.
macro_rules! flat_transfer {
    ($($(#[$meta:meta])* $field:ident: $kind:ty),* $(,)?) => {
        /// The row as it stands in the table.
        #[derive(Debug, Serialize, Deserialize)]
        pub(crate) struct FlatTransfer {
            #[serde(default)]
            arm: String,
            #[serde(default)]
            block: u32,
            #[serde(default)]
            seq: u64,
            #[serde(default)]
            told_ns: Nanos,
            #[serde(default)]
            worker: Option<u32>,
            $($(#[$meta])* $field: $kind,)*
        }

        impl FlatTransfer {
            pub(crate) fn new(arm: &str, block: u32, line: &TransferLine) -> Self {
                FlatTransfer {
                    arm: arm.to_owned(),
                    block,
                    seq: line.seq,
                    told_ns: line.told_ns,
                    worker: line.worker,
                    $($field: line.row.$field.clone(),)*
                }
            }
        }

        impl From<FlatTransfer> for TransferRecord {
            fn from(flat: FlatTransfer) -> TransferRecord {
                let row = TransferRow { $($field: flat.$field,)* };
                let line = TransferLine {
                    seq: flat.seq,
                    told_ns: flat.told_ns,
                    worker: flat.worker,
                    row,
                };
                TransferRecord { arm: flat.arm, block: flat.block, line }
            }
        }

        /// Columns of `transfers.csv`.
        pub(crate) const TRANSFER_COLUMNS: &[&str] =
            &["arm", "block", "seq", "told_ns", "worker", $(stringify!($field),)*];
    };
}

flat_transfer! {
    id: u64,
    request: RequestId,
    mode: Cow<'static, str>,
    granularity: Cow<'static, str>,
    tokens: u64,
    blocks: u32,
    cells: u64,
    resent_cells: u64,
    bytes: u64,
    #[serde(default)]
    early_bytes: u64,
    frames: u64,
    descriptors: u64,
    #[serde(default)]
    offered_ns: Nanos,
    queue_wait_ns: Option<u64>,
    copy_ns: u64,
    wire_ns: u64,
    total_ns: u64,
    exposed_ns: Option<u64>,
    ended: TransferEnd,
    cause: Option<Cow<'static, str>>,
}

/// The transfers of the run in `dir`; `None` when there is no such table.
///
/// # Errors
/// A whole row that does not parse: the message names file, line, column and value.
pub fn read_transfers(dir: &Path) -> Result<Option<Vec<TransferRecord>>, RecordError> {
    let flat: Option<Vec<FlatTransfer>> = read_rows(dir, TRANSFERS)?;
    Ok(flat.map(|rows| rows.into_iter().map(TransferRecord::from).collect()))
}
