//! One load, every kind of engine, the same tokens.
//!
//! What a request generates alone, in one piece and without a cache, is what it must generate in
//! the company of 199 others under memory pressure, whatever plans its steps, finds its prefix,
//! evicts its blocks, swaps it out or loads it back. The arithmetic is exact mode's, whose bits
//! do not depend on how the work is cut, so "the same" means the same.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow, ensure};
use pb_contract::{
    EngineConfig, Eviction, Fault, FreePlacement, HashAlgorithm, Numerics, PolicyKind, Preemption,
    PrefixCacheKind, Preset, QueueOrder, RunningOrder, VirtualClock,
};
use pb_core::{Counters, Engine, EngineParts, build_executor};
use pb_model::lora::{self, AdapterSet};
use pb_model::synth::{self, Kind, Size};
use pb_tests::covering::{self, Choice};
use pb_tests::load::{self, Arrival, Paced, Service, Shape, Tokens};

const BLOCK: usize = 4;
const MAX_LEN: usize = 160;
/// The largest request needs 36 blocks of 4; two such do not fit together.
const NUM_BLOCKS: usize = 60;
/// Where steps are so small that few requests overlap.
const FEW_BLOCKS: usize = 42;
/// Enough for any of these loads: each token alone would take fewer.
const MAX_STEPS: usize = 60_000;

const POLICIES: [(&str, PolicyKind); 10] = [
    ("token budget", PolicyKind::TokenBudget),
    ("token budget, list order", PolicyKind::TokenBudget),
    ("prefill first", PolicyKind::PrefillFirst),
    ("prefill first, mixed", PolicyKind::PrefillFirst),
    ("prefill first, reserved", PolicyKind::PrefillFirst),
    ("adaptive load", PolicyKind::AdaptiveLoad),
    ("shrinking", PolicyKind::Shrinking),
    ("time budget", PolicyKind::TimeBudget),
    ("monolithic", PolicyKind::Monolithic),
    ("decode priority", PolicyKind::DecodePriorityMonolithic),
];

const QUEUES: [QueueOrder; 4] = [
    QueueOrder::Fcfs,
    QueueOrder::Priority,
    QueueOrder::Lpm,
    QueueOrder::DfsWeight,
];

const CACHES: [(PrefixCacheKind, HashAlgorithm, Eviction); 9] = {
    use PrefixCacheKind::{HashChain, None, Oracle, Radix};
    let (hash, lru) = (HashAlgorithm::Blake3, Eviction::Lru);
    [
        (None, hash, lru),
        (HashChain, hash, lru),
        (HashChain, HashAlgorithm::Sha256, lru),
        (HashChain, HashAlgorithm::Xxh3, lru),
        (Radix, hash, lru),
        (Radix, hash, Eviction::Lfu),
        (Radix, hash, Eviction::Fifo),
        (Radix, hash, Eviction::Priority),
        (Oracle, hash, lru),
    ]
};

/// The last is more than any prompt: whole prompts.
const BUDGETS: [usize; 4] = [7, 16, 64, 1000];

const PREEMPTIONS: [Preemption; 2] = [Preemption::Recompute, Preemption::Swap];

/// Tiers: none, host memory, host memory over disk.
const TIERS: usize = 3;

/// Two sets of details: vLLM's null block, placement, comparison of tokens, size of swap pool.
const DETAILS: usize = 2;

const LEVELS: [usize; 7] = [
    POLICIES.len(),
    QUEUES.len(),
    CACHES.len(),
    BUDGETS.len(),
    PREEMPTIONS.len(),
    TIERS,
    DETAILS,
];

fn is_monolithic(policy: PolicyKind) -> bool {
    matches!(
        policy,
        PolicyKind::Monolithic | PolicyKind::DecodePriorityMonolithic
    )
}

/// A policy that cuts no prompt needs a budget for the longest.
fn allowed(a: Choice, b: Choice) -> bool {
    let (policy, budget) = (a.min(b), a.max(b));
    policy.0 != 0
        || budget.0 != 3
        || !is_monolithic(POLICIES[policy.1].1)
        || BUDGETS[budget.1] >= MAX_LEN
}

fn base() -> EngineConfig {
    EngineConfig {
        max_num_seqs: 8,
        block_size: BLOCK,
        seed: 5,
        ..pb_tests::engine::config(Numerics::Exact, NUM_BLOCKS, MAX_LEN)
    }
}

/// The configuration of a row of levels; disk blocks go to `dir`.
fn config(row: &[usize], dir: &std::path::Path) -> EngineConfig {
    let mut c = base();
    let (name, policy) = POLICIES[row[0]];
    c.chunked = !is_monolithic(policy);
    c.max_batched_tokens = BUDGETS[row[3]];
    if c.max_batched_tokens < 2 * BLOCK {
        c.num_blocks = FEW_BLOCKS;
    }
    (c.prefix_cache, c.cache.hash, c.cache.eviction) = CACHES[row[2]];
    let s = &mut c.scheduling;
    (s.policy, s.queue, s.preemption) = (policy, QUEUES[row[1]], PREEMPTIONS[row[4]]);
    if name.ends_with("list order") {
        s.running_order = RunningOrder::ListOrder;
    }
    s.mixed_chunk = name.ends_with("mixed");
    s.reserved_decode.enabled = name.ends_with("reserved");
    // So little is reserved that requests are admitted which do not fit to their end.
    s.reserved_decode.conservativeness = 0.1;
    s.swap_blocks = [200, 24][row[6]];
    s.adaptive_load.max_chunk = 48;
    s.adaptive_load.min_chunk = 5;
    s.adaptive_load.base = 16;
    s.adaptive_load.threshold = 4;
    s.shrinking.high = 32;
    s.shrinking.low = 3;
    s.shrinking.max_tokens = 96;
    // A step takes 1 ms and 0.2 ms a token (see `Paced`).
    s.time_budget.step_budget_ns = 6_000_000;
    s.time_budget.min_chunk = 4;
    let image_bytes = 2048;
    if row[5] > 0 {
        c.tiers.host_bytes = image_bytes * [0, 400, 150][row[5]];
    }
    if row[5] == 2 {
        c.tiers.disk_dir = Some(dir.to_string_lossy().into_owned());
        c.tiers.disk_bytes = 1 << 24;
    }
    if row[6] == 1 {
        c.cache.null_block = true;
        c.cache.placement = FreePlacement::Append;
        c.cache.verify_tokens = true;
    }
    c
}

/// The generated model with two adapters, the load, and what each request gives alone.
struct Bench {
    parts: EngineParts,
    arrivals: Vec<Arrival>,
    want: Tokens,
}

impl Bench {
    fn new(requests: usize) -> Result<Bench> {
        let model = synth::model(Kind::Sharp, Size::Tiny, 3)?;
        let mut parts = EngineParts::new(Arc::new(model.weights), [3; 32]);
        let config = &parts.weights.config;
        let adapter = |name: &str, seed| lora::synth::adapter(name, config, 4, 16.0, seed);
        let adapters = vec![adapter("poet", 1), adapter("clerk", 2)];
        parts.adapters = Arc::new(AdapterSet::new(adapters)?);
        let shape = Shape {
            requests,
            vocab: parts.weights.config.vocab,
            max_prompt: 120,
            max_tokens: 24,
            max_gap: 4,
            adapters: &["poet", "clerk"],
        };
        let arrivals = load::seeded(&shape, 7);
        let roomy = EngineConfig {
            num_blocks: MAX_LEN,
            ..base()
        };
        let mut engine = parts.build(roomy).map_err(|e| anyhow!(e))?;
        let want = load::alone(&mut engine, &arrivals)?;
        ensure!(engine.counters().preemptions == 0 && engine.counters().hit_tokens == 0);
        Ok(Bench {
            parts,
            arrivals,
            want,
        })
    }

    fn engine(&self, config: EngineConfig, clock: &Arc<VirtualClock>) -> Result<Engine> {
        let executor = build_executor(&self.parts, &config)?;
        let executor = Paced::new(executor, Arc::clone(clock));
        let engine = Engine::new_under_test(config, self.parts.spec(), Box::new(executor));
        engine.map_err(|e| anyhow!(e))
    }

    /// Serves the load and says what differs from each request alone.
    fn serve(&self, config: EngineConfig) -> Result<(Counters, Vec<String>)> {
        let clock = Arc::new(VirtualClock::new());
        let mut engine = self.engine(config, &clock)?;
        let mut service = Service::new(&self.arrivals);
        service.finish(&mut engine, &*clock, MAX_STEPS)?;
        load::assert_idle(&engine)?;
        Ok((
            engine.counters(),
            load::differences(&self.want, &service.tokens),
        ))
    }
}

/// Whether the run was what its configuration stands for.
fn assert_pressed(config: &EngineConfig, c: &Counters) -> Result<()> {
    let caches = config.prefix_cache != PrefixCacheKind::None;
    let swaps = config.scheduling.preemption == Preemption::Swap;
    // Longest prefix first serves those who share a prefix in one go, while the pool has it, and
    // seldom comes back for what a tier has.
    let revisits = config.scheduling.queue != QueueOrder::Lpm;
    let expected = [
        ("preemptions", c.preemptions, true, false),
        ("tokens hit", c.hit_tokens, caches, false),
        ("evicted blocks", c.evicted_blocks, caches, false),
        ("blocks swapped out", c.swapped_out_blocks, swaps, false),
        ("tokens swapped in", c.swapped_in_tokens, swaps, false),
        (
            "tokens hit in host memory",
            c.host_hit_tokens,
            caches && config.tiers.host_bytes > 0,
            !revisits,
        ),
        (
            "tokens hit on disk",
            c.disk_hit_tokens,
            caches && config.tiers.disk_dir.is_some(),
            !revisits,
        ),
    ];
    for (what, count, expected, optional) in expected {
        let as_expected = (count > 0) == expected || (optional && count == 0);
        ensure!(as_expected, "{what}: {count}");
    }
    ensure!(c.failed_loads == 0, "{} failed loads", c.failed_loads);
    Ok(())
}

fn describe(config: &EngineConfig) -> String {
    let s = &config.scheduling;
    format!(
        "{:?} {:?} {:?} | {:?} {:?} {:?} | budget {} | {:?} | host {} disk {} | null block {}",
        s.policy,
        s.running_order,
        s.queue,
        config.prefix_cache,
        config.cache.hash,
        config.cache.eviction,
        config.max_batched_tokens,
        s.preemption,
        config.tiers.host_bytes,
        config.tiers.disk_dir.is_some(),
        config.cache.null_block
    )
}

fn try_config(bench: &Bench, config: EngineConfig) -> Result<Counters> {
    let what = describe(&config);
    let (counters, differences) = bench.serve(config.clone()).context(what.clone())?;
    ensure!(
        differences.is_empty(),
        "{what}\n{}",
        differences[..differences.len().min(5)].join("\n")
    );
    Ok(counters)
}

/// Takes the rows one after the other on each of the machine's processors.
fn in_parallel(count: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Vec<String> {
    let (next, failures) = (Mutex::new(0..count), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(count) {
            scope.spawn(|| {
                loop {
                    let Some(i) = next.lock().unwrap().next() else {
                        return;
                    };
                    if let Err(error) = work(i) {
                        failures.lock().unwrap().push(format!("{i}: {error:#}"));
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

/// Row 19, 20 and 38 across all options: every two of them meet in some configuration.
#[test]
fn every_configuration_gives_what_each_request_gives_alone() {
    let bench = Bench::new(200).unwrap();
    let rows = covering::pairs(&LEVELS, allowed);
    let met = |&(a, b): &(Choice, Choice)| rows.iter().any(|r| r[a.0] == a.1 && r[b.0] == b.1);
    assert!(covering::allowed_pairs(&LEVELS, allowed).iter().all(met));
    let totals = Mutex::new((0, 0, 0, 0));
    let failures = in_parallel(rows.len(), |i| {
        let dir = tempfile::tempdir()?;
        let config = config(&rows[i], dir.path());
        let c = try_config(&bench, config.clone())?;
        assert_pressed(&config, &c).context(describe(&config))?;
        let mut t = totals.lock().unwrap();
        t.0 += c.steps;
        t.1 += c.preemptions;
        t.2 += c.swapped_in_tokens;
        t.3 += c.host_hit_tokens + c.disk_hit_tokens;
        Ok(())
    });
    println!(
        "{} configurations, (steps, preemptions, tokens swapped in, tokens from tiers) = {:?}",
        rows.len(),
        totals.into_inner().unwrap()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The rules of vLLM V1 and of SGLang as a whole.
#[test]
fn presets_give_what_each_request_gives_alone() {
    let bench = Bench::new(200).unwrap();
    for preset in [Preset::VllmV1, Preset::Sglang] {
        for budget in [16, 64, 1000] {
            let mut config = base();
            preset.apply(&mut config);
            config.max_batched_tokens = budget;
            let c = try_config(&bench, config).unwrap();
            assert!(c.hit_tokens > 0 && c.evicted_blocks > 0, "{preset:?} {c:?}");
            // SGLang reserves room for outputs, so that it seldom has to retract.
            let retracts = preset == Preset::VllmV1;
            assert!(c.preemptions > 0 || !retracts, "{preset:?} {c:?}");
        }
    }
}

/// The comparison is sharp: engines with a fault of cache, swap or sampler fail it.
#[test]
fn planted_faults_change_tokens_or_break_a_law() {
    let bench = Bench::new(200).unwrap();
    let [chain, radix] = [1, 4];
    // Policy, queue, cache, budget, preemption, tiers, details.
    let faults = [
        (Fault::StaleHit, [0, 0, chain, 1, 0, 0, 0]),
        (Fault::WrongParent, [0, 0, chain, 1, 0, 0, 0]),
        (Fault::MissingAdapterKey, [0, 0, chain, 1, 0, 0, 0]),
        (Fault::MissingAdapterKey, [0, 0, radix, 1, 0, 0, 0]),
        (Fault::DoubleFree, [0, 0, chain, 1, 0, 0, 0]),
        (Fault::LeakedReference, [0, 0, chain, 1, 0, 0, 0]),
        (Fault::LeakedReference, [0, 0, radix, 1, 0, 0, 0]),
        (Fault::PartialBlockShared, [0, 0, chain, 1, 0, 0, 0]),
        (Fault::EvictWhileReferenced, [0, 0, chain, 1, 0, 0, 0]),
        (Fault::CopyOnWriteSkipped, [0, 0, chain, 1, 0, 0, 0]),
        (Fault::SlotTableNotRewritten, [0, 0, radix, 1, 0, 0, 0]),
        (Fault::TierKeyWithoutScope, [0, 0, chain, 1, 0, 1, 0]),
        (Fault::TierCorruption, [0, 0, chain, 1, 0, 1, 0]),
        (Fault::SwapLosesBlock, [0, 0, 0, 1, 1, 0, 0]),
        (Fault::RngDrawnOnPartialChunk, [0, 0, 0, 0, 0, 0, 0]),
        (Fault::LostOnPreemption, [0, 0, chain, 1, 0, 0, 0]),
        (Fault::ContextIgnored, [0, 0, 0, 1, 0, 0, 0]),
        (Fault::RopePlusOneAfterFirstChunk, [0, 0, 0, 1, 0, 0, 0]),
    ];
    let missed = Mutex::new(BTreeSet::new());
    in_parallel(faults.len(), |i| {
        let (fault, row) = faults[i];
        let clean = config(&row, std::path::Path::new(""));
        let faulty = EngineConfig { fault, ..clean };
        // An engine that panics on its own broken state is found as well.
        let run = || matches!(bench.serve(faulty), Ok((_, differences)) if differences.is_empty());
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(false) {
            missed.lock().unwrap().insert(fault);
        }
        Ok(())
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
