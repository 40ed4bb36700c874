//! Engine steps as slices, with where their time went, and the state after each as counters.

use std::io;

use pb_contract::{Nanos, StepRow};
use serde_json::json;

use super::{Event, Out, Process, STEPS};

/// Parts of a step in the order in which they are laid, with who spends the time.
fn parts(row: &StepRow) -> [(&'static str, &'static str, Nanos); 8] {
    let dispatch = row.dispatch_ns.min(row.other_ns);
    [
        ("schedule", "host", row.schedule_ns),
        ("dispatch", "host", dispatch),
        ("prefill GEMM", "kernel", row.prefill_gemm_ns),
        ("prefill attention", "kernel", row.prefill_attention_ns),
        ("decode GEMM", "kernel", row.decode_gemm_ns),
        ("decode attention", "kernel", row.decode_attention_ns),
        ("sampling", "host", row.sampling_ns),
        ("other", "other", row.other_ns.saturating_sub(dispatch)),
    ]
}

/// Name of a step: what it computed.
fn name(row: &StepRow) -> &'static str {
    match (row.prefill_tokens > 0, row.decode_tokens > 0) {
        (true, true) => "mixed step",
        (true, false) => "prefill step",
        (false, true) => "decode step",
        (false, false) => "empty step",
    }
}

pub(super) fn write(out: &mut Out<'_>, pid: u64, process: &Process<'_>) -> io::Result<()> {
    let mut free_from = Nanos::ZERO;
    for step in &process.steps {
        let row = &step.row;
        // Steps follow one another; where clocks disagree a slice begins when the last one ended.
        let start = row.start_ns.max(free_from);
        let end = (row.start_ns + row.duration_ns).max(start);
        free_from = end;
        slices(out, pid, row, (start, end))?;
        out.size.steps += 1;
        let buckets = json!({
            "active": row.active_blocks,
            "reclaimable": row.reclaimable_blocks,
            "free": row.free_blocks,
        });
        out.counter(pid, end, "KV blocks", buckets)?;
        let queue = json!({"running": row.running, "waiting": row.waiting});
        out.counter(pid, end, "requests", queue)?;
        let tokens = json!({"prefill": row.prefill_tokens, "decode": row.decode_tokens});
        out.counter(pid, start, "tokens of the step", tokens)?;
    }
    Ok(())
}

/// A step with its parts, none of which reaches beyond it.
fn slices(
    out: &mut Out<'_>,
    pid: u64,
    row: &StepRow,
    (start, end): (Nanos, Nanos),
) -> io::Result<()> {
    let event = |ph: &'static str, at, name, more| Event {
        ph,
        at,
        pid,
        tid: STEPS,
        name,
        more,
    };
    let args = json!({
        "step": row.step,
        "duration_ns": row.duration_ns.0,
        "prefill_tokens": row.prefill_tokens,
        "decode_tokens": row.decode_tokens,
        "prefill_seqs": row.prefill_seqs,
        "decode_seqs": row.decode_seqs,
        "context_tokens": row.context_tokens,
        "hit_tokens": row.hit_tokens,
        "queried_tokens": row.queried_tokens,
        "evicted_blocks": row.evicted_blocks,
        "preempted": row.preempted,
        "lock_wait_ns": row.lock_wait_ns.0,
    });
    let more = json!({"cat": "step", "args": args});
    out.event(event("B", start, name(row), more))?;
    let mut at = start;
    for (part, category, duration) in parts(row) {
        let until = (at + duration).min(end);
        if until > at {
            let more = json!({"cat": category, "args": {"duration_ns": duration.0}});
            out.event(event("B", at, part, more))?;
            out.event(event("E", until, part, json!({"cat": category})))?;
            at = until;
        }
    }
    out.event(event("E", end, name(row), json!({"cat": "step"})))
}
