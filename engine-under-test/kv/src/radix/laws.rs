//! The conservation laws of blocks, tables and locks.

use std::collections::BTreeMap;

use pb_contract::BlockId;

use super::cache::{RadixCache, Table};
use super::node::NIL;
use crate::cache::PrefixCache;

impl RadixCache {
    /// Verifies that every block is in exactly one place, that references are what the tables
    /// hold, that each table starts with the pages of the path that it has locked, that locks are
    /// those of the tables and that the buckets sum to the pool; the tree verifies its own laws.
    pub(super) fn check_laws(&self) -> Result<(), String> {
        self.tree.check()?;
        self.check_places()?;
        self.check_refs()?;
        for (id, table) in &self.tables {
            self.check_table(table)
                .map_err(|law| format!("request {id}: {law}"))?;
        }
        self.check_locks()?;
        let (buckets, usable) = (self.buckets(), self.slots.usable());
        match buckets.total() == usable {
            true => Ok(()),
            false => Err(format!("{buckets:?} does not sum to {usable}")),
        }
    }

    /// Free, in the tree, or owned by a request: one and only one.
    fn check_places(&self) -> Result<(), String> {
        let mut places = vec![0; self.slots.refs.len()];
        let tree = self.tree.all_values();
        for &block in self.slots.free.iter().chain(&tree) {
            if !self.slots.is_usable(block) {
                return Err(format!("block {} cannot be handed out", block.0));
            }
            places[block.0 as usize] += 1;
        }
        let flagged = self.slots.in_tree.iter().filter(|&&in_tree| in_tree);
        let known = tree.iter().all(|&block| self.slots.is_in_tree(block));
        if !known || flagged.count() != tree.len() {
            return Err("the blocks of the tree are not those marked as such".to_owned());
        }
        for &block in &self.slots.free {
            if self.slots.refs(block) > 0 {
                return Err(format!("block {} is free and referenced", block.0));
            }
        }
        for (block, count) in places.iter().enumerate() {
            let owned = self.slots.refs[block] > 0 && !self.slots.in_tree[block];
            let expected = self.slots.is_usable(BlockId(block as u32));
            let count = count + u32::from(owned);
            if count != u32::from(expected) {
                return Err(format!(
                    "block {block} is in {count} places of free list, tree and tables"
                ));
            }
        }
        Ok(())
    }

    fn check_refs(&self) -> Result<(), String> {
        let mut held = vec![0; self.slots.refs.len()];
        for table in self.tables.values() {
            for block in &table.blocks {
                held[block.0 as usize] += 1;
            }
        }
        let mut pairs = held.iter().zip(&self.slots.refs).enumerate();
        match pairs.find(|(_, (held, refs))| held != refs) {
            Some((block, (held, refs))) => Err(format!(
                "block {block} is in {held} tables and has {refs} references"
            )),
            None => Ok(()),
        }
    }

    /// After every chunk the table is the tree's path, then blocks of the request's own.
    fn check_table(&self, table: &Table) -> Result<(), String> {
        let path = self.tree.path_values(table.node);
        if table.blocks.get(..table.protected) != Some(&path[..]) {
            return Err("the table does not start with the pages of its locked path".to_owned());
        }
        let block_size = self.config.block_size;
        for (index, &block) in table.blocks.iter().enumerate().skip(table.protected) {
            if self.slots.is_in_tree(block) {
                return Err(format!("owned block {} is in the tree", block.0));
            }
            let partial =
                table.committed > index * block_size && table.committed < (index + 1) * block_size;
            if self.slots.refs(block) > 1 && !partial {
                return Err(format!(
                    "block {} is shared and not a partial last one",
                    block.0
                ));
            }
        }
        Ok(())
    }

    /// A node has the locks of its children and one for each table that ends there.
    fn check_locks(&self) -> Result<(), String> {
        let mut expected: BTreeMap<u32, u32> = BTreeMap::new();
        for table in self.tables.values() {
            *expected.entry(table.node.0).or_default() += 1;
        }
        for visit in self.tree.visits().iter().rev() {
            let locks = expected.get(&visit.id).copied().unwrap_or_default();
            let node = &self.tree.nodes[visit.id];
            if node.locks != locks {
                return Err(format!(
                    "node {} has {} locks and {locks} holders",
                    visit.id, node.locks
                ));
            }
            *expected.entry(node.parent).or_default() += locks;
            expected.remove(&visit.id);
        }
        // What is left are roots and, for tables without a cached page, no node at all.
        expected.remove(&NIL);
        match expected.keys().find(|&&id| !self.tree.nodes[id].is_root()) {
            Some(id) => Err(format!("node {id} is locked and not in the tree")),
            None => Ok(()),
        }
    }
}
