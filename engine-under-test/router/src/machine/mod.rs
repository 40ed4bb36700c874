//! The router as a state machine: told what happens and when, it says what to do.
//!
//! ```text
//! queued -> prefilling -> held -> handing -> decoding -> ended
//!              \________________________________/          (one worker for all)
//! ```
//!
//! *Held*: the prompt is computed, no decode worker has room. Its KV stays at the prefill worker
//! and counts against what that one may have, so prefill stops being given out, requests queue, and
//! beyond the queue's bound they are refused: that is the back-pressure, and nothing is lost in it.
//!
//! No clock, socket or thread: [`crate::http`] and [`crate::sim`] drive the same code.

mod account;
mod ahead;
mod laws;
mod pools;
mod route;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pb_contract::{Nanos, RequestId, Stream};

use crate::config::{ConfigError, RouterConfig};
use crate::index::{EventPage, Intake, KvIndex};
use crate::predict::Predictor;
use crate::stats::{Outcome, Refusal, Stats};
use crate::worker::{Ask, Worker, WorkerId, WorkerSpec, WorkerView};

/// What the shell must do.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Send the request to `at`.
    Start {
        /// The request.
        id: RequestId,
        /// The worker.
        at: WorkerId,
        /// Whether `at` is to do all of it; else its prompt only.
        whole: bool,
        /// Prompt tokens believed to be cached there.
        overlap_tokens: usize,
        /// The decode worker that is to fetch the KV while it is computed.
        ahead: Option<WorkerId>,
    },
    /// Send the request to `to`, which fetches its KV.
    Hand {
        /// The request.
        id: RequestId,
        /// The decode worker.
        to: WorkerId,
    },
    /// Turn the request away; it is forgotten.
    Refuse {
        /// The request.
        id: RequestId,
        /// Why.
        why: Refusal,
    },
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Queued,
    /// Its prompt is computed at a worker, by which it is kept or (`whole`) continued.
    Prefilling {
        at: WorkerId,
        whole: bool,
        since: Nanos,
    },
    /// Its KV is at a worker and no other has room for it.
    Held {
        at: WorkerId,
        since: Nanos,
    },
    /// A worker fetches its KV from another one.
    Handing {
        from: WorkerId,
        to: WorkerId,
    },
    Decoding {
        at: WorkerId,
    },
}

#[derive(Clone, Debug)]
struct Request {
    ask: Ask,
    state: State,
    arrived: Nanos,
    /// Tokens that its prefill has to compute where it was sent.
    fresh_tokens: usize,
    /// Workers at which it failed.
    failed_at: BTreeSet<WorkerId>,
    retries: u32,
    /// While its prompt is computed: the decode worker that fetches it meanwhile.
    ahead: Option<WorkerId>,
}

/// The router.
#[derive(Clone, Debug)]
pub struct Router {
    config: RouterConfig,
    workers: BTreeMap<WorkerId, Worker>,
    index: KvIndex,
    requests: BTreeMap<RequestId, Request>,
    queue: VecDeque<RequestId>,
    held: VecDeque<RequestId>,
    out: VecDeque<Command>,
    predictor: Predictor,
    /// The worker chosen last, for prefill and for decode.
    last: [Option<WorkerId>; 2],
    rng: Stream,
    stats: Stats,
}

impl Router {
    /// A router without workers.
    ///
    /// # Errors
    /// When a rule of `config` is out of range.
    pub fn new(config: RouterConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Router {
            workers: BTreeMap::new(),
            index: KvIndex::new(
                config.max_staleness_ns,
                config.predicted_ttl_ns,
                config.max_known_blocks,
            ),
            requests: BTreeMap::new(),
            queue: VecDeque::new(),
            held: VecDeque::new(),
            out: VecDeque::new(),
            predictor: Predictor::new(config.prefill_ns_per_token),
            last: [None; 2],
            rng: Stream::new(config.seed, "router choices"),
            stats: Stats::default(),
            config,
        })
    }

    /// Adds a worker, which is believed to answer.
    pub fn add_worker(&mut self, spec: WorkerSpec) -> WorkerId {
        assert!(spec.block_size > 0, "a block holds at least one token");
        let id = WorkerId(self.workers.len() as u32);
        self.workers.insert(id, Worker::new(spec));
        id
    }

    /// Takes over what has become known of a worker. Its pool stays. False when that is something
    /// else than before and the worker has requests, whose accounts depend on it: nothing changes.
    pub fn set_spec(&mut self, id: WorkerId, spec: WorkerSpec) -> bool {
        let worker = self.worker_mut(id);
        let home = worker.spec.home;
        let spec = WorkerSpec { home, ..spec };
        let may = worker.spec == spec || worker.load.requests() == 0;
        if may {
            worker.spec = spec;
        }
        may
    }

    /// Sets whether a worker answers. One that does not has lost its cache, as far as is known; its
    /// requests fail one by one, each when its own connection shows it.
    pub fn set_up(&mut self, now: Nanos, id: WorkerId, up: bool) {
        let was = std::mem::replace(&mut self.worker_mut(id).up, up);
        if was && !up {
            self.index.forget(id);
        }
        self.advance(now);
    }

    /// Takes in events of a worker's cache.
    pub fn read_events(&mut self, now: Nanos, id: WorkerId, page: &EventPage) -> Intake {
        self.index.read(now, id, page)
    }

    /// The number to ask a worker's events from.
    pub fn next_event(&self, id: WorkerId) -> u64 {
        self.index.next_seq(id)
    }

    /// A request has come. Panics when its id is in use.
    pub fn arrive(&mut self, now: Nanos, id: RequestId, ask: Ask) {
        self.stats.arrived += 1;
        if let Some(why) = self.hopeless(now, &ask) {
            self.refuse(id, why);
            return;
        }
        let request = Request {
            ask,
            state: State::Queued,
            arrived: now,
            fresh_tokens: 0,
            failed_at: BTreeSet::new(),
            retries: 0,
            ahead: None,
        };
        let before = self.requests.insert(id, request);
        assert!(before.is_none(), "request {id} is here already");
        self.queue.push_back(id);
        self.advance(now);
        // What starts at once has not waited.
        if self.queue.len() > self.config.queue_max && self.queue.back() == Some(&id) {
            self.queue.pop_back();
            self.requests.remove(&id);
            self.refuse(id, Refusal::QueueFull);
        }
    }

    /// The first token of a request has come.
    pub fn prefilled(&mut self, now: Nanos, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let State::Prefilling { at, whole, since } = request.state else {
            return;
        };
        request.state = if whole {
            State::Decoding { at }
        } else {
            State::Held { at, since: now }
        };
        let (fresh, ask) = (request.fresh_tokens, request.ask.clone());
        let ahead = self.end_ahead(id);
        let worker = self.worker_mut(at);
        worker.load.prefills -= 1;
        worker.load.prefill_tokens -= fresh;
        if whole {
            worker.load.decodes += 1;
        } else {
            worker.load.kept += 1;
            match ahead {
                // It has the place that it had before.
                Some(to) => self.hand_to(id, at, to),
                None => self.held.push_back(id),
            }
        }
        let names = ask.names_of(&self.workers[&at].spec).to_vec();
        self.index.predict(now, at, &names);
        self.predictor.observe(at, since, now, fresh);
        self.advance(now);
    }

    /// The decode worker of a handed request has its KV.
    pub fn fetched(&mut self, now: Nanos, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let State::Handing { from, to } = request.state else {
            return;
        };
        request.state = State::Decoding { at: to };
        let ask = request.ask.clone();
        let worker = self.worker_mut(from);
        worker.load.kept -= 1;
        worker.load.blocks.remove(&ask, &worker.spec);
        let names = ask.names_of(&self.workers[&to].spec).to_vec();
        self.index.predict(now, to, &names);
        self.advance(now);
    }

    /// A request has ended. Of one that is not known nothing happens: it was refused.
    pub fn ended(&mut self, now: Nanos, id: RequestId, outcome: Outcome) {
        if self.requests.contains_key(&id) {
            self.release(id);
            self.requests.remove(&id);
            self.stats.ended(outcome);
            self.advance(now);
        }
    }

    /// A request failed at a worker and the client has seen nothing of it. True when it starts
    /// again, elsewhere if there is another; else it has failed for good.
    pub fn retry(&mut self, now: Nanos, id: RequestId, at: WorkerId) -> bool {
        let most = self.config.max_retries;
        let again = self.requests.get(&id).is_some_and(|r| r.retries < most);
        if !again {
            self.ended(now, id, Outcome::Failed);
            return false;
        }
        self.release(id);
        let request = self.request_mut(id);
        request.retries += 1;
        request.failed_at.insert(at);
        request.state = State::Queued;
        self.stats.retries += 1;
        // It was let in once; the bound of the queue is for those that were not.
        self.queue.push_front(id);
        self.advance(now);
        true
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Command> {
        self.out.pop_front()
    }

    /// Does what time alone brings: see [`Router::next_deadline`].
    pub fn tick(&mut self, now: Nanos) {
        self.advance(now);
    }

    /// When [`Router::tick`] has something to do, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let queued = self.queue.front().map(|id| {
            let request = &self.requests[id];
            request.arrived + self.config.queue_timeout_ns
        });
        let held = self.held.front().and_then(|id| self.held_until(*id));
        queued.into_iter().chain(held).min()
    }

    /// Counts since the start.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Requests that wait for a worker, and computed ones that wait for a decode worker.
    pub fn waiting(&self) -> (usize, usize) {
        (self.queue.len(), self.held.len())
    }

    /// Requests that have not ended.
    pub fn live(&self) -> usize {
        self.requests.len()
    }

    /// How often `id` was started again.
    pub fn retries_of(&self, id: RequestId) -> u32 {
        self.requests.get(&id).map_or(0, |request| request.retries)
    }

    /// Each worker's account.
    pub fn workers(&self) -> Vec<WorkerView> {
        let view = |(&id, worker): (&WorkerId, &Worker)| WorkerView {
            id,
            home: worker.spec.home,
            pool: worker.pool,
            up: worker.up,
            prefills: worker.load.prefills,
            prefill_tokens: worker.load.prefill_tokens,
            kept: worker.load.kept,
            decodes: worker.load.decodes,
            blocks: worker.load.blocks.count(),
            known_blocks: self.index.blocks(id),
        };
        self.workers.iter().map(view).collect()
    }

    /// Whether a request that comes now could be served.
    pub fn can_serve(&self) -> bool {
        let any = |f: fn(&Worker) -> bool| self.workers.values().any(f);
        any(Worker::decodes) && (!self.config.enforce_disaggregation || any(Worker::prefills))
    }

    fn worker_mut(&mut self, id: WorkerId) -> &mut Worker {
        // OK because ids come from `add_worker` and workers are never taken away.
        self.workers.get_mut(&id).expect("a worker of this router")
    }

    fn request_mut(&mut self, id: RequestId) -> &mut Request {
        // OK because the callers have just seen it.
        self.requests
            .get_mut(&id)
            .expect("a request of this router")
    }

    fn refuse(&mut self, id: RequestId, why: Refusal) {
        self.stats.refused(why);
        self.out.push_back(Command::Refuse { id, why });
    }

    /// Until when a computed request waits for room. With no decode worker that answers room is not
    /// what it waits for, and it may wait as long as one that is queued.
    fn held_until(&self, id: RequestId) -> Option<Nanos> {
        let request = &self.requests[&id];
        let State::Held { at, since } = request.state else {
            return None;
        };
        let mut others = self.workers.iter().filter(|(id, _)| **id != at);
        Some(match others.any(|(_, worker)| worker.decodes()) {
            true => since + self.config.hold_max_ns,
            false => request.arrived + self.config.queue_timeout_ns,
        })
    }

    /// Does all that can be done now, first come first served.
    fn advance(&mut self, now: Nanos) {
        self.send_home();
        while let Some(&id) = self.held.front() {
            let over = self.held_until(id).is_some_and(|until| now >= until);
            if !self.hand(now, id, over) {
                break;
            }
        }
        while let Some(&id) = self.queue.front() {
            if now >= self.requests[&id].arrived + self.config.queue_timeout_ns {
                self.queue.pop_front();
                self.requests.remove(&id);
                let why = if self.can_serve() {
                    Refusal::Waited
                } else {
                    Refusal::NoWorker
                };
                self.refuse(id, why);
            } else if !self.start(now, id) {
                break;
            }
        }
    }

    /// Gives the first of the queue to a worker; false when none may have it.
    fn start(&mut self, now: Nanos, id: RequestId) -> bool {
        let request = self.requests[&id].clone();
        let Some(route) = self.route(now, &request) else {
            return false;
        };
        self.queue.pop_front();
        self.last[usize::from(route.whole)] = Some(route.at);
        let ask = &request.ask;
        let fresh = self.fresh_tokens(ask, route.at, route.overlap_blocks);
        let overlap_tokens = ask.prompt_tokens - fresh;
        let worker = self.worker_mut(route.at);
        worker.load.prefills += 1;
        worker.load.prefill_tokens += fresh;
        worker.load.blocks.add(ask, &worker.spec);
        let ahead = self.begin_ahead(now, id, &route);
        let stored = self.request_mut(id);
        stored.fresh_tokens = fresh;
        stored.state = State::Prefilling {
            at: route.at,
            whole: route.whole,
            since: now,
        };
        *if route.whole {
            &mut self.stats.whole
        } else {
            &mut self.stats.split
        } += 1;
        self.stats.local_prefill += u64::from(route.local);
        self.stats.prompt_tokens += ask.prompt_tokens as u64;
        self.stats.overlap_tokens += overlap_tokens as u64;
        self.out.push_back(Command::Start {
            id,
            at: route.at,
            whole: route.whole,
            overlap_tokens,
            ahead,
        });
        true
    }

    /// Gives the first held request to a decode worker, to one without room if `regardless`; false
    /// when it must wait.
    fn hand(&mut self, now: Nanos, id: RequestId, regardless: bool) -> bool {
        let request = self.requests[&id].clone();
        let State::Held { at: from, .. } = request.state else {
            unreachable!("only held requests are in the list");
        };
        let with_room = self.decode_for(now, &request, from, false);
        let with_room = with_room.or_else(|| self.decode_past_ahead(now, &request, from));
        let to = match with_room {
            Some(to) => to,
            None if !regardless => return false,
            None => match self.decode_for(now, &request, from, true) {
                Some(to) => to,
                None => {
                    self.release(id);
                    self.requests.remove(&id);
                    self.refuse(id, Refusal::NoWorker);
                    return true;
                }
            },
        };
        self.held.pop_front();
        self.last[1] = Some(to);
        self.stats.handed_without_room += u64::from(with_room.is_none());
        self.hand_to(id, from, to);
        true
    }

    /// Gives a request whose KV is at `from` to a decode worker.
    fn hand_to(&mut self, id: RequestId, from: WorkerId, to: WorkerId) {
        let ask = self.requests[&id].ask.clone();
        let worker = self.worker_mut(to);
        worker.load.decodes += 1;
        worker.load.blocks.add(&ask, &worker.spec);
        self.request_mut(id).state = State::Handing { from, to };
        self.stats.handed += 1;
        self.out.push_back(Command::Hand { id, to });
    }
}
