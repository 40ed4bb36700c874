//! Whether the files of a run directory tell one story.
//!
//! The same event is written down several times: a stream's tokens one by one and as a sum, a
//! prompt by the client and by the engine's steps, a cell by the manifest and by its rows. A file
//! that was cut, doubled or edited contradicts the others, and whatever is computed from it is
//! wrong without looking wrong. So each statement is held against the others before any number is
//! believed, and the first row that does not fit is named.

mod cells;
mod requests;
mod steps;
mod tokens;

use pb_contract::RequestRow;
use pb_contract::manifest::ArmReceipt;
use pb_record::RunData;

use super::notes::RunNotes;
use super::validity::{check, unchecked};
use super::verdict::Check;

/// One check for each file.
pub(super) fn checks(data: &RunData, notes: &RunNotes) -> Vec<Check> {
    let counted = |rows: usize| format!("{rows} rows");
    let judged = |name: &str, fault: Option<String>, rows: usize, limit: &str| {
        let held = fault.is_none();
        check(name, held, fault.unwrap_or_else(|| counted(rows)), limit)
    };
    let mut checks = vec![
        judged(
            "manifest.json names what ran",
            cells::fault(data),
            data.manifest.order.len(),
            "an arm, a place in the order and a schedule digest for every cell with requests",
        ),
        judged(
            "requests.csv is whole",
            requests::fault(data),
            data.requests.len(),
            "every instant of a request that ended well, and no more tokens than asked for",
        ),
        judged(
            "tokens.csv agrees with requests.csv",
            tokens::fault(data),
            data.tokens.len(),
            "events 0, 1, 2, ... in order, from the first to the last token, with their sum",
        ),
        steps_check(data, notes),
    ];
    // A writer that left no receipts is no condition of a run.
    if !data.changed_tables.is_empty() {
        let found = data.changed_tables.join("; ");
        let limit = "rows, size and sha256 of each table as in tables.json";
        checks.push(check(
            "tables are as they were written",
            false,
            found,
            limit,
        ));
    }
    checks
}

fn steps_check(data: &RunData, notes: &RunNotes) -> Check {
    let name = "steps.csv agrees with requests.csv";
    let limit = "steps without a gap in every cell of this engine, and the prompts' tokens in them";
    match steps::fault(data, notes) {
        Some(fault) => check(name, false, fault, limit),
        None if data.steps.is_empty() => unchecked(name, "the server sent no step rows", limit),
        None => check(name, true, format!("{} rows", data.steps.len()), limit),
    }
}

/// Only this project's server tells both its version and its configuration.
fn is_own_engine(receipt: &ArmReceipt) -> bool {
    let configured = receipt
        .config
        .as_object()
        .is_some_and(|fields| !fields.is_empty());
    configured && !matches!(receipt.version.as_str(), "" | "unknown")
}

/// A request in words.
fn place(row: &RequestRow) -> String {
    format!("request {} of {} block {}", row.request, row.arm, row.block)
}

#[cfg(test)]
mod tests;
