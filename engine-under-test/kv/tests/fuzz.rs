//! Random histories against a brute-force oracle.
//!
//! The oracle does not know how blocks are named. It writes down what the model would have
//! written into each physical block (the whole prefix up to that block) whenever a table says so,
//! and searches all blocks for every lookup. So a hit that differs from it is a lost hit or a
//! stale block.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{miss, scope, with_hash};
use pb_contract::{BlockId, Buckets, PrefixCacheKind, RequestId, Stream, TokenId};
use pb_kv::{CacheScope, FreePlacement, HashKind, HashedTokens, Hit, KvConfig, KvManager};

/// Which scope, and all tokens from the start to the end of the block.
type Prefix = (usize, Vec<TokenId>);

struct Request {
    scope: usize,
    seq: HashedTokens,
    computed: usize,
    running: bool,
}

struct World {
    kv: KvManager,
    kind: HashKind,
    scopes: Vec<CacheScope>,
    requests: BTreeMap<RequestId, Request>,
    /// What stands in each block that holds a full block's data.
    data: BTreeMap<BlockId, Prefix>,
    rng: Stream,
    next_id: u64,
    hits: usize,
    refusals: usize,
}

impl World {
    fn new(config: KvConfig, kind: HashKind, seed: u64) -> Self {
        World {
            kv: KvManager::new(config).unwrap(),
            kind,
            scopes: vec![
                scope(None, None),
                scope(Some("s"), None),
                scope(None, Some("s")),
            ],
            requests: BTreeMap::new(),
            data: BTreeMap::new(),
            rng: Stream::new(seed, "kv-fuzz"),
            next_id: 0,
            hits: 0,
            refusals: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    fn pick(&mut self, running: bool) -> Option<RequestId> {
        let matching: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, r)| r.running == running)
            .map(|(&id, _)| id)
            .collect();
        match matching.len() {
            0 => None,
            n => Some(matching[self.below(n)]),
        }
    }

    /// Two-letter prompts, so that shared prefixes and copies are common.
    fn add(&mut self) {
        let scope = self.below(4).saturating_sub(1);
        let length = 1 + self.below(24);
        let tokens: Vec<TokenId> = (0..length)
            .map(|_| self.rng.below(5).saturating_sub(3) as TokenId)
            .collect();
        let block_size = self.kv.config().block_size;
        let seq = with_hash(block_size, &self.scopes[scope], self.kind, tokens);
        let request = Request {
            scope,
            seq,
            computed: 0,
            running: false,
        };
        self.requests.insert(RequestId(self.next_id), request);
        self.next_id += 1;
    }

    /// The longest run of leading blocks, by searching every block's contents.
    fn oracle_hit_blocks(&self, request: &Request) -> usize {
        let block_size = self.kv.config().block_size;
        let tokens = request.seq.tokens();
        (1..=(tokens.len() - 1) / block_size)
            .take_while(|&blocks| {
                let prefix = &tokens[..blocks * block_size];
                self.data
                    .values()
                    .any(|(s, p)| *s == request.scope && p == prefix)
            })
            .count()
    }

    fn checked_lookup(&self, id: RequestId) -> Hit {
        let request = &self.requests[&id];
        let hit = self.kv.lookup(&request.seq);
        if self.kv.config().prefix_cache == PrefixCacheKind::None {
            assert_eq!(hit, miss());
            return hit;
        }
        assert_eq!(
            hit.blocks.len(),
            self.oracle_hit_blocks(request),
            "request {id}"
        );
        for (index, block) in hit.blocks.iter().enumerate() {
            let end = (index + 1) * self.kv.config().block_size;
            let prefix = request.seq.tokens()[..end].to_vec();
            assert_eq!(
                self.data.get(block),
                Some(&(request.scope, prefix)),
                "stale block"
            );
        }
        hit
    }

    fn schedule(&mut self, id: RequestId, skip_read: bool) {
        let running = self.requests[&id].running;
        let hit = if running || skip_read {
            miss()
        } else {
            self.checked_lookup(id)
        };
        let block_size = self.kv.config().block_size;
        let hit_tokens = hit.tokens(block_size);
        let pending = self.requests[&id].seq.len() - self.requests[&id].computed - hit_tokens;
        let new = 1 + self.below(pending);
        let before = (
            self.kv.free_queue(),
            self.kv.buckets(),
            self.kv.evicted_total(),
        );
        let held = self.kv.block_table(id).to_vec();
        let request = &self.requests[&id];
        if !self
            .kv
            .allocate(id, &request.seq, request.computed, &hit, new)
        {
            let after = (
                self.kv.free_queue(),
                self.kv.buckets(),
                self.kv.evicted_total(),
            );
            assert_eq!(before, after, "a refusal has no effect");
            assert_eq!(self.kv.block_table(id), held);
            self.refusals += 1;
            return;
        }
        self.hits += hit.blocks.len();
        let total = request.computed + hit_tokens + new;
        let table = self.kv.block_table(id);
        assert_eq!(table.len(), total.div_ceil(block_size));
        let known = held.len().max(hit.blocks.len());
        table[known..]
            .iter()
            .for_each(|block| drop(self.data.remove(block)));
        let full = table.iter().enumerate().take(total / block_size);
        for (index, &block) in full.skip(hit.blocks.len()) {
            let prefix = request.seq.tokens()[..(index + 1) * block_size].to_vec();
            self.data.insert(block, (request.scope, prefix));
        }
        self.decode(id, total);
    }

    /// Advances, and appends a generated token when the prompt is through.
    fn decode(&mut self, id: RequestId, total: usize) {
        let token = self.rng.below(3) as TokenId;
        let request = self.requests.get_mut(&id).unwrap();
        (request.running, request.computed) = (true, total);
        if total == request.seq.len() {
            request.seq.push(token);
        }
    }

    /// A step of one request fails: it and everybody who shares a doubtful block start anew.
    fn fail(&mut self, id: RequestId) {
        let computed = self.requests[&id].computed;
        let before = self.below(computed + 1);
        let mut open = vec![(id, before)];
        let mut involved = BTreeSet::from([id]);
        while let Some((id, before)) = open.pop() {
            for block in self.kv.forget_uncomputed(id, before) {
                self.data.remove(&block);
                let holders = self.kv.holders(block).into_iter();
                open.extend(
                    holders
                        .filter(|&other| involved.insert(other))
                        .map(|id| (id, 0)),
                );
            }
        }
        involved.into_iter().for_each(|id| self.stop(id, true));
    }

    fn stop(&mut self, id: RequestId, keep: bool) {
        self.kv.free(id);
        assert!(self.kv.block_table(id).is_empty());
        if keep {
            let request = self.requests.get_mut(&id).unwrap();
            (request.running, request.computed) = (false, 0);
        } else {
            self.requests.remove(&id);
        }
    }

    fn turn(&mut self) {
        match self.below(20) {
            0..=4 => self.add(),
            5..=8 => {
                let skip = self.below(8) == 0;
                self.pick(false)
                    .into_iter()
                    .for_each(|id| self.schedule(id, skip));
            }
            9..=14 => self
                .pick(true)
                .into_iter()
                .for_each(|id| self.schedule(id, false)),
            15 => self
                .pick(true)
                .into_iter()
                .for_each(|id| self.stop(id, true)),
            16..=17 => self
                .pick(true)
                .into_iter()
                .for_each(|id| self.stop(id, false)),
            18 => self
                .pick(false)
                .into_iter()
                .for_each(|id| self.stop(id, false)),
            _ if self.below(3) == 0 => {
                if let Some(id) = self.pick(true) {
                    self.fail(id);
                }
            }
            _ => {
                let idle = self.kv.buckets().active == 0;
                assert_eq!(self.kv.reset(), idle);
                if idle {
                    self.data.clear();
                }
            }
        }
    }

    fn finish(mut self) -> (usize, usize) {
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            self.stop(id, false);
        }
        self.kv.check().unwrap();
        let Buckets {
            active,
            reclaimable,
            free,
        } = self.kv.buckets();
        assert_eq!(
            (active, reclaimable + free),
            (0, self.kv.usable_blocks()),
            "a leak when idle"
        );
        assert_eq!(
            (self.kv.live_requests(), self.kv.free_blocks()),
            (0, self.kv.usable_blocks())
        );
        (self.hits, self.refusals)
    }
}

/// Runs `turns` random operations for each of `seeds`; returns hits and refusals overall.
fn run(config: KvConfig, kind: HashKind, seeds: std::ops::Range<u64>, turns: usize) -> [usize; 2] {
    let mut sum = [0, 0];
    for seed in seeds {
        let mut world = World::new(config, kind, seed);
        for turn in 0..turns {
            world.turn();
            if let Err(law) = world.kv.check() {
                panic!("seed {seed}, turn {turn}, {config:?}: {law}");
            }
        }
        let (hits, refusals) = world.finish();
        sum = [sum[0] + hits, sum[1] + refusals];
    }
    sum
}

#[test]
fn unlimited_pool_hits_exactly_what_brute_force_finds() {
    for block_size in [1, 2, 3] {
        let config = KvConfig::new(block_size, 8000, PrefixCacheKind::HashChain);
        let [hits, refusals] = run(config, HashKind::Blake3, 0..3, 300);
        assert!(
            hits > 50 && refusals == 0,
            "{hits} hits, {refusals} refusals"
        );
    }
}

#[test]
fn small_pools_never_hit_stale_blocks_and_never_leak() {
    for block_size in [1, 2, 4] {
        for placement in [FreePlacement::Append, FreePlacement::UnhashedToHead] {
            let config = KvConfig {
                null_block: block_size == 2,
                placement,
                ..KvConfig::new(block_size, 40 / block_size, PrefixCacheKind::HashChain)
            };
            let [hits, refusals] = run(config, HashKind::Blake3, 0..20, 500);
            assert!(
                hits > 100 && refusals > 100,
                "{hits} hits, {refusals} refusals"
            );
        }
    }
}

#[test]
fn comparing_tokens_gives_the_same_hits_whatever_the_digest() {
    for kind in [HashKind::Blake3, HashKind::ConstantStub] {
        let config = KvConfig {
            verify_tokens: true,
            ..KvConfig::new(2, 30, PrefixCacheKind::HashChain)
        };
        let [hits, refusals] = run(config, kind, 0..20, 500);
        assert!(
            hits > 100 && refusals > 100,
            "{hits} hits, {refusals} refusals"
        );
    }
}

#[test]
fn without_a_cache_the_laws_hold_too() {
    let [hits, refusals] = run(
        KvConfig::new(2, 20, PrefixCacheKind::None),
        HashKind::Blake3,
        0..20,
        500,
    );
    assert!(
        hits == 0 && refusals > 100,
        "{hits} hits, {refusals} refusals"
    );
}
