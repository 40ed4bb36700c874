//! Host cost of one planned step: 256 running and 1,000 waiting requests over the real blocks.

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use pb_contract::{PrefixCacheKind, RequestId};
use pb_kv::{CacheScope, HashedTokens, Hit, KvConfig, KvManager};
use pb_sched::{Allocator, Policy, RunningOrder, SeqView, TokenBudget, View};

const RUNNING: u64 = 256;
const WAITING: u64 = 1000;
const CONTEXT: usize = 500;

struct Kv {
    manager: KvManager,
    seqs: BTreeMap<RequestId, HashedTokens>,
}

impl Kv {
    fn hit(&self, id: RequestId, hit_tokens: usize) -> Hit {
        if hit_tokens == 0 {
            Hit::default()
        } else {
            self.manager.lookup(&self.seqs[&id])
        }
    }
}

impl Allocator for Kv {
    fn lookup(&self, id: RequestId) -> usize {
        self.manager
            .lookup(&self.seqs[&id])
            .tokens(self.manager.config().block_size)
    }

    fn blocks_needed(&self, id: RequestId, computed: usize, hit: usize, new: usize) -> usize {
        self.manager
            .blocks_needed(id, computed, &self.hit(id, hit), new)
    }

    fn free_blocks(&self) -> usize {
        self.manager.free_blocks()
    }

    fn allocate(&mut self, id: RequestId, computed: usize, hit: usize, new: usize) -> bool {
        let hit = self.hit(id, hit);
        self.manager
            .allocate(id, &self.seqs[&id], computed, &hit, new)
    }

    fn free(&mut self, id: RequestId) {
        self.manager.free(id);
    }
}

fn view(id: u64, computed: usize) -> SeqView {
    SeqView {
        id: RequestId(id),
        num_tokens: CONTEXT + usize::from(computed > 0),
        prompt_tokens: CONTEXT,
        computed,
        // Else the second iteration would find what the first has computed.
        skip_cache_read: true,
        preempted: false,
    }
}

fn plan(c: &mut Criterion) {
    let config = KvConfig::new(16, 40_000, PrefixCacheKind::HashChain);
    let mut kv = Kv {
        // OK because a benchmark with a broken set-up should stop.
        manager: KvManager::new(config).unwrap(),
        seqs: BTreeMap::new(),
    };
    for id in 0..RUNNING + WAITING {
        let mut seq = HashedTokens::new(16, &CacheScope::default());
        let first = id as u32 * 1000;
        seq.extend(&(first..first + CONTEXT as u32).collect::<Vec<_>>());
        if id < RUNNING {
            assert!(
                kv.manager
                    .allocate(RequestId(id), &seq, 0, &Hit::default(), CONTEXT)
            );
            seq.push(0);
        }
        kv.seqs.insert(RequestId(id), seq);
    }
    let running: Vec<_> = (0..RUNNING).map(|id| view(id, CONTEXT)).collect();
    let waiting: Vec<_> = (RUNNING..RUNNING + WAITING).map(|id| view(id, 0)).collect();
    let view = View {
        running: &running,
        waiting: &waiting,
    };
    let mut group = c.benchmark_group("plan_256_running_1000_waiting");
    for order in [RunningOrder::DecodeFirst, RunningOrder::ListOrder] {
        // Budget for every decode and for about two prompts, which are given back at once.
        let policy = TokenBudget {
            order,
            ..TokenBudget::new(1280, 512, 4096, true)
        };
        group.bench_function(format!("{order:?}"), |b| {
            b.iter(|| {
                let plan = policy.plan(black_box(&view), &mut kv);
                let admitted = plan.scheduled.iter().filter(|s| s.hit_tokens.is_some());
                admitted.for_each(|s| kv.manager.free(s.id));
                plan
            });
        });
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);
