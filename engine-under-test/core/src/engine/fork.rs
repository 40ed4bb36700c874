//! Several sequences of one prompt (`n > 1`): one computes it, the others fork from its blocks.
//!
//! The followers are in no queue. Their leader takes their running places with it when it is
//! admitted, and when its prompt is computed each of them draws its own first token from the same
//! logits and goes on by itself.

use std::collections::VecDeque;

use pb_contract::{EngineEvent, RequestId, TokenId, TokenLogprobs};

use super::Engine;
use crate::request::Live;

/// A chosen token with its log-probabilities where those are asked for.
pub(super) type Choice = (TokenId, Option<TokenLogprobs>);

impl Engine {
    /// Lets the followers of `leader`, whose prompt is computed, start. `choices` has each one's
    /// first token, or nothing where the backend gives no logits: then the backend is asked for it.
    pub(super) fn fork(
        &mut self,
        leader: RequestId,
        own: &Choice,
        choices: Vec<Choice>,
        events: &mut Vec<EngineEvent>,
    ) {
        let Some(live) = self.requests.get_mut(&leader) else {
            return;
        };
        let followers = std::mem::take(&mut live.followers);
        let (computed, cached_tokens) = (live.computed, live.admitted.unwrap_or(0));
        let mut choices = choices.into_iter();
        for id in followers {
            let Some(follower) = self.requests.get_mut(&id) else {
                continue;
            };
            let chosen = choices.next().or_else(|| {
                let token = self.executor.own_token(id, follower.seq.len())?;
                Some((token, None))
            });
            let (token, logprobs) = chosen.unwrap_or_else(|| own.clone());
            follower.leader = None;
            follower.computed = computed;
            follower.admitted = Some(cached_tokens);
            self.kv.fork(leader, id, computed);
            self.running.push(id);
            events.push(EngineEvent::Admitted { id, cached_tokens });
            self.append(id, token, logprobs, events);
        }
    }

    /// Makes the first follower of a request that is gone the leader of the others. `place` is
    /// where the request stood in the waiting queue; one that was running is replaced at its
    /// front.
    pub(super) fn pass_on_leadership(&mut self, gone: Live, place: Option<usize>) {
        let Some((&first, others)) = gone.followers.split_first() else {
            return;
        };
        for id in others {
            if let Some(follower) = self.requests.get_mut(id) {
                follower.leader = Some(first);
            }
        }
        if let Some(live) = self.requests.get_mut(&first) {
            live.leader = None;
            live.followers = others.to_vec();
        }
        insert_at(&mut self.waiting, place.unwrap_or(0), first);
    }
}

fn insert_at(queue: &mut VecDeque<RequestId>, place: usize, id: RequestId) {
    queue.insert(place.min(queue.len()), id);
}
