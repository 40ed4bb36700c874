//! Random operations on every prefix cache, each judged by all laws, failures made small.
//!
//! `PREFILLBENCH_RANDOM_OPS` sets the number of operations for each kind of cache. A failure is
//! shrunk and printed as a script for the replay interface, and written beside the build.

#[path = "../conformance/kinds.rs"]
mod conformance_kinds;
mod faults;
mod generate;

use std::panic::{AssertUnwindSafe, catch_unwind};

use conformance_kinds::kinds;
use generate::Generator;
use pb_contract::{Fault, PrefixCacheKind};
use pb_kv::script::{Answer, Broken, ConfigLine, Op, Session, shrink, to_lines};
use pb_kv::{HashKind, HashOptions, KvConfig, build};

/// Operations on one pool before a new one is begun. Short, so that a failure has a short
/// history and the numbering of prefixes stays small.
const EPISODE_OPS: usize = 1_000;

/// Operations for each kind of cache.
fn ops_per_kind() -> usize {
    match std::env::var("PREFILLBENCH_RANDOM_OPS") {
        Err(_) => 1_000_000,
        Ok(text) => text
            .parse()
            .unwrap_or_else(|e| panic!("PREFILLBENCH_RANDOM_OPS = {text}: {e}: give a number")),
    }
}

/// A session on an empty cache.
fn session(config: KvConfig) -> Session {
    Session::new(build(config).unwrap())
}

/// As [`Session::apply`]; a panic of the cache is a broken law, too.
fn apply(session: &mut Session, op: &Op) -> Result<Answer, Broken> {
    let applied = catch_unwind(AssertUnwindSafe(|| session.apply(op)));
    applied.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Err(Broken(format!("panic: {}", text.unwrap_or_default())))
    })
}

/// The law that a list of operations breaks.
fn broken_by(config: KvConfig, ops: &[Op]) -> Option<Broken> {
    let mut session = session(config);
    ops.iter().find_map(|op| apply(&mut session, op).err())
}

/// What a run of operations did, for judging that it did something.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    ops: u64,
    skipped: u64,
    refusals: u64,
    hit_blocks: u64,
    evicted_blocks: u64,
    copied_blocks: u64,
}

/// Runs one episode; the operations up to a broken law are the failure.
fn episode(config: KvConfig, seed: u64, ops: usize, tally: &mut Tally) -> Result<(), Vec<Op>> {
    let mut session = session(config);
    let mut generator = Generator::new(seed, config.block_size, false);
    let mut history = Vec::with_capacity(ops);
    for _ in 0..ops {
        let op = generator.next(&session);
        history.push(op);
        match apply(&mut session, &history[history.len() - 1]) {
            Err(_) => return Err(history),
            Ok(answer) => tally.skipped += u64::from(matches!(answer, Answer::Skipped(_))),
        }
    }
    let counted = session.counted();
    tally.ops += counted.ops;
    tally.refusals += counted.refusals;
    tally.hit_blocks += counted.hit_blocks;
    tally.evicted_blocks += counted.evicted_blocks;
    tally.copied_blocks += counted.copied_blocks;
    Ok(())
}

/// The smallest script that fails like `ops`, as lines.
fn smallest(config: KvConfig, ops: &[Op]) -> Vec<String> {
    let shortest = shrink(ops, |ops| broken_by(config, ops).is_some());
    to_lines(&ConfigLine::of(&config), &shortest)
}

/// Pools so small that eviction and refusal are common, at several block sizes.
fn pools(kind: PrefixCacheKind) -> Vec<KvConfig> {
    let sized = [(1, 14), (2, 12), (4, 10), (16, 12)];
    let all = sized
        .iter()
        .flat_map(|&(block_size, usable)| kinds(block_size, usable));
    all.filter(|config| config.prefix_cache == kind).collect()
}

/// Runs the operations of one kind of cache over all its pools.
fn run(kind: PrefixCacheKind) {
    let pools = pools(kind);
    let total = ops_per_kind();
    let episodes = total.div_ceil(EPISODE_OPS).max(pools.len());
    let mut tally = Tally::default();
    for (seed, config) in (0..episodes).zip(pools.iter().cycle()) {
        let ops = EPISODE_OPS.min(total);
        if let Err(ops) = episode(*config, seed as u64, ops, &mut tally) {
            let law = broken_by(*config, &ops);
            let script = smallest(*config, &ops).join("\n");
            let path = format!("{}/random_ops_{kind:?}.jsonl", env!("CARGO_TARGET_TMPDIR"));
            let written = std::fs::write(&path, &script).map(|()| &path);
            panic!("seed {seed}: {law:?}; replay ({written:?}):\n{script}");
        }
    }
    println!("{kind:?}: {tally:?}");
    assert!(tally.ops >= total as u64);
    assert!(
        tally.skipped * 4 < tally.ops,
        "too little is done: {tally:?}"
    );
    let shares = kind != PrefixCacheKind::None;
    assert_eq!(
        tally.hit_blocks > 0 && tally.evicted_blocks > 0,
        shares,
        "{tally:?}"
    );
    assert!(tally.refusals > 0 && tally.copied_blocks > 0, "{tally:?}");
}

#[test]
fn without_a_cache() {
    run(PrefixCacheKind::None);
}

#[test]
fn hash_chain() {
    run(PrefixCacheKind::HashChain);
}

#[test]
fn radix() {
    run(PrefixCacheKind::Radix);
}

#[test]
fn oracle() {
    run(PrefixCacheKind::Oracle);
}

/// Two prefixes of one name must never be taken for each other (vllm #12621, #29163).
#[test]
fn comparing_tokens_hits_the_same_under_a_digest_that_always_collides() {
    let stub = HashOptions {
        kind: HashKind::ConstantStub,
        fault: Fault::None,
    };
    let mut hit_blocks = 0;
    for (seed, block_size) in (0..40).zip([1, 2, 4, 16].into_iter().cycle()) {
        let config = KvConfig {
            verify_tokens: true,
            record_evictions: true,
            ..KvConfig::new(block_size, 11, PrefixCacheKind::HashChain)
        };
        let mut colliding = Session::with_options(build(config).unwrap(), stub);
        let mut sound = session(config);
        let mut generator = Generator::new(seed, block_size, false);
        for turn in 0..300 {
            let op = generator.next(&sound);
            let answer = colliding.apply(&op);
            assert_eq!(answer, sound.apply(&op), "seed {seed}, turn {turn}, {op:?}");
        }
        hit_blocks += colliding.counted().hit_blocks;
    }
    assert!(hit_blocks > 100, "{hit_blocks} blocks hit");
}

/// What must be the same for all caches: tokens, not blocks.
fn tokens_of(answer: Answer) -> Answer {
    match answer {
        Answer::Allocated {
            hit_tokens,
            new_tokens,
            ..
        } => Answer::Allocated {
            hit_tokens,
            new_tokens,
            blocks: Vec::new(),
            copies: Vec::new(),
        },
        Answer::Forked(_) => Answer::Done,
        other => other,
    }
}

#[test]
fn while_nothing_is_evicted_all_caches_hit_what_brute_force_hits() {
    let mut hit_blocks = 0;
    for (seed, block_size) in (0..60).zip([1, 2, 4, 16].into_iter().cycle()) {
        let sharing = kinds(block_size, 700)
            .into_iter()
            .filter(|config| config.prefix_cache != PrefixCacheKind::None);
        let mut sessions: Vec<Session> = sharing.map(session).collect();
        let mut generator = Generator::new(seed, block_size, true);
        for turn in 0..300 {
            // The oracle is the first.
            let op = generator.next(&sessions[0]);
            let mut answers = sessions.iter_mut().map(|session| {
                let answer = session.apply(&op);
                (answer.map(tokens_of), *session.cache().config())
            });
            let (expected, _) = answers.next().unwrap();
            for (answer, config) in answers {
                assert_eq!(
                    answer, expected,
                    "seed {seed}, turn {turn}, {op:?}, {config:?}"
                );
            }
        }
        let oracle = sessions[0].cache();
        assert_eq!(oracle.config().prefix_cache, PrefixCacheKind::Oracle);
        assert_eq!(oracle.evicted_total(), 0);
        hit_blocks += sessions[0].counted().hit_blocks;
    }
    assert!(hit_blocks > 1_000, "{hit_blocks} blocks hit");
}
