//! Decode workers that fetch KV while it is computed.
//!
//! A long prompt gets its decode worker when its prefill starts, if there is one with room, and has
//! a place there from then on. Without room, or where workers move between pools, it gets one when
//! its prompt is computed, like any other.

use pb_contract::{Nanos, RequestId};

use super::route::Route;
use super::{Request, Router};
use crate::worker::{Ask, WorkerId};

impl Router {
    /// Chooses the decode worker of a request that starts on `route`; none when it has to wait for
    /// the end of the prefill. Those that wait for one already go first.
    pub(super) fn begin_ahead(
        &mut self,
        now: Nanos,
        id: RequestId,
        route: &Route,
    ) -> Option<WorkerId> {
        let request = self.requests[&id].clone();
        let min = self.workers[&route.at].spec.stream_min_tokens?;
        let waits = !self.held.is_empty() || self.config.pools.is_some();
        if route.whole || waits || request.ask.prompt_tokens < min {
            return None;
        }
        let to = self.decode_for(now, &request, route.at, false)?;
        self.last[1] = Some(to);
        let worker = self.worker_mut(to);
        worker.load.decodes += 1;
        worker.load.blocks.add(&request.ask, &worker.spec);
        self.request_mut(id).ahead = Some(to);
        self.stats.ahead += 1;
        Some(to)
    }

    /// The decode worker of a computed request that has room for it once those of prompts that are
    /// still computed are left out. They cannot be waited for: such a prompt may itself wait for
    /// the blocks that this request holds where they are computed. At the decode worker itself it
    /// has none yet.
    pub(super) fn decode_past_ahead(
        &mut self,
        now: Nanos,
        request: &Request,
        from: WorkerId,
    ) -> Option<WorkerId> {
        let places = self.requests.values();
        let places: Vec<(WorkerId, Ask)> = places
            .filter_map(|request| Some((request.ahead?, request.ask.clone())))
            .collect();
        if places.is_empty() {
            return None;
        }
        for (at, ask) in &places {
            let worker = self.worker_mut(*at);
            worker.load.decodes -= 1;
            worker.load.blocks.remove(ask, &worker.spec);
        }
        let to = self.decode_for(now, request, from, false);
        for (at, ask) in &places {
            let worker = self.worker_mut(*at);
            worker.load.decodes += 1;
            worker.load.blocks.add(ask, &worker.spec);
        }
        to
    }

    /// Takes the place back that a request had while its prompt was computed. Gives the worker, if
    /// it still answers.
    pub(super) fn end_ahead(&mut self, id: RequestId) -> Option<WorkerId> {
        let request = self.request_mut(id);
        let (to, ask) = (request.ahead.take()?, request.ask.clone());
        let worker = self.worker_mut(to);
        worker.load.decodes -= 1;
        worker.load.blocks.remove(&ask, &worker.spec);
        worker.decodes().then_some(to)
    }
}
