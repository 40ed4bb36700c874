//! The requests that the core is working on, and where their output goes.
//!
//! Kept apart from the engine thread's loop because this is where a step's events become text,
//! pieces and latencies.

use std::collections::BTreeMap;
use std::sync::Arc;

use pb_contract::{
    EngineEvent, EngineRequest, FinishReason, Nanos, RequestId, TokenId, TokenLogprobs,
};

use crate::collector::{Collector, Failure, Finish, StopCause};
use crate::core_api::Core;
use crate::engine::Shared;
use crate::output::OutputState;

struct Live {
    collector: Arc<Collector>,
    choice: usize,
    output: OutputState,
    arrival: Nanos,
    last_token: Option<Nanos>,
}

/// Requests by id.
pub(crate) struct LiveRequests {
    requests: BTreeMap<RequestId, Live>,
    shared: Arc<Shared>,
}

impl LiveRequests {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        LiveRequests {
            requests: BTreeMap::new(),
            shared,
        }
    }

    /// Registers a choice before the core sees it.
    pub(crate) fn insert(
        &mut self,
        request: &EngineRequest,
        choice: usize,
        output: OutputState,
        collector: Arc<Collector>,
    ) {
        let arrival = request.arrival;
        let live = Live {
            collector,
            choice,
            output,
            arrival,
            last_token: None,
        };
        let before = self.requests.insert(request.id, live);
        assert!(
            before.is_none(),
            "request id {} given out twice",
            request.id
        );
    }

    /// Hands a step's events on.
    pub(crate) fn deliver(&mut self, events: Vec<EngineEvent>, now: Nanos, core: &mut dyn Core) {
        let last_words = LastWords::of(&events);
        for (at, event) in events.into_iter().enumerate() {
            match event {
                EngineEvent::Admitted { id, cached_tokens } => self.note(id, |piece| {
                    piece.cached_tokens = Some(u32::try_from(cached_tokens).unwrap_or(u32::MAX));
                }),
                EngineEvent::PromptLogprobs { id, entries, .. } => {
                    self.note(id, |piece| piece.prompt_logprobs.extend(entries));
                }
                EngineEvent::Token {
                    id,
                    token,
                    logprobs,
                } => {
                    let ends = last_words.contains(id, at);
                    self.token(id, token, logprobs, ends, now, core);
                }
                EngineEvent::Finished {
                    id,
                    reason,
                    stop_token,
                } => {
                    let cause = stop_token.map(StopCause::Token);
                    self.end(id, Finish { reason, cause }, now);
                }
            }
        }
    }

    fn note(&self, id: RequestId, change: impl FnOnce(&mut crate::collector::Piece)) {
        if let Some(live) = self.requests.get(&id) {
            live.collector.note(live.choice, change);
        }
    }

    fn token(
        &mut self,
        id: RequestId,
        token: TokenId,
        logprobs: Option<TokenLogprobs>,
        ends: bool,
        now: Nanos,
        core: &mut dyn Core,
    ) {
        // A request that a stop string ended may have had more events in the same step.
        let Some(live) = self.requests.get_mut(&id) else {
            return;
        };
        self.shared
            .metrics()
            .token(live.arrival, live.last_token, now);
        live.last_token = Some(now);
        let (text, stop) = live.output.push(token, ends);
        live.collector.push(live.choice, |piece| {
            piece.tokens.push(token);
            piece.text.push_str(&text);
            piece.logprobs.extend(logprobs);
        });
        if let Some(stop) = stop {
            core.abort(id);
            self.shared.publish(core);
            let cause = Some(StopCause::Text(stop));
            self.end_with(
                id,
                "",
                Finish {
                    reason: FinishReason::Stop,
                    cause,
                },
                now,
            );
        }
    }

    fn end(&mut self, id: RequestId, finish: Finish, now: Nanos) {
        if let Some(live) = self.requests.get_mut(&id) {
            let rest = live.output.flush();
            self.end_with(id, &rest, finish, now);
        }
    }

    fn end_with(&mut self, id: RequestId, rest: &str, finish: Finish, now: Nanos) {
        if let Some(live) = self.requests.remove(&id) {
            self.shared
                .metrics()
                .finish(finish.reason, live.arrival, now);
            self.shared.released(1);
            live.collector.finish(live.choice, rest, finish);
        }
    }

    /// Drops a request whose reader is gone.
    pub(crate) fn drop_one(&mut self, id: RequestId, now: Nanos, core: &mut dyn Core) {
        if self.requests.contains_key(&id) {
            core.abort(id);
            self.shared.publish(core);
            self.end(
                id,
                Finish {
                    reason: FinishReason::Abort,
                    cause: None,
                },
                now,
            );
        }
    }

    /// Ends every request with the reason `abort`; the readers get what there is.
    pub(crate) fn abort_all(&mut self, now: Nanos, core: &mut dyn Core) {
        let ids: Vec<RequestId> = self.requests.keys().copied().collect();
        for id in ids {
            self.drop_one(id, now, core);
        }
    }

    /// Removes a request that the core refused.
    pub(crate) fn forget(&mut self, id: RequestId) {
        if self.requests.remove(&id).is_some() {
            self.shared.released(1);
        }
    }

    /// Ends a request with a failure; the core is not asked.
    pub(crate) fn fail(&mut self, id: RequestId, failure: &Failure) {
        if let Some(live) = self.requests.remove(&id) {
            self.shared.metrics().error();
            self.shared.released(1);
            live.collector.fail(failure.clone());
        }
    }

    /// Ends every request with a failure; the core is not asked.
    pub(crate) fn fail_all(&mut self, failure: &Failure) {
        let ids: Vec<RequestId> = self.requests.keys().copied().collect();
        for id in ids {
            self.fail(id, failure);
        }
    }
}

/// Which token events of a step carry the stop token that ended their request.
struct LastWords(BTreeMap<RequestId, usize>);

impl LastWords {
    fn of(events: &[EngineEvent]) -> Self {
        let mut last = BTreeMap::new();
        let mut stopped = BTreeMap::new();
        for (at, event) in events.iter().enumerate() {
            match event {
                EngineEvent::Token { id, .. } => drop(last.insert(*id, at)),
                EngineEvent::Finished {
                    id,
                    reason: FinishReason::Stop,
                    ..
                } => {
                    if let Some(at) = last.get(id) {
                        stopped.insert(*id, *at);
                    }
                }
                _ => {}
            }
        }
        LastWords(stopped)
    }

    fn contains(&self, id: RequestId, at: usize) -> bool {
        self.0.get(&id) == Some(&at)
    }
}
