//! Playing a load on an engine while others watch.

use std::collections::BTreeMap;

use pb_contract::{EngineConfig, EngineEvent, EngineRequest, RequestId, TokenId, VirtualClock};
use pb_core::{Engine, StepOutput};

use super::toy;

/// Steps within which a request must end.
pub const PATIENCE: usize = 300;

/// Requests for an engine, a fixed number of them at a time.
#[derive(Clone, Debug)]
pub struct Load {
    /// Name.
    pub name: String,
    /// The engine.
    pub config: EngineConfig,
    /// Requests that are live at a time.
    pub concurrency: usize,
    /// What is asked, in order.
    pub requests: Vec<EngineRequest>,
}

/// A request while it is live.
pub struct Asked {
    /// The request.
    pub request: EngineRequest,
    /// Number of its arrival, from 0.
    pub arrival: u64,
    /// Number of the step before which it came.
    pub since: usize,
    /// What it gave so far.
    pub output: Vec<TokenId>,
}

/// What the players know.
#[derive(Default)]
pub struct Table {
    /// Live requests.
    pub live: BTreeMap<RequestId, Asked>,
    /// Requests that ended in this step.
    pub ended: Vec<Asked>,
    /// Steps made.
    pub steps: usize,
}

/// Looks at an engine step by step.
pub trait Watch {
    /// Before a step.
    fn before(&mut self, _engine: &Engine, _table: &Table) {}

    /// After a step.
    ///
    /// # Errors
    /// What it must not be like.
    fn after(&mut self, engine: &Engine, table: &Table, step: &StepOutput) -> Result<(), String>;

    /// When nothing is left to do.
    ///
    /// # Errors
    /// What it must not be like.
    fn idle(&mut self, _engine: &Engine) -> Result<(), String> {
        Ok(())
    }
}

/// A watcher with the first thing that it objected to.
pub struct Seat<'a> {
    /// The watcher.
    pub watch: Box<dyn Watch + 'a>,
    /// Its objection; after it the watcher is asked no more.
    pub objection: Option<String>,
}

impl Seat<'_> {
    fn note(&mut self, law: impl FnOnce(&mut dyn Watch) -> Result<(), String>) {
        if self.objection.is_none() {
            self.objection = law(self.watch.as_mut()).err();
        }
    }
}

/// Plays a load to its end, or until a request does not end, or until every watcher objects.
/// Gives the engine back.
///
/// # Errors
/// The engine cannot be built or a step fails.
pub fn play(load: &Load, seats: &mut [Seat<'_>]) -> Result<Engine, String> {
    let mut engine = toy::engine(load.config.clone())?;
    let mut table = Table::default();
    let mut requests = load.requests.iter().enumerate();
    let clock = VirtualClock::new();
    loop {
        while table.live.len() < load.concurrency {
            let Some((arrival, request)) = requests.next() else {
                break;
            };
            if engine.add(request.clone()).is_ok() {
                table.join(request, arrival as u64);
            }
        }
        if table.live.is_empty() {
            seats.iter_mut().for_each(|s| s.note(|w| w.idle(&engine)));
            return Ok(engine);
        }
        for seat in seats.iter_mut().filter(|s| s.objection.is_none()) {
            seat.watch.before(&engine, &table);
        }
        let step = engine.step(&clock).map_err(|e| e.to_string())?;
        table.take(&step);
        for seat in seats.iter_mut() {
            seat.note(|w| w.after(&engine, &table, &step));
        }
        let stuck = table.overdue().is_some();
        if stuck || seats.iter().all(|seat| seat.objection.is_some()) {
            return Ok(engine);
        }
    }
}

impl Table {
    fn join(&mut self, request: &EngineRequest, arrival: u64) {
        let asked = Asked {
            request: request.clone(),
            arrival,
            since: self.steps,
            output: Vec::new(),
        };
        self.live.insert(request.id, asked);
    }

    fn take(&mut self, step: &StepOutput) {
        self.steps += 1;
        self.ended.clear();
        for event in &step.events {
            match event {
                EngineEvent::Token { id, token, .. } => {
                    if let Some(asked) = self.live.get_mut(id) {
                        asked.output.push(*token);
                    }
                }
                EngineEvent::Finished { id, .. } => self.ended.extend(self.live.remove(id)),
                EngineEvent::Admitted { .. } | EngineEvent::PromptLogprobs { .. } => {}
            }
        }
    }

    /// A request that should have ended.
    pub fn overdue(&self) -> Option<&Asked> {
        let late = |asked: &&Asked| self.steps - asked.since > PATIENCE;
        self.live.values().find(late)
    }
}
