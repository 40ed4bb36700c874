//! Requests before the measurement: they warm up the server's code, never its cache for the
//! measured prompts, with which they share no block. Their rows have an arm of their own.

use anyhow::{Context, Result, bail};
use pb_contract::plan::{ClosedLoop, Plan, PlannedBody};
use pb_contract::{Nanos, RequestId};
use pb_workloads::{MAX_PLAN_BYTES, MAX_REQUESTS, Planned};

use super::workload::bodies;
use crate::args::Warmup;

/// Slots of a warm-up when the run itself has none.
const SLOTS: usize = 8;

/// Requests of a warm-up that ends by its time, at most.
const MOST: usize = 2048;

/// Prompt tokens of a warm-up that ends by its time, at most.
const MOST_TOKENS: usize = 1 << 22;

/// A warm-up without a duration ends by its number of requests, long before this.
const FOREVER: Nanos = Nanos::from_secs(24 * 3600);

/// The plan of a warm-up whose requests are as long as those of the schedule.
///
/// # Errors
/// The source of tokens is too poor for so many different prompts.
pub(crate) fn plan(
    planned: &Planned,
    warmup: Warmup,
    slots: Option<usize>,
    drain_ns: Nanos,
) -> Result<Plan> {
    let (input, output) = typical(&planned.plan);
    let (count, horizon_ns) = match warmup {
        Warmup::Requests(count) => (count, FOREVER),
        Warmup::Seconds(seconds) => {
            let count = (MOST_TOKENS / input.max(1) as usize).clamp(1, MOST);
            (count, Nanos::from_secs_f64(seconds))
        }
    };
    if count == 0 {
        return Ok(Plan::default());
    }
    let bytes = (count as u64).saturating_mul(u64::from(input) * 4);
    if count > MAX_REQUESTS || bytes > MAX_PLAN_BYTES {
        bail!(
            "--warmup {count}: the prompts would take {} MiB; a warm-up may have {MAX_REQUESTS} \
             requests and {} MiB of prompts",
            bytes >> 20,
            MAX_PLAN_BYTES >> 20
        );
    }
    let mut bodies = planned.spare("warmup", count, input).context("--warmup")?;
    for body in &mut bodies {
        body.max_tokens = output;
        body.class = "warmup".to_owned();
        body.planned_hit_tokens = None;
    }
    Ok(Plan {
        closed: vec![ClosedLoop {
            streams: slots.unwrap_or(SLOTS).min(count),
            first_id: RequestId(0),
            bodies,
        }],
        horizon_ns,
        drain_ns,
        ..Plan::default()
    })
}

/// Median prompt and output length of a plan.
pub(crate) fn typical(plan: &Plan) -> (u32, u32) {
    let middle = |of: fn(&PlannedBody) -> u32| {
        let mut lengths: Vec<u32> = bodies(plan).map(of).collect();
        lengths.sort_unstable();
        lengths.get(lengths.len() / 2).copied().unwrap_or(1)
    };
    let input = middle(|body| body.planned_tokens);
    (input.max(1), middle(|body| body.max_tokens))
}

#[cfg(test)]
mod tests {
    use pb_contract::plan::OpenRequest;

    use super::*;

    #[test]
    fn the_typical_request_is_the_median() {
        let request = |(id, (input, output)): (usize, (usize, u32))| OpenRequest {
            id: RequestId(id as u64),
            offset_ns: Nanos::ZERO,
            body: PlannedBody::of_ids("x", vec![1; input], output),
        };
        let lengths = [(9, 1), (100, 7), (10, 3)];
        let plan = Plan {
            open: lengths.into_iter().enumerate().map(request).collect(),
            ..Plan::default()
        };
        assert_eq!(typical(&plan), (10, 3));
        assert_eq!(typical(&Plan::default()), (1, 1));
    }
}
