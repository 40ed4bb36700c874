//! The engine's steps against the requests that they served.

use std::collections::BTreeMap;

use pb_contract::{RequestRow, StepRow};
use pb_record::RunData;

use crate::run::notes::RunNotes;
use crate::run::validity::ended_well;

type Cell<'a> = (&'a str, u32);

/// The first step row, or cell, that contradicts the requests.
pub(super) fn fault(data: &RunData, notes: &RunNotes) -> Option<String> {
    let mut steps: BTreeMap<Cell<'_>, Vec<&StepRow>> = BTreeMap::new();
    for step in &data.steps {
        let cell = (step.arm.as_str(), step.block);
        steps.entry(cell).or_default().push(&step.row);
    }
    let in_order = steps
        .iter()
        .find_map(|(cell, rows)| order_fault(*cell, rows).or_else(|| rows_fault(*cell, rows)));
    // Steps and requests of the last cell of a stopped run need not have met.
    if in_order.is_some() || !data.complete() {
        return in_order;
    }
    let mut requests: BTreeMap<Cell<'_>, Vec<&RequestRow>> = BTreeMap::new();
    for row in &data.requests {
        let cell = (row.arm.as_str(), row.block);
        requests.entry(cell).or_default().push(row);
    }
    requests
        .iter()
        .find_map(|(cell, rows)| match steps.get(cell) {
            Some(steps) => prompt_fault(*cell, steps, rows, notes),
            None => missing_fault(*cell, data),
        })
}

/// Steps are numbered without a gap and come one after the other.
fn order_fault((arm, block): Cell<'_>, rows: &[&StepRow]) -> Option<String> {
    let mut pairs = rows.windows(2).map(|pair| (pair[0], pair[1]));
    pairs.find_map(|(before, step)| {
        let next = before.step.checked_add(1);
        let ended = before.start_ns.0.checked_add(before.duration_ns.0);
        let what = if Some(step.step) != next {
            format!("follows step {}", before.step)
        } else if ended.is_none_or(|ended| step.start_ns.0 < ended) {
            format!("starts before step {} ended", before.step)
        } else {
            return None;
        };
        Some(format!(
            "steps.csv: step {} of {arm} block {block} {what}",
            step.step
        ))
    })
}

/// What one step says of itself: its parts are its whole, and no count contradicts another.
fn rows_fault((arm, block): Cell<'_>, rows: &[&StepRow]) -> Option<String> {
    rows.iter().find_map(|row| {
        let parts = [
            row.schedule_ns,
            row.prefill_gemm_ns,
            row.prefill_attention_ns,
            row.decode_gemm_ns,
            row.decode_attention_ns,
            row.sampling_ns,
            row.other_ns,
        ];
        let sum: u128 = parts.iter().map(|part| u128::from(part.0)).sum();
        let fits = |seqs: usize, tokens: usize| seqs <= tokens && (seqs > 0) == (tokens > 0);
        let what = if sum != u128::from(row.duration_ns.0) {
            format!("lasted {} ns, its parts {sum} ns", row.duration_ns.0)
        } else if !fits(row.prefill_seqs, row.prefill_tokens) {
            let (tokens, seqs) = (row.prefill_tokens, row.prefill_seqs);
            format!("has {tokens} prompt tokens in {seqs} sequences")
        } else if !fits(row.decode_seqs, row.decode_tokens) {
            let (tokens, seqs) = (row.decode_tokens, row.decode_seqs);
            format!("has {tokens} decode tokens in {seqs} sequences")
        } else if row.hit_tokens > row.queried_tokens {
            let (hit, queried) = (row.hit_tokens, row.queried_tokens);
            format!("found {hit} of {queried} tokens cached")
        } else {
            return None;
        };
        Some(format!(
            "steps.csv: step {} of {arm} block {block} {what}",
            row.step
        ))
    })
}

/// A cell without steps although its server is this engine, or told steps in other cells.
fn missing_fault((arm, block): Cell<'_>, data: &RunData) -> Option<String> {
    let receipt = data
        .manifest
        .arms
        .iter()
        .find(|receipt| receipt.name == arm);
    let tells =
        receipt.is_some_and(super::is_own_engine) || data.steps.iter().any(|s| s.arm == arm);
    tells.then(|| format!("steps.csv: no step of {arm} block {block}"))
}

/// Prompt tokens computed in steps against those that the requests were not given by the cache.
/// Nothing is concluded where a request failed or the server named no count. A probe after a reset
/// and a preempted request compute more than the requests show, never less; without notes of a
/// comparison nobody knows whether there were probes.
fn prompt_fault(
    (arm, block): Cell<'_>,
    steps: &[&StepRow],
    rows: &[&RequestRow],
    notes: &RunNotes,
) -> Option<String> {
    let mut needed = 0_u64;
    for row in rows {
        let computed = row.prompt_tokens?.saturating_sub(row.cached_tokens?);
        if !ended_well(row) {
            return None;
        }
        needed += u64::from(computed);
    }
    let tokens = steps.iter().map(|step| step.prefill_tokens as u64);
    let computed = tokens.fold(0_u64, u64::saturating_add);
    let probed = notes
        .resets
        .iter()
        .any(|r| r.arm == arm && r.block == block);
    let unknown = notes.comparison.is_none();
    let more_allowed = probed || unknown || steps.iter().any(|step| step.preempted > 0);
    let held = computed == needed || (more_allowed && computed > needed);
    (!held).then(|| {
        format!(
            "steps.csv: {computed} prompt tokens computed in {arm} block {block} from step {} on, \
             {needed} needed by requests.csv",
            steps.first().map_or(0, |step| step.step)
        )
    })
}
