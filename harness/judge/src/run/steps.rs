//! What the engine said of its own steps: where time went and where the blocks stood.

use pb_contract::StepRow;
use pb_record::StepRecord;

use super::verdict::{BucketSummary, Distribution, StepSummary};

/// Summarises the steps of one arm; `None` without steps.
pub(crate) fn summarise_steps<'a>(
    steps: impl Iterator<Item = &'a StepRecord>,
) -> Option<StepSummary> {
    let mut summary = StepSummary::default();
    let mut durations = Vec::new();
    let mut pools = PoolCheck::default();
    for step in steps {
        let row = &step.row;
        durations.push(row.duration_ns.0);
        add_step(&mut summary, row);
        pools.add(step, &mut summary.buckets);
    }
    durations.sort_unstable();
    summary.duration = Distribution::of_sorted(&durations);
    (summary.steps > 0).then_some(summary)
}

fn add_step(summary: &mut StepSummary, row: &StepRow) {
    summary.steps += 1;
    summary.prefill_steps += u64::from(row.prefill_tokens > 0);
    summary.mixed_steps += u64::from(row.prefill_tokens > 0 && row.decode_tokens > 0);
    summary.max_prefill_tokens = summary.max_prefill_tokens.max(row.prefill_tokens as u64);
    let counts = [
        (&mut summary.queried_tokens, row.queried_tokens),
        (&mut summary.hit_tokens, row.hit_tokens),
        (&mut summary.evicted_blocks, row.evicted_blocks),
        (&mut summary.preempted, row.preempted),
    ];
    for (sum, count) in counts {
        *sum = sum.saturating_add(count as u64);
    }
    let time = &mut summary.time;
    let parts = [
        (&mut time.total_ns, row.duration_ns),
        (&mut time.schedule_ns, row.schedule_ns),
        (&mut time.prefill_gemm_ns, row.prefill_gemm_ns),
        (&mut time.prefill_attention_ns, row.prefill_attention_ns),
        (&mut time.decode_gemm_ns, row.decode_gemm_ns),
        (&mut time.decode_attention_ns, row.decode_attention_ns),
        (&mut time.sampling_ns, row.sampling_ns),
        (&mut time.other_ns, row.other_ns),
    ];
    for (sum, part) in parts {
        *sum = sum.saturating_add(part.0);
    }
}

/// Checks that the buckets sum to one pool. A server is started anew for each block, so a pool is
/// compared within its block only.
#[derive(Default)]
struct PoolCheck {
    pools: std::collections::BTreeMap<u32, usize>,
}

impl PoolCheck {
    fn add(&mut self, step: &StepRecord, buckets: &mut BucketSummary) {
        let row = &step.row;
        let sum = [row.reclaimable_blocks, row.free_blocks]
            .into_iter()
            .fold(row.active_blocks, usize::saturating_add);
        let pool = *self.pools.entry(step.block).or_insert(sum);
        buckets.violations += u64::from(pool != sum);
        let most = |known: &mut Option<u64>, value: usize| {
            *known = Some(known.map_or(value as u64, |old| old.max(value as u64)));
        };
        most(&mut buckets.pool, pool);
        most(&mut buckets.active_peak, row.active_blocks);
        most(&mut buckets.reclaimable_peak, row.reclaimable_blocks);
        most(&mut buckets.free_peak, row.free_blocks);
        let free = row.free_blocks as u64;
        buckets.free_min = Some(buckets.free_min.map_or(free, |old| old.min(free)));
    }
}
