//! The hypotheses about long gaps between tokens.

use pb_contract::{Nanos, StepRow};

use super::account::{Gap, Part};
use super::evidence::tells_host_time;
use super::rules::{Draft, Facts, MAIN};

/// A prompt that is longer than the largest step by this factor was cut.
const CUT: f64 = 1.5;
/// Ratio of two quarters within which something stays the same.
const SAME: std::ops::RangeInclusive<f64> = 0.8..=1.25;
/// Ratio of two quarters from which something differs.
const DIFFERS: f64 = 2.0;
/// Share of the pool up to which blocks are scarce.
const SCARCE: f64 = 0.1;
/// Share of the pool from which there are plenty.
const PLENTY: f64 = 0.25;

const NO_STEPS: &str = "the engine's steps, with the time of each part";

pub(super) fn chunks(facts: &Facts<'_>) -> Draft {
    let mut draft = Draft::default();
    if !facts.has_steps() {
        draft.decides.push(NO_STEPS.into());
        match correlation(facts) {
            Some((text, true)) => draft.speaks_for.push(text),
            Some((text, false)) => draft
                .missing
                .push(format!("a sign of it at the client: {text}")),
            None => {}
        }
        return draft;
    }
    draft.weigh(
        "in the longest gaps, prefill takes",
        facts.gaps.share(Part::Prefill),
    );
    let sums = &facts.sums;
    if sums.preempted > 0 && sums.again() >= sums.computed / 2 {
        draft.against.push(format!(
            "{} of {} prompt tokens were computed again after a preemption",
            sums.again(),
            sums.computed
        ));
    }
    let Some(longest) = facts.longest_prompt else {
        draft
            .decides
            .push("what each request found in the cache, for the length of its prefill".into());
        return draft;
    };
    let largest = sums.largest_prefill;
    let words = format!(
        "the largest step had {largest} prompt tokens, the longest prompt {longest} to compute"
    );
    if largest >= longest {
        draft.speaks_for.push(format!("nothing was cut: {words}"));
    } else {
        draft.shown = false;
        if longest as f64 >= CUT * largest as f64 {
            draft.against.push(format!(
                "chunks are bounded: {words}; whether a lower bound helps is for the experiment"
            ));
        }
    }
    draft
}

/// How often the longest gaps meet the prefill of another request, beside the undisturbed ones.
/// Seen from the client, so it is told and decides nothing. With it: whether the longest meet more.
fn correlation(facts: &Facts<'_>) -> Option<(String, bool)> {
    let mut spans: Vec<(u64, u64)> = facts
        .case
        .requests()
        .filter_map(|row| Some((row.sent_ns?.0, row.first_token_ns?.0)))
        .collect();
    spans.sort_unstable();
    // The latest end of all spans up to each one, so that one look suffices for each gap.
    let mut ends = Vec::with_capacity(spans.len());
    let mut latest = 0;
    for &(_, end) in &spans {
        latest = latest.max(end);
        ends.push(latest);
    }
    let met = |gaps: &[Gap]| {
        let meets = |gap: &&Gap| {
            let before = spans.partition_point(|&(sent, _)| sent < gap.to_ns);
            before > 0 && ends[before - 1] > gap.from_ns
        };
        let n = gaps.iter().filter(meets).count();
        (!gaps.is_empty()).then(|| 100.0 * n as f64 / gaps.len() as f64)
    };
    let (slow, calm) = (met(&facts.gaps.slow)?, met(&facts.gaps.calm)?);
    let text = format!(
        "a correlation, which shows no cause: {slow:.0} % of the longest gaps meet the wait of \
         another request for its first token, {calm:.0} % of the undisturbed"
    );
    Some((text, slow > calm))
}

/// Means of `value` over the quarters of `steps` with the lowest and the highest `by`.
fn quarters(
    steps: impl Iterator<Item = StepRow>,
    by: impl Fn(&StepRow) -> usize,
    value: impl Fn(&StepRow) -> f64,
) -> Option<(f64, f64)> {
    let mut rows: Vec<StepRow> = steps.collect();
    rows.sort_by_key(|row| (by(row), row.step));
    let n = rows.len() / 4;
    let mean = |rows: &[StepRow]| rows.iter().map(&value).sum::<f64>() / rows.len() as f64;
    (n > 0).then(|| (mean(&rows[..n]), mean(&rows[rows.len() - n..])))
}

pub(super) fn contention(facts: &Facts<'_>) -> Draft {
    let mut draft = Draft::default();
    if !tells_host_time(facts.timelines) {
        draft.decides.push(
            "the engine's lock wait and planning time of each step; no figure of the client tells \
             them"
                .into(),
        );
        return draft;
    }
    draft.weigh(
        "in the longest gaps, waiting for locks takes",
        facts.gaps.share(Part::LockWait),
    );
    let host = facts.gaps.share(Part::Host).filter(|share| *share >= MAIN);
    draft.against.extend(host.map(|share| {
        format!(
            "the host's time is planning and dispatch ({:.0} %), not a wait",
            100.0 * share
        )
    }));
    let steps = facts.timelines.steps().map(|step| step.row);
    let in_flight = |row: &StepRow| row.running.saturating_add(row.waiting);
    let lock = |row: &StepRow| row.lock_wait_ns.0 as f64 / 1e6;
    if let Some((few, many)) = quarters(steps, in_flight, lock).filter(|(_, many)| *many > 0.0) {
        let words = format!(
            "the wait is {few:.2} ms in the steps with the fewest requests in flight and \
             {many:.2} ms in those with the most"
        );
        if many >= DIFFERS * few {
            draft
                .speaks_for
                .push(format!("{words} (a correlation, which shows no cause)"));
        }
    }
    draft
        .missing
        .push("who holds the lock: a profile of the server's threads".into());
    draft
}

pub(super) fn bandwidth(facts: &Facts<'_>) -> Draft {
    let mut draft = Draft::default();
    let decodes = || {
        let rows = facts.timelines.steps().map(|step| step.row);
        rows.filter(|row| row.decode_seqs > 0 && row.prefill_tokens == 0 && row.context_tokens > 0)
    };
    if !facts.has_steps() || decodes().all(|row| row.decode_attention_ns == Nanos::ZERO) {
        draft
            .decides
            .push("the attention time of decode-only steps, and the keys that they read".into());
        return draft;
    }
    draft.weigh(
        "in the longest gaps, decode attention takes",
        facts.gaps.share(Part::DecodeAttention),
    );
    let gemm = facts.gaps.share(Part::DecodeGemm);
    draft
        .against
        .extend(gemm.filter(|s| *s >= MAIN).map(|share| {
            format!(
                "{:.0} % is matrix products, which read no keys",
                100.0 * share
            )
        }));
    let keys = |row: &StepRow| row.context_tokens;
    let per_key = |row: &StepRow| row.decode_attention_ns.0 as f64 / row.context_tokens as f64;
    let range = quarters(decodes(), keys, |row| row.context_tokens as f64);
    let cost = quarters(decodes(), keys, per_key);
    if let Some(((few, many), (low, high))) = range.zip(cost) {
        let words = format!(
            "{low:.0} ns a key in the steps with {few:.0} keys and {high:.0} ns in those with \
             {many:.0}, on average"
        );
        let ratio = high / low;
        if many < DIFFERS * few {
            draft
                .decides
                .push(format!("decode steps of more different contexts: {words}"));
        } else if SAME.contains(&ratio) {
            draft.speaks_for.push(format!(
                "the time is in proportion to the keys read: {words}"
            ));
        } else {
            draft.shown = false;
            let far = ratio >= DIFFERS || ratio <= 1.0 / DIFFERS;
            let text = format!("the time is not in proportion to the keys read: {words}");
            match far {
                true => draft.against.push(text),
                false => draft.missing.push(text),
            }
        }
    }
    draft.missing.push(
        "the device's bandwidth and the bytes of a key: whether this is all that the memory gives"
            .into(),
    );
    draft
}

pub(super) fn preemption(facts: &Facts<'_>) -> Draft {
    let mut draft = Draft::default();
    let sums = &facts.sums;
    let told = facts
        .case
        .server
        .as_ref()
        .and_then(|s| s.counters.preemptions);
    let preempted = match facts.has_steps() {
        true => Some(sums.preempted),
        false => told,
    };
    match preempted {
        Some(0) => draft.against.push("no request was preempted".into()),
        Some(n) => draft.speaks_for.push(format!("{n} preemptions")),
        None => draft.decides.push("the number of preemptions".into()),
    }
    if !facts.has_steps() {
        draft.decides.push(NO_STEPS.into());
        return draft;
    }
    draft.weigh(
        "in the longest gaps, steps without the request take",
        facts.gaps.share(Part::Skipped),
    );
    if sums.preempted == 0 {
        return draft;
    }
    let again = sums.again().saturating_add(sums.swapped_in);
    if again > 0 {
        draft.speaks_for.push(format!(
            "{again} tokens were computed again or swapped back, beside {} of prompts",
            sums.queried.saturating_sub(sums.hit)
        ));
    } else {
        draft.shown = false;
    }
    let (available, pool) = sums.at_preemption;
    let left = available / pool.max(1.0);
    let words = format!("{:.0} % of the pool was left at preemptions", 100.0 * left);
    match left {
        left if left <= SCARCE => draft.speaks_for.push(words),
        left if left >= PLENTY => draft.against.push(words),
        _ => draft
            .missing
            .push(format!("a clear state of the pool: {words}")),
    }
    draft
}
