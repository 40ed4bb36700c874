//! Taking a request back from whoever has it.

use pb_contract::RequestId;

use super::{Router, State};
use crate::worker::{Worker, WorkerId};

impl Router {
    /// Takes a request out of every account and list.
    pub(super) fn release(&mut self, id: RequestId) {
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
