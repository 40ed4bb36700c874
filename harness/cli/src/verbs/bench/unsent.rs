//! Requests that a stopped run never sent.
//!
//! They were planned, so they belong to a count: a run that was stopped after a tenth of its
//! requests did not offer the other nine, and its counts must say so.

use std::collections::BTreeSet;
use std::sync::Arc;

use pb_contract::plan::{Plan, PlannedBody, PlannedPrompt};
use pb_contract::{Nanos, RequestId, RequestRow};
use pb_load::rows::not_offered;
use pb_load::{Record, RunContext, RunSummary, SendOrder};

use super::live::LONGEST;

/// A record for every request of `plan` that has no row, in the order of the plan.
///
/// What a closed loop or a session had not come to yet counts only where their number ends the
/// run. Where the time does, more are planned than can be sent, and nobody knows how many would
/// have been.
pub(crate) fn unsent<'a>(
    plan: &'a Plan,
    rows: &[RequestRow],
    context: &'a RunContext,
    summary: &RunSummary,
) -> impl Iterator<Item = Record> + use<'a> {
    let seen: BTreeSet<RequestId> = rows.iter().map(|row| row.request).collect();
    let (start, end) = (summary.start_ns, summary.end_ns);
    let open = plan
        .open
        .iter()
        .map(move |request| (request.id, start + request.offset_ns, &request.body));
    let closed = plan.closed.iter().flat_map(move |part| {
        let ids = (part.first_id.0..).map(RequestId);
        let due = move |(id, body)| (id, end, body);
        ids.zip(&part.bodies).map(due)
    });
    let turns = plan.sessions.iter().flat_map(move |session| {
        let first = start + session.offset_ns;
        let due = move |(index, turn): (usize, &'a pb_contract::plan::Turn)| {
            // A later turn is due when the one before has ended, which it never did.
            (turn.id, if index == 0 { first } else { end }, &turn.body)
        };
        session.turns.iter().enumerate().map(due)
    });
    let by_number = plan.horizon_ns >= LONGEST;
    let rest = closed.chain(turns).filter(move |_| by_number);
    open.chain(rest)
        .filter(move |(id, ..)| !seen.contains(id))
        .map(move |(id, due, body)| not_offered(context, &order(id, due, body)))
}

/// The order as far as a row needs it: without the prompt.
fn order(id: RequestId, due: Nanos, body: &PlannedBody) -> SendOrder {
    let empty = PlannedPrompt::Ids(Vec::new());
    let body = PlannedBody::of(&*body.class, empty, body.planned_tokens, body.max_tokens);
    SendOrder {
        id,
        intended: due,
        free: due,
        body: Arc::new(body),
        wants_answer: false,
    }
}

#[cfg(test)]
mod tests {
    use pb_contract::RequestStatus;
    use pb_contract::plan::{ClosedLoop, OpenRequest, Session, Turn};

    use super::*;

    fn body() -> PlannedBody {
        PlannedBody::of_ids("x", vec![1, 2, 3], 5)
    }

    /// Two open requests, three of a closed loop, a session of two turns: the ids 0 to 6.
    fn plan(horizon_ns: Nanos) -> Plan {
        let open = |id: u64| OpenRequest {
            id: RequestId(id),
            offset_ns: Nanos::from_secs(id),
            body: body(),
        };
        let turn = |id| Turn {
            id: RequestId(id),
            think_ns: Nanos::ZERO,
            body: body(),
            history: false,
        };
        Plan {
            open: vec![open(0), open(1)],
            closed: vec![ClosedLoop {
                streams: 1,
                first_id: RequestId(2),
                bodies: vec![body(); 3],
            }],
            sessions: vec![Session {
                offset_ns: Nanos::from_secs(4),
                turns: vec![turn(5), turn(6)],
            }],
            horizon_ns,
            ..Plan::default()
        }
    }

    /// Ids and due seconds of what is left when the requests 0 and 2 have rows.
    fn left(plan: &Plan) -> Vec<(u64, u64)> {
        let context = RunContext::default();
        let summary = RunSummary {
            start_ns: Nanos::from_secs(100),
            end_ns: Nanos::from_secs(107),
            ..RunSummary::default()
        };
        let all = unsent(plan, &[], &context, &summary);
        let rows: Vec<RequestRow> = all.map(|record| record.row).collect();
        let had: Vec<RequestRow> = rows
            .into_iter()
            .filter(|row| [0, 2].contains(&row.request.0))
            .collect();
        let left = unsent(plan, &had, &context, &summary);
        left.map(|Record { row, tokens }| {
            assert_eq!(row.status, RequestStatus::NotOffered);
            assert_eq!((row.prompt_tokens_planned, row.max_tokens), (3, 5));
            assert!(tokens.is_empty() && row.sent_ns.is_none());
            (row.request.0, row.intended_ns.0 / 1_000_000_000)
        })
        .collect()
    }

    #[test]
    fn what_has_no_row_is_not_offered() {
        // Known instants where there are any, else the end of the run.
        let all = [(1, 101), (3, 107), (4, 107), (5, 104), (6, 107)];
        assert_eq!(left(&plan(LONGEST)), all);
    }

    #[test]
    fn where_the_time_ends_a_run_only_the_schedule_counts() {
        // With a row of request 2 or without: a loop that time ends has requests to spare.
        assert_eq!(left(&plan(Nanos::from_secs(60))), [(1, 101)]);
    }
}
