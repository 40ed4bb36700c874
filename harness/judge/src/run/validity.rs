//! The first gate: did the conditions hold under which the numbers mean anything?
//!
//! Every check stands for a way in which a published benchmark was wrong: a late driver, arms that
//! did not get the same arrivals, a warm cache taken for a cold one, slots so full that nothing
//! interfered. A check that the rows cannot answer says so and breaks nothing.

use pb_contract::{RequestRow, RequestStatus};
use pb_record::RunData;

use super::cache::reset_fault;
use super::consistency;
use super::notes::{CacheControl, Comparison, RunNotes};
use super::samples::{backwards, driver_lag};
use super::schedule::{same_schedule, same_work};
use super::verdict::{ArmSummary, CacheVerdict, Check, CheckState, Validity};

/// Longest tolerated p99 of the driver's lag.
pub const DRIVER_LAG_LIMIT_NS: u64 = 1_000_000;
/// Largest tolerated lag as a share of the effect that is claimed.
pub const DRIVER_LAG_SHARE: f64 = 0.05;
/// Least share of prompt tokens that must have been computed while every background stream
/// decoded, for the run to say anything about interference.
pub const INTERFERENCE_SHARE: f64 = 0.5;

/// A check that held or not.
pub(super) fn check(
    name: &str,
    held: bool,
    measured: impl Into<String>,
    limit: impl Into<String>,
) -> Check {
    let state = if held {
        CheckState::Held
    } else {
        CheckState::Broken
    };
    Check {
        name: name.into(),
        state,
        measured: measured.into(),
        limit: limit.into(),
        group: None,
    }
}

/// A check that could not be made.
pub(super) fn unchecked(
    name: &str,
    measured: impl Into<String>,
    limit: impl Into<String>,
) -> Check {
    let state = CheckState::NotChecked;
    Check {
        name: name.into(),
        state,
        measured: measured.into(),
        limit: limit.into(),
        group: None,
    }
}

/// All checks but the one of lag against the claimed effect, which needs the effects first.
pub(crate) fn conditions(
    data: &RunData,
    notes: &RunNotes,
    arms: &[ArmSummary],
    cache: &[CacheVerdict],
) -> Vec<Check> {
    let mut checks = vec![
        run_complete(data),
        requests_ended(data),
        clock_forward(data),
        driver_lag_limit(data, notes.comparison.as_ref()),
        buckets_conserved(arms),
    ];
    checks.extend(consistency::checks(data, notes));
    if let Some(comparison) = &notes.comparison {
        checks.push(arms_differ(comparison));
        checks.push(arms_present(data, comparison));
        checks.push(same_schedule(data, comparison));
        checks.push(same_work(data, comparison));
        checks.push(cache_state(data, notes, comparison));
        for arm in [&comparison.baseline, &comparison.candidate] {
            checks.push(interference(data, comparison, arm));
        }
    }
    checks.extend(cache.iter().map(cache_proof));
    checks
}

/// Collects checks into a verdict.
pub(crate) fn conclude(checks: Vec<Check>) -> Validity {
    let broken = checks
        .iter()
        .filter(|check| check.state == CheckState::Broken);
    let reasons: Vec<String> = broken
        .map(|c| format!("{}: {} (required: {})", c.name, c.measured, c.limit))
        .collect();
    Validity {
        valid: reasons.is_empty(),
        checks,
        reasons,
    }
}

fn run_complete(data: &RunData) -> Check {
    let mut found = if data.complete() {
        "complete"
    } else {
        "incomplete"
    }
    .to_owned();
    if data.partial_lines > 0 {
        found.push_str(&format!(", {} partial lines dropped", data.partial_lines));
    }
    let held = data.complete() && data.partial_lines == 0;
    check("run complete", held, found, "the writer reached its end")
}

fn requests_ended(data: &RunData) -> Check {
    let name = "every request ended well";
    let limit = "no failed, truncated, incomplete or unsent request";
    let rows: Vec<&RequestRow> = data.requests.iter().collect();
    if rows.is_empty() {
        return check(name, false, "no requests at all", limit);
    }
    let counts = super::summary::count(&rows);
    let measured = format!(
        "{} offered: {} ok, {} failed, {} truncated, {} incomplete, {} not offered",
        counts.offered,
        counts.ok,
        counts.failed,
        counts.truncated,
        counts.incomplete,
        counts.not_offered
    );
    check(name, counts.ok == counts.offered, measured, limit)
}

fn clock_forward(data: &RunData) -> Check {
    let faulty = data.requests.iter().filter(|row| backwards(row)).count();
    let measured = format!("{faulty} requests with instants out of order");
    check("instants in order", faulty == 0, measured, "0")
}

fn compared_rows<'a>(
    data: &'a RunData,
    comparison: Option<&Comparison>,
) -> impl Iterator<Item = &'a RequestRow> {
    let arms = comparison.map(|c| [c.baseline.clone(), c.candidate.clone()]);
    data.requests
        .iter()
        .filter(move |row| arms.as_ref().is_none_or(|a| a.contains(&row.arm)))
}

/// p99 of the driver's lag over the compared arms, or over all arms without a comparison.
pub(super) fn lag_p99_ns(data: &RunData, comparison: Option<&Comparison>) -> Option<u64> {
    pb_stats::nearest_rank(&driver_lag(compared_rows(data, comparison)), 0.99)
}

fn driver_lag_limit(data: &RunData, comparison: Option<&Comparison>) -> Check {
    let name = "driver lag p99";
    let limit = format!("at most {} us", DRIVER_LAG_LIMIT_NS / 1000);
    match lag_p99_ns(data, comparison) {
        None => unchecked(name, "no request was sent", limit),
        Some(lag) => {
            let measured = format!("{:.1} us", lag as f64 / 1e3);
            check(name, lag <= DRIVER_LAG_LIMIT_NS, measured, limit)
        }
    }
}

/// The lag against the smallest effect (in nanoseconds) that the run is about to claim.
pub(crate) fn driver_lag_share(
    data: &RunData,
    comparison: Option<&Comparison>,
    smallest_effect_ns: Option<f64>,
) -> Check {
    let name = "driver lag against the effect";
    let limit = format!(
        "at most {:.0} % of the smallest claimed effect",
        DRIVER_LAG_SHARE * 100.0
    );
    match (lag_p99_ns(data, comparison), smallest_effect_ns) {
        (Some(lag), Some(effect)) if effect > 0.0 => {
            let share = lag as f64 / effect;
            let measured = format!("{:.2} % of {:.3} ms", share * 100.0, effect / 1e6);
            check(name, share <= DRIVER_LAG_SHARE, measured, limit)
        }
        _ => unchecked(name, "no effect in time is claimed", limit),
    }
}

fn buckets_conserved(arms: &[ArmSummary]) -> Check {
    let name = "active + reclaimable + free = pool";
    let limit = "in every step";
    let steps = || arms.iter().filter_map(|arm| arm.steps.as_ref());
    if steps().next().is_none() {
        return unchecked(name, "the server sent no step rows", limit);
    }
    let total: u64 = steps().map(|s| s.steps).sum();
    let violations: u64 = steps().map(|s| s.buckets.violations).sum();
    check(
        name,
        violations == 0,
        format!("{violations} of {total} steps differ"),
        limit,
    )
}

fn arms_differ(comparison: &Comparison) -> Check {
    let (a, b) = (&comparison.baseline, &comparison.candidate);
    let measured = format!("{b} against {a}");
    check(
        "two arms are compared",
        a != b,
        measured,
        "two different arms",
    )
}

fn arms_present(data: &RunData, comparison: &Comparison) -> Check {
    let blocks = |arm: &str| super::data::block_numbers(data, arm);
    let (a, b) = (blocks(&comparison.baseline), blocks(&comparison.candidate));
    let measured = format!(
        "{} blocks of {}, {} of {}",
        a.len(),
        comparison.baseline,
        b.len(),
        comparison.candidate
    );
    let limit = "the same blocks, at least one";
    check(
        "both arms ran every block",
        !a.is_empty() && a == b,
        measured,
        limit,
    )
}

fn cache_state(data: &RunData, notes: &RunNotes, comparison: &Comparison) -> Check {
    let name = "cache state of the compared arms";
    match comparison.cache_control {
        CacheControl::Uncontrolled => check(
            name,
            false,
            "nothing was done about the cache",
            "off, or reset and probed",
        ),
        CacheControl::Off => {
            let rows = compared_rows(data, Some(comparison));
            let hits = rows
                .filter(|row| row.cached_tokens.is_some_and(|n| n > 0))
                .count();
            let measured = format!("cache off, {hits} requests report cached tokens");
            check(name, hits == 0, measured, "cache off and no cached token")
        }
        CacheControl::ResetEachBlock => {
            let faults = reset_faults(data, notes, comparison);
            let first = faults.first().cloned();
            let measured = first.unwrap_or_else(|| "every block reset and probed".to_owned());
            check(
                name,
                faults.is_empty(),
                measured,
                "a reset and a probe with 0 cached tokens",
            )
        }
    }
}

fn reset_faults(data: &RunData, notes: &RunNotes, comparison: &Comparison) -> Vec<String> {
    let mut faults = Vec::new();
    for arm in [&comparison.baseline, &comparison.candidate] {
        for block in super::data::block_numbers(data, arm) {
            let mut here = notes
                .resets
                .iter()
                .filter(|r| &r.arm == arm && r.block == block);
            match here.next() {
                None => faults.push(format!("{arm} block {block}: no reset was recorded")),
                Some(first) => {
                    faults.extend(std::iter::once(first).chain(here).filter_map(reset_fault));
                }
            }
        }
    }
    faults
}

/// Prompt tokens are weighed, not steps counted: the short prompts of the background streams
/// themselves are prefilled while their own slot is not decoding.
fn interference(data: &RunData, comparison: &Comparison, arm: &str) -> Check {
    let name = format!("prefill met decodes in {arm}");
    let limit = "at least half of the prompt tokens computed while every background stream decodes";
    let Some(streams) = comparison.background_streams else {
        return unchecked(&name, "no background streams were declared", limit);
    };
    let (mut total, mut met) = (0_u64, 0_u64);
    for step in data.steps.iter().filter(|step| step.arm == arm) {
        let tokens = step.row.prefill_tokens as u64;
        total = total.saturating_add(tokens);
        if step.row.decode_seqs >= streams {
            met = met.saturating_add(tokens);
        }
    }
    if total == 0 {
        return unchecked(&name, "no step rows with prompt tokens", limit);
    }
    let share = met as f64 / total as f64;
    let measured = format!(
        "{:.1} % of {total} tokens, {streams} streams",
        share * 100.0
    );
    check(&name, share >= INTERFERENCE_SHARE, measured, limit)
}

fn cache_proof(cache: &CacheVerdict) -> Check {
    let group = format!("cold and warm proven in {}", cache.arm);
    let name = format!("{group} block {}", cache.block);
    let measured = match cache.reasons.split_first() {
        None => "both proven".to_owned(),
        Some((first, [])) => first.clone(),
        Some((first, more)) => format!("{first}; and {} more", more.len()),
    };
    let held = cache.cold_proven && cache.warm_proven;
    let limit = "0 tokens found cold, exactly the planned tokens found warm";
    Check {
        group: Some(group),
        ..check(&name, held, measured, limit)
    }
}

/// Whether a row counts for latency.
pub(super) fn ended_well(row: &RequestRow) -> bool {
    row.status == RequestStatus::Ok
}
