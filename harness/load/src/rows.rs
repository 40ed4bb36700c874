//! From what happened to a request to the row that is kept of it.
//!
//! Both shells end a request here, so that a status means the same in a simulation and over HTTP.

use pb_contract::{FailKind, Nanos, RequestRow, RequestStatus, TokenRow};

use crate::driver::SendOrder;
use crate::events::StreamOutcome;

/// Which arm and matched block of the experiment a run belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunContext {
    /// Arm.
    pub arm: String,
    /// Block.
    pub block: u32,
}

/// A request that has ended, however it ended: one for every request that was due.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The request.
    pub row: RequestRow,
    /// Its content events, those of a request that failed later included.
    pub tokens: Vec<TokenRow>,
}

/// A row in which nothing has happened yet.
pub fn blank_row(context: &RunContext, order: &SendOrder) -> RequestRow {
    RequestRow {
        arm: context.arm.clone(),
        block: context.block,
        request: order.id,
        class: order.body.class.clone(),
        intended_ns: order.intended,
        sent_ns: None,
        headers_ns: None,
        first_event_ns: None,
        first_token_ns: None,
        last_token_ns: None,
        closed_ns: None,
        status: RequestStatus::NotOffered,
        fail: Some(FailKind::NotOffered),
        http_status: None,
        fail_message: None,
        finish_reason: None,
        prompt_tokens_planned: order.body.planned_tokens,
        prompt_tokens: None,
        cached_tokens: None,
        max_tokens: order.body.max_tokens,
        completion_tokens: None,
        streamed_tokens: 0,
    }
}

/// The record of a request that was due but never sent.
pub fn not_offered(context: &RunContext, order: &SendOrder) -> Record {
    Record {
        row: blank_row(context, order),
        tokens: Vec::new(),
    }
}

/// Ends `row` with what its stream told at `closed`.
pub fn finish_row(mut row: RequestRow, outcome: StreamOutcome, closed: Nanos) -> Record {
    row.first_event_ns = outcome.first_event;
    row.first_token_ns = outcome.first_token();
    row.last_token_ns = outcome.last_token();
    row.closed_ns = Some(closed);
    row.streamed_tokens = outcome.streamed_tokens;
    row.cached_tokens = outcome.cached_tokens();
    if let Some(usage) = outcome.usage {
        row.prompt_tokens = Some(usage.prompt_tokens);
        row.completion_tokens = Some(usage.completion_tokens);
    }
    row.finish_reason = outcome.finish_reason;
    (row.fail, row.fail_message) = outcome.failure.unzip();
    row.status = status_of(row.fail);
    let tokens = outcome
        .content
        .iter()
        .enumerate()
        .map(|(index, event)| TokenRow {
            arm: row.arm.clone(),
            block: row.block,
            request: row.request,
            event: index as u32,
            at_ns: event.at,
            tokens: event.tokens,
        });
    let tokens = tokens.collect();
    Record { row, tokens }
}

/// The population that a kind of failure belongs to.
fn status_of(fail: Option<FailKind>) -> RequestStatus {
    match fail {
        None => RequestStatus::Ok,
        Some(FailKind::Truncated) => RequestStatus::Truncated,
        Some(FailKind::Cancelled) => RequestStatus::Incomplete,
        Some(FailKind::NotOffered) => RequestStatus::NotOffered,
        Some(_) => RequestStatus::Failed,
    }
}
