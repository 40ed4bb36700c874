//! Whether both arms were asked for the same work at the same times.
//!
//! A difference between arms is a difference between engines only if everything else was equal.
//! Closed-loop requests start when a slot becomes free, so only what they ask for can be compared;
//! open-loop arrivals must agree to the nanosecond, counted from the first of their block because
//! arms of a block run one after the other.

use std::collections::BTreeMap;

use pb_contract::{RequestId, RequestRow};
use pb_record::RunData;

use super::data::block_numbers;
use super::notes::Comparison;
use super::validity::{check, ended_well, unchecked};
use super::verdict::Check;

type Asked<'a> = BTreeMap<RequestId, &'a RequestRow>;

fn asked<'a>(data: &'a RunData, arm: &str, block: u32) -> Asked<'a> {
    let here = data
        .requests
        .iter()
        .filter(|row| row.arm == arm && row.block == block);
    here.map(|row| (row.request, row)).collect()
}

/// Checks that arrivals and request shapes agree between the arms of every block.
pub(super) fn same_schedule(data: &RunData, comparison: &Comparison) -> Check {
    let name = "both arms got the same schedule";
    let limit = "equal requests in every block; open arrivals equal to the nanosecond";
    let blocks = block_numbers(data, &comparison.baseline);
    if blocks.is_empty() {
        return unchecked(name, "no requests", limit);
    }
    for &block in &blocks {
        let a = asked(data, &comparison.baseline, block);
        let b = asked(data, &comparison.candidate, block);
        let fault = digest_fault(data, comparison, block)
            .or_else(|| shape_fault(&a, &b))
            .or_else(|| arrival_fault(&a, &b, &comparison.open_classes));
        if let Some(fault) = fault {
            return check(name, false, format!("block {block}: {fault}"), limit);
        }
    }
    check(name, true, format!("{} blocks agree", blocks.len()), limit)
}

/// The planned schedules' digests, where the manifest has one for each arm (`block:arm`).
fn digest_fault(data: &RunData, comparison: &Comparison, block: u32) -> Option<String> {
    let digest = |arm: &str| data.manifest.schedule_sha256.get(&format!("{block}:{arm}"));
    let (a, b) = (
        digest(&comparison.baseline)?,
        digest(&comparison.candidate)?,
    );
    (a != b).then(|| "the planned schedules have different digests".to_owned())
}

/// A request that both arms got but with another shape. A closed loop gets further in a faster
/// arm, so a request that only one arm reached is no fault.
fn shape_fault(a: &Asked<'_>, b: &Asked<'_>) -> Option<String> {
    let shape = |row: &RequestRow| (row.class.clone(), row.prompt_tokens_planned, row.max_tokens);
    a.iter().find_map(|(id, row)| {
        let other = b.get(id)?;
        (shape(row) != shape(other)).then(|| format!("request {id} differs between the arms"))
    })
}

fn arrival_fault(a: &Asked<'_>, b: &Asked<'_>, open: &[String]) -> Option<String> {
    let offsets = |rows: &Asked<'_>| -> BTreeMap<RequestId, u64> {
        let due = rows.iter().filter(|(_, row)| open.contains(&row.class));
        let due: BTreeMap<RequestId, u64> = due.map(|(&id, row)| (id, row.intended_ns.0)).collect();
        let first = due.values().copied().min().unwrap_or(0);
        due.into_iter().map(|(id, at)| (id, at - first)).collect()
    };
    let (a, b) = (offsets(a), offsets(b));
    if a.len() != b.len() {
        return Some(format!(
            "{} scheduled arrivals against {}",
            a.len(),
            b.len()
        ));
    }
    let differs = |id: &RequestId| a.get(id) != b.get(id);
    a.keys()
        .find(|id| differs(id))
        .map(|id| format!("arrival of request {id} differs"))
}

/// Checks that a request finished by both arms produced the same number of tokens in both: an arm
/// that stops early is not faster.
pub(super) fn same_work(data: &RunData, comparison: &Comparison) -> Check {
    let name = "both arms produced the same number of tokens";
    let limit = "equal for every request that both finished";
    let (mut compared, mut differing) = (0_u64, 0_u64);
    for block in block_numbers(data, &comparison.baseline) {
        let a = asked(data, &comparison.baseline, block);
        let b = asked(data, &comparison.candidate, block);
        for (id, row) in &a {
            let Some(other) = b.get(id) else { continue };
            if ended_well(row) && ended_well(other) {
                compared += 1;
                differing += u64::from(row.streamed_tokens != other.streamed_tokens);
            }
        }
    }
    if compared == 0 {
        return unchecked(name, "no request was finished by both arms", limit);
    }
    check(
        name,
        differing == 0,
        format!("{differing} of {compared} requests differ"),
        limit,
    )
}
