//! Random histories of requests over a radix cache, with what the model would have written.
//!
//! The world keeps two things that the cache cannot know: which prefix stands in every slot of
//! every block, and the set of prefixes that were computed and not evicted. A hit that is not the
//! longest stored prefix, a slot that holds another prefix than its reader's, and a broken law of
//! the cache each end the history with a sentence.

use std::collections::{BTreeMap, BTreeSet};

use pb_contract::{BlockId, Fault, RequestId, Stream, TokenId};
use pb_kv::{AdapterKey, CacheScope, HashedTokens, Hit, KvConfig, Moves, PrefixCache, RadixCache};

use crate::short::config;

/// Which scope, and the tokens from the start on.
type Prefix = (usize, Vec<TokenId>);

struct Request {
    scope: usize,
    seq: HashedTokens,
    computed: usize,
}

pub(crate) struct World {
    cache: RadixCache,
    scopes: Vec<CacheScope>,
    live: BTreeMap<RequestId, Request>,
    stored: BTreeSet<Prefix>,
    slots: BTreeMap<(BlockId, usize), Prefix>,
    rng: Stream,
    next_id: u64,
    pub(crate) hits: usize,
    pub(crate) refusals: usize,
    pub(crate) copies: usize,
    pub(crate) evictions: usize,
}

/// The same tokens under each of these never share.
fn scopes() -> Vec<CacheScope> {
    let adapter = |name: &str, digest: u8| AdapterKey {
        name: name.to_owned(),
        digest: [digest; 32],
    };
    let plain = CacheScope::default();
    let with = |adapter: Option<AdapterKey>, salt: Option<&str>, identity: u8| CacheScope {
        identity: [identity; 32],
        adapter,
        salt: salt.map(str::to_owned),
    };
    vec![
        plain,
        with(Some(adapter("x", 1)), None, 0),
        with(Some(adapter("x", 2)), None, 0),
        with(None, Some("x"), 0),
        with(None, None, 1),
    ]
}

impl World {
    pub(crate) fn new(page_size: usize, num_blocks: usize, fault: Fault, seed: u64) -> Self {
        let config = KvConfig {
            fault,
            null_block: seed % 2 == 1,
            ..config(page_size, num_blocks)
        };
        World {
            cache: RadixCache::new(config).unwrap(),
            scopes: scopes(),
            live: BTreeMap::new(),
            stored: BTreeSet::new(),
            slots: BTreeMap::new(),
            rng: Stream::new(seed, "radix-world"),
            next_id: 0,
            hits: 0,
            refusals: 0,
            copies: 0,
            evictions: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }

    fn page_size(&self) -> usize {
        self.cache.config().block_size
    }

    /// One random operation, then every law.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        match self.below(16) {
            0..=3 => self.start()?,
            4..=9 => self.advance()?,
            10 | 11 => self.end(true),
            12 => self.end(false),
            13 | 14 => self.fork(),
            _ => self.flush()?,
        }
        self.cache.check()?;
        self.check_slots()
    }

    /// Ends every request; what remains must all be free or reusable.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        while !self.live.is_empty() {
            self.end(self.live.len().is_multiple_of(2));
            self.cache.check()?;
        }
        let buckets = self.cache.buckets();
        let stored = self.stored.len();
        if (buckets.active, buckets.reclaimable) != (0, stored) {
            return Err(format!("idle with {buckets:?} and {stored} stored pages"));
        }
        match self.cache.tree().state().nodes.iter().all(|n| n.locks == 0) {
            true => Ok(()),
            false => Err("idle with a locked path".to_owned()),
        }
    }

    fn start(&mut self) -> Result<(), String> {
        let scope = self.below(8).saturating_sub(3);
        let len = 1 + self.below(6 * self.page_size());
        let spread = 2 * self.page_size();
        let tokens: Vec<TokenId> = (0..len).map(|_| (self.below(spread) == 0).into()).collect();
        let mut seq = self.cache.config().sequence(&self.scopes[scope]);
        seq.extend(&tokens);
        let hit = self.cache.lookup(&seq);
        let expected = self.longest_stored(scope, &tokens);
        if hit.tokens(self.page_size()) != expected {
            let found = hit.tokens(self.page_size());
            return Err(format!("hit of {found} tokens where {expected} are stored"));
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let request = Request {
            scope,
            seq,
            computed: 0,
        };
        self.live.insert(id, request);
        self.hits += expected;
        let new = 1 + self.below(len - expected);
        self.compute(id, &hit, new)
    }

    /// Whole pages of the first `len - 1` tokens that are stored.
    fn longest_stored(&self, scope: usize, tokens: &[TokenId]) -> usize {
        let ends = (self.page_size()..tokens.len()).step_by(self.page_size());
        let stored = ends.take_while(|&end| self.stored.contains(&(scope, tokens[..end].to_vec())));
        stored.last().unwrap_or(0)
    }

    fn advance(&mut self) -> Result<(), String> {
        let Some(id) = self.pick() else {
            return Ok(());
        };
        let token = self.below(2) as TokenId;
        let request = self.live.get_mut(&id).unwrap();
        if request.computed == request.seq.len() {
            request.seq.push(token);
        }
        let rest = request.seq.len() - request.computed;
        let new = 1 + self.below(rest);
        self.compute(id, &Hit::default(), new)
    }

    /// Allocates, writes what a model would write, and commits; a refusal preempts.
    fn compute(&mut self, id: RequestId, hit: &Hit, new: usize) -> Result<(), String> {
        let computed = self.live[&id].computed;
        let need = self.cache.blocks_needed(id, computed, hit, new);
        let room = self.cache.free_blocks();
        let seq = self.live[&id].seq.clone();
        let before = self.cache.free_queue();
        if !self.cache.allocate(id, &seq, computed, hit, new) {
            if need <= room {
                return Err(format!("refused {need} of {room} free blocks"));
            }
            if self.cache.free_queue() != before {
                return Err("a refusal changed the order of reuse".to_owned());
            }
            self.refusals += 1;
            self.cache.free(id);
            self.live.remove(&id);
            return Ok(());
        }
        self.cache.check()?;
        let moves = self.cache.take_moves();
        // A copied page that only this request held can be reused afterwards.
        let sources = moves.copies.iter().map(|&(from, _)| from);
        let left = sources.filter(|&from| self.cache.ref_count(from) == 0);
        let took = room + left.count() - self.cache.free_blocks();
        if took != need {
            return Err(format!("took {took} free blocks and not {need}"));
        }
        self.apply(moves)?;
        self.write(id, computed + hit.tokens(self.page_size()), new)
    }

    fn apply(&mut self, moves: Moves) -> Result<(), String> {
        let last = self.page_size() - 1;
        for evicted in moves.evicted {
            let Some(prefix) = self.slots.get(&(evicted.block, last)) else {
                return Err(format!("block {} was evicted empty", evicted.block.0));
            };
            if !self.stored.remove(prefix) {
                return Err(format!("{prefix:?} was evicted and not stored"));
            }
            self.evictions += 1;
        }
        for (from, to) in moves.copies {
            for slot in 0..=last {
                match self.slots.get(&(from, slot)).cloned() {
                    Some(prefix) => self.slots.insert((to, slot), prefix),
                    None => self.slots.remove(&(to, slot)),
                };
            }
            self.copies += 1;
        }
        Ok(())
    }

    fn write(&mut self, id: RequestId, from: usize, new: usize) -> Result<(), String> {
        let page_size = self.page_size();
        let Request { scope, seq, .. } = &self.live[&id];
        let (scope, seq) = (*scope, seq.clone());
        let to = from + new;
        let table = self.cache.block_table(id).to_vec();
        if table.len() < to.div_ceil(page_size) {
            return Err(format!(
                "request {id} got {} blocks for {to} tokens",
                table.len()
            ));
        }
        for at in from..to {
            let prefix = (scope, seq.tokens()[..=at].to_vec());
            let slot = (table[at / page_size], at % page_size);
            self.slots.insert(slot, prefix);
        }
        self.cache.commit(id, &seq, to);
        for end in (page_size..=to).step_by(page_size) {
            self.stored.insert((scope, seq.tokens()[..end].to_vec()));
        }
        // OK because the request was looked up above.
        self.live.get_mut(&id).unwrap().computed = to;
        Ok(())
    }

    fn pick(&mut self) -> Option<RequestId> {
        match self.live.len() {
            0 => None,
            n => {
                let at = self.below(n);
                self.live.keys().nth(at).copied()
            }
        }
    }

    fn end(&mut self, finished: bool) {
        let Some(id) = self.pick() else {
            return;
        };
        // OK because the id was picked among the live ones.
        let request = self.live.remove(&id).unwrap();
        match finished {
            true => self.cache.finish(id, &request.seq),
            false => self.cache.free(id),
        }
    }

    /// A child that shares some of its parent's computed tokens and then goes its own way.
    fn fork(&mut self) {
        let Some(parent) = self.pick() else {
            return;
        };
        let Request {
            scope,
            seq,
            computed,
        } = &self.live[&parent];
        let (scope, tokens, computed) = (*scope, seq.tokens().to_vec(), *computed);
        let shared = 1 + self.below(computed);
        let child = RequestId(self.next_id);
        self.next_id += 1;
        let mut seq = self.cache.config().sequence(&self.scopes[scope]);
        seq.extend(&tokens[..shared]);
        self.cache.fork(parent, child, shared);
        let request = Request {
            scope,
            seq,
            computed: shared,
        };
        self.live.insert(child, request);
    }

    fn flush(&mut self) -> Result<(), String> {
        let idle = self.live.is_empty();
        if self.below(4) > 0 && idle {
            return Ok(());
        }
        match self.cache.reset() {
            done if done != idle => Err(format!("reset is {done} where idle is {idle}")),
            true => {
                self.stored.clear();
                Ok(())
            }
            false => Ok(()),
        }
    }

    /// Every computed token of every live request reads its own prefix.
    fn check_slots(&self) -> Result<(), String> {
        for (id, request) in &self.live {
            let table = self.cache.block_table(*id);
            for at in 0..request.computed {
                let slot = (table[at / self.page_size()], at % self.page_size());
                let own = (request.scope, &request.seq.tokens()[..=at]);
                let read = self
                    .slots
                    .get(&slot)
                    .map(|(scope, tokens)| (*scope, &tokens[..]));
                if read != Some(own) {
                    return Err(format!("request {id} reads {read:?} at {at} for {own:?}"));
                }
            }
        }
        Ok(())
    }
}

/// Row 14: evictable + protected + owned + free is the pool after every operation, and every hit
/// is the longest stored prefix.
#[test]
fn random_histories_keep_every_law() {
    let (mut hits, mut refusals, mut copies, mut evictions) = (0, 0, 0, 0);
    for page_size in [1, 4, 16] {
        for seed in 0..6 {
            let num_blocks = if page_size == 1 { 40 } else { 24 };
            let mut world = World::new(page_size, num_blocks, Fault::None, seed);
            for step in 0..3000 {
                let outcome = world.step();
                assert_eq!(
                    outcome,
                    Ok(()),
                    "page {page_size}, seed {seed}, step {step}"
                );
            }
            assert_eq!(world.drain(), Ok(()));
            hits += world.hits;
            refusals += world.refusals;
            evictions += world.evictions;
            copies += world.copies;
        }
    }
    // Each kind of event happened often enough to have been tested.
    assert!(hits > 10_000 && refusals > 1000 && evictions > 1000 && copies > 100);
}
