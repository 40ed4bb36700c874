//! Who gets a request.

use pb_contract::Nanos;

use super::{Request, Router};
use crate::config::Policy;
use crate::cost::CostInput;
use crate::stats::Refusal;
use crate::worker::{Ask, Pool, Worker, WorkerId};

/// What a worker is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// To compute the prompt for another worker.
    Prefill,
    /// To go on with a prompt that another worker has computed.
    Decode,
    /// To do all of it.
    Whole,
}

/// Where a request starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) at: WorkerId,
    /// Whether `at` does all of it.
    pub(super) whole: bool,
    /// Whether it could have been split.
    pub(super) local: bool,
    pub(super) overlap_blocks: usize,
}

impl Router {
    /// Where `request` may start now; none when it must wait.
    pub(super) fn route(&mut self, now: Nanos, request: &Request) -> Option<Route> {
        let splittable = request.ask.splittable;
        if let Some(params) = self.config.pools
            && splittable
        {
            return self.route_in_pools(now, request, params);
        }
        let dedicated = |worker: &Worker| worker.up && worker.pool == Pool::Prefill;
        if !splittable || !self.workers.values().any(dedicated) {
            if splittable && self.config.enforce_disaggregation {
                return None;
            }
            return self.whole(now, request, false);
        }
        if let Some(route) = self.local_instead(now, request) {
            return Some(route);
        }
        let candidates = self.candidates(request, |worker, router| {
            worker.up
                && match worker.pool {
                    Pool::Prefill => router.has_prefill_room(worker),
                    Pool::Mixed => router.has_decode_room(worker, &request.ask),
                    Pool::Decode => false,
                }
        });
        let (at, overlap_blocks) = self.pick(now, Phase::Prefill, &request.ask, &candidates)?;
        Some(Route {
            at,
            // A worker that does both keeps what it has begun.
            whole: self.workers[&at].pool == Pool::Mixed,
            local: false,
            overlap_blocks,
        })
    }

    fn whole(&mut self, now: Nanos, request: &Request, local: bool) -> Option<Route> {
        let candidates = self.candidates(request, |worker, router| {
            worker.decodes() && router.has_decode_room(worker, &request.ask)
        });
        let (at, overlap_blocks) = self.pick(now, Phase::Whole, &request.ask, &candidates)?;
        Some(Route {
            at,
            whole: true,
            local,
            overlap_blocks,
        })
    }

    /// Prefill at the decode worker: of a prompt that is short beyond what is cached there, and
    /// while every prefill worker has too much to do.
    fn local_instead(&mut self, now: Nanos, request: &Request) -> Option<Route> {
        let most = self.config.local_prefill_max_tokens;
        let backlog = self.least_backlog(Worker::prefills);
        let busy = |limit| backlog.is_some_and(|tokens| tokens > limit);
        let busy = self.config.prefill_backlog_max_tokens.is_some_and(busy);
        if most == 0 && !busy {
            return None;
        }
        let route = self.whole(now, request, true)?;
        let fresh = self.fresh_tokens(&request.ask, route.at, route.overlap_blocks);
        (busy || fresh <= most).then_some(route)
    }

    fn least_backlog(&self, which: fn(&Worker) -> bool) -> Option<usize> {
        let workers = self.workers.values().filter(|worker| which(worker));
        workers.map(|worker| worker.load.prefill_tokens).min()
    }

    /// Tokens that `at` has to compute when `overlap_blocks` of the prompt are cached there.
    pub(super) fn fresh_tokens(&self, ask: &Ask, at: WorkerId, overlap_blocks: usize) -> usize {
        let block_size = self.workers[&at].spec.block_size;
        // The last token of a prompt is always computed.
        let most = ask.prompt_tokens.saturating_sub(1) / block_size;
        ask.prompt_tokens - overlap_blocks.min(most) * block_size
    }

    /// Whether the first token is predicted to come too late, so that computing it would only make
    /// others late too.
    pub(super) fn hopeless(&self, now: Nanos, ask: &Ask) -> Option<Refusal> {
        let slo = self.config.slo_ttft_ns?;
        let prefill = |worker: &&Worker| worker.up && worker.pool == Pool::Prefill;
        let split = ask.splittable && self.workers.values().any(|worker| prefill(&worker));
        let able = |worker: &Worker| {
            if split {
                worker.prefills()
            } else {
                worker.decodes()
            }
        };
        let able: Vec<WorkerId> = self.workers_that(able);
        let mut untried = false;
        let mut least = None;
        for &id in &able {
            let worker = &self.workers[&id];
            let overlap = self.index.overlap(now, id, ask.names_of(&worker.spec));
            let (ahead, fresh) = (
                worker.load.prefill_tokens,
                self.fresh_tokens(ask, id, overlap),
            );
            // Refused because of what short prompts took, it would never show what it takes.
            untried |= ahead == 0 && self.queue.is_empty() && self.predictor.is_beyond(fresh);
            least = Some(least.map_or(ahead + fresh, |most: usize| most.min(ahead + fresh)));
        }
        if untried {
            return None;
        }
        let queued = self.queue.iter().map(|id| {
            let request = &self.requests[id];
            request.ask.prompt_tokens
        });
        let before = queued.sum::<usize>() / able.len().max(1);
        let predicted_ns = self.predictor.predict_ns(least? + before)?;
        (predicted_ns > slo.0).then_some(Refusal::Early {
            predicted_ns,
            slo_ns: slo.0,
        })
    }

    /// The decode worker of a computed request, whose KV is at `from`.
    pub(super) fn decode_for(
        &mut self,
        now: Nanos,
        request: &Request,
        from: WorkerId,
        regardless: bool,
    ) -> Option<WorkerId> {
        if let Some(params) = self.config.pools
            && !regardless
        {
            return self.decode_in_pools(request, from, params);
        }
        let candidates: Vec<WorkerId> = self.candidates(request, |worker, router| {
            worker.decodes() && (regardless || router.has_decode_room(worker, &request.ask))
        });
        let others: Vec<WorkerId> = candidates.into_iter().filter(|id| *id != from).collect();
        let picked = self.pick(now, Phase::Decode, &request.ask, &others);
        picked.map(|(at, _)| at)
    }

    pub(super) fn has_prefill_room(&self, worker: &Worker) -> bool {
        worker.load.prefills + worker.load.kept < self.config.max_prefills
    }

    pub(super) fn has_decode_room(&self, worker: &Worker, ask: &Ask) -> bool {
        let load = &worker.load;
        let slots = load.prefills + load.decodes < self.config.max_decodes;
        let blocks = worker.spec.blocks_total.is_none_or(|total| {
            let limit = (total as f64 * self.config.decode_fill_max) as usize;
            // One block more than the prompt has: its last one may be full. What is too large for
            // an empty worker is the worker's to refuse.
            load.blocks.count() == 0 || load.blocks.count_with(ask, &worker.spec) < limit
        });
        slots && blocks
    }

    fn workers_that(&self, wanted: impl Fn(&Worker) -> bool) -> Vec<WorkerId> {
        let wanted = self.workers.iter().filter(|(_, worker)| wanted(worker));
        wanted.map(|(&id, _)| id).collect()
    }

    /// Workers that `may` have the request; those where it has failed only if there is no other.
    pub(super) fn candidates(
        &self,
        request: &Request,
        may: impl Fn(&Worker, &Router) -> bool,
    ) -> Vec<WorkerId> {
        let all = self.workers_that(|worker| may(worker, self));
        let failed = &request.failed_at;
        let new = all.iter().filter(|id| !failed.contains(id)).copied();
        let new: Vec<WorkerId> = new.collect();
        if new.is_empty() { all } else { new }
    }

    /// One of `candidates`, by the policy, with the leading blocks of the prompt that it has.
    pub(super) fn pick(
        &mut self,
        now: Nanos,
        phase: Phase,
        ask: &Ask,
        candidates: &[WorkerId],
    ) -> Option<(WorkerId, usize)> {
        let overlap = |id: WorkerId| {
            let names = ask.names_of(&self.workers[&id].spec);
            self.index.overlap(now, id, names)
        };
        let at = match self.config.policy {
            Policy::RoundRobin => {
                let last = self.last[usize::from(phase != Phase::Prefill)];
                let next = candidates.iter().find(|&&id| Some(id) > last);
                *next.or(candidates.first())?
            }
            Policy::LeastLoaded => *candidates.iter().min_by_key(|&&id| {
                let (spec, load) = (&self.workers[&id].spec, &self.workers[&id].load);
                let blocks = load.blocks.count() * spec.block_size;
                match phase {
                    Phase::Prefill => (load.prefill_tokens, id),
                    Phase::Decode => (blocks, id),
                    Phase::Whole => (load.prefill_tokens + blocks, id),
                }
            })?,
            Policy::KvAware => {
                let costs = self.costs(phase, ask, candidates, overlap);
                candidates[self.config.cost.choose(&costs, &mut self.rng)?]
            }
        };
        let names = ask.names_of(&self.workers[&at].spec);
        Some((at, self.index.overlap(now, at, names)))
    }

    /// The cost of each candidate. As in Dynamo a prefill worker's decode blocks and a decode
    /// worker's prefill blocks count for nothing.
    fn costs(
        &self,
        phase: Phase,
        ask: &Ask,
        candidates: &[WorkerId],
        overlap: impl Fn(WorkerId) -> usize,
    ) -> Vec<f64> {
        // One unit for all, should their blocks be of different sizes.
        let unit = candidates
            .first()
            .map_or(1, |id| self.workers[id].spec.block_size);
        let inputs: Vec<CostInput> = candidates
            .iter()
            .map(|&id| {
                let (spec, load) = (&self.workers[&id].spec, &self.workers[&id].load);
                let blocks = |n: usize| n as f64 * spec.block_size as f64 / unit as f64;
                let (prefill, decode) = (phase != Phase::Decode, phase != Phase::Prefill);
                let of_prefill = |value: f64| if prefill { value } else { 0.0 };
                let of_decode = |value: f64| if decode { value } else { 0.0 };
                CostInput {
                    active_prefill_blocks: of_prefill(load.prefill_tokens as f64 / unit as f64),
                    prompt_blocks: of_prefill(ask.prompt_tokens as f64 / unit as f64),
                    overlap_blocks: of_prefill(blocks(overlap(id))),
                    decode_blocks: of_decode(blocks(load.blocks.count_with(ask, spec))),
                    active_requests: load.requests() as f64,
                }
            })
            .collect();
        let backlogs = inputs.iter().map(|input| input.active_prefill_blocks);
        let least = backlogs.fold(f64::INFINITY, f64::min);
        let params = &self.config.cost;
        inputs
            .iter()
            .map(|input| params.cost(input, least))
            .collect()
    }
}
