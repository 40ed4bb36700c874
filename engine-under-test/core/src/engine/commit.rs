//! Turning a computed step into progress: positions advance, tokens are appended, requests end.

use pb_contract::{EngineEvent, FinishReason, RequestId, TokenId};

use super::Engine;
use super::step::ChunkResult;
use crate::execute::Chunk;

impl Engine {
    /// Applies the results of `chunks` in their order.
    pub(super) fn commit(
        &mut self,
        chunks: &[Chunk],
        results: Vec<ChunkResult>,
        events: &mut Vec<EngineEvent>,
    ) {
        for (chunk, result) in chunks.iter().zip(results) {
            let id = chunk.id;
            let Some(live) = self.requests.get_mut(&id) else {
                continue;
            };
            live.computed = chunk.start + chunk.tokens.len();
            if let Some((first, entries)) = result.prompt_logprobs {
                live.prompt_logprobs_done = first + entries.len();
                events.push(EngineEvent::PromptLogprobs { id, first, entries });
            }
            let Some((token, logprobs)) = result.token else {
                continue;
            };
            live.seq.push(token);
            self.counters.generation_tokens += 1;
            events.push(EngineEvent::Token {
                id,
                token,
                logprobs,
            });
            if let Some((reason, stop_token)) = self.end_of(id, token) {
                self.remove(id);
                events.push(EngineEvent::Finished {
                    id,
                    reason,
                    stop_token,
                });
            }
        }
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
