//! Turning a computed step into progress: positions advance, tokens are appended, requests end.

use pb_contract::{EngineEvent, Fault, FinishReason, RequestId, TokenId, TokenLogprobs};
use pb_sched::Scheduled;

use super::Engine;
use super::compute::ChunkResult;

impl Engine {
    /// Applies the results of what was scheduled in its order.
    pub(super) fn commit(
        &mut self,
        scheduled: &[Scheduled],
        results: Vec<ChunkResult>,
        events: &mut Vec<EngineEvent>,
    ) {
        for (s, result) in scheduled.iter().zip(results) {
            let id = s.id;
            let Some(live) = self.requests.get_mut(&id) else {
                continue;
            };
            live.computed = s.start + s.count;
            self.kv.commit(id, &live.seq, live.computed);
            if let Some((first, entries)) = result.prompt_logprobs {
                live.prompt_logprobs_done = first + entries.len();
                events.push(EngineEvent::PromptLogprobs { id, first, entries });
            }
            let Some(choice) = result.token else {
                self.draw_in_vain(id);
                continue;
            };
            // Before the leader's own token, which may end it.
            self.fork(id, &choice, result.forks, events);
            self.append(id, choice.0, choice.1, events);
        }
    }

    /// The planted fault of a sampler that runs for chunks that end no prompt.
    fn draw_in_vain(&mut self, id: RequestId) {
        if self.config.fault == Fault::RngDrawnOnPartialChunk {
            self.streams.get_mut(&id).map(|stream| stream.unit_f64());
        }
    }

    /// Appends a generated token and ends the request where that ends it.
    pub(super) fn append(
        &mut self,
        id: RequestId,
        token: TokenId,
        logprobs: Option<TokenLogprobs>,
        events: &mut Vec<EngineEvent>,
    ) {
        let Some(live) = self.requests.get_mut(&id) else {
            return;
        };
        live.seq.push(token);
        self.counters.generation_tokens += 1;
        events.push(EngineEvent::Token {
            id,
            token,
            logprobs,
        });
        let Some((reason, stop_token)) = self.end_of(id, token) else {
            self.hand_off(id, token, events);
            return;
        };
        if let Some(live) = self.remove(id) {
            self.kv.finish(id, &live.seq);
        }
        events.push(EngineEvent::Finished {
            id,
            reason,
            stop_token,
        });
    }

    /// Whether `token`, just appended to `id`, ends it.
    fn end_of(&self, id: RequestId, token: TokenId) -> Option<(FinishReason, Option<TokenId>)> {
        let live = &self.requests[&id];
        let p = &live.request.sampling;
        if live.generated() >= p.min_tokens as usize {
            if !p.ignore_eos && self.spec.eos_ids.contains(&token) {
                return Some((FinishReason::Stop, None));
            }
            if p.stop_token_ids.contains(&token) {
                return Some((FinishReason::Stop, Some(token)));
            }
        }
        let full = live.seq.len() >= self.config.max_model_len;
        if live.generated() >= p.max_tokens as usize || full {
            return Some((FinishReason::Length, None));
        }
        None
    }
}
