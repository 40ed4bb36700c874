//! Splitwise's pools: workers that help where the load is.
//!
//! As in splitwise-sim's `MixedPoolScheduler`: a prompt goes to the prefill worker with the fewest
//! pending tokens; when that one has too many, to the mixed pool, and when those have too, a decode
//! worker is lent to the mixed pool. Decodes likewise, by blocks in use. Without a pair the request
//! is served by one worker that can do both. A helper goes home when the foreign work is done.

use pb_contract::Nanos;

use super::route::Route;
use super::{Request, Router};
use crate::config::PoolParams;
use crate::worker::{Ask, Pool, Worker, WorkerId};

impl Router {
    pub(super) fn route_in_pools(
        &mut self,
        now: Nanos,
        request: &Request,
        params: PoolParams,
    ) -> Option<Route> {
        let most = params.prefill_max_pending_tokens;
        let prefill = |worker: &Worker, router: &Router| {
            worker.load.pending_tokens() <= most && router.has_prefill_room(worker)
        };
        let at = self.least_pending(request, &[Pool::Prefill, Pool::Mixed], prefill);
        let at = at.or_else(|| {
            self.least_pending(request, &[Pool::Decode], |worker, router| {
                worker.spec.flexible && router.has_prefill_room(worker)
            })
        });
        let pair = at.filter(|&at| self.decode_target(request, at, params).is_some());
        let whole = pair.is_none();
        let at = match pair {
            Some(at) => at,
            None => self.least_pending(
                request,
                &[Pool::Mixed, Pool::Prefill, Pool::Decode],
                |worker, router| {
                    (worker.spec.flexible || worker.pool != Pool::Prefill)
                        && router.has_decode_room(worker, &request.ask)
                },
            )?,
        };
        let pool = self.workers[&at].pool;
        if (whole && pool == Pool::Prefill) || (!whole && pool == Pool::Decode) {
            self.lend(at);
        }
        let names = request.ask.names_of(&self.workers[&at].spec);
        Some(Route {
            at,
            whole,
            local: whole,
            overlap_blocks: self.index.overlap(now, at, names),
        })
    }

    pub(super) fn decode_in_pools(
        &mut self,
        request: &Request,
        from: WorkerId,
        params: PoolParams,
    ) -> Option<WorkerId> {
        let at = self.decode_target(request, from, params)?;
        if self.workers[&at].pool == Pool::Prefill {
            self.lend(at);
        }
        Some(at)
    }

    /// Who could decode what `from` has computed; a worker of the prefill pool is to be lent.
    fn decode_target(
        &self,
        request: &Request,
        from: WorkerId,
        params: PoolParams,
    ) -> Option<WorkerId> {
        let ask: &Ask = &request.ask;
        let most = params.decode_max_pending_tokens;
        let least_blocks = |pool: Pool, may: &dyn Fn(&Worker) -> bool| {
            let candidates = self.candidates(request, |worker, router| {
                worker.up
                    && worker.pool == pool
                    && may(worker)
                    && router.has_decode_room(worker, ask)
            });
            let others = candidates.into_iter().filter(|id| *id != from);
            others.min_by_key(|id| (self.workers[id].load.blocks.count(), *id))
        };
        let below = |worker: &Worker| worker.load.pending_tokens() <= most;
        least_blocks(Pool::Decode, &below)
            .or_else(|| least_blocks(Pool::Mixed, &below))
            .or_else(|| least_blocks(Pool::Prefill, &|worker: &Worker| worker.spec.flexible))
    }

    /// The worker with the fewest pending tokens in the first of `pools` that has one which may.
    fn least_pending(
        &self,
        request: &Request,
        pools: &[Pool],
        may: impl Fn(&Worker, &Router) -> bool,
    ) -> Option<WorkerId> {
        pools.iter().find_map(|&pool| {
            let candidates = self.candidates(request, |worker, router| {
                worker.up && worker.pool == pool && may(worker, router)
            });
            let pending = |id: &WorkerId| (self.workers[id].load.pending_tokens(), *id);
            candidates.into_iter().min_by_key(pending)
        })
    }

    /// Sends helpers home that have nothing left of what they helped with.
    pub(super) fn send_home(&mut self) {
        for worker in self.workers.values_mut() {
            if worker.may_go_home() {
                worker.pool = worker.spec.home;
                self.stats.pool_returns += 1;
            }
        }
    }

    /// Lets a worker help in the other pool.
    pub(super) fn lend(&mut self, id: WorkerId) {
        self.worker_mut(id).pool = Pool::Mixed;
        self.stats.pool_moves += 1;
    }
}
