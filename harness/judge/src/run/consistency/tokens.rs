//! The content events of a stream against the row of its request.

use pb_contract::{RequestRow, TokenRow};
use pb_record::RunData;

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
        let fault = events_fault(events).or_else(|| {
            if ended_well(row) {
                row_fault(row, events)
            } else {
                None
            }
        });
        fault.map(|what| format!("tokens.csv: {} of {}", what, super::place(row)))
    })
}

/// Numbers, times and counts of the events by themselves.
fn events_fault(events: &[TokenRow]) -> Option<String> {
    for (index, event) in events.iter().enumerate() {
        let number = event.event;
        let previous = index.checked_sub(1).map(|before| &events[before]);
        if previous.is_some_and(|previous| previous.event == number) {
            return Some(format!("two rows of event {number}"));
        }
        if number as usize != index {
            return Some(format!("no event {index}, but an event {number}"));
        }
        if event.tokens == 0 {
            return Some(format!("no token in event {number}"));
        }
        if previous.is_some_and(|previous| event.at_ns < previous.at_ns) {
            return Some(format!("a time that runs backwards at event {number}"));
        }
    }
    None
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
