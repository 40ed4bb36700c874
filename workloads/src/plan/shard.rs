//! A plan in parts, for load from several machines.

use pb_contract::RequestId;
use pb_contract::plan::{ClosedLoop, Plan};

use super::Planned;
use crate::error::WorkloadError;

impl Planned {
    /// Part `index` of `count`: every request, turn and slot of the plan is in exactly one part,
    /// with its id, its offset and its planned hit as they are in the whole.
    ///
    /// The parts stay provable: each machine plans the whole, whose hash is the same everywhere,
    /// and takes its part of it. Open requests and sessions go round, closed loops are cut.
    ///
    /// # Errors
    /// An index that is not below the count, or a closed loop with fewer slots than parts.
    pub fn shard(&self, index: usize, count: usize) -> Result<Plan, WorkloadError> {
        if count == 0 || index >= count {
            let fix = "must be i/n with i from 0 and below n";
            let value = format!("{index}/{count}");
            return Err(WorkloadError::parameter("shard", value, fix));
        }
        let mine = |at: &usize| at % count == index;
        let whole = &self.plan;
        let open = whole.open.iter().enumerate().filter(|(at, _)| mine(at));
        let sessions = whole.sessions.iter().enumerate().filter(|(at, _)| mine(at));
        let closed = whole.closed.iter().map(|part| cut(part, index, count));
        Ok(Plan {
            open: open.map(|(_, request)| request.clone()).collect(),
            sessions: sessions.map(|(_, session)| session.clone()).collect(),
            closed: closed.collect::<Result<_, _>>()?,
            horizon_ns: whole.horizon_ns,
            drain_ns: whole.drain_ns,
        })
    }
}

/// Consecutive requests, in proportion to the slots of the part.
fn cut(part: &ClosedLoop, index: usize, count: usize) -> Result<ClosedLoop, WorkloadError> {
    if part.streams < count {
        let fix = format!(
            "a closed loop of {} slots has no more parts than that",
            part.streams
        );
        return Err(WorkloadError::parameter(
            "shard",
            format!("{index}/{count}"),
            fix,
        ));
    }
    let slots_before = |shard: usize| part.streams * shard / count;
    let requests_before = |shard: usize| {
        let slots = slots_before(shard) as u128;
        (part.bodies.len() as u128 * slots / part.streams as u128) as usize
    };
    let (from, to) = (requests_before(index), requests_before(index + 1));
    Ok(ClosedLoop {
        streams: slots_before(index + 1) - slots_before(index),
        first_id: RequestId(part.first_id.0 + from as u64),
        bodies: part.bodies[from..to].to_vec(),
    })
}
