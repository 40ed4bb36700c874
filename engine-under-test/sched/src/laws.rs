//! What must hold for every plan, whatever the policy.
//!
//! A checker that knows the queues before the step and the plan, and nothing of how the plan was
//! made. Tests of policies and of the engine call it after every step.

use std::collections::{BTreeMap, BTreeSet};

use pb_contract::{EngineConfig, PolicyKind, RequestId, RunningOrder};

use crate::policy::{SeqView, StepPlan, View};

/// The limits that a plan is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Laws {
    /// Tokens in a step at most.
    pub max_batched_tokens: usize,
    /// Running places at most.
    pub max_num_seqs: usize,
    /// Whether a prompt may be cut.
    pub chunked: bool,
    /// Every running decode is served in every step, unless decodes alone fill the budget or it
    /// is preempted.
    pub stall_free: bool,
    /// A step holds prompts or decodes, never both.
    pub phases_apart: bool,
}

impl Laws {
    /// The laws that a policy built from `config` must keep.
    pub fn of(config: &EngineConfig) -> Laws {
        let scheduling = &config.scheduling;
        let stall_free = match scheduling.policy {
            PolicyKind::Monolithic => false,
            PolicyKind::DecodePriorityMonolithic => true,
            PolicyKind::PrefillFirst => scheduling.mixed_chunk,
            PolicyKind::TokenBudget
            | PolicyKind::AdaptiveLoad
            | PolicyKind::Shrinking
            | PolicyKind::TimeBudget => scheduling.running_order == RunningOrder::DecodeFirst,
        };
        Laws {
            max_batched_tokens: config.max_batched_tokens,
            max_num_seqs: config.max_num_seqs,
            chunked: config.chunked,
            stall_free,
            phases_apart: scheduling.policy == PolicyKind::PrefillFirst && !scheduling.mixed_chunk,
        }
    }
}

/// Holds a plan to the laws, given the queues that it was made for.
///
/// # Errors
/// A sentence that names the law that does not hold, and the request.
pub fn check_plan(view: &View<'_>, plan: &StepPlan, laws: &Laws) -> Result<(), String> {
    let book = Book::new(view);
    check_rows(&book, plan, laws)?;
    check_preempted(&book, plan)?;
    check_admission(view, plan, laws)?;
    if laws.stall_free {
        check_decodes(view, plan, laws)?;
    }
    if laws.phases_apart {
        check_phases(&book, plan)?;
    }
    Ok(())
}

/// Requests by id.
struct Book<'a> {
    running: BTreeMap<RequestId, &'a SeqView>,
    waiting: BTreeMap<RequestId, &'a SeqView>,
}

impl<'a> Book<'a> {
    fn new(view: &View<'a>) -> Self {
        let by_id = |list: &'a [SeqView]| list.iter().map(|seq| (seq.id, seq)).collect();
        Book {
            running: by_id(view.running),
            waiting: by_id(view.waiting),
        }
    }
}

fn ensure(holds: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken()) }
}

/// Budget; no empty chunk, none twice, none beyond the known tokens; each starts where the
/// computed tokens end.
fn check_rows(book: &Book<'_>, plan: &StepPlan, laws: &Laws) -> Result<(), String> {
    let (total, budget) = (plan.total_tokens(), laws.max_batched_tokens);
    ensure(total <= budget, || {
        format!("budget: {total} tokens of max_batched_tokens = {budget}")
    })?;
    let mut seen = BTreeSet::new();
    for row in &plan.scheduled {
        let (id, end) = (row.id, row.start.saturating_add(row.count));
        ensure(seen.insert(id), || format!("twice: request {id}"))?;
        ensure(row.count > 0, || format!("empty chunk: request {id}"))?;
        let seq = match row.hit_tokens {
            None => book.running.get(&id),
            Some(_) => book.waiting.get(&id),
        };
        let seq = seq.ok_or_else(|| format!("queue: request {id} is not where the plan says"))?;
        let start = row.hit_tokens.unwrap_or(seq.computed);
        ensure(row.start == start, || {
            format!("start: request {id} at {}, not {start}", row.start)
        })?;
        ensure(start < seq.num_tokens, || {
            format!("hit: request {id}, {start} of {}", seq.num_tokens)
        })?;
        ensure(end <= seq.num_tokens, || {
            format!("length: request {id} to {end} of {}", seq.num_tokens)
        })?;
        ensure(laws.chunked || end == seq.num_tokens, || {
            format!("whole prompts: request {id} was cut at {end}")
        })?;
    }
    Ok(())
}

/// Only running requests lose blocks, once, and they do not run.
fn check_preempted(book: &Book<'_>, plan: &StepPlan) -> Result<(), String> {
    let scheduled: BTreeSet<_> = plan.scheduled.iter().map(|row| row.id).collect();
    let mut seen = BTreeSet::new();
    for id in &plan.preempted {
        ensure(book.running.contains_key(id), || {
            format!("preemption: request {id} was not running")
        })?;
        ensure(seen.insert(id) && !scheduled.contains(id), || {
            format!("preemption: request {id} twice, or scheduled as well")
        })?;
    }
    Ok(())
}

/// Admission in order, within the places, and never in a step that preempts.
fn check_admission(view: &View<'_>, plan: &StepPlan, laws: &Laws) -> Result<(), String> {
    let rows = plan.scheduled.iter();
    let admitted = rows.filter(|row| row.hit_tokens.is_some());
    let count = admitted.clone().count();
    if count == 0 {
        return Ok(());
    }
    ensure(plan.preempted.is_empty(), || {
        "admission: in a step that preempts".to_owned()
    })?;
    for (row, seq) in admitted.zip(view.waiting) {
        ensure(row.id == seq.id, || {
            format!("order: request {} overtook request {}", row.id, seq.id)
        })?;
    }
    let newcomers = &view.waiting[..count];
    let places = view.running.iter().chain(newcomers);
    let places: usize = places.map(|seq| seq.places).sum();
    ensure(places <= laws.max_num_seqs, || {
        format!("places: {places} of max_num_seqs = {}", laws.max_num_seqs)
    })
}

/// Every running decode has its token.
fn check_decodes(view: &View<'_>, plan: &StepPlan, laws: &Laws) -> Result<(), String> {
    let scheduled: BTreeSet<_> = plan.scheduled.iter().map(|row| row.id).collect();
    let preempted: BTreeSet<_> = plan.preempted.iter().collect();
    let decodes = view.running.iter().filter(|seq| seq.is_decode());
    let served = decodes
        .clone()
        .filter(|seq| scheduled.contains(&seq.id))
        .count();
    let missed = decodes
        .clone()
        .find(|seq| !scheduled.contains(&seq.id) && !preempted.contains(&seq.id));
    match missed {
        Some(seq) if served < laws.max_batched_tokens => {
            Err(format!("decodes: request {} got no token", seq.id))
        }
        _ => Ok(()),
    }
}

/// Prompts or decodes, not both.
fn check_phases(book: &Book<'_>, plan: &StepPlan) -> Result<(), String> {
    let running = plan
        .scheduled
        .iter()
        .filter_map(|row| book.running.get(&row.id));
    let decodes = running.filter(|seq| seq.is_decode()).count();
    ensure(decodes == 0 || decodes == plan.scheduled.len(), || {
        format!("phases: {decodes} decodes beside prompts")
    })
}
