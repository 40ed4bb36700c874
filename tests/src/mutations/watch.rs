//! What is watched while a load is played.

use std::collections::{BTreeMap, BTreeSet};

use pb_contract::{EngineEvent, EngineRequest, QueueOrder, RequestId, TokenId};
use pb_core::{Counters, Engine, Progress, RequestState, Scheduled, StepOutput};
use pb_sched::laws::{Laws, check_plan};
use pb_sched::{SeqView, StepPlan, View};

use super::play::{PATIENCE, Table, Watch};
use super::toy;

/// The engine's own conservation laws.
pub struct Conservation;

impl Watch for Conservation {
    fn after(&mut self, engine: &Engine, _table: &Table, _step: &StepOutput) -> Result<(), String> {
        engine.check()
    }

    fn idle(&mut self, engine: &Engine) -> Result<(), String> {
        match engine.buckets().active {
            0 => Ok(()),
            blocks => Err(format!("{blocks} blocks are referenced by nobody")),
        }
    }
}

/// The laws of plans, held against the queues as they are seen from outside before each step.
#[derive(Default)]
pub struct PlanLaws {
    running: Vec<SeqView>,
    waiting: Vec<SeqView>,
}

/// A live request as a policy should see it.
fn view_of(table: &Table, progress: &Progress) -> Option<SeqView> {
    let asked = table.live.get(&progress.id)?;
    Some(SeqView {
        id: progress.id,
        num_tokens: progress.num_tokens,
        prompt_tokens: asked.request.prompt.len(),
        computed: progress.computed,
        skip_cache_read: false,
        preempted: progress.state == RequestState::Preempted,
        remaining: asked.request.sampling.max_tokens as usize - asked.output.len(),
        places: 1,
        priority: asked.request.priority,
        arrival: asked.arrival,
    })
}

impl Watch for PlanLaws {
    fn before(&mut self, engine: &Engine, table: &Table) {
        let view = |id: RequestId| view_of(table, &engine.progress(id)?);
        self.running = engine.running().iter().copied().filter_map(view).collect();
        self.waiting = engine.waiting().filter_map(view).collect();
        if engine.config().scheduling.queue == QueueOrder::Priority {
            self.waiting.sort_by_key(|seq| (seq.priority, seq.arrival));
        }
        // Requests that will fork take their places behind the one that they wait for.
        for asked in table.live.values() {
            let id = asked.request.id;
            let state = engine.progress(id).map(|progress| progress.state);
            let mut queued = self.running.iter_mut().chain(&mut self.waiting);
            let leader = queued.find(|seq| Some(seq.id) == asked.request.fork_of);
            if let (Some(RequestState::Forking), Some(leader)) = (state, leader) {
                leader.places += 1;
            }
        }
    }

    fn after(&mut self, engine: &Engine, _table: &Table, step: &StepOutput) -> Result<(), String> {
        let view = View {
            running: &self.running,
            waiting: &self.waiting,
        };
        let plan = StepPlan {
            scheduled: step.scheduled.clone(),
            preempted: step.preempted.clone(),
        };
        check_plan(&view, &plan, &Laws::of(engine.config()))
    }
}

/// Adapter and salt of a request.
type Scope = (Option<String>, Option<String>);

/// Hits against everything that was ever computed in the same scope.
#[derive(Default)]
pub struct HitBound {
    /// Tokens and scope of live requests before the step.
    known: BTreeMap<RequestId, (Scope, Vec<TokenId>)>,
    /// The computed tokens of every request.
    computed: BTreeMap<Scope, BTreeMap<RequestId, Vec<TokenId>>>,
}

impl HitBound {
    fn check_hit(&self, s: &Scheduled, hit: usize, block_size: usize) -> Result<(), String> {
        let Some((scope, tokens)) = self.known.get(&s.id) else {
            return Err(format!("request {} is not known", s.id));
        };
        if hit >= tokens.len() {
            return Err(format!("a hit of {hit} of {} tokens", tokens.len()));
        }
        if !hit.is_multiple_of(block_size) {
            return Err(format!(
                "a hit of {hit} tokens in blocks of {block_size}: a partial block is shared"
            ));
        }
        let others = self.computed.get(scope).into_iter().flatten();
        let common = |other: &Vec<TokenId>| {
            let pairs = other.iter().zip(tokens);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let longest = others.map(|(_, other)| common(other)).max().unwrap_or(0);
        if hit > longest {
            return Err(format!(
                "a hit of {hit} tokens where {longest} of the prefix were computed in its scope"
            ));
        }
        Ok(())
    }
}

impl Watch for HitBound {
    fn before(&mut self, engine: &Engine, table: &Table) {
        self.known.clear();
        for (&id, asked) in &table.live {
            let tokens = engine.tokens(id).unwrap_or_default().to_vec();
            let request = &asked.request;
            let scope = (request.adapter.clone(), request.cache_salt.clone());
            self.known.insert(id, (scope, tokens));
        }
    }

    fn after(&mut self, engine: &Engine, _table: &Table, step: &StepOutput) -> Result<(), String> {
        // In the order of the plan: a block may be found by a later request of the same step.
        for s in &step.scheduled {
            if let Some(hit) = s.hit_tokens {
                self.check_hit(s, hit, engine.config().block_size)?;
            }
            if let Some((scope, tokens)) = self.known.get(&s.id) {
                let end = (s.start + s.count).min(tokens.len());
                let computed = self.computed.entry(scope.clone()).or_default();
                computed.insert(s.id, tokens[..end].to_vec());
            }
        }
        Ok(())
    }
}

/// The counters, counted again from what the steps say.
#[derive(Default)]
pub struct Recount {
    admitted: BTreeSet<RequestId>,
    known: BTreeMap<RequestId, usize>,
    count: Counters,
}

impl Watch for Recount {
    fn before(&mut self, engine: &Engine, table: &Table) {
        let length = |&id: &RequestId| Some((id, engine.progress(id)?.num_tokens));
        self.known = table.live.keys().filter_map(length).collect();
    }

    fn after(&mut self, engine: &Engine, _table: &Table, step: &StepOutput) -> Result<(), String> {
        let c = &mut self.count;
        c.preemptions += step.preempted.len() as u64;
        for s in &step.scheduled {
            let Some(hit) = s.hit_tokens else { continue };
            let length = self.known.get(&s.id).copied().unwrap_or(0) as u64;
            if self.admitted.insert(s.id) {
                c.queried_tokens += length;
                c.prompt_tokens += length;
                c.hit_tokens += hit as u64;
            } else {
                c.preempted_queried_tokens += length;
                c.preempted_hit_tokens += hit as u64;
            }
        }
        for event in &step.events {
            match event {
                EngineEvent::Token { .. } => c.generation_tokens += 1,
                // Forks are admitted without a lookup.
                EngineEvent::Admitted { id, .. } => drop(self.admitted.insert(*id)),
                EngineEvent::Finished { .. } | EngineEvent::PromptLogprobs { .. } => {}
            }
        }
        let said = engine.counters();
        let pairs = [
            ("queried_tokens", said.queried_tokens, c.queried_tokens),
            ("hit_tokens", said.hit_tokens, c.hit_tokens),
            (
                "preempted_queried_tokens",
                said.preempted_queried_tokens,
                c.preempted_queried_tokens,
            ),
            (
                "preempted_hit_tokens",
                said.preempted_hit_tokens,
                c.preempted_hit_tokens,
            ),
            ("prompt_tokens", said.prompt_tokens, c.prompt_tokens),
            (
                "generation_tokens",
                said.generation_tokens,
                c.generation_tokens,
            ),
            ("preemptions", said.preemptions, c.preemptions),
        ];
        match pairs.iter().find(|(_, said, counted)| said != counted) {
            Some((name, said, counted)) => {
                Err(format!("{name} is {said}, its events add up to {counted}"))
            }
            None => Ok(()),
        }
    }
}

/// Every request ends in time.
pub struct Liveness;

impl Watch for Liveness {
    fn after(&mut self, _engine: &Engine, table: &Table, _step: &StepOutput) -> Result<(), String> {
        match table.overdue() {
            Some(asked) => Err(format!(
                "request {} has not ended after {PATIENCE} steps",
                asked.request.id
            )),
            None => Ok(()),
        }
    }
}

/// What ends has given what it gives alone.
pub struct SoloOutputs;

impl Watch for SoloOutputs {
    fn after(&mut self, _engine: &Engine, table: &Table, _step: &StepOutput) -> Result<(), String> {
        for asked in &table.ended {
            same_as_alone(&asked.request, &asked.output)?;
        }
        Ok(())
    }
}

/// Compares a request's tokens with those that it gives alone.
pub(super) fn same_as_alone(request: &EngineRequest, output: &[TokenId]) -> Result<(), String> {
    let want = toy::alone(request)?;
    let id = request.id;
    match want.iter().zip(output).position(|(a, b)| a != b) {
        Some(at) => Err(format!(
            "request {id}: token {at} is {}, alone it is {}",
            output[at], want[at]
        )),
        None if want.len() != output.len() => Err(format!(
            "request {id}: {} tokens, alone {}",
            output.len(),
            want.len()
        )),
        None => Ok(()),
    }
}
