//! The requests that the core is working on, and where their output goes.
//!
//! Kept apart from the engine thread's loop because this is where a step's events become text,
//! pieces and latencies.

use std::collections::BTreeMap;
use std::sync::Arc;

use pb_contract::{EngineEvent, EngineRequest, FinishReason, Nanos, RequestId, TokenId};
use pb_core::disagg::{HandedOff, KvTask};

use crate::collector::{Collector, Failure, Finish, Piece, StopCause};
use crate::core_api::Core;
use crate::engine::Shared;
use crate::kv::KvTransferParams;
use crate::metrics::RequestTimes;
use crate::output::OutputState;

struct Live {
    collector: Arc<Collector>,
    choice: usize,
    output: OutputState,
    times: RequestTimes,
    adapter: Option<String>,
    /// Prompt tokens of a request that is to be decoded elsewhere.
    hands_off: Option<usize>,
    /// Whether it only fetches KV for another request, which is the one that counts.
    prefetches: bool,
}

/// When a step began, and when its tokens were there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepTimes {
    pub(crate) start: Nanos,
    pub(crate) end: Nanos,
}

impl Live {
    /// The adapter whose requests this is one of.
    fn counted_adapter(&self) -> Option<&str> {
        self.adapter.as_deref().filter(|_| !self.prefetches)
    }

    /// Takes a token in; true when it completed a stop string. `ends` as in [`OutputState`].
    fn token(&mut self, token: TokenId, ends: bool, piece: &mut Piece) -> bool {
        let (text, stop) = self.output.push(token, ends);
        piece.tokens.push(token);
        piece.text.push_str(&text);
        let Some(stop) = stop else {
            return false;
        };
        let cause = Some(StopCause::Text(stop));
        piece.finish = Some(Finish {
            reason: FinishReason::Stop,
            cause,
        });
        true
    }
}

impl Live {
    /// What the answer to a request that is to be decoded elsewhere says at its end: where its KV
    /// is, or that there is nothing to decode.
    fn transfer(
        &self,
        piece: &Piece,
        over: Option<&HandedOff>,
        shared: &Shared,
    ) -> Option<KvTransferParams> {
        let (prompt_tokens, first_token) = (self.hands_off?, *piece.tokens.first()?);
        let (facts, block_size) = shared.kv.as_ref()?;
        Some(facts.params(*block_size, (prompt_tokens, first_token), over))
    }
}

fn id_of(event: &EngineEvent) -> RequestId {
    match event {
        EngineEvent::Admitted { id, .. }
        | EngineEvent::PromptLogprobs { id, .. }
        | EngineEvent::Token { id, .. }
        | EngineEvent::Finished { id, .. } => *id,
    }
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
        task: &KvTask,
        collector: Arc<Collector>,
    ) {
        let hands_off = matches!(task, KvTask::HandOff | KvTask::Stream(_));
        let live = Live {
            collector,
            choice,
            output,
            times: RequestTimes::new(request.arrival),
            adapter: request.adapter.clone(),
            hands_off: hands_off.then_some(request.prompt.len()),
            prefetches: matches!(task, KvTask::Prefetch(_)),
        };
        if let Some(adapter) = live.counted_adapter() {
            self.shared.count().adapter_waits(adapter);
        }
        let before = self.requests.insert(request.id, live);
        assert!(
            before.is_none(),
            "request id {} given out twice",
            request.id
        );
    }

    /// Hands a step's events on. What belongs to one request arrives in one piece.
    pub(crate) fn deliver(
        &mut self,
        events: Vec<EngineEvent>,
        step: StepTimes,
        core: &mut dyn Core,
    ) {
        let last_words = LastWords::of(&events);
        let handed = core.take_handed_off();
        let mut news: BTreeMap<RequestId, Piece> = BTreeMap::new();
        for (at, event) in events.into_iter().enumerate() {
            let id = id_of(&event);
            let Some(live) = self.requests.get_mut(&id) else {
                continue;
            };
            let piece = news.entry(id).or_default();
            // A request that a stop string ended may have had more events in the same step.
            if piece.finish.is_some() {
                continue;
            }
            match event {
                EngineEvent::Admitted { cached_tokens, .. } => {
                    // A request that was preempted is admitted again; it waited only once.
                    let before = live.times.admitted.replace(step.start);
                    live.times.admitted = before.or(live.times.admitted);
                    if let (None, Some(adapter)) = (before, &live.adapter) {
                        self.shared.count().adapter_runs(adapter);
                    }
                    piece.cached_tokens = Some(u32::try_from(cached_tokens).unwrap_or(u32::MAX));
                }
                EngineEvent::PromptLogprobs { entries, .. } => {
                    piece.prompt_logprobs.extend(entries);
                }
                EngineEvent::Token {
                    token, logprobs, ..
                } => {
                    self.shared.count().token(&mut live.times, step.end);
                    piece.logprobs.extend(logprobs);
                    if live.token(token, last_words.contains(id, at), piece) {
                        piece.transfer = live.transfer(piece, None, &self.shared);
                        core.abort(id);
                        self.shared.publish(core);
                    }
                }
                EngineEvent::Finished {
                    reason, stop_token, ..
                } => {
                    let over = handed.iter().find(|over| over.id == id);
                    // What is held back is for whoever goes on with the request to decide.
                    if over.is_none() {
                        piece.text.push_str(&live.output.flush());
                    }
                    piece.transfer = live.transfer(piece, over, &self.shared);
                    let cause = stop_token.map(StopCause::Token);
                    piece.finish = Some(Finish { reason, cause });
                }
            }
        }
        for (id, piece) in news {
            self.hand_over(id, piece, step.end);
        }
    }

    /// Gives a request's news to its reader, and forgets the request when it has ended.
    fn hand_over(&mut self, id: RequestId, piece: Piece, now: Nanos) {
        let Some(finish) = &piece.finish else {
            if let Some(live) = self.requests.get(&id) {
                live.collector.add(live.choice, piece, &self.shared.waits);
            }
            return;
        };
        if let Some(live) = self.take(id) {
            if !live.prefetches {
                self.shared.count().finish(finish.reason, live.times, now);
            }
            live.collector.add(live.choice, piece, &self.shared.waits);
        }
    }

    /// Takes a request out and gives its place to others.
    fn take(&mut self, id: RequestId) -> Option<Live> {
        let live = self.requests.remove(&id)?;
        if let Some(adapter) = live.counted_adapter() {
            let mut metrics = self.shared.count();
            metrics.adapter_ends(adapter, live.times.admitted.is_some());
        }
        self.shared.released(1);
        Some(live)
    }

    /// Drops a request whose reader is gone.
    pub(crate) fn drop_one(&mut self, id: RequestId, now: Nanos, core: &mut dyn Core) {
        // One that ended in the very step may have left KV for a worker that nobody will send.
        core.abort(id);
        self.shared.publish(core);
        if let Some(live) = self.requests.get_mut(&id) {
            let finish = Some(Finish {
                reason: FinishReason::Abort,
                cause: None,
            });
            let piece = Piece {
                text: live.output.flush(),
                finish,
                ..Piece::default()
            };
            self.hand_over(id, piece, now);
        }
    }

    /// Ends a request that has fetched KV for another one; the core has forgotten it.
    pub(crate) fn fetched(&mut self, id: RequestId, now: Nanos) {
        let finish = Some(Finish {
            reason: FinishReason::Abort,
            cause: None,
        });
        let piece = Piece {
            finish,
            ..Piece::default()
        };
        self.hand_over(id, piece, now);
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
        drop(self.take(id));
    }

    /// Ends a request with a failure; the core is not asked.
    pub(crate) fn fail(&mut self, id: RequestId, failure: &Failure) {
        if let Some(live) = self.take(id) {
            if !live.prefetches {
                self.shared.count().error();
            }
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
