//! Random lives of requests, against the router's laws.

use std::collections::BTreeMap;
use std::sync::Arc;

use pb_contract::{Nanos, RequestId, Stream};
use pb_kv::BlockHash;
use pb_router::{
    Ask, CacheChange, CacheEvent, Command, EventPage, Outcome, Policy, Pool, PoolParams, Router,
    RouterConfig, WorkerId, WorkerSpec,
};

const SEEDS: u64 = 300;
const STEPS: u64 = 400;

/// What the shell would know of a request.
#[derive(Clone, Copy, Debug)]
enum At {
    Nowhere,
    Prefill(WorkerId, bool),
    Between(WorkerId),
    Fetching(WorkerId),
    Decode(WorkerId),
}

struct Run {
    rng: Stream,
    router: Router,
    now: u64,
    next: u64,
    lives: BTreeMap<RequestId, At>,
    handed: BTreeMap<RequestId, u32>,
    handed_again: u64,
    workers: u64,
}

fn config(rng: &mut Stream) -> RouterConfig {
    let policies = [Policy::RoundRobin, Policy::LeastLoaded, Policy::KvAware];
    let mut config = RouterConfig {
        policy: policies[rng.below(3) as usize],
        queue_max: rng.below(6) as usize,
        max_prefills: 1 + rng.below(3) as usize,
        max_decodes: 1 + rng.below(4) as usize,
        max_retries: rng.below(3) as u32,
        queue_timeout_ns: Nanos(50 + rng.below(300)),
        hold_max_ns: Nanos(10 + rng.below(200)),
        max_staleness_ns: Nanos(100),
        local_prefill_max_tokens: rng.below(2) as usize * 40,
        enforce_disaggregation: rng.below(4) == 0,
        max_known_blocks: 20,
        ..RouterConfig::default()
    };
    config.cost.temperature = rng.below(2) as f64 * 0.5;
    if rng.below(3) == 0 {
        config.slo_ttft_ns = Some(Nanos(400));
    }
    if rng.below(3) == 0 {
        config.pools = Some(PoolParams {
            prefill_max_pending_tokens: 60,
            decode_max_pending_tokens: 2,
        });
    }
    config
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Stream::new(seed, "schedule");
        let mut router = Router::new(config(&mut rng)).unwrap();
        let workers = 1 + rng.below(5);
        for _ in 0..workers {
            let pools = [Pool::Prefill, Pool::Decode, Pool::Mixed];
            router.add_worker(WorkerSpec {
                flexible: rng.below(2) == 0,
                stream_min_tokens: (rng.below(2) == 0).then_some(30),
                blocks_total: (rng.below(2) == 0).then_some(12),
                ..WorkerSpec::new(pools[rng.below(3) as usize], 16)
            });
        }
        Run {
            rng,
            router,
            now: 0,
            next: 0,
            lives: BTreeMap::new(),
            handed: BTreeMap::new(),
            handed_again: 0,
            workers,
        }
    }

    fn ask(&mut self) -> Ask {
        let tokens = 1 + self.rng.below(120) as usize;
        let family = self.rng.below(3) as u8;
        let names: Vec<BlockHash> = (0..tokens / 16)
            .map(|n| BlockHash([family * 20 + n as u8; 32]))
            .collect();
        Ask {
            prompt_tokens: tokens,
            names: if self.rng.below(5) == 0 {
                Vec::new()
            } else {
                vec![Arc::from(names)]
            },
            splittable: self.rng.below(5) > 0,
        }
    }

    fn obey(&mut self) {
        while let Some(command) = self.router.poll() {
            match command {
                Command::Start { id, at, whole, .. } => {
                    let before = self.lives.insert(id, At::Prefill(at, whole));
                    assert!(matches!(before, Some(At::Nowhere)), "{id} started twice");
                }
                Command::Hand { id, to } => {
                    let before = self.lives.insert(id, At::Fetching(to));
                    assert!(matches!(before, Some(At::Between(_))), "{id}: {before:?}");
                    *self.handed.entry(id).or_default() += 1;
                }
                Command::Refuse { id, .. } => {
                    assert!(self.lives.remove(&id).is_some(), "{id} is told twice");
                }
            }
        }
    }

    /// Something happens to a request that is under way.
    fn live_on(&mut self) {
        let ids: Vec<RequestId> = self.lives.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.rng.below(ids.len() as u64) as usize];
        let (now, fate) = (Nanos(self.now), self.rng.below(12));
        if fate == 0 {
            self.lives.remove(&id);
            self.router.ended(now, id, Outcome::Cancelled);
            return;
        }
        let here = match self.lives[&id] {
            At::Nowhere => return,
            At::Prefill(at, _) | At::Between(at) | At::Fetching(at) | At::Decode(at) => at,
        };
        if fate == 1 {
            self.lives.insert(id, At::Nowhere);
            if !self.router.retry(now, id, here) {
                self.lives.remove(&id);
            }
            return;
        }
        match self.lives[&id] {
            At::Nowhere => {}
            At::Prefill(at, whole) => {
                let next = if whole {
                    At::Decode(at)
                } else {
                    At::Between(at)
                };
                self.lives.insert(id, next);
                self.router.prefilled(now, id);
            }
            At::Between(_) => {}
            At::Fetching(to) if fate == 2 => {
                // Whether it still may is the router's to say; if not, it goes on as it was.
                self.lives.insert(id, At::Between(to));
                if self.router.hand_again(now, id, to) {
                    self.handed_again += 1;
                } else {
                    self.lives.insert(id, At::Fetching(to));
                }
            }
            At::Fetching(to) => {
                self.lives.insert(id, At::Decode(to));
                self.router.fetched(now, id);
            }
            At::Decode(_) => {
                self.lives.remove(&id);
                self.router.ended(now, id, Outcome::Completed);
            }
        }
    }

    fn events(&mut self) {
        let worker = WorkerId(self.rng.below(self.workers) as u32);
        let seq = self.router.next_event(worker) + self.rng.below(3) / 2;
        let names = (0..self.rng.below(4)).map(|n| BlockHash([n as u8; 32]));
        let change = match self.rng.below(3) {
            0 => CacheChange::Stored(names.collect()),
            1 => CacheChange::Removed(names.collect()),
            _ => CacheChange::Cleared,
        };
        let page = EventPage {
            engine: self.rng.below(2).to_string(),
            oldest_seq: seq,
            next_seq: seq + 1,
            events: vec![CacheEvent { seq, change }],
        };
        self.router.read_events(Nanos(self.now), worker, &page);
    }

    fn step(&mut self) {
        self.now += self.rng.below(10);
        match self.rng.below(10) {
            0..=2 => {
                let (id, ask) = (RequestId(self.next), self.ask());
                self.next += 1;
                self.lives.insert(id, At::Nowhere);
                self.router.arrive(Nanos(self.now), id, ask);
            }
            3 => {
                let worker = WorkerId(self.rng.below(self.workers) as u32);
                let up = self.rng.below(3) > 0;
                self.router.set_up(Nanos(self.now), worker, up);
            }
            4 => self.events(),
            5 => self.router.tick(Nanos(self.now)),
            _ => self.live_on(),
        }
        self.obey();
    }

    /// Lets everything come to its end.
    fn drain(&mut self) {
        for worker in 0..self.workers {
            let worker = WorkerId(worker as u32);
            self.router.set_up(Nanos(self.now), worker, true);
        }
        self.obey();
        let mut rounds = 0;
        while !self.lives.is_empty() {
            rounds += 1;
            assert!(rounds < 100_000, "it does not drain: {:?}", self.lives);
            self.live_on();
            self.now += 1;
            self.router.tick(Nanos(self.now));
            self.obey();
        }
    }
}

#[test]
fn no_request_is_lost_and_no_account_is_wrong() {
    let mut total = pb_router::Stats::default();
    let mut handed_again = 0;
    for seed in 0..SEEDS {
        let mut run = Run::new(seed);
        for step in 0..STEPS {
            run.step();
            let law = run.router.check();
            assert_eq!(law, Ok(()), "seed {seed}, step {step}");
        }
        run.drain();
        assert_eq!(run.router.check(), Ok(()), "seed {seed}");
        assert_eq!(run.router.live(), 0, "seed {seed}");
        let stats = *run.router.stats();
        assert_eq!(stats.arrived, stats.all_ended(), "seed {seed}");
        for view in run.router.workers() {
            let left = view.prefills + view.prefill_tokens + view.kept + view.decodes + view.blocks;
            assert_eq!(left, 0, "seed {seed}: {view:?}");
        }
        handed_again += run.handed_again;
        total.completed += stats.completed;
        total.retries += stats.retries;
        total.handed += stats.handed;
        total.ahead += stats.ahead;
        total.handed_without_room += stats.handed_without_room;
        total.refused_queue_full += stats.refused_queue_full;
        total.refused_waited += stats.refused_waited;
        total.refused_early += stats.refused_early;
        total.refused_no_worker += stats.refused_no_worker;
        total.local_prefill += stats.local_prefill;
        total.pool_moves += stats.pool_moves;
        total.pool_returns += stats.pool_returns;
        total.cancelled += stats.cancelled;
        total.failed += stats.failed;
    }
    // A schedule that never comes to a rule says nothing about it.
    for (name, count) in [
        ("completed", total.completed),
        ("retries", total.retries),
        ("handed", total.handed),
        ("ahead", total.ahead),
        ("handed_without_room", total.handed_without_room),
        ("handed again", handed_again),
        ("queue full", total.refused_queue_full),
        ("waited", total.refused_waited),
        ("early", total.refused_early),
        ("no worker", total.refused_no_worker),
        ("local prefill", total.local_prefill),
        ("pool moves", total.pool_moves),
        ("pool returns", total.pool_returns),
        ("cancelled", total.cancelled),
        ("failed", total.failed),
    ] {
        assert!(count >= 20, "{name}: {count}");
    }
}

#[test]
fn the_same_seed_gives_the_same_life() {
    let life = |seed| {
        let mut run = Run::new(seed);
        let mut log = String::new();
        for _ in 0..STEPS {
            run.step();
            log += &format!("{:?}\n", run.lives);
        }
        log
    };
    assert_eq!(life(5), life(5));
    assert_ne!(life(5), life(6));
}
