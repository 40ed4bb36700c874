//! Queue orders against brute force, and against a real cache.

mod common;

use std::collections::BTreeMap;

use common::kv::Kv;
use common::{Sim, config};
use pb_contract::{
    BlockId, EngineConfig, PrefixCacheKind, QueueOrder, RequestId, Scheduling, Stream, TokenId,
};
use pb_kv::KvConfig;
use pb_sched::{LPM_QUEUE_LIMIT, PASSED_OVER_LIMIT, QueueInfo, SeqView, arrange};

/// Made-up matches and tokens.
#[derive(Default)]
struct Info {
    matched: BTreeMap<RequestId, Vec<BlockId>>,
    tokens: BTreeMap<RequestId, Vec<TokenId>>,
    scopes: BTreeMap<RequestId, u64>,
}

const BLOCK: usize = 8;

impl QueueInfo for Info {
    fn matched_blocks(&self, id: RequestId) -> Vec<BlockId> {
        self.matched.get(&id).cloned().unwrap_or_default()
    }

    fn block_size(&self) -> usize {
        BLOCK
    }

    fn tokens(&self, id: RequestId) -> &[TokenId] {
        self.tokens.get(&id).map_or(&[], Vec::as_slice)
    }

    fn scope_key(&self, id: RequestId) -> u64 {
        self.scopes.get(&id).copied().unwrap_or(0)
    }
}

fn seq(id: u64) -> SeqView {
    SeqView {
        id: RequestId(id),
        num_tokens: 100,
        prompt_tokens: 100,
        computed: 0,
        skip_cache_read: false,
        preempted: false,
        remaining: 10,
        places: 1,
        priority: 0,
        arrival: id,
    }
}

fn seqs(count: u64) -> Vec<SeqView> {
    (0..count).map(seq).collect()
}

fn path(blocks: &[u32]) -> Vec<BlockId> {
    blocks.iter().copied().map(BlockId).collect()
}

#[test]
fn fcfs_is_the_queue_as_it_is() {
    // A preempted request was put in front; it stays there.
    let waiting = [seq(3), seq(0), seq(1)];
    assert_eq!(
        arrange(QueueOrder::Fcfs, &waiting, &Info::default()),
        [0, 1, 2]
    );
}

#[test]
fn priority_has_no_inversion() {
    let mut rng = Stream::new(1, "priority");
    let mut waiting = seqs(200);
    rng.shuffle(&mut waiting);
    for seq in &mut waiting {
        seq.priority = rng.below(9) as i64 - 4;
    }
    let order = arrange(QueueOrder::Priority, &waiting, &Info::default());
    let keys = order
        .iter()
        .map(|&index| (waiting[index].priority, waiting[index].arrival));
    let keys: Vec<_> = keys.collect();
    assert_eq!(keys.len(), 200);
    assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{keys:?}");
}

#[test]
fn longest_prefix_first_with_ties_in_order() {
    let mut info = Info::default();
    for (id, blocks) in [(1, 2), (2, 5), (3, 2), (4, 7)] {
        info.matched.insert(RequestId(id), path(&vec![0; blocks]));
    }
    let mut waiting = seqs(5);
    assert_eq!(arrange(QueueOrder::Lpm, &waiting, &info), [4, 2, 1, 3, 0]);
    // Whoever takes nothing from the cache gains nothing from it.
    waiting[4].skip_cache_read = true;
    assert_eq!(arrange(QueueOrder::Lpm, &waiting, &info), [2, 1, 3, 0, 4]);
}

#[test]
fn above_128_requests_the_longest_prefix_is_not_looked_for() {
    let mut info = Info::default();
    info.matched.insert(RequestId(100), path(&[1, 2, 3]));
    let first = |count| arrange(QueueOrder::Lpm, &seqs(count), &info)[0];
    assert_eq!(first(LPM_QUEUE_LIMIT as u64), 100);
    assert_eq!(first(LPM_QUEUE_LIMIT as u64 + 1), 0);
}

/// SGLang's rule written out: the match of a prefix in a tree is its longest common prefix with
/// anything put into the tree.
fn lpm_oracle(waiting: &[SeqView], info: &Info) -> Vec<usize> {
    let mut tree: Vec<(u64, &[TokenId])> = Vec::new();
    let mut keys = Vec::new();
    for seq in waiting {
        let cached = info.matched_blocks(seq.id).len() * BLOCK;
        let (scope, tokens) = (info.scope_key(seq.id), info.tokens(seq.id));
        let prefix = &tokens[..tokens.len().saturating_sub(1)];
        let mut key = -(cached as i64);
        if cached <= 32 {
            let common =
                |other: &[TokenId]| other.iter().zip(prefix).take_while(|(a, b)| a == b).count();
            let same_scope = tree.iter().filter(|(other, _)| *other == scope);
            let in_batch = same_scope.map(|(_, other)| common(other)).max();
            if in_batch.unwrap_or(0) >= 32 {
                key = i64::MAX;
            } else {
                tree.push((scope, prefix));
            }
        }
        keys.push(key);
    }
    let mut order: Vec<usize> = (0..waiting.len()).collect();
    order.sort_by_key(|&index| keys[index]);
    order
}

#[test]
fn in_batch_sharing_agrees_with_the_rule_written_out() {
    let mut put_back = 0;
    for seed in 0..300 {
        let mut rng = Stream::new(seed, "lpm");
        let waiting = seqs(1 + rng.below(30));
        let mut info = Info::default();
        for seq in &waiting {
            // A few heads whose lengths lie around the thresholds.
            let family = rng.below(4) as TokenId;
            let shared = [30, 31, 32, 33, 40][rng.below(5) as usize];
            let own = rng.below(4) as usize;
            let mut tokens = vec![family; shared];
            tokens.extend((0..own).map(|i| 1000 + (seq.id.0 as TokenId) * 10 + i as TokenId));
            info.tokens.insert(seq.id, tokens);
            info.scopes.insert(seq.id, rng.below(2));
            let blocks = [0, 0, 0, 4, 5][rng.below(5) as usize];
            info.matched.insert(seq.id, path(&vec![family; blocks]));
        }
        let expected = lpm_oracle(&waiting, &info);
        assert_eq!(
            arrange(QueueOrder::Lpm, &waiting, &info),
            expected,
            "seed {seed}"
        );
        info.matched.clear();
        let cold = lpm_oracle(&waiting, &info);
        put_back += usize::from(cold.windows(2).any(|pair| pair[0] > pair[1]));
        assert_eq!(
            arrange(QueueOrder::Lpm, &waiting, &info),
            cold,
            "seed {seed}"
        );
    }
    assert!(put_back > 100, "{put_back}");
}

/// A tree of blocks, and the requests that end at each node.
#[derive(Default)]
struct Node {
    own: Vec<usize>,
    children: BTreeMap<BlockId, Node>,
}

impl Node {
    fn weight(&self) -> usize {
        self.own.len() + self.children.values().map(Node::weight).sum::<usize>()
    }

    fn first(&self) -> usize {
        let below = self.children.values().map(Node::first);
        below.chain(self.own.iter().copied()).min().unwrap()
    }

    fn walk(&self, out: &mut Vec<usize>) {
        let mut children: Vec<_> = self.children.values().collect();
        children.sort_by_key(|child| (std::cmp::Reverse(child.weight()), child.first()));
        children.iter().for_each(|child| child.walk(out));
        out.extend(&self.own);
    }
}

#[test]
fn depth_first_by_weight_agrees_with_a_tree_walked_naively() {
    for seed in 0..300 {
        let mut rng = Stream::new(seed, "dfs");
        let waiting = seqs(1 + rng.below(60));
        let (mut info, mut root) = (Info::default(), Node::default());
        for (index, seq) in waiting.iter().enumerate() {
            let depth = rng.below(5);
            let blocks: Vec<_> = (0..depth).map(|_| BlockId(rng.below(3) as u32)).collect();
            let mut node = &mut root;
            for &block in &blocks {
                node = node.children.entry(block).or_default();
            }
            node.own.push(index);
            info.matched.insert(seq.id, blocks);
        }
        let mut expected = Vec::new();
        root.walk(&mut expected);
        assert_eq!(
            arrange(QueueOrder::DfsWeight, &waiting, &info),
            expected,
            "seed {seed}"
        );
    }
}

#[test]
fn nobody_is_passed_over_for_ever() {
    for order in [QueueOrder::Lpm, QueueOrder::DfsWeight] {
        let mut info = Info::default();
        let mut waiting = vec![seq(0)];
        let mut overtaken = 0;
        // Each turn two requests with a cached prefix come and one request is admitted.
        for turn in 1..1000 {
            for id in [2 * turn, 2 * turn + 1] {
                info.matched.insert(RequestId(id), path(&[1, 2, 3]));
                waiting.push(seq(id));
            }
            // The others end or are aborted, so that the queue stays short.
            waiting.truncate(40);
            let at = arrange(order, &waiting, &info)[0];
            if waiting.remove(at).arrival == 0 {
                break;
            }
            overtaken += 1;
        }
        let limit = PASSED_OVER_LIMIT as usize;
        assert!(
            (limit / 2..=limit + 1).contains(&overtaken),
            "{order:?}: {overtaken}"
        );
    }
}

/// Prompt tokens computed for a trace of families that share long prefixes, family by turns.
fn prefill_tokens(order: QueueOrder, kind: PrefixCacheKind, seed: u64) -> usize {
    let mut rng = Stream::new(seed, "shared prefixes");
    let config = EngineConfig {
        max_num_seqs: 2,
        ..config(
            64,
            true,
            Scheduling {
                queue: order,
                ..Scheduling::default()
            },
        )
    };
    // The cache holds about two of the six prefixes of 96 tokens beside what runs.
    let memory = Kv::new(KvConfig::new(4, 90, kind));
    let mut sim = Sim::build(&config, memory);
    for id in 0..48 {
        let family = id % 6;
        let mut tokens: Vec<TokenId> = (0..96).map(|i| 1000 * family as TokenId + i).collect();
        let own = 1 + rng.below(20) as TokenId;
        tokens.extend((0..own).map(|i| 100_000 + 100 * id as TokenId + i));
        sim.memory.add(id, &tokens, None);
        sim.add(id, tokens.len(), 4);
    }
    sim.drain(5000);
    assert_eq!(sim.finished.len(), 48);
    sim.memory.cache.check().unwrap();
    sim.prefill_tokens
}

#[test]
fn cache_aware_orders_compute_fewer_prompt_tokens_on_shared_prefixes() {
    for kind in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        for seed in 0..10 {
            let fcfs = prefill_tokens(QueueOrder::Fcfs, kind, seed);
            for order in [QueueOrder::Lpm, QueueOrder::DfsWeight] {
                let tokens = prefill_tokens(order, kind, seed);
                assert!(
                    2 * tokens < fcfs,
                    "{kind:?}, seed {seed}: {tokens} under {order:?}, {fcfs} under fcfs"
                );
            }
        }
    }
}
