//! Taking a request back from whoever has it.

use pb_contract::{Nanos, RequestId};

use super::{Router, State};
use crate::worker::{Worker, WorkerId};

impl Router {
    /// The decode worker `at` of a handed request was lost before it said anything. True when
    /// another one gets it, or the same when there is no other: nothing was decoded, so nothing is
    /// repeated, and whoever finds the KV gone says so or computes it. False when it was started
    /// too often, and nothing is changed.
    pub fn hand_again(&mut self, now: Nanos, id: RequestId, at: WorkerId) -> bool {
        let most = self.config.max_retries;
        let Some(request) = self.requests.get_mut(&id) else {
            return false;
        };
        let State::Handing { from, to } = request.state else {
            return false;
        };
        if to != at || request.retries >= most {
            return false;
        }
        request.retries += 1;
        request.failed_at.insert(at);
        request.state = State::Held {
            at: from,
            since: now,
        };
        let ask = request.ask.clone();
        let worker = self.worker_mut(to);
        worker.load.decodes -= 1;
        worker.load.blocks.remove(&ask, &worker.spec);
        self.stats.retries += 1;
        // It has waited before those that are held now.
        self.held.push_front(id);
        self.advance(now);
        true
    }

    /// Takes a request out of every account and list.
    pub(super) fn release(&mut self, id: RequestId) {
        self.end_ahead(id);
        let request = self.requests[&id].clone();
        let mut give_back = |at: WorkerId, change: &dyn Fn(&mut Worker)| {
            // OK because ids come from `add_worker` and workers are never taken away.
            let worker = self.workers.get_mut(&at).expect("a worker of this router");
            change(worker);
            worker.load.blocks.remove(&request.ask, &worker.spec);
        };
        match request.state {
            State::Queued => self.queue.retain(|other| *other != id),
            State::Prefilling { at, .. } => give_back(at, &|worker| {
                worker.load.prefills -= 1;
                worker.load.prefill_tokens -= request.fresh_tokens;
            }),
            State::Held { at, .. } => {
                give_back(at, &|worker| worker.load.kept -= 1);
                self.held.retain(|other| *other != id);
            }
            State::Handing { from, to } => {
                give_back(from, &|worker| worker.load.kept -= 1);
                give_back(to, &|worker| worker.load.decodes -= 1);
            }
            State::Decoding { at } => give_back(at, &|worker| worker.load.decodes -= 1),
        }
    }
}
