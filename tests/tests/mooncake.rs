//! The public Mooncake traces through the real engine in virtual time.
//!
//! With a pool that never evicts, first come first served under a token budget looks a prompt up
//! only when every earlier prompt has been scheduled to its end, and the hash chain names blocks
//! when they are scheduled. So the engine finds what a set of all names seen before finds:
//! the leading named blocks, cut to the engine's block size and to one token less than the
//! prompt. The radix tree shows blocks when they are computed, so it is held to the same rule
//! with one request at a time.
//!
//! Skipped with a message when the traces are absent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use pb_contract::{
    Clock, EngineConfig, EngineEvent, EngineRequest, Fault, Nanos, Numerics, Preemption,
    PrefixCacheKind, VirtualClock, WallClock,
};
use pb_core::{CostModel, Counters, Engine, EngineSpec, SimExecutor};
use pb_tests::engine::greedy;
use pb_workloads::trace::{PromptTokens, TraceFormat, TraceReader, TraceRow, prefix_reuse};
use sha2::{Digest, Sha256};

const VOCAB: u32 = 32_000;
/// Longest context in either trace is 191,386.
const MAX_LEN: usize = 192_000;
/// Tokens that a name of the traces stands for.
const NAMED: usize = 512;

/// An accelerator that keeps up with the traces, so that queues stay short. The figures stand
/// for no machine; hits do not depend on them.
const COST: &str = "source = \"made up: keeps up with 40,000 tokens a second\"\n\
    [prefill]\nstep_ns = 5e6\ntoken_ns = 1e4\npair_ns = 0.1\n\
    [decode]\nstep_ns = 1e7\ncontext_token_ns = 1\nsequence_ns = 1e4\n";

fn trace(name: &str) -> Option<Vec<TraceRow>> {
    let path = pb_tests::shared_data(&format!("mooncake/{name}_trace.jsonl"))?;
    let reader = TraceReader::open(&path, TraceFormat::Mooncake).unwrap();
    Some(reader.collect::<Result<_, _>>().unwrap())
}

fn config(block_size: usize, num_blocks: usize, cache: PrefixCacheKind) -> EngineConfig {
    EngineConfig {
        chunked: true,
        max_batched_tokens: 8192,
        max_num_seqs: 256,
        prefix_cache: cache,
        block_size,
        ..pb_tests::engine::config(Numerics::Exact, num_blocks, MAX_LEN)
    }
}

/// What happened to a trace.
struct Served {
    /// Prompt tokens found by request, in file order.
    cached: Vec<usize>,
    counters: Counters,
    /// sha256 over all step rows.
    steps_digest: String,
    wall: Nanos,
}

/// Serves `rows` at their arrivals; with `one_token` each generates a single one, which changes
/// no prompt.
fn serve(config: EngineConfig, rows: &[TraceRow], one_token: bool) -> Served {
    let start = WallClock.now();
    let clock = Arc::new(VirtualClock::new());
    let cost = CostModel::from_toml(COST).unwrap();
    let executor = SimExecutor::new(cost, Arc::clone(&clock), VOCAB as usize);
    let spec = EngineSpec::simulated(VOCAB as usize, MAX_LEN);
    let mut engine = Engine::new(config, spec, Box::new(executor)).unwrap();
    let prompts = PromptTokens::new(0..VOCAB, 1).unwrap();
    let mut cached = vec![usize::MAX; rows.len()];
    let mut digest = Sha256::new();
    let mut arriving = rows.iter().enumerate().peekable();
    // Requests of later bins need not be made while the queue is long: first come, first served.
    let most_waiting = 2 * engine.config().max_num_seqs;
    while engine.has_work() || arriving.peek().is_some() {
        if let Some((_, row)) = arriving.peek().filter(|_| !engine.has_work()) {
            clock.advance_to(row.arrival_ns.max(clock.now()));
        }
        let mut room = most_waiting.saturating_sub(engine.waiting().count());
        while room > 0
            && let Some((id, row)) = arriving.next_if(|(_, row)| row.arrival_ns <= clock.now())
        {
            let output = if one_token {
                1
            } else {
                row.output_tokens.max(1)
            };
            let request = greedy(id as u64, &prompts.realise(row), output as u32);
            let arrival = row.arrival_ns;
            engine.add(EngineRequest { arrival, ..request }).unwrap();
            room -= 1;
        }
        let step = engine.step(&*clock).unwrap();
        digest.update(serde_json::to_vec(&step.row).unwrap());
        for event in step.events {
            if let EngineEvent::Admitted { id, cached_tokens } = event {
                cached[id.0 as usize] = cached_tokens;
            }
        }
    }
    engine.check().unwrap();
    assert_eq!(engine.buckets().active, 0);
    Served {
        cached,
        counters: engine.counters(),
        steps_digest: digest
            .finalize()
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect(),
        wall: WallClock.now() - start,
    }
}

/// Leading tokens of each prompt whose names all occurred before, in file order.
fn known_tokens(rows: &[TraceRow]) -> Vec<usize> {
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    let mut known = |row: &TraceRow| {
        let leading = row.block_ids.iter().take_while(|id| seen.contains(*id));
        let tokens = (leading.count() * NAMED).min(row.input_tokens);
        seen.extend(&row.block_ids);
        tokens
    };
    rows.iter().map(&mut known).collect()
}

/// What an engine with unlimited memory finds: whole blocks, and never the last token.
fn expected(rows: &[TraceRow], block_size: usize) -> Vec<usize> {
    let known = known_tokens(rows);
    let whole = |(row, &known): (&TraceRow, &usize)| {
        known.min(row.input_tokens - 1) / block_size * block_size
    };
    rows.iter().zip(&known).map(whole).collect()
}

/// Blocks that suffice when nothing is evicted: what each request adds, and a null block.
fn enough_blocks(rows: &[TraceRow], block_size: usize) -> usize {
    let hits = expected(rows, block_size);
    let added = |(row, hit): (&TraceRow, &usize)| {
        (row.input_tokens + row.output_tokens - hit).div_ceil(block_size)
    };
    1 + rows.iter().zip(&hits).map(added).sum::<usize>()
}

/// Row 38 and the check values of TRACES.md, section 2.
#[test]
fn an_unlimited_pool_finds_exactly_what_the_names_share() {
    for (name, published_hit_blocks) in [("conversation", 105_710), ("synthetic", 77_953)] {
        let Some(rows) = trace(name) else { return };
        for block_size in [NAMED, 16] {
            let want = expected(&rows, block_size);
            let reuse = prefix_reuse(&rows, block_size, None);
            assert_eq!(reuse.hit_blocks, published_hit_blocks);
            let known: usize = known_tokens(&rows).iter().sum();
            assert_eq!(reuse.hit_tokens, known as u64);
            let full = reuse.hit_engine_blocks * block_size as u64;
            let sum: usize = want.iter().sum();
            match block_size {
                NAMED => assert_eq!(sum as u64, full),
                // Partial last blocks of repeated prompts, which the floor leaves out.
                _ => assert!(full < sum as u64 && sum < known),
            }
            let pool = enough_blocks(&rows, block_size);
            let chain = config(block_size, pool, PrefixCacheKind::HashChain);
            let served = serve(chain, &rows, false);
            assert_eq!(served.cached, want);
            let c = served.counters;
            assert_eq!((c.hit_tokens, c.evicted_blocks), (sum as u64, 0));
            assert_eq!(c.queried_tokens, reuse.tokens);
            let seconds = served.wall.as_secs_f64();
            println!(
                "{name}, blocks of {block_size}: {sum} of {} tokens hit ({:.2} %), {} steps, \
                 {seconds:.1} s",
                reuse.tokens,
                100.0 * sum as f64 / reuse.tokens as f64,
                c.steps
            );
            if std::env::var("PREFILLBENCH_TIMED").is_ok_and(|v| v == "1") {
                assert!(seconds < 60.0, "{name}: {seconds:.1} s, must be below 60");
            }
        }
        let mut radix = config(NAMED, enough_blocks(&rows, NAMED), PrefixCacheKind::Radix);
        radix.max_num_seqs = 1;
        assert_eq!(serve(radix, &rows, true).cached, expected(&rows, NAMED));
    }
}

/// One request at a time through a pool of `capacity` blocks of the names' size. A prompt takes
/// its hits out of the queue of free blocks and its other blocks from the head of that queue;
/// at the end its full blocks go to the tail of the queue, last block first, and a partial one,
/// which cannot be found, to the head.
fn tail_first_lru(rows: &[TraceRow], capacity: usize) -> usize {
    let mut at: BTreeMap<u64, u64> = BTreeMap::new();
    let mut queue: VecDeque<(u64, u64)> = VecDeque::new();
    let (mut tick, mut hits) = (0, 0);
    for row in rows {
        let full = row.input_tokens / NAMED;
        // Never the last token. No prompt of whole blocks is known as a whole in these traces.
        let names = &row.block_ids[..full.min((row.input_tokens - 1) / NAMED)];
        let hit = names
            .iter()
            .take_while(|name| at.contains_key(name))
            .count();
        hits += hit;
        for name in &names[..hit] {
            at.remove(name);
        }
        // Named blocks that are left may take what the prompt does not need.
        let blocks = row.input_tokens.div_ceil(NAMED);
        while at.len() > capacity - blocks {
            let Some((name, when)) = queue.pop_front() else {
                break;
            };
            if at.get(&name) == Some(&when) {
                at.remove(&name);
            }
        }
        for name in row.block_ids[..full].iter().rev() {
            at.insert(*name, tick);
            queue.push_back((*name, tick));
            tick += 1;
        }
    }
    hits
}

/// A pool that evicts: the engine is exactly last-block-first LRU, which is no worse than the
/// plain LRU of TRACES.md (all blocks of a prompt touched in order, first to last).
#[test]
fn a_finite_pool_is_lru_from_the_tail_of_each_prompt() {
    let Some(rows) = trace("conversation") else {
        return;
    };
    let blocks: usize = rows.iter().map(|row| row.block_ids.len()).sum();
    let percent = |hits: usize| 100.0 * hits as f64 / blocks as f64;
    let mut before = 0;
    for capacity in [1_000, 5_000, 10_000, 30_000, 50_000, 100_000] {
        let plain = prefix_reuse(&rows, NAMED, Some(capacity)).hit_full_blocks as usize;
        let want = tail_first_lru(&rows, capacity);
        let mut one = config(NAMED, capacity, PrefixCacheKind::HashChain);
        one.max_num_seqs = 1;
        let alone = serve(one, &rows, true);
        let hits = |served: &Served| served.cached.iter().sum::<usize>() / NAMED;
        assert_eq!(hits(&alone), want, "{capacity} blocks");
        assert!(want >= plain && want >= before, "{capacity} blocks: {want}");
        before = want;
        let together = config(NAMED, capacity, PrefixCacheKind::HashChain);
        let together = serve(together, &rows, false);
        println!(
            "{capacity} blocks of {NAMED}: plain LRU {:.1} %, engine one at a time {:.1} %, \
             at its arrivals {:.1} % ({} preemptions); full blocks of {blocks} named ones",
            percent(plain),
            percent(want),
            percent(hits(&together)),
            together.counters.preemptions
        );
    }
}

/// Row 38: the same trace gives the same step rows, byte for byte, preemption and eviction
/// included; another pool does not.
#[test]
fn the_step_rows_repeat_byte_for_byte() {
    let Some(mut rows) = trace("conversation") else {
        return;
    };
    rows.truncate(1_500);
    let pressed = |num_blocks| {
        let mut config = config(16, num_blocks, PrefixCacheKind::HashChain);
        config.scheduling.preemption = Preemption::Swap;
        config.scheduling.swap_blocks = 5_000;
        assert_eq!(config.fault, Fault::None);
        serve(config, &rows, false)
    };
    let (first, second) = (pressed(16_000), pressed(16_000));
    assert!(first.counters.preemptions > 0 && first.counters.evicted_blocks > 0);
    assert_eq!(first.counters, second.counters);
    assert_eq!(first.steps_digest, second.steps_digest);
    assert_ne!(first.steps_digest, pressed(16_001).steps_digest);
    println!(
        "sha256 of {} step rows: {}",
        first.counters.steps, first.steps_digest
    );
}
