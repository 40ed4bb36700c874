//! The ends of requests: sharing with a child, finishing, preemption, flush.

use pb_contract::{BlockId, Fault, RequestId};

use super::cache::{RadixCache, Table};

impl RadixCache {
    /// A table for `child` over the blocks that hold the first `tokens` tokens of `parent`. The
    /// last of them may be partly filled, even a page of the tree: then the lock keeps it until
    /// the child writes.
    pub(super) fn share(&mut self, parent: RequestId, child: RequestId, tokens: usize) {
        let block_size = self.config.block_size;
        assert!(
            !self.tables.contains_key(&child),
            "request {child} holds blocks already"
        );
        let Some(table) = self.tables.get(&parent).filter(|_| tokens > 0) else {
            assert!(tokens == 0, "request {parent} holds no blocks to share");
            return;
        };
        assert!(
            tokens <= table.committed,
            "request {parent} has not computed what {child} is to share"
        );
        let held = tokens.div_ceil(block_size);
        let protected = table.protected.min(held);
        let (depth, keep) = (table.protected * block_size, protected * block_size);
        let node = self.tree.cut(table.node, depth, keep);
        self.tree.lock(node);
        let blocks = table.blocks[..held].to_vec();
        blocks.iter().for_each(|&block| self.slots.hold(block));
        let shared = Table {
            blocks,
            protected,
            node,
            committed: tokens,
        };
        self.tables.insert(child, shared);
    }

    /// Drops a table. What the tree has taken over stays there; the rest becomes free.
    pub(super) fn release(&mut self, id: RequestId) {
        let Some(table) = self.tables.remove(&id) else {
            return;
        };
        if self.config.fault != Fault::LeakedReference {
            self.tree.unlock(table.node);
        }
        for &block in &table.blocks {
            if self.slots.drop_ref(block) {
                self.accounting.released(block);
            }
        }
        if self.config.fault == Fault::DoubleFree {
            self.slots.free.extend(table.blocks.last());
        }
    }

    /// Forgets the tree; refused while a request holds a block or a path is locked.
    pub(super) fn flush(&mut self) -> bool {
        if !self.tables.is_empty() || self.tree.protected() > 0 {
            return false;
        }
        self.tree.clear();
        self.slots.reset();
        self.accounting.reset();
        self.ghosts.clear();
        true
    }

    /// Blocks in the order in which they would be handed out.
    pub(super) fn reuse_order(&self) -> Vec<BlockId> {
        let mut order: Vec<_> = self.slots.free.iter().copied().collect();
        order.extend(self.tree.eviction_order());
        order
    }
}
