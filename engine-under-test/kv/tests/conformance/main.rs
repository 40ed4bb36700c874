//! One suite of laws for every prefix cache, through the trait alone.
//!
//! Expected values are written out from the rules (at most `n - 1` tokens are hit, whole blocks
//! only, `cdiv(tokens, B)` blocks a table), never taken from a cache. The numbers in comments are
//! those of public fault reports of which a law keeps the kind away.

mod forks;
mod hits;
mod kinds;
mod memory;

use kinds::kinds;
use pb_contract::{PrefixCacheKind, RequestId, TokenId};
use pb_kv::{CacheScope, HashedTokens, Hit, KvConfig, PrefixCache, build};

/// A cache under test, with the few moves that an engine makes.
struct Subject {
    cache: Box<dyn PrefixCache>,
}

/// Runs a law on every cache with `usable_blocks` blocks of each of the block sizes.
fn every_cache(block_sizes: &[usize], usable_blocks: usize, law: impl Fn(&mut Subject)) {
    for &block_size in block_sizes {
        for config in kinds(block_size, usable_blocks) {
            // Shown when the law fails.
            println!("{config:?}");
            law(&mut Subject::new(config));
        }
    }
}

impl Subject {
    fn new(config: KvConfig) -> Self {
        Subject {
            cache: build(config).unwrap(),
        }
    }

    fn block_size(&self) -> usize {
        self.cache.config().block_size
    }

    /// Tokens that this cache hits where one that shares prefixes hits `tokens`.
    fn shared(&self, tokens: usize) -> usize {
        match self.cache.config().prefix_cache {
            PrefixCacheKind::None => 0,
            _ => tokens,
        }
    }

    fn seq(&self, tokens: impl IntoIterator<Item = TokenId>) -> HashedTokens {
        self.scoped(&CacheScope::default(), tokens)
    }

    fn scoped(
        &self,
        scope: &CacheScope,
        tokens: impl IntoIterator<Item = TokenId>,
    ) -> HashedTokens {
        let mut seq = self.cache.config().sequence(scope);
        seq.extend(&tokens.into_iter().collect::<Vec<_>>());
        seq
    }

    fn hit_tokens(&self, seq: &HashedTokens) -> usize {
        self.cache.lookup(seq).tokens(self.block_size())
    }

    /// Looks up and allocates all of `seq`, without computing it. Returns the hit in tokens.
    fn admit(&mut self, id: u64, seq: &HashedTokens) -> usize {
        let hit = self.cache.lookup(seq);
        let hit_tokens = hit.tokens(self.block_size());
        let new = seq.len() - hit_tokens;
        assert!(
            self.cache.allocate(RequestId(id), seq, 0, &hit, new),
            "no room for {new} tokens"
        );
        self.check();
        hit_tokens
    }

    /// Admits all of `seq` without looking at what is cached.
    fn admit_cold(&mut self, id: u64, seq: &HashedTokens) {
        assert!(
            self.cache
                .allocate(RequestId(id), seq, 0, &Hit::default(), seq.len())
        );
        self.check();
    }

    /// Blocks for all tokens that `seq` has beyond `computed`.
    fn grow(&mut self, id: u64, seq: &HashedTokens, computed: usize) -> bool {
        let new = seq.len() - computed;
        let grown = self
            .cache
            .allocate(RequestId(id), seq, computed, &Hit::default(), new);
        self.check();
        grown
    }

    fn commit(&mut self, id: u64, seq: &HashedTokens) {
        self.cache.commit(RequestId(id), seq, seq.len());
        self.check();
    }

    fn finish(&mut self, id: u64, seq: &HashedTokens) {
        self.cache.finish(RequestId(id), seq);
        self.check();
    }

    fn free(&mut self, id: u64) {
        self.cache.free(RequestId(id));
        self.check();
    }

    /// Computes all of `seq` and lets it go, as a request that has come and gone.
    fn cache_all(&mut self, id: u64, seq: &HashedTokens) {
        self.admit(id, seq);
        self.commit(id, seq);
        self.finish(id, seq);
    }

    fn table(&self, id: u64) -> Vec<pb_contract::BlockId> {
        self.cache.block_table(RequestId(id)).to_vec()
    }

    /// The laws that hold at any time.
    fn check(&self) {
        self.cache.check().unwrap();
        let usable = self.cache.usable_blocks();
        assert_eq!(self.cache.buckets().total(), usable);
        let queue = self.cache.free_queue();
        assert_eq!(queue.len(), self.cache.free_blocks());
        assert_eq!(queue.len(), usable - self.cache.buckets().active);
        let all = self.cache.config().num_blocks as u32;
        for block in (all - usable as u32..all).map(pb_contract::BlockId) {
            let held = self.cache.holders(block).len() as u32;
            assert_eq!(self.cache.ref_count(block), held, "block {}", block.0);
            assert_eq!(queue.contains(&block), held == 0, "block {}", block.0);
        }
    }
}
