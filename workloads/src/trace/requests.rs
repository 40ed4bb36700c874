//! Rows as requests, for whoever replays them without a data set around them.

use pb_contract::RequestId;
use pb_contract::plan::{OpenRequest, PlannedBody};

use crate::trace::{PromptTokens, TraceRow};

/// Class of a replayed row.
pub(crate) const CLASS: &str = "trace";

/// The requests of rows, due as recorded, with the ids 0, 1, ... in the order of the rows. A row
/// that generated nothing asks for one token, since a server generates at least that.
pub fn open_requests(rows: &[TraceRow], prompts: &PromptTokens) -> Vec<OpenRequest> {
    let request = |(index, row): (usize, &TraceRow)| OpenRequest {
        id: RequestId(index as u64),
        offset_ns: row.arrival_ns,
        body: PlannedBody::of_ids(CLASS, prompts.realise(row), output_of(row)),
    };
    rows.iter().enumerate().map(request).collect()
}

/// Tokens that a row asks for.
pub(crate) fn output_of(row: &TraceRow) -> u32 {
    u32::try_from(row.output_tokens).unwrap_or(u32::MAX).max(1)
}
