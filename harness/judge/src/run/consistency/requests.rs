//! A request row by itself: what ended well has a beginning, a middle and an end.

use pb_contract::RequestRow;
use pb_record::RunData;

use crate::run::validity::ended_well;

/// The first request row that cannot be true.
pub(super) fn fault(data: &RunData) -> Option<String> {
    data.requests.iter().find_map(|row| {
        let what = of_row(row).or_else(|| uncounted(data, row))?;
        Some(format!("requests.csv: {} {what}", super::place(row)))
    })
}

/// This engine counts every prompt and what it found cached; a row without is not its.
fn uncounted(data: &RunData, row: &RequestRow) -> Option<String> {
    let receipt = data.manifest.arms.iter().find(|arm| arm.name == row.arm);
    let own = receipt.is_some_and(super::is_own_engine) && ended_well(row);
    let column = match (row.prompt_tokens, row.cached_tokens) {
        (None, _) => "prompt_tokens",
        (_, None) => "cached_tokens",
        _ => return None,
    };
    own.then(|| format!("ended well but has no {column}"))
}

fn of_row(row: &RequestRow) -> Option<String> {
    if let (Some(cached), Some(prompt)) = (row.cached_tokens, row.prompt_tokens)
        && cached > prompt
    {
        return Some(format!("found {cached} of {prompt} prompt tokens cached"));
    }
    if !ended_well(row) {
        return None;
    }
    let instants = [
        ("sent_ns", row.sent_ns),
        ("first_event_ns", row.first_event_ns),
        ("first_token_ns", row.first_token_ns),
        ("last_token_ns", row.last_token_ns),
        ("closed_ns", row.closed_ns),
    ];
    if let Some((column, _)) = instants.iter().find(|(_, at)| at.is_none()) {
        return Some(format!("ended well but has no {column}"));
    }
    (row.streamed_tokens > row.max_tokens).then(|| {
        format!(
            "streamed {} tokens, {} were asked for",
            row.streamed_tokens, row.max_tokens
        )
    })
}
