//! Giving blocks back, and taking back the names of blocks whose data was never computed.
//!
//! Blocks are named when they are scheduled, so a name can be wrong between planning and the end
//! of the step. Whatever ends a request in between must not leave such a name behind.

use pb_contract::{BlockId, Fault, RequestId};

use super::KvManager;

impl KvManager {
    /// Releases the blocks of a request (finished, aborted or preempted), tail first. Named
    /// blocks stay reusable, except those whose data was never committed. A request without
    /// blocks is fine: it was still waiting.
    ///
    /// Another request may have hit such a block in the step that never ran. The policies exclude
    /// it (a step admits nobody after it has preempted), and an engine that drops a request
    /// between planning and execution must restart the [`KvManager::holders`] of what
    /// [`KvManager::forget_uncomputed`] returns. Even without that nothing wrong becomes
    /// reachable: the names that follow from the lost block are taken back from its holders too.
    pub fn free(&mut self, id: RequestId) {
        let Some(table) = self.tables.remove(&id) else {
            return;
        };
        if self.config.fault != Fault::UncomputedNameKept {
            self.take_back(&table.blocks[table.shared.min(table.named)..table.named]);
        }
        let kept = usize::from(self.config.fault == Fault::LeakedReference);
        self.release(&table.blocks[kept.min(table.blocks.len())..]);
        if let (Fault::DoubleFree, Some(&last)) = (self.config.fault, table.blocks.last()) {
            self.pool.release_again(last);
        }
    }

    /// Takes the names of blocks back whose data was never computed.
    fn take_back(&mut self, named: &[BlockId]) {
        for &block in named {
            if self.data[block.0 as usize].computed || !self.pool.is_cached(block) {
                continue;
            }
            self.unname(block);
            if self.pool.ref_count(block) > 1 {
                self.take_back_after(block);
            }
        }
    }

    /// Takes back what the holders of `block` have named behind it.
    fn take_back_after(&mut self, block: BlockId) {
        for id in self.holders(block) {
            let Some(table) = self.tables.get_mut(&id) else {
                continue;
            };
            let at = table.blocks.iter().position(|&held| held == block);
            let first = at.unwrap_or(table.named).min(table.named);
            let own = first.max(table.shared).min(table.named);
            let behind = table.blocks[own..table.named].to_vec();
            table.named = first;
            for block in behind {
                if self.pool.is_cached(block) {
                    self.unname(block);
                }
            }
        }
    }

    fn unname(&mut self, block: BlockId) {
        let name = self.cache.remove(block);
        self.pool.set_cached(block, false);
        self.accounting.unnamed(&name);
    }

    /// Takes back the names of blocks that `id` filled in a step whose execution failed, so that
    /// nobody finds data that was never computed. `computed` is the request's count before that
    /// step. Returns the blocks, whose other holders (see [`KvManager::holders`]) must be started
    /// anew. Blocks that came from the cache keep their names.
    pub fn forget_uncomputed(&mut self, id: RequestId, computed: usize) -> Vec<BlockId> {
        let first = computed / self.config.block_size;
        let Some(table) = self.tables.get_mut(&id) else {
            return Vec::new();
        };
        let first = first.max(table.shared).min(table.named);
        let doubtful = &table.blocks[first..table.named];
        let forgotten: Vec<_> = doubtful
            .iter()
            .copied()
            .filter(|&b| self.pool.is_cached(b))
            .collect();
        table.named = first;
        table.committed = table.committed.min(computed);
        for &block in &forgotten {
            self.data[block.0 as usize].computed = false;
            self.unname(block);
        }
        forgotten
    }

    /// Drops one reference to each block, last block first.
    pub(super) fn release(&mut self, blocks: &[BlockId]) {
        self.pool.release(blocks);
        for &block in blocks {
            if self.pool.ref_count(block) == 0 && self.pool.is_cached(block) {
                self.accounting.released(block);
            }
        }
    }
}
