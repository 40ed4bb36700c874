//! The hypotheses about late first tokens.

use super::rules::{Draft, Facts, MAIN, MINOR};

/// Share of the asked output up to which answers end early.
const ENDS_EARLY: f64 = 0.5;
/// Share of the asked output from which what is kept for it is used.
const IS_USED: f64 = 0.8;
/// Share of the prompt tokens below which a workload shares nothing worth keeping.
const SHARES_NOTHING: f64 = 0.1;

pub(super) fn reservation(facts: &Facts<'_>) -> Draft {
    let mut draft = Draft::default();
    let usage = facts.case.server.as_ref().and_then(|s| s.gauges.kv_usage);
    draft.missing.extend(usage.map(|usage| {
        format!(
            "what the usage of {:.0} % is made of: blocks with data, cached ones, or room kept",
            100.0 * usage.max
        )
    }));
    let Some((queue, share)) = facts.first.queue.zip(facts.first.queue_share()) else {
        draft.decides.push(
            "the engine's steps: how many requests wait while blocks and slots are free".into(),
        );
        return draft;
    };
    let engine = &facts.case.engine;
    if engine.block_size.is_none() || engine.max_num_seqs.is_none() {
        draft
            .decides
            .push("the engine's block size and its limit of running requests".into());
    }
    let held = queue.held_ns / queue.total_ns.max(1.0);
    draft.share = Some(share * held);
    let waits = format!(
        "{:.0} % of the time to first tokens is waiting",
        100.0 * share
    );
    if share < MINOR {
        draft.against.push(waits);
    } else {
        draft.speaks_for.push(waits);
        let words = queue.words();
        match held {
            held if held >= MAIN => draft.speaks_for.push(words),
            held if held < MINOR => draft.against.push(words),
            _ => draft.missing.push(format!("a clear share: {words}")),
        }
    }
    let used = facts.output_share();
    let words = used.map(|used| format!("{:.0} % of the output asked for came", 100.0 * used));
    match used {
        Some(used) if used <= ENDS_EARLY => draft.speaks_for.extend(words),
        Some(used) if used >= IS_USED => draft
            .against
            .extend(words.map(|words| format!("{words}: what is kept is used"))),
        _ => draft.missing.extend(words),
    }
    let early = used.is_some_and(|used| used <= ENDS_EARLY);
    draft.shown = share >= MAIN && held >= MAIN && early;
    draft
}

pub(super) fn eviction(facts: &Facts<'_>) -> Draft {
    let mut draft = Draft::default();
    let sums = &facts.sums;
    let Some(ideal) = facts.case.ideal_hit_tokens else {
        draft
            .decides
            .push("what an endless cache would find, by the plan of the workload".into());
        return draft;
    };
    let planned = facts
        .case
        .requests()
        .map(|row| u64::from(row.prompt_tokens_planned));
    let planned: u64 = planned.sum();
    let shared = ideal as f64 / planned.max(1) as f64;
    let words = format!("prompts share {:.0} % of their tokens", 100.0 * shared);
    if shared < SHARES_NOTHING {
        draft
            .against
            .push(format!("{words}: there is nothing to find"));
    } else {
        draft.speaks_for.push(words);
    }
    if !facts.has_steps() {
        draft.decides.push("the blocks that were evicted".into());
        return draft;
    }
    if sums.evicted == 0 {
        draft.against.push("no cached block was evicted".into());
    }
    let lost = ideal.saturating_sub(sums.hit);
    let share = lost as f64 / sums.computed.max(1) as f64;
    draft.share = Some(share.min(1.0));
    let words = format!(
        "{} of {ideal} tokens that could be found were; {:.0} % of all prefill is those that were \
         not",
        sums.hit,
        100.0 * share.min(1.0)
    );
    match share {
        share if share >= MAIN => draft.speaks_for.push(words),
        share if share < MINOR => draft.against.push(words),
        _ => draft.missing.push(format!("a clear share: {words}")),
    }
    let Some(block_size) = facts.case.engine.block_size else {
        draft.decides.push("the engine's block size".into());
        return draft;
    };
    let evicted = sums.evicted.saturating_mul(block_size as u64);
    let words = format!("{evicted} tokens were evicted, {lost} not found");
    draft.shown = share >= MAIN && evicted >= lost / 2;
    match draft.shown {
        true => draft.speaks_for.push(words),
        false if lost > 0 => draft.missing.push(words),
        // Nothing was lost, so nothing is missing that could tell where.
        false => {}
    }
    draft
}
