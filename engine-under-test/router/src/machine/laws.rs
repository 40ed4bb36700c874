//! What must hold at every moment, checked by counting everything again.

use std::collections::BTreeMap;

use super::{Router, State};
use crate::worker::{Load, WorkerId};

impl Router {
    /// Verifies that no request is lost or in two places, and that each worker's account is the
    /// sum over its requests.
    ///
    /// # Errors
    /// A sentence that names the law that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let live = self.requests.len() as u64;
        let (arrived, ended) = (self.stats.arrived, self.stats.all_ended());
        if arrived != ended + live {
            return Err(format!(
                "{arrived} requests came, {ended} ended, {live} are alive"
            ));
        }
        let mut loads: BTreeMap<WorkerId, Load> = BTreeMap::new();
        let (mut queued, mut held) = (0, 0);
        for (id, request) in &self.requests {
            let mut add = |at: WorkerId, change: &dyn Fn(&mut Load)| {
                let load = loads.entry(at).or_default();
                change(load);
                load.blocks.add(&request.ask, &self.workers[&at].spec);
            };
            if let Some(to) = request.ahead {
                if !matches!(request.state, State::Prefilling { whole: false, .. }) {
                    return Err(format!("{id} has a decode worker ahead and is no prefill"));
                }
                add(to, &|load| load.decodes += 1);
            }
            match request.state {
                State::Queued => queued += usize::from(self.queue.contains(id)),
                State::Prefilling { at, .. } => add(at, &|load| {
                    load.prefills += 1;
                    load.prefill_tokens += request.fresh_tokens;
                }),
                State::Held { at, .. } => {
                    held += usize::from(self.held.contains(id));
                    add(at, &|load| load.kept += 1);
                }
                State::Handing { from, to } => {
                    add(from, &|load| load.kept += 1);
                    add(to, &|load| load.decodes += 1);
                }
                State::Decoding { at } => add(at, &|load| load.decodes += 1),
            }
        }
        self.check_lists(queued, held)?;
        for (id, worker) in &self.workers {
            let counted = loads.remove(id).unwrap_or_default();
            if counted != worker.load {
                return Err(format!(
                    "worker {id}: account {:?}, counted {counted:?}",
                    worker.load
                ));
            }
        }
        Ok(())
    }

    /// The lists have the requests in their states, of which so many were found in them.
    fn check_lists(&self, queued: usize, held: usize) -> Result<(), String> {
        let states = |wanted: fn(&State) -> bool| {
            let states = self.requests.values().map(|request| &request.state);
            states.filter(|state| wanted(state)).count()
        };
        let lists = [
            (
                "queue",
                self.queue.len(),
                queued,
                states(|s| matches!(s, State::Queued)),
            ),
            (
                "held",
                self.held.len(),
                held,
                states(|s| matches!(s, State::Held { .. })),
            ),
        ];
        for (name, length, found, expected) in lists {
            if length != found || found != expected {
                return Err(format!(
                    "the list {name} has {length} entries, {found} of {expected} requests"
                ));
            }
        }
        Ok(())
    }
}
