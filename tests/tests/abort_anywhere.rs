//! Aborting any request in any state, requests that can never run, and the end of every load.
//!
//! An engine is asked between steps, so what can be aborted is what exists there: a request that
//! waits, is in the middle of its prompt, decodes, was preempted, is swapped out, waits behind
//! the request whose prompt it shares, or has just been loaded from a tier (a load is complete
//! within the step that admits, so no request is ever half loaded between two steps).
//!
//! The model is the toy of `pb_core::toy`, whose tokens tell any wrong, stale or lost block.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, ensure};
use pb_contract::{
    EngineConfig, EngineRequest, Fault, Numerics, PolicyKind, Preemption, PrefixCacheKind,
    QueueOrder, RequestId, Stream, VirtualClock,
};
use pb_core::{AdapterInfo, AdmitError, Engine, EngineSpec, RequestState, StepOutput, ToyExecutor};
use pb_tests::engine::greedy;
use pb_tests::load::{self, Arrival, Service, Shape, Tokens};

const VOCAB: usize = 61;
const BLOCK: usize = 4;
const MAX_LEN: usize = 64;
const MAX_STEPS: usize = 20_000;

const CACHES: [PrefixCacheKind; 4] = [
    PrefixCacheKind::None,
    PrefixCacheKind::HashChain,
    PrefixCacheKind::Radix,
    PrefixCacheKind::Oracle,
];

/// Policies, prefill first with SGLang's reservation and retraction as well.
const POLICIES: [(PolicyKind, bool); 8] = [
    (PolicyKind::Monolithic, false),
    (PolicyKind::DecodePriorityMonolithic, false),
    (PolicyKind::PrefillFirst, false),
    (PolicyKind::PrefillFirst, true),
    (PolicyKind::TokenBudget, false),
    (PolicyKind::AdaptiveLoad, false),
    (PolicyKind::Shrinking, false),
    (PolicyKind::TimeBudget, false),
];

fn configurations() -> impl Iterator<Item = EngineConfig> {
    CACHES.into_iter().flat_map(|cache| {
        POLICIES.into_iter().map(move |(policy, reserved)| {
            let monolithic = matches!(
                policy,
                PolicyKind::Monolithic | PolicyKind::DecodePriorityMonolithic
            );
            let mut config = EngineConfig {
                chunked: !monolithic,
                max_batched_tokens: if monolithic { MAX_LEN } else { 9 },
                max_num_seqs: 5,
                block_size: BLOCK,
                prefix_cache: cache,
                ..pb_tests::engine::config(Numerics::Exact, 18, MAX_LEN)
            };
            let s = &mut config.scheduling;
            s.policy = policy;
            s.reserved_decode.enabled = reserved;
            s.reserved_decode.conservativeness = 0.05;
            s.adaptive_load.max_chunk = 8;
            s.adaptive_load.min_chunk = 2;
            s.adaptive_load.base = 4;
            s.shrinking.high = 8;
            s.shrinking.low = 2;
            s.time_budget.min_chunk = 3;
            // Room for one swapped request, so that others are preempted without.
            s.preemption = Preemption::Swap;
            s.swap_blocks = 9;
            config.tiers.host_bytes = 1 << 12;
            config
        })
    })
}

fn spec() -> EngineSpec {
    let adapter = |name: &str, byte| AdapterInfo {
        name: name.to_owned(),
        digest: [byte; 32],
    };
    EngineSpec {
        adapters: vec![adapter("poet", 1), adapter("clerk", 2)],
        ..EngineSpec::simulated(VOCAB, MAX_LEN)
    }
}

fn toy(config: EngineConfig) -> Engine {
    Engine::new(config, spec(), Box::new(ToyExecutor::new(VOCAB))).unwrap()
}

fn shape(requests: usize) -> Shape {
    Shape {
        requests,
        vocab: VOCAB,
        max_prompt: 30,
        max_tokens: 16,
        max_gap: 2,
        adapters: &["poet", "clerk"],
    }
}

/// What each request of a load gives alone, in one piece and without a cache.
fn alone(arrivals: &[Arrival]) -> Tokens {
    let config = EngineConfig {
        block_size: BLOCK,
        ..pb_tests::engine::config(Numerics::Exact, MAX_LEN, MAX_LEN)
    };
    load::alone(&mut toy(config), arrivals).unwrap()
}

/// Where a request was when it was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Waiting,
    MidChunk,
    Decode,
    Preempted,
    Swapped,
    Follower,
    /// Others wait behind it.
    Leader,
    /// The step before admitted it with blocks from a tier.
    Loaded,
}

/// Where `request` is after the step `last`.
fn places(
    engine: &Engine,
    request: &EngineRequest,
    last: Option<&StepOutput>,
) -> Option<BTreeSet<Place>> {
    let progress = engine.progress(request.id)?;
    let mut places = BTreeSet::new();
    places.insert(match progress.state {
        RequestState::Waiting => Place::Waiting,
        RequestState::Running if progress.computed < request.prompt.len() => Place::MidChunk,
        RequestState::Running => Place::Decode,
        RequestState::Preempted => Place::Preempted,
        RequestState::Swapped => Place::Swapped,
        RequestState::Forking => Place::Follower,
    });
    if let Some(step) = last.filter(|step| step.row.host_hit_tokens > 0) {
        let mut admitted = step.scheduled.iter().filter(|s| s.hit_tokens.is_some());
        if admitted.next().is_some_and(|s| s.id == request.id) && admitted.next().is_none() {
            places.insert(Place::Loaded);
        }
    }
    Some(places)
}

/// Whether somebody waits behind `id`.
fn leads(engine: &Engine, id: RequestId, arrivals: &[Arrival]) -> bool {
    arrivals.iter().any(|a| {
        let state = engine.progress(a.request.id).map(|p| p.state);
        a.request.fork_of == Some(id) && state == Some(RequestState::Forking)
    })
}

/// Checks what must hold as soon as `id` is aborted: it holds nothing, and every referenced
/// block belongs to a request that runs.
fn assert_gone(engine: &Engine, id: RequestId) -> Result<()> {
    ensure!(engine.progress(id).is_none(), "request {id} is still known");
    ensure!(
        engine.block_table(id).is_empty(),
        "request {id} holds blocks"
    );
    let tables = engine.running().iter().map(|&r| engine.block_table(r));
    let referenced: BTreeSet<u32> = tables.flatten().map(|block| block.0).collect();
    let (active, held) = (engine.buckets().active, referenced.len());
    ensure!(active == held, "{active} active blocks, {held} in tables");
    engine
        .check()
        .map_err(|law| anyhow!("after the abort: {law}"))
}

/// Serves the load, aborting `victim` before the step `at`, and gives where the victim was.
fn abort_once(
    config: &EngineConfig,
    arrivals: &[Arrival],
    want: &Tokens,
    victim: &EngineRequest,
    at: usize,
) -> Result<BTreeSet<Place>> {
    let (clock, mut engine) = (VirtualClock::new(), toy(config.clone()));
    let mut service = Service::new(arrivals);
    let mut last = None;
    while service.at < at {
        service.arrive(&mut engine)?;
        last = service.step(&mut engine, &clock)?;
    }
    service.arrive(&mut engine)?;
    let found = places(&engine, victim, last.as_ref());
    let mut found = found.context("the victim is not live")?;
    if leads(&engine, victim.id, arrivals) {
        found.insert(Place::Leader);
    }
    let swapped = engine.counters().swapped_blocks;
    ensure!(engine.abort(victim.id), "abort says that it was not live");
    ensure!(!engine.abort(victim.id), "a second abort finds it again");
    assert_gone(&engine, victim.id)?;
    let gave_back = swapped - engine.counters().swapped_blocks;
    ensure!((gave_back > 0) == found.contains(&Place::Swapped));
    service.finish(&mut engine, &clock, MAX_STEPS)?;
    load::assert_idle(&engine)?;
    let generated = service.tokens.remove(&victim.id).unwrap_or_default();
    ensure!(want[&victim.id].starts_with(&generated));
    let mut others = want.clone();
    others.remove(&victim.id);
    let differences = load::differences(&others, &service.tokens);
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(found)
}

/// Row 25: every request, at every step of its life, under every cache and policy.
#[test]
fn an_abort_in_any_state_gives_everything_back() {
    let arrivals = load::seeded(&shape(14), 4);
    let want = alone(&arrivals);
    let mut seen: BTreeMap<Place, usize> = BTreeMap::new();
    for config in configurations() {
        let mut engine = toy(config.clone());
        let mut all = Service::new(&arrivals);
        all.finish(&mut engine, &VirtualClock::new(), MAX_STEPS)
            .unwrap();
        assert_eq!(all.tokens, want);
        assert!(engine.counters().preemptions > 0, "{config:?}");
        for arrival in &arrivals {
            let victim = &arrival.request;
            for at in arrival.step..all.ended[&victim.id] {
                let found = abort_once(&config, &arrivals, &want, victim, at);
                let found = found
                    .with_context(|| format!("{} before step {at}, {config:?}", victim.id))
                    .unwrap();
                for place in found {
                    *seen.entry(place).or_default() += 1;
                }
            }
        }
    }
    println!("aborted: {seen:?}");
    let all = [
        Place::Waiting,
        Place::MidChunk,
        Place::Decode,
        Place::Preempted,
        Place::Swapped,
        Place::Follower,
        Place::Leader,
        Place::Loaded,
    ];
    let rare: Vec<_> = all.iter().filter(|p| !seen.contains_key(p)).collect();
    assert!(rare.is_empty(), "never aborted: {rare:?}");
}

/// After any step everything is aborted at once: nothing is left but what is pinned.
#[test]
fn aborting_everything_leaves_only_the_pins() {
    let arrivals = load::seeded(&shape(14), 4);
    for config in configurations() {
        let caches = config.prefix_cache != PrefixCacheKind::None;
        let mut pinned = 0;
        for at in 1..30 {
            let (clock, mut engine) = (VirtualClock::new(), toy(config.clone()));
            let mut service = Service::new(&arrivals);
            while service.at < at {
                service.arrive(&mut engine).unwrap();
                service.step(&mut engine, &clock).unwrap();
            }
            // The first request that has a block which can be found.
            let hold = arrivals.iter().find_map(|Arrival { request: r, .. }| {
                let (salt, adapter) = (r.cache_salt.as_deref(), r.adapter.as_deref());
                engine.pin_prefix(&r.prompt, salt, adapter).unwrap()
            });
            let held = hold.map_or(0, |hold| engine.held_table(hold).len());
            pinned += held;
            for Arrival { request, .. } in &arrivals {
                engine.abort(request.id);
                assert_eq!(engine.check(), Ok(()));
            }
            assert!(!engine.has_work());
            let c = engine.counters();
            assert_eq!(engine.buckets().active, held, "{config:?}");
            assert_eq!((c.pinned_blocks, c.swapped_blocks), (held, 0));
            assert!(hold.is_none_or(|hold| engine.unpin(hold)));
            load::assert_idle(&engine).unwrap();
        }
        assert_eq!(pinned > 0, caches, "{config:?}");
    }
}

/// Row 23 and report 23: what could never run is refused when it comes, and changes nothing.
#[test]
fn a_request_that_can_never_fit_is_refused_at_once() {
    for mut config in configurations() {
        config.max_model_len = 200;
        if !config.chunked {
            config.max_batched_tokens = 200;
        }
        for null_block in [false, true] {
            config.cache.null_block = null_block && config.prefix_cache != PrefixCacheKind::None;
            let spec = EngineSpec {
                max_position: 200,
                ..spec()
            };
            let executor = Box::new(ToyExecutor::new(VOCAB));
            let mut engine = Engine::new(config.clone(), spec, executor).unwrap();
            let pool = engine.buckets().total();
            assert_eq!(pool, 18 - usize::from(config.cache.null_block));
            // The last token's keys and values are never computed: one token more fits.
            let fits = pool * BLOCK + 1;
            let request = |id, tokens: usize| {
                let prompt: Vec<u32> = (0..20).map(|t| t + id as u32).collect();
                greedy(id, &prompt, (tokens - 20) as u32)
            };
            let refused = engine.add(request(0, fits + 1)).unwrap_err();
            let never = AdmitError::NeverFits {
                needed_blocks: pool + 1,
                pool_blocks: pool,
            };
            assert_eq!(refused, never);
            assert!(!engine.has_work());
            load::assert_idle(&engine).unwrap();
            let two = [request(1, fits), request(2, fits)];
            let two = two.map(|request| Arrival { step: 0, request });
            let mut service = Service::new(&two);
            service
                .finish(&mut engine, &VirtualClock::new(), MAX_STEPS)
                .unwrap();
            assert!(service.tokens.values().all(|t| t.len() == fits - 20));
            load::assert_idle(&engine).unwrap();
        }
    }
}

/// What of a load its bound of steps depends on.
struct Size {
    requests: usize,
    last_arrival: usize,
    /// Prompt and generated tokens of all requests.
    tokens: usize,
    /// Generated tokens of all requests.
    generated: usize,
    /// Prompt and generated tokens of the longest request.
    longest: usize,
    /// Generated tokens of the longest output.
    most_generated: usize,
}

impl Size {
    fn of(arrivals: &[Arrival]) -> Size {
        let output = |a: &Arrival| a.request.sampling.max_tokens as usize;
        let length = |a: &Arrival| a.request.prompt.len() + output(a);
        Size {
            requests: arrivals.len(),
            last_arrival: arrivals.iter().map(|a| a.step).max().unwrap_or(0),
            tokens: arrivals.iter().map(length).sum(),
            generated: arrivals.iter().map(output).sum(),
            longest: arrivals.iter().map(length).max().unwrap_or(0),
            most_generated: arrivals.iter().map(output).max().unwrap_or(0),
        }
    }

    /// Steps that a load may take at most; `A` is the step of the last arrival.
    ///
    /// **Victim is the last of the running list** (all but the cases below). The head of that
    /// list never gives way while others run, and alone it fits, because what does not fit alone
    /// is refused. A later admission goes to the end of the list, so the head stays head until
    /// it ends. While its prompt is not complete it gets a token in every step whose budget the
    /// decodes leave a token of; they are served before it for as long as each of them has
    /// tokens to generate, `M` steps at most, since without budget no new decode appears, and
    /// afterwards what is left goes to the head first. While it decodes it gets a token in every
    /// step. So a head with `p + m` tokens ends within `p + m + M` steps, whatever it had
    /// computed before. When no request runs the next one is admitted in the same step. Each
    /// request is head at most once: `A + sum(p + m + M)` steps.
    ///
    /// **Prompts before decodes, or another order of victims.** Generated tokens are never lost,
    /// so at most `sum(m)` steps generate one. Between two of those only prompts advance. Of the
    /// running requests the one that gives way last advances by a token a step at least and ends
    /// its prompt within `L` steps, `L` being the longest request; only the admission of one that
    /// gives way later still can take its place, and that happens once a request at most, as
    /// whoever was pushed out by it cannot come before it again: `R * L` steps. Together
    /// `A + sum(m) * (1 + R * L)`.
    fn bound(&self, config: &EngineConfig) -> usize {
        let s = &config.scheduling;
        let head_stays = s.policy != PolicyKind::PrefillFirst && s.queue != QueueOrder::Priority;
        self.last_arrival
            + match head_stays {
                true => self.tokens + self.requests * self.most_generated,
                false => self.generated * (1 + self.requests * self.longest),
            }
    }
}

/// Row 24: every admissible load ends, and within the bound.
#[test]
fn every_load_ends_within_its_bound() {
    let queues = [
        QueueOrder::Fcfs,
        QueueOrder::Priority,
        QueueOrder::Lpm,
        QueueOrder::DfsWeight,
    ];
    let mut closest: BTreeMap<String, f64> = BTreeMap::new();
    for (number, mut config) in configurations().enumerate() {
        for queue in queues {
            config.scheduling.queue = queue;
            for seed in 0..6 {
                let mut stream = Stream::new(seed + 100 * number as u64, "bound");
                config.scheduling.reserve_full_prompt = stream.below(2) == 0;
                config.scheduling.preemption =
                    [Preemption::Recompute, Preemption::Swap][stream.below(2) as usize];
                config.num_blocks = 13 + stream.below(12) as usize;
                if config.chunked {
                    config.max_batched_tokens = 4 + stream.below(10) as usize;
                }
                let arrivals = load::seeded(&shape(30), seed);
                let mut engine = toy(config.clone());
                let mut service = Service::new(&arrivals);
                let bound = Size::of(&arrivals).bound(&config);
                service
                    .finish(&mut engine, &VirtualClock::new(), bound)
                    .with_context(|| format!("seed {seed}, {config:?}"))
                    .unwrap();
                load::assert_idle(&engine).unwrap();
                let part = service.at as f64 / bound as f64;
                let key = format!("{:?} {queue:?}", config.scheduling.policy);
                let most = closest.entry(key).or_default();
                *most = most.max(part);
            }
        }
    }
    println!("steps as a part of the bound, at most: {closest:.3?}");
}

/// Serves the load and aborts whoever runs after every seventh step, up to step 40.
fn serve_with_aborts(config: EngineConfig, arrivals: &[Arrival]) -> Result<()> {
    let bound = Size::of(arrivals).bound(&config);
    let executor = Box::new(ToyExecutor::new(VOCAB));
    let engine = Engine::new_under_test(config, spec(), executor);
    let mut engine = engine.map_err(|e| anyhow!(e))?;
    let (clock, mut service) = (VirtualClock::new(), Service::new(arrivals));
    while service.at < 40 {
        service.arrive(&mut engine)?;
        service.step(&mut engine, &clock)?;
        if service.at.is_multiple_of(7) {
            for victim in engine.running().to_vec() {
                engine.abort(victim);
                assert_gone(&engine, victim)?;
            }
        }
    }
    service.finish(&mut engine, &clock, bound)?;
    load::assert_idle(&engine)
}

/// The checks of this file are sharp: engines that lose blocks or requests fail them. (An unfair
/// one still ends; the laws of plans in `pb_sched::laws` are for that.)
#[test]
fn engines_that_lose_blocks_or_requests_are_found() {
    let arrivals = load::seeded(&shape(30), 4);
    let passes = |fault: Fault, cache: PrefixCacheKind| {
        let wanted = |c: &EngineConfig| {
            c.prefix_cache == cache && c.scheduling.policy == PolicyKind::TokenBudget
        };
        let config = configurations().find(wanted).unwrap();
        let config = EngineConfig { fault, ..config };
        // An engine that panics on its own broken state is found as well.
        let run = std::panic::AssertUnwindSafe(|| serve_with_aborts(config, &arrivals).is_ok());
        std::panic::catch_unwind(run).unwrap_or(false)
    };
    let (chain, radix) = (PrefixCacheKind::HashChain, PrefixCacheKind::Radix);
    assert!(passes(Fault::None, chain) && passes(Fault::None, radix));
    for (fault, cache) in [
        (Fault::LeakedReference, chain),
        (Fault::LeakedReference, radix),
        (Fault::DoubleFree, chain),
        (Fault::EvictWhileReferenced, chain),
        (Fault::LostOnPreemption, chain),
    ] {
        assert!(!passes(fault, cache), "{fault:?} in {cache:?} is not found");
    }
}
