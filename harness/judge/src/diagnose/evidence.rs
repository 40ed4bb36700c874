//! The evidence that is required before anything is changed, and what a hard failure allows.

use pb_contract::{Nanos, RequestStatus};

use super::account::Timelines;
use super::case::Case;
use super::document::{Buckets, Evidence};

/// The buckets over the steps; nothing without steps.
pub(super) fn buckets(timelines: &Timelines) -> Option<Buckets> {
    let mut buckets = Buckets {
        pool: 0,
        active_max: 0,
        reclaimable_max: 0,
        available_min: u64::MAX,
        active_mean_share: 0.0,
        // By the definition of the columns.
        free_includes_reclaimable: false,
    };
    let (mut active, mut all) = (0.0, 0.0);
    for step in timelines.steps() {
        let row = &step.row;
        let available = row.free_blocks.saturating_add(row.reclaimable_blocks);
        let pool = available.saturating_add(row.active_blocks);
        buckets.pool = buckets.pool.max(pool as u64);
        buckets.active_max = buckets.active_max.max(row.active_blocks as u64);
        buckets.reclaimable_max = buckets.reclaimable_max.max(row.reclaimable_blocks as u64);
        buckets.available_min = buckets.available_min.min(available as u64);
        active += step.wall_ns * row.active_blocks as f64;
        all += step.wall_ns * pool as f64;
    }
    if all <= 0.0 {
        return None;
    }
    buckets.active_mean_share = active / all;
    Some(buckets)
}

/// The four things that are required, each with what the run has of it.
pub(super) fn required(case: &Case<'_>, timelines: &Timelines) -> Vec<Evidence> {
    let mut all = vec![
        bucket_evidence(case, timelines),
        split_evidence(timelines),
        host_evidence(timelines),
    ];
    let arms = case.data.manifest.arms.len();
    let text = match arms {
        0 | 1 => {
            "missing: one arm shows no effect of a change; that takes a suite whose arms have \
             equal arrivals, lengths, cache and precision"
        }
        _ => {
            "the run has several arms on one schedule: `prefillbench report` compares them; this \
             looks at one"
        }
    };
    all.push(Evidence {
        name: "controlled comparison",
        present: arms > 1,
        text: text.to_owned(),
    });
    all
}

fn bucket_evidence(case: &Case<'_>, timelines: &Timelines) -> Evidence {
    let usage = case.server.as_ref().and_then(|s| s.gauges.kv_usage);
    let (present, text) = match (buckets(timelines), usage) {
        (Some(b), _) => (
            true,
            format!(
                "of {} blocks at most {} were active and {} reclaimable, at least {} free or \
                 reclaimable; the free count has no reclaimable block in it",
                b.pool, b.active_max, b.reclaimable_max, b.available_min
            ),
        ),
        (None, Some(usage)) => (
            false,
            format!(
                "missing: the server tells only a usage of {:.0} % at most, which does not say \
                 what is active and what is reclaimable, nor whether its free blocks have the \
                 reclaimable ones in them",
                100.0 * usage.max
            ),
        ),
        (None, None) => (
            false,
            "missing: active, reclaimable and free blocks over time; reserved device memory says \
             nothing of them"
                .to_owned(),
        ),
    };
    Evidence {
        name: "block buckets",
        present,
        text,
    }
}

fn split_evidence(timelines: &Timelines) -> Evidence {
    let (mut whole, mut prefill, mut gemm, mut attention) = (0.0, 0.0, 0.0, 0.0);
    for step in timelines.steps() {
        let row = &step.row;
        whole += row.duration_ns.0 as f64;
        prefill += (row.prefill_gemm_ns + row.prefill_attention_ns).0 as f64;
        gemm += row.decode_gemm_ns.0 as f64;
        attention += row.decode_attention_ns.0 as f64;
    }
    let present = prefill + gemm + attention > 0.0;
    let of = |ns: f64| 100.0 * ns / whole;
    let text = match present {
        true => format!(
            "of the time of all steps {:.0} % is prefill, {:.0} % decode products, {:.0} % decode \
             attention",
            of(prefill),
            of(gemm),
            of(attention)
        ),
        false => "missing: steps with the time of prefill, decode products and decode attention"
            .to_owned(),
    };
    Evidence {
        name: "step durations by part",
        present,
        text,
    }
}

/// Whether the table has the columns of the host's time. An older one reads as zeros.
pub(super) fn tells_host_time(timelines: &Timelines) -> bool {
    let rows = || timelines.steps().map(|step| &step.row);
    let planned = rows().any(|row| row.schedule_ns > Nanos::ZERO);
    let divided = rows().any(|row| {
        let planning = row.lookup_ns + row.allocate_ns + row.plan_ns;
        planning + row.dispatch_ns + row.lock_wait_ns > Nanos::ZERO
    });
    !timelines.is_empty() && (divided || !planned)
}

fn host_evidence(timelines: &Timelines) -> Evidence {
    let present = tells_host_time(timelines);
    let (mut host, mut lock, mut steps) = (0.0, 0.0, 0.0_f64);
    for step in timelines.steps() {
        host += (step.row.schedule_ns + step.row.dispatch_ns).0 as f64;
        lock += step.row.lock_wait_ns.0 as f64;
        steps += 1.0;
    }
    let mean = |ns: f64| ns / steps.max(1.0) / 1e6;
    let text = match present {
        true => format!(
            "a step has {:.3} ms of planning and dispatch and {:.3} ms of waiting for commands and \
             locks, on average",
            mean(host),
            mean(lock)
        ),
        false => "missing: the host's planning time and lock wait of each step".to_owned(),
    };
    Evidence {
        name: "host latency and lock wait",
        present,
        text,
    }
}

/// A hard failure allows a bounded measure at once, whatever its cause. A figure that got worse
/// does not.
pub(super) fn containment(case: &Case<'_>) -> Option<String> {
    let broken = |status| case.requests().filter(|row| row.status == status).count();
    let (failed, truncated) = (
        broken(RequestStatus::Failed),
        broken(RequestStatus::Truncated),
    );
    let mut seen = Vec::new();
    if failed + truncated > 0 {
        seen.push(format!(
            "{failed} requests failed and {truncated} broke off"
        ));
    }
    if !case.gates_missed.is_empty() {
        seen.push(format!("not met: {}", case.gates_missed.join(", ")));
    }
    (!seen.is_empty()).then(|| {
        format!(
            "Hard failure ({}): a bounded measure, such as a lower limit of requests in flight, is \
             justified now; it is containment and shows no cause",
            seen.join("; ")
        )
    })
}
