//! The schedule of a run.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use pb_contract::Nanos;
use pb_contract::plan::{Plan, PlannedBody, PlannedPrompt};
use pb_contract::wire::Prompt;
use pb_load::schedule::sha256_hex;
use pb_workloads::{ArrivalKind, CacheStart, Form, PlanOptions, Planned, Source, TokenSource};
use serde::Serialize;

use super::dataset::flagged;
use super::settings::Settings;
use super::tokenizer::TargetTokenizer;
use crate::args::CacheArg;

/// Tokens of a probe: longer than two blocks of any server that was looked at.
const PROBE_LEN: u32 = 288;

/// Connections made ahead for an open loop whose requests are spread over time.
const OPEN_CONNECTIONS: usize = 64;

/// What is known of the target when the schedule is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// Tokens of its cache blocks.
    pub(crate) block_size: Option<usize>,
    /// Tokens that it puts around a prompt.
    pub(crate) template_tokens: u32,
}

/// A schedule and its hash.
pub(crate) struct Schedule {
    /// All of it, shards included.
    pub(crate) planned: Planned,
    /// The part that is sent.
    pub(crate) plan: Plan,
    /// Hash of the whole.
    pub(crate) sha256: String,
    /// Most requests in flight of an open loop.
    pub(crate) cap: Option<usize>,
    /// From the start to the last arrival; absent for a closed loop.
    pub(crate) arrivals_ns: Option<Nanos>,
}

/// The schedule that the settings ask for: the same for the same seed and tokenizer.
///
/// # Errors
/// What the workload refuses.
pub(crate) fn schedule(
    settings: &Settings,
    tokenizer: Option<&TargetTokenizer>,
    known: Known,
) -> Result<Schedule> {
    let options = &settings.options;
    let given = options.block_size.as_ref().map(|text| text.value.0);
    let mut plan_options = PlanOptions {
        seed: settings.seed,
        nonce: settings.nonce,
        form: settings.form,
        cache: match settings.cache {
            CacheArg::Warm => CacheStart::Primed,
            CacheArg::Asis | CacheArg::Cold => CacheStart::Cold,
        },
        ignore_eos: settings.ignore_eos,
        allow_repeat: options.allow_repeat == Some(true),
        max_model_len: options.max_model_len.as_ref().map(|text| text.value.0),
        template_tokens: known.template_tokens,
        adapt_input: options.adapt_input == Some(true),
        drain_ns: settings.limits.total_ns,
        ..PlanOptions::default()
    };
    if let Some(block_size) = given.or(known.block_size) {
        plan_options.block_size = block_size;
    }
    let source = Source {
        tokens: tokens(settings, tokenizer)?,
        tokenizer: tokenizer.map(|own| own as &dyn pb_workloads::Tokenizer),
    };
    let planned = pb_workloads::plan(&settings.dataset, &settings.shape, &source, &plan_options)
        .map_err(|error| flagged(error, options))?;
    let sha256 = sha256_hex(&planned.plan);
    let plan = match settings.shard {
        Some(shard) => {
            let (index, of) = (shard.index as usize, shard.of as usize);
            planned.shard(index, of).context("--shard")?
        }
        None => planned.plan.clone(),
    };
    if plan.open.is_empty() && plan.closed.is_empty() && plan.sessions.is_empty() {
        bail!("the schedule is empty: no request is due; give more time, rate or requests");
    }
    let closed = planned.facts.arrival == ArrivalKind::Closed;
    let last = plan.open.iter().map(|request| request.offset_ns).max();
    let starts = plan.sessions.iter().map(|session| session.offset_ns).max();
    Ok(Schedule {
        cap: settings
            .shape
            .max_concurrency
            .filter(|_| !closed && plan.sessions.is_empty()),
        arrivals_ns: if closed { None } else { last.max(starts) },
        planned,
        plan,
        sha256,
    })
}

/// What prompts are made from.
fn tokens(settings: &Settings, tokenizer: Option<&TargetTokenizer>) -> Result<TokenSource> {
    if settings.form != Form::Ids {
        return Ok(TokenSource::Words);
    }
    let (lo, hi) = settings.id_range(tokenizer.map(TargetTokenizer::id_bound));
    if lo >= hi {
        bail!("--random-range-ids: the tokenizer has no ids between {lo} and {hi}");
    }
    Ok(TokenSource::Ids(lo..hi))
}

/// The facts of a schedule, as a dry run and the document show them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScheduleFacts<'a> {
    /// Hash of the whole schedule.
    pub(crate) schedule_sha256: &'a str,
    /// What the workload says of itself.
    pub(crate) facts: &'a pb_workloads::Facts,
    /// Requests of this run, when it is one shard of several.
    pub(crate) requests_sent: usize,
    /// Most requests in flight.
    pub(crate) max_in_flight: Option<usize>,
}

impl Schedule {
    /// Its facts.
    pub(crate) fn facts(&self) -> ScheduleFacts<'_> {
        ScheduleFacts {
            schedule_sha256: &self.sha256,
            facts: &self.planned.facts,
            requests_sent: bodies(&self.plan).count(),
            max_in_flight: self.cap,
        }
    }

    /// A prompt that shares nothing with the schedule.
    ///
    /// # Errors
    /// The source of tokens is too poor for one.
    pub(crate) fn probe(&self) -> Result<Prompt> {
        let made = self.planned.spare("probe", 1, PROBE_LEN)?;
        let body = made.into_iter().next().context("no probe was made")?;
        Ok(prompt(body))
    }
}

/// A prompt for a completion; of a chat the text of its messages.
pub(crate) fn prompt(body: PlannedBody) -> Prompt {
    match body.prompt {
        PlannedPrompt::Ids(ids) => Prompt::Ids(ids),
        PlannedPrompt::Text(text) => Prompt::Text(text),
        PlannedPrompt::Chat(turns) => {
            let texts: Vec<String> = turns.into_iter().map(|turn| turn.content).collect();
            Prompt::Text(texts.join("\n"))
        }
    }
}

/// Every request of a plan.
pub(crate) fn bodies(plan: &Plan) -> impl Iterator<Item = &PlannedBody> {
    let open = plan.open.iter().map(|request| &request.body);
    let closed = plan.closed.iter().flat_map(|part| &part.bodies);
    let turns = plan.sessions.iter().flat_map(|session| &session.turns);
    open.chain(closed).chain(turns.map(|turn| &turn.body))
}

/// The classes of a plan's requests.
pub(crate) fn classes(plan: &Plan) -> BTreeSet<String> {
    bodies(plan).map(|body| body.class.clone()).collect()
}

/// Connections made before the start: the slots of closed loops, the users of sessions, and of
/// open requests as many as are due at the same instant, but some at least.
pub(crate) fn connections_needed(plan: &Plan, cap: Option<usize>) -> usize {
    let mut due: BTreeMap<Nanos, usize> = BTreeMap::new();
    for request in &plan.open {
        *due.entry(request.offset_ns).or_default() += 1;
    }
    for session in &plan.sessions {
        *due.entry(session.offset_ns).or_default() += 1;
    }
    let all: usize = due.values().sum();
    let together = due.values().copied().max().unwrap_or(0);
    let open = together
        .max(all.min(OPEN_CONNECTIONS))
        .min(cap.unwrap_or(usize::MAX));
    let slots: usize = plan.closed.iter().map(|part| part.streams).sum();
    open + slots
}

#[cfg(test)]
mod tests {
    use pb_contract::RequestId;
    use pb_contract::plan::{ClosedLoop, OpenRequest};

    use super::*;

    fn open(offsets: impl IntoIterator<Item = u64>) -> Plan {
        let request = |(id, at): (usize, u64)| OpenRequest {
            id: RequestId(id as u64),
            offset_ns: Nanos::from_millis(at),
            body: PlannedBody::of_ids("x", vec![1], 1),
        };
        Plan {
            open: offsets.into_iter().enumerate().map(request).collect(),
            ..Plan::default()
        }
    }

    #[test]
    fn a_burst_has_all_its_connections_before_it_begins() {
        assert_eq!(connections_needed(&open([0; 500]), None), 500);
        assert_eq!(connections_needed(&open([0; 500]), Some(8)), 8);
        assert_eq!(connections_needed(&open(0..500), None), OPEN_CONNECTIONS);
        assert_eq!(connections_needed(&open(0..5), None), 5);
        let mut plan = open(0..5);
        plan.closed = vec![ClosedLoop {
            streams: 3,
            first_id: RequestId(9),
            bodies: vec![PlannedBody::of_ids("x", vec![1], 1); 4],
        }];
        assert_eq!(connections_needed(&plan, None), 8);
        assert_eq!(bodies(&plan).count(), 9);
    }
}
