//! The content events of a stream against the row of its request.

use pb_contract::{RequestRow, TokenRow};
use pb_record::RunData;
use pb_record::check::events_fault;

use crate::run::validity::ended_well;

/// The first token row that contradicts its request.
pub(super) fn fault(data: &RunData) -> Option<String> {
    // What a killed run had streamed of an unfinished request is no contradiction.
    if let Some(orphan) = data.first_orphan.as_ref().filter(|_| data.complete()) {
        return Some(format!(
            "tokens.csv: event {} of request {} of {} block {} has no row in requests.csv ({} such \
             rows)",
            orphan.event, orphan.request, orphan.arm, orphan.block, data.orphan_tokens
        ));
    }
    data.requests.iter().find_map(|row| {
        let events = data.tokens_of(row);
        let fault = events_fault(events).map(|(_, what)| what).or_else(|| {
            if ended_well(row) {
                row_fault(row, events)
            } else {
                None
            }
        });
        fault.map(|what| format!("tokens.csv: {} of {}", what, super::place(row)))
    })
}

/// Ends and sum of the events against the row of a request that ended well.
fn row_fault(row: &RequestRow, events: &[TokenRow]) -> Option<String> {
    let sum: u64 = events.iter().map(|event| u64::from(event.tokens)).sum();
    if sum != u64::from(row.streamed_tokens) {
        return Some(format!(
            "{sum} tokens in events, {} in requests.csv,",
            row.streamed_tokens
        ));
    }
    let (first, last) = (events.first()?, events.last()?);
    let ends = [
        (first, row.first_token_ns, "first_token_ns"),
        (last, row.last_token_ns, "last_token_ns"),
    ];
    let differs = ends
        .into_iter()
        .find(|(event, at, _)| Some(event.at_ns) != *at);
    differs.map(|(event, _, column)| format!("event {} at another time than {column}", event.event))
}
