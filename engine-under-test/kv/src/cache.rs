//! The one trait that every prefix cache implements: blocks of requests, and prefixes shared.
//!
//! The engine knows nothing else of memory. Four implementations: none and hash chain
//! ([`KvManager`]), radix tree, and a brute-force oracle. One conformance suite holds them all to
//! the same laws. Nothing here sees keys or values: what must be moved before a step computes is
//! told through [`Moves`].

use pb_contract::{BlockId, Buckets, PrefixCacheKind, RequestId};

use crate::config::{KvConfig, KvError};
use crate::digest::BlockHash;
use crate::events::CacheEvent;
use crate::manager::{Hit, KvManager};
use crate::oracle::OracleCache;
use crate::radix::RadixCache;
use crate::stats::CacheStats;
use crate::tokens::HashedTokens;

/// A block that lost its name because it was handed out again. Its data stays in place until the
/// next step computes, so it can be saved to a tier before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The block.
    pub block: BlockId,
    /// What it held: the digest of the block and all that precedes it.
    pub hash: BlockHash,
}

/// What must happen to block data before the next step computes: first every evicted block is
/// saved (if there is a tier for it), then the copies are made in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// Blocks whose data will be overwritten.
    pub evicted: Vec<Evicted>,
    /// Copy-on-write: `(from, to)`.
    pub copies: Vec<(BlockId, BlockId)>,
}

/// Block memory of requests with reuse of shared prefixes.
///
/// Life of a request: `lookup` (any number of times), `allocate` with the hit (admission), then
/// in every step `allocate` for more tokens, the step computes, `commit`; at the end `finish`, or
/// `free` when it is preempted or aborted.
///
/// Recency is a logical tick that advances with operations, never a clock.
pub trait PrefixCache: std::fmt::Debug + Send {
    /// What the cache was asked to be.
    fn config(&self) -> &KvConfig;

    /// The cached prefix of `seq`: whole blocks, and at most its first `len - 1` tokens, because
    /// the last token must be computed to give logits. Changes nothing.
    fn lookup(&self, seq: &HashedTokens) -> Hit;

    /// Blocks that the same [`PrefixCache::allocate`] would take out of the free ones: new blocks,
    /// hit blocks that nobody references at present, and a copy of a shared partial block.
    fn blocks_needed(&self, id: RequestId, computed: usize, hit: &Hit, new_tokens: usize) -> usize;

    /// Gives request `id` the blocks for `new_tokens` more tokens, on top of `computed` tokens in
    /// its own table, or of `hit` when it is admitted (then `computed` is 0). Returns false, and
    /// changes nothing, when there are too few free blocks.
    ///
    /// Panics when the arguments contradict the table or when `hit` is out of date: both are
    /// faults of the caller.
    fn allocate(
        &mut self,
        id: RequestId,
        seq: &HashedTokens,
        computed: usize,
        hit: &Hit,
        new_tokens: usize,
    ) -> bool;

    /// Tells that the data of the request's first `computed` tokens is in its blocks now. A radix
    /// tree takes the whole pages over, frees duplicates and rewrites the request's table.
    fn commit(&mut self, id: RequestId, seq: &HashedTokens, computed: usize);

    /// As [`PrefixCache::commit`], of data that came from elsewhere, so that nothing counts as
    /// computed again. The request was given room without names, under a sequence that ends with
    /// its hit, because nobody was to find the data before.
    fn receive(&mut self, id: RequestId, seq: &HashedTokens, computed: usize);

    /// Lets `child` share the blocks that hold the first `tokens` tokens of `parent` (which are
    /// committed). The first of the two that writes into a shared partial block gets a copy.
    fn fork(&mut self, parent: RequestId, child: RequestId, tokens: usize);

    /// Releases a finished request; what it committed stays reusable.
    fn finish(&mut self, id: RequestId, seq: &HashedTokens);

    /// Releases a preempted or aborted request. Names given in a step that was not committed are
    /// taken back. A request without blocks is fine: it was still waiting.
    fn free(&mut self, id: RequestId);

    /// Takes back the names of blocks that `id` filled in a step whose execution failed. Returns
    /// the blocks, whose other holders must be started anew. `computed` is the request's count
    /// before that step.
    fn forget_uncomputed(&mut self, id: RequestId, computed: usize) -> Vec<BlockId>;

    /// The blocks of a request in the order of its tokens; empty when it holds none.
    fn block_table(&self, id: RequestId) -> &[BlockId];

    /// Requests whose tables hold `block`, in ascending order.
    fn holders(&self, block: BlockId) -> Vec<RequestId>;

    /// Data movements that have become necessary since the last call.
    fn take_moves(&mut self) -> Moves;

    /// Blocks that can be handed out: those without data and those that are reclaimable.
    fn free_blocks(&self) -> usize;

    /// Blocks that could ever be handed out (the pool without the null block).
    fn usable_blocks(&self) -> usize;

    /// Forgets every cached prefix; refused (false) while any block is referenced.
    fn reset(&mut self) -> bool;

    /// The three disjoint buckets.
    fn buckets(&self) -> Buckets;

    /// Blocks in the order in which they would be handed out, reclaimable ones included.
    fn free_queue(&self) -> Vec<BlockId>;

    /// References to a block. Panics when there is no such block.
    fn ref_count(&self, block: BlockId) -> u32;

    /// Blocks that lost cached data to an allocation, since the start.
    fn evicted_total(&self) -> u64;

    /// Requests that hold blocks.
    fn live_requests(&self) -> usize;

    /// Cached blocks on locked paths of a radix tree; 0 for the caches that lock nothing.
    fn protected_blocks(&self) -> usize {
        0
    }

    /// Sets the logical time of what follows, for the statistics only. It never runs backwards:
    /// an earlier time than before is ignored.
    fn set_now(&mut self, now_ns: u64);

    /// Counters and histograms since the start.
    fn stats(&self) -> &CacheStats;

    /// Collects [`CacheEvent`]s from now on; they must be taken, because the list grows until they
    /// are.
    fn record_events(&mut self);

    /// What became findable, and what can no longer be found, since the last call.
    fn take_events(&mut self) -> Vec<CacheEvent>;

    /// Verifies every conservation law.
    ///
    /// # Errors
    /// A sentence that names the law that does not hold.
    fn check(&self) -> Result<(), String>;
}

/// Makes the cache that `config` asks for.
///
/// # Errors
/// When the sizes leave nothing to allocate or are beyond the largest pool.
pub fn build(config: KvConfig) -> Result<Box<dyn PrefixCache>, KvError> {
    Ok(match config.prefix_cache {
        PrefixCacheKind::None | PrefixCacheKind::HashChain => Box::new(KvManager::new(config)?),
        PrefixCacheKind::Radix => Box::new(RadixCache::new(config)?),
        PrefixCacheKind::Oracle => Box::new(OracleCache::new(config)?),
    })
}

impl PrefixCache for KvManager {
    fn config(&self) -> &KvConfig {
        self.config()
    }

    fn lookup(&self, seq: &HashedTokens) -> Hit {
        self.lookup(seq)
    }

    fn blocks_needed(&self, id: RequestId, computed: usize, hit: &Hit, new_tokens: usize) -> usize {
        self.blocks_needed(id, computed, hit, new_tokens)
    }

    fn allocate(
        &mut self,
        id: RequestId,
        seq: &HashedTokens,
        computed: usize,
        hit: &Hit,
        new_tokens: usize,
    ) -> bool {
        self.allocate(id, seq, computed, hit, new_tokens)
    }

    fn commit(&mut self, id: RequestId, _seq: &HashedTokens, computed: usize) {
        self.commit(id, computed);
    }

    fn receive(&mut self, id: RequestId, seq: &HashedTokens, computed: usize) {
        self.commit(id, computed);
        self.publish(id, seq);
    }

    fn fork(&mut self, parent: RequestId, child: RequestId, tokens: usize) {
        self.fork(parent, child, tokens);
    }

    fn finish(&mut self, id: RequestId, _seq: &HashedTokens) {
        self.free(id);
    }

    fn free(&mut self, id: RequestId) {
        self.free(id);
    }

    fn forget_uncomputed(&mut self, id: RequestId, computed: usize) -> Vec<BlockId> {
        self.forget_uncomputed(id, computed)
    }

    fn block_table(&self, id: RequestId) -> &[BlockId] {
        self.block_table(id)
    }

    fn holders(&self, block: BlockId) -> Vec<RequestId> {
        self.holders(block)
    }

    fn take_moves(&mut self) -> Moves {
        self.take_moves()
    }

    fn free_blocks(&self) -> usize {
        self.free_blocks()
    }

    fn usable_blocks(&self) -> usize {
        self.usable_blocks()
    }

    fn reset(&mut self) -> bool {
        self.reset()
    }

    fn buckets(&self) -> Buckets {
        self.buckets()
    }

    fn free_queue(&self) -> Vec<BlockId> {
        self.free_queue()
    }

    fn ref_count(&self, block: BlockId) -> u32 {
        self.ref_count(block)
    }

    fn evicted_total(&self) -> u64 {
        self.evicted_total()
    }

    fn live_requests(&self) -> usize {
        self.live_requests()
    }

    fn set_now(&mut self, now_ns: u64) {
        self.set_now(now_ns);
    }

    fn stats(&self) -> &CacheStats {
        self.stats()
    }

    fn record_events(&mut self) {
        self.accounting.record_events();
    }

    fn take_events(&mut self) -> Vec<CacheEvent> {
        self.accounting.take_events()
    }

    fn check(&self) -> Result<(), String> {
        self.check()
    }
}
