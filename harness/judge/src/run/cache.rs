//! Cold against warm: first prove the two states, then compare their times.
//!
//! A cold run on a cache that was not empty measures nothing, and so does a warm one whose prefix
//! had been evicted. Both states are proven by what the server counted, never by what was sent.

use std::collections::BTreeMap;

use pb_contract::{RequestId, RequestRow, RequestStatus};
use pb_record::RunData;
use pb_record::metrics::request_metrics;

use super::notes::{CacheNote, ResetProof};
use super::verdict::{CacheVerdict, Distribution};
use crate::Interval;

/// Judges one cold against warm experiment.
pub(crate) fn judge_cache(data: &RunData, note: &CacheNote, resets: &[ResetProof]) -> CacheVerdict {
    let rows: Vec<&RequestRow> = data
        .requests
        .iter()
        .filter(|row| row.arm == note.arm && row.block == note.block)
        .collect();
    let of = |class: &str| -> Vec<&RequestRow> {
        let good = |row: &&RequestRow| row.class == class && row.status == RequestStatus::Ok;
        rows.iter().copied().filter(good).collect()
    };
    let (cold, warm) = (of(&note.cold_class), of(&note.warm_class));
    let mut reasons = Vec::new();
    let cold_proven = prove_cold(note, &cold, resets, &mut reasons);
    let warm_proven = prove_warm(note, &warm, &mut reasons);
    let pairs = paired_ttft(note, &cold, &warm);
    let ratio = if cold_proven && warm_proven {
        ratio_of(&pairs)
    } else {
        None
    };
    let found: Vec<u32> = warm.iter().filter_map(|row| row.cached_tokens).collect();
    CacheVerdict {
        arm: note.arm.clone(),
        block: note.block,
        cold_proven,
        warm_proven,
        reasons,
        cold: cold.len() as u64,
        warm: warm.len() as u64,
        planned_tokens: note
            .planned_cached_tokens
            .values()
            .map(|&n| u64::from(n))
            .sum(),
        cached_tokens: (!found.is_empty()).then(|| found.iter().map(|&n| u64::from(n)).sum()),
        cold_ttft: ttft_distribution(&cold),
        warm_ttft: ttft_distribution(&warm),
        pairs: pairs.len() as u64,
        ttft_ratio: ratio,
    }
}

fn prove_cold(
    note: &CacheNote,
    cold: &[&RequestRow],
    resets: &[ResetProof],
    reasons: &mut Vec<String>,
) -> bool {
    let before = reasons.len();
    let here = |reset: &&ResetProof| reset.arm == note.arm && reset.block == note.block;
    if !resets.iter().any(|reset| here(&reset)) {
        reasons.push("no reset was recorded".to_owned());
    }
    reasons.extend(resets.iter().filter(here).filter_map(reset_fault));
    if cold.is_empty() {
        reasons.push(format!(
            "no request of class `{}` ended well",
            note.cold_class
        ));
    }
    for row in cold {
        match row.cached_tokens {
            Some(0) => {}
            Some(n) => reasons.push(format!("cold request {} found {n} tokens", row.request)),
            None => reasons.push(format!(
                "cold request {}: server named no count",
                row.request
            )),
        }
    }
    reasons.len() == before
}

/// Why a reset proves nothing; `None` when it does.
pub(crate) fn reset_fault(reset: &ResetProof) -> Option<String> {
    let place = format!("{} block {}", reset.arm, reset.block);
    match (reset.accepted, reset.probe_cached_tokens) {
        (false, _) => Some(format!(
            "{place}: the server did not accept the cache reset"
        )),
        (true, Some(0)) => None,
        (true, Some(n)) => Some(format!(
            "{place}: the probe after the reset found {n} tokens"
        )),
        (true, None) => Some(format!("{place}: the probe after the reset named no count")),
    }
}

fn prove_warm(note: &CacheNote, warm: &[&RequestRow], reasons: &mut Vec<String>) -> bool {
    let before = reasons.len();
    if note.planned_cached_tokens.is_empty() {
        reasons.push("no planned cached tokens were recorded".to_owned());
    }
    let by_id: BTreeMap<RequestId, &RequestRow> =
        warm.iter().map(|row| (row.request, *row)).collect();
    for (&id, &planned) in &note.planned_cached_tokens {
        let found = by_id.get(&id).map(|row| row.cached_tokens);
        match found {
            None => reasons.push(format!("warm request {id} did not end well")),
            Some(None) => reasons.push(format!("warm request {id}: server named no count")),
            Some(Some(n)) if n != planned => {
                reasons.push(format!(
                    "warm request {id} found {n} tokens, planned {planned}"
                ));
            }
            Some(Some(_)) => {}
        }
    }
    reasons.len() == before
}

/// (cold, warm) TTFT in nanoseconds of every pair that has both.
fn paired_ttft(note: &CacheNote, cold: &[&RequestRow], warm: &[&RequestRow]) -> Vec<(f64, f64)> {
    let ttft = |rows: &[&RequestRow], id: RequestId| {
        let row = rows.iter().find(|row| row.request == id)?;
        request_metrics(row).ttft_ns.map(|ns| ns as f64)
    };
    let both = |&(a, b): &(RequestId, RequestId)| ttft(cold, a).zip(ttft(warm, b));
    note.pairs.iter().filter_map(both).collect()
}

fn ratio_of(pairs: &[(f64, f64)]) -> Option<Interval> {
    let (cold, warm): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    pb_stats::paired_ratio(&cold, &warm, 0.95)
        .ok()
        .map(Interval::from)
}

fn ttft_distribution(rows: &[&RequestRow]) -> Distribution {
    let mut values: Vec<u64> = rows
        .iter()
        .filter_map(|r| request_metrics(r).ttft_ns)
        .collect();
    values.sort_unstable();
    Distribution::of_sorted(&values)
}
