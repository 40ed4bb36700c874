//! Random loads that give every fault of cache and scheduler its occasion.
//!
//! Prompts are made of a few segments, so that prefixes, whole prompts and single blocks recur;
//! pools are too small for all, so that blocks are evicted and requests preempted; some requests
//! fork, and some belong to other adapters and tenants.

use anyhow::{Result, anyhow};
use pb_contract::{
    EngineConfig, EngineRequest, Fault, PolicyKind, PrefixCacheKind, QueueOrder, RunningOrder,
    Scheduling, Stream,
};

use super::play::{Load, Seat, Watch, play};
use super::toy::{config, greedy, prompt, seeded};
use super::watch::{Conservation, HitBound, Liveness, PlanLaws, Recount, SoloOutputs};
use super::{Check, Outcome, Row, caught_panic};

/// Random loads for each kind of cache.
const RANDOM_LOADS: u64 = 30;

/// Requests of one load.
const REQUESTS: u64 = 24;

/// Tokens of a segment: whole blocks of every size that is drawn.
const SEGMENT: usize = 20;

const KINDS: [(PrefixCacheKind, &str); 2] = [
    (PrefixCacheKind::HashChain, "hash chain"),
    (PrefixCacheKind::Radix, "radix"),
];

fn pick<T: Copy>(stream: &mut Stream, items: &[T]) -> T {
    items[stream.below(items.len() as u64) as usize]
}

fn draw_config(stream: &mut Stream, cache: PrefixCacheKind, fault: Fault) -> EngineConfig {
    let block_size = pick(stream, &[2, 4, 5]);
    let num_blocks = pick(stream, &[100, 120, 180]) / block_size;
    let mut config = config(block_size, num_blocks, fault);
    config.prefix_cache = cache;
    config.max_batched_tokens = pick(stream, &[7, 11, 17, 48]);
    config.max_num_seqs = pick(stream, &[3, 5]);
    let s = &mut config.scheduling;
    s.policy = pick(
        stream,
        &[
            PolicyKind::TokenBudget,
            PolicyKind::TokenBudget,
            PolicyKind::TokenBudget,
            PolicyKind::PrefillFirst,
        ],
    );
    s.running_order = pick(
        stream,
        &[RunningOrder::DecodeFirst, RunningOrder::ListOrder],
    );
    // By priority, requests lose their blocks that were served before in the same step.
    s.queue = pick(stream, &[QueueOrder::Fcfs, QueueOrder::Priority]);
    // Leaves tokens to others while a long prompt is computed.
    s.long_prefill_token_threshold = pick(stream, &[0, 6]);
    s.reserve_full_prompt = stream.below(2) == 0;
    s.mixed_chunk = s.policy == PolicyKind::PrefillFirst && stream.below(2) == 0;
    config
}

fn draw_request(stream: &mut Stream, id: u64, before: Option<&EngineRequest>) -> EngineRequest {
    let segments = 1 + stream.below(3);
    let mut tokens = Vec::new();
    for _ in 0..segments {
        tokens.extend(prompt(&format!("segment {}", stream.below(3)), SEGMENT));
    }
    // Half of the prompts end within a block.
    let cut = stream.below(2) * stream.below(SEGMENT as u64);
    tokens.truncate(tokens.len() - cut as usize);
    let max_tokens = 1 + stream.below(24) as u32;
    let mut request = match stream.below(2) {
        0 => greedy(id, &tokens, max_tokens),
        _ => seeded(id, &tokens, max_tokens, id),
    };
    request.adapter = pick(stream, &[None, None, None, Some("a"), Some("b")]).map(str::to_owned);
    request.cache_salt = pick(stream, &[None, None, None, Some("s")]).map(str::to_owned);
    request.priority = stream.below(3) as i64;
    if let Some(before) = before.filter(|_| stream.below(4) == 0) {
        request.prompt.clone_from(&before.prompt);
        request.adapter.clone_from(&before.adapter);
        request.cache_salt.clone_from(&before.cache_salt);
        request.fork_of = Some(before.id);
    }
    request
}

fn random(seed: u64, (cache, name): (PrefixCacheKind, &str), fault: Fault) -> Load {
    let mut stream = Stream::new(seed, "mutation load");
    let config = draw_config(&mut stream, cache, fault);
    let concurrency = pick(&mut stream, &[2, 4, 7]);
    let mut requests: Vec<EngineRequest> = Vec::new();
    for id in 0..REQUESTS {
        let leader = requests.last().filter(|r| r.fork_of.is_none());
        let request = draw_request(&mut stream, id, leader);
        requests.push(request);
    }
    Load {
        name: format!("{name} {seed}"),
        config,
        concurrency,
        requests,
    }
}

/// A queue that is never empty for longer than a request may wait.
fn crowd((cache, name): (PrefixCacheKind, &str), fault: Fault) -> Load {
    let mut config = config(4, 64, fault);
    config.prefix_cache = cache;
    config.max_num_seqs = 3;
    let requests = (0..150).map(|id| greedy(id, &prompt(&format!("crowd {id}"), 9), 12));
    Load {
        name: format!("{name} crowd"),
        config,
        concurrency: 6,
        requests: requests.collect(),
    }
}

/// Two requests of which each fits the pool alone: one is preempted again and again.
fn squeeze((cache, name): (PrefixCacheKind, &str), fault: Fault) -> Load {
    let mut config = config(4, 12, fault);
    config.prefix_cache = cache;
    let requests = (0..4).map(|id| greedy(id, &prompt(&format!("squeeze {id}"), 12), 30));
    Load {
        name: format!("{name} squeeze"),
        config,
        concurrency: 2,
        requests: requests.collect(),
    }
}

/// A chunk of a long prompt is planned, and its blocks are named, before an urgent decode of the
/// same step takes one of them away. The urgent request ends there, so that the long one returns
/// at once and finds what it has left.
fn usurper((cache, name): (PrefixCacheKind, &str), fault: Fault) -> Load {
    let mut config = config(4, 8, fault);
    config.prefix_cache = cache;
    config.max_batched_tokens = 24;
    config.scheduling = Scheduling {
        queue: QueueOrder::Priority,
        running_order: RunningOrder::ListOrder,
        reserve_full_prompt: false,
        long_prefill_token_threshold: 8,
        ..config.scheduling
    };
    let request = |id: u64, length, max_tokens, priority| EngineRequest {
        priority,
        ..greedy(id, &prompt(&format!("usurper {id}"), length), max_tokens)
    };
    Load {
        name: format!("{name} usurper"),
        config,
        concurrency: 2,
        // The first only lets the second start before the third comes.
        requests: vec![
            request(0, 4, 1, 0),
            request(1, 28, 4, 1),
            request(2, 8, 2, 0),
        ],
    }
}

/// Every load, with a fault planted.
pub fn all(fault: Fault) -> Vec<Load> {
    let mut loads = Vec::new();
    for kind in KINDS {
        loads.extend([crowd, squeeze, usurper].map(|load| load(kind, fault)));
        loads.extend((0..RANDOM_LOADS).map(|seed| random(seed, kind, fault)));
    }
    loads
}

/// The watchers of a load with the checks that they stand for.
fn watchers() -> Vec<(Check, Box<dyn Watch>)> {
    vec![
        (Check::Conservation, Box::new(Conservation)),
        (Check::PlanLaws, Box::new(PlanLaws::default())),
        (Check::HitBound, Box::new(HitBound::default())),
        (Check::Counters, Box::new(Recount::default())),
        (Check::Liveness, Box::new(Liveness)),
        (Check::SoloOutputs, Box::new(SoloOutputs)),
    ]
}

/// What the watchers say of a fault: the first objection of each, over all loads.
///
/// # Errors
/// An engine cannot be built or a step fails.
pub fn observe(fault: Fault) -> Result<Row> {
    let open = |(check, _): (Check, Box<dyn Watch>)| (check, Outcome::of(Ok(())));
    let mut row: Row = watchers().into_iter().map(open).collect();
    row.insert(Check::Assertions, Outcome::of(Ok(())));
    for load in all(fault) {
        let open = watchers();
        let open = open.into_iter().filter(|(check, _)| !row[check].caught);
        let (checks, mut seats): (Vec<Check>, Vec<Seat<'_>>) = open
            .map(|(check, watch)| {
                let objection = None;
                (check, Seat { watch, objection })
            })
            .unzip();
        let note = |law: String| Outcome::of(Err(format!("{}: {law}", load.name)));
        match caught_panic(|| play(&load, &mut seats)) {
            Ok(played) => drop(played.map_err(|e| anyhow!("{}: {e}", load.name))?),
            Err(panic) => {
                let first = row.get(&Check::Assertions).is_none_or(|cell| !cell.caught);
                if first {
                    row.insert(Check::Assertions, note(panic));
                }
            }
        }
        for (check, seat) in checks.into_iter().zip(seats) {
            if let Some(objection) = seat.objection {
                row.insert(check, note(objection));
            }
        }
    }
    Ok(row)
}

/// What loads have exercised.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exercised {
    /// Tokens found by first admissions.
    pub hit_tokens: u64,
    /// Tokens found after a preemption.
    pub preempted_hit_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Blocks that lost cached data.
    pub evicted_blocks: u64,
    /// Copies on write.
    pub copied_blocks: u64,
}

/// What the loads exercise on a clean engine with one kind of cache.
///
/// # Errors
/// An engine cannot be built, a step fails, or a request does not end.
pub fn exercised(cache: PrefixCacheKind) -> Result<Exercised> {
    let mut sum = Exercised::default();
    let loads = all(Fault::None).into_iter();
    for load in loads.filter(|load| load.config.prefix_cache == cache) {
        let mut seats = [Seat {
            watch: Box::new(Liveness),
            objection: None,
        }];
        let engine = play(&load, &mut seats).map_err(|e| anyhow!("{}: {e}", load.name))?;
        if let Some(objection) = &seats[0].objection {
            return Err(anyhow!("{}: {objection}", load.name));
        }
        let c = engine.counters();
        sum.hit_tokens += c.hit_tokens;
        sum.preempted_hit_tokens += c.preempted_hit_tokens;
        sum.preemptions += c.preemptions;
        sum.evicted_blocks += c.evicted_blocks;
        sum.copied_blocks += engine.kv().stats().copied_blocks;
    }
    Ok(sum)
}
