//! The radix cache behind the trait that all prefix caches share.

use pb_contract::{BlockId, Buckets, RequestId};

use super::cache::RadixCache;
use crate::cache::{Moves, PrefixCache};
use crate::config::KvConfig;
use crate::events::CacheEvent;
use crate::manager::Hit;
use crate::stats::CacheStats;
use crate::tokens::HashedTokens;

impl PrefixCache for RadixCache {
    fn config(&self) -> &KvConfig {
        &self.config
    }

    fn lookup(&self, seq: &HashedTokens) -> Hit {
        self.cached_prefix(seq)
    }

    fn blocks_needed(&self, id: RequestId, computed: usize, hit: &Hit, new_tokens: usize) -> usize {
        self.need(id, computed, hit, new_tokens)
    }

    /// The hit's path is touched and locked before anything is evicted, else the eviction could
    /// take the very pages that were hit. Eviction frees whole leaves, so more may be freed than
    /// is handed out.
    fn allocate(
        &mut self,
        id: RequestId,
        seq: &HashedTokens,
        computed: usize,
        hit: &Hit,
        new_tokens: usize,
    ) -> bool {
        let block_size = self.config.block_size;
        assert!(
            seq.block_size() == block_size,
            "sequence and pool differ in block size"
        );
        assert!(new_tokens > 0, "request {id} asks for nothing");
        let held = self.block_table(id).len();
        assert!(
            computed <= held * block_size,
            "request {id} holds less than it has computed"
        );
        assert!(
            hit.blocks.is_empty() || held == 0,
            "request {id} was admitted already"
        );
        if self.need(id, computed, hit, new_tokens) > self.free_blocks() {
            return false;
        }
        // Hit blocks leave the reclaimable ones when they are locked, not when blocks are taken.
        let idle = hit.blocks.iter().filter(|&&b| self.slots.refs(b) == 0);
        let taken = self.need(id, computed, hit, new_tokens) - idle.count();
        if held == 0 {
            self.admit(id, seq, hit);
        }
        if !self.make_room(taken) {
            if held == 0 {
                self.release(id);
            }
            return false;
        }
        let total = computed + hit.tokens(block_size) + new_tokens;
        self.grow(id, computed, total.div_ceil(block_size));
        true
    }

    fn commit(&mut self, id: RequestId, seq: &HashedTokens, computed: usize) {
        self.give_pages(id, seq, computed);
    }

    fn receive(&mut self, id: RequestId, seq: &HashedTokens, computed: usize) {
        self.accounting.set_received(true);
        self.commit(id, seq, computed);
        self.accounting.set_received(false);
    }

    fn fork(&mut self, parent: RequestId, child: RequestId, tokens: usize) {
        self.share(parent, child, tokens);
    }

    /// Everything committed is in the tree already but for the partial page, which is dropped:
    /// only whole pages are ever kept. The request counts as one use of its path.
    fn finish(&mut self, id: RequestId, _seq: &HashedTokens) {
        if let Some(table) = self.tables.get(&id) {
            self.tree.count_path(table.node);
        }
        self.release(id);
    }

    fn free(&mut self, id: RequestId) {
        self.release(id);
    }

    /// Nothing: what was not committed was never in the tree.
    fn forget_uncomputed(&mut self, _id: RequestId, _computed: usize) -> Vec<BlockId> {
        Vec::new()
    }

    fn block_table(&self, id: RequestId) -> &[BlockId] {
        self.tables.get(&id).map_or(&[], |table| &table.blocks)
    }

    fn holders(&self, block: BlockId) -> Vec<RequestId> {
        let holding = self
            .tables
            .iter()
            .filter(|(_, table)| table.blocks.contains(&block));
        holding.map(|(&id, _)| id).collect()
    }

    fn take_moves(&mut self) -> Moves {
        std::mem::take(&mut self.moves)
    }

    fn free_blocks(&self) -> usize {
        self.slots.free.len() + self.tree.evictable() / self.config.block_size
    }

    fn usable_blocks(&self) -> usize {
        self.slots.usable()
    }

    fn reset(&mut self) -> bool {
        self.flush()
    }

    fn buckets(&self) -> Buckets {
        Buckets {
            // A block in two places makes this too small; `check` says which.
            active: self.slots.usable().saturating_sub(self.free_blocks()),
            reclaimable: self.tree.evictable() / self.config.block_size,
            free: self.slots.free.len(),
        }
    }

    fn free_queue(&self) -> Vec<BlockId> {
        self.reuse_order()
    }

    fn ref_count(&self, block: BlockId) -> u32 {
        self.slots.refs(block)
    }

    fn evicted_total(&self) -> u64 {
        self.evicted_total
    }

    fn protected_blocks(&self) -> usize {
        self.tree.protected() / self.config.block_size
    }

    fn live_requests(&self) -> usize {
        self.tables.len()
    }

    fn set_now(&mut self, now_ns: u64) {
        self.accounting.set_now(now_ns);
    }

    fn record_events(&mut self) {
        self.accounting.record_events();
    }

    fn take_events(&mut self) -> Vec<CacheEvent> {
        self.accounting.take_events()
    }

    fn stats(&self) -> &CacheStats {
        self.accounting.stats()
    }

    fn check(&self) -> Result<(), String> {
        self.check_laws()
    }
}
