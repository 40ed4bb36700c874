//! Host cost of one planned step and of one arranged queue: 256 running and 1,000 waiting
//! requests over the real blocks.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;

use common::arms::arms;
use common::config;
use common::kv::Kv;
use criterion::{Criterion, criterion_group, criterion_main};
use pb_contract::{EngineConfig, PrefixCacheKind, QueueOrder, RequestId};
use pb_kv::{Hit, KvConfig};
use pb_sched::{Observation, Policy, SeqView, View, arrange};

const RUNNING: u64 = 256;
const WAITING: u64 = 1000;
const CONTEXT: usize = 500;

fn seq(id: u64, computed: usize) -> SeqView {
    SeqView {
        id: RequestId(id),
        num_tokens: CONTEXT + usize::from(computed > 0),
        prompt_tokens: CONTEXT,
        computed,
        // Else the second iteration would find what the first has computed.
        skip_cache_read: true,
        preempted: false,
        remaining: 100,
        places: 1,
        priority: 0,
        arrival: id,
    }
}

/// Blocks in which the running requests hold their contexts.
fn memory() -> Kv {
    let mut kv = Kv::new(KvConfig::new(16, 40_000, PrefixCacheKind::HashChain));
    for id in 0..RUNNING + WAITING {
        let first = id as u32 * 1000;
        let tokens: Vec<_> = (first..first + CONTEXT as u32).collect();
        kv.add(id, &tokens, None);
        let id = RequestId(id);
        if id.0 < RUNNING {
            let seq = kv.seqs.get_mut(&id).unwrap();
            assert!(kv.cache.allocate(id, seq, 0, &Hit::default(), CONTEXT));
            kv.cache.commit(id, seq, CONTEXT);
            seq.push(0);
        }
    }
    kv
}

/// Lets a policy that learns see a few steps.
fn teach(policy: &mut Box<dyn Policy>) {
    for tokens in 1..20 {
        policy.observe(&Observation {
            prefill: vec![(tokens * 64, tokens * 100)],
            decode_seqs: tokens,
            decode_context: tokens * 500,
            running: 1,
            max_new_tokens: 1,
            duration_ns: 1_000_000 + 20_000 * tokens as u64,
            ..Observation::default()
        });
    }
}

fn plan(c: &mut Criterion) {
    let mut kv = memory();
    let running: Vec<_> = (0..RUNNING).map(|id| seq(id, CONTEXT)).collect();
    let waiting: Vec<_> = (RUNNING..RUNNING + WAITING).map(|id| seq(id, 0)).collect();
    let view = View {
        running: &running,
        waiting: &waiting,
    };
    let mut group = c.benchmark_group("plan_256_running_1000_waiting");
    for (name, chunked, scheduling) in arms() {
        // Budget for every decode and for about two prompts, which are given back at once.
        let config = EngineConfig {
            max_num_seqs: 512,
            max_model_len: 1024,
            block_size: 16,
            ..config(1280, chunked, scheduling)
        };
        let mut policy = pb_sched::build(&config).unwrap();
        teach(&mut policy);
        group.bench_function(name, |b| {
            b.iter(|| {
                let plan = policy.plan(black_box(&view), &mut kv);
                let admitted = plan.scheduled.iter().filter(|s| s.hit_tokens.is_some());
                admitted.for_each(|s| kv.cache.free(s.id));
                plan
            });
        });
    }
    group.finish();
}

fn queue(c: &mut Criterion) {
    // Ten heads of 240 tokens in the cache; a hundred requests share each.
    let mut kv = memory();
    for id in 0..WAITING {
        let head = (id % 10) as u32 * 1000;
        let mut tokens: Vec<_> = (head..head + 240).collect();
        tokens.extend((0..260).map(|i| 10_000_000 + id as u32 * 1000 + i));
        kv.add(RUNNING + id, &tokens, None);
    }
    let mut waiting: Vec<_> = (RUNNING..RUNNING + WAITING).map(|id| seq(id, 0)).collect();
    waiting
        .iter_mut()
        .for_each(|seq| seq.skip_cache_read = false);
    let mut group = c.benchmark_group("arrange");
    for order in [
        QueueOrder::Fcfs,
        QueueOrder::Priority,
        QueueOrder::Lpm,
        QueueOrder::DfsWeight,
    ] {
        for count in [128, 1000] {
            group.bench_function(format!("{order:?}, {count} waiting"), |b| {
                b.iter(|| arrange(order, black_box(&waiting[..count]), &kv));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, plan, queue);
criterion_main!(benches);
