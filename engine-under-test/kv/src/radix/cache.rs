//! Block tables of requests over a radix tree.

use std::collections::BTreeMap;

use pb_contract::{BlockId, Fault, RequestId};

use super::node::RadixNodeId;
use super::slots::Slots;
use super::tree::{RadixTree, Run};
use crate::cache::{Evicted, Moves};
use crate::config::{KvConfig, KvError};
use crate::digest::BlockHash;
use crate::manager::Hit;
use crate::stats::Accounting;
use crate::tokens::HashedTokens;

/// The blocks of one running request.
///
/// ```text
///   0         protected          committed       blocks.len() * block_size
///   | tree pages, | owned: unaligned | owned: not computed |
///   | locked      | tail             | yet                 |
/// ```
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) blocks: Vec<BlockId>,
    /// Leading blocks that are pages of the tree: SGLang's `cache_protected_len`, in blocks.
    pub(super) protected: usize,
    /// The node that ends with them; this request has locked it once.
    pub(super) node: RadixNodeId,
    /// Tokens whose data is in the blocks.
    pub(super) committed: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Table {
            blocks: Vec::new(),
            protected: 0,
            node: RadixNodeId::ROOT,
            committed: 0,
        }
    }
}

/// SGLang's prefix cache for the engine: a page of the tree is one block.
///
/// Computed pages go to the tree at every commit, between the chunks of a prompt too, so a prompt
/// never holds a page twice for longer than a step. A page can be found only after it was
/// computed; the hash chain names blocks when they are scheduled. Requests carry no priority
/// here, so [`pb_contract::Eviction::Priority`] orders by recency.
#[derive(Debug)]
pub struct RadixCache {
    pub(super) config: KvConfig,
    pub(super) tree: RadixTree,
    pub(super) slots: Slots,
    pub(super) tables: BTreeMap<RequestId, Table>,
    pub(super) moves: Moves,
    pub(super) evicted_total: u64,
    pub(super) accounting: Accounting,
    /// Only with [`Fault::StaleHit`]: pages that were evicted.
    pub(super) ghosts: BTreeMap<BlockHash, BlockId>,
}

impl RadixCache {
    /// An empty cache. `placement`, `hash` and `verify_tokens` do not concern a radix tree: it
    /// compares tokens always.
    ///
    /// # Errors
    /// When the sizes leave nothing to allocate or are beyond the largest pool.
    pub fn new(config: KvConfig) -> Result<Self, KvError> {
        config.validate()?;
        Ok(RadixCache {
            tree: RadixTree::new(config.block_size, config.eviction),
            slots: Slots::new(config.num_blocks, config.null_block),
            tables: BTreeMap::new(),
            moves: Moves::default(),
            evicted_total: 0,
            accounting: Accounting::new(config.num_blocks),
            ghosts: BTreeMap::new(),
            config,
        })
    }

    /// The tree, for reports and tests.
    pub fn tree(&self) -> &RadixTree {
        &self.tree
    }

    pub(super) fn cached_prefix(&self, seq: &HashedTokens) -> Hit {
        let block_size = self.config.block_size;
        let reusable = match self.config.fault {
            Fault::HitOffByOne => seq.len(),
            _ => seq.len().saturating_sub(1),
        };
        let tokens = &seq.tokens()[..reusable / block_size * block_size];
        let mut blocks = self.tree.lookup(Some(&namespace(seq)), tokens).values;
        if self.config.fault == Fault::StaleHit {
            let further = &seq.hashes()[blocks.len()..tokens.len() / block_size];
            let ghosts = further.iter().map_while(|hash| self.ghosts.get(hash));
            blocks.extend(ghosts);
        }
        Hit { blocks }
    }

    pub(super) fn need(
        &self,
        id: RequestId,
        computed: usize,
        hit: &Hit,
        new_tokens: usize,
    ) -> usize {
        let block_size = self.config.block_size;
        let tokens = computed
            .saturating_add(hit.tokens(block_size))
            .saturating_add(new_tokens);
        let held = self.tables.get(&id).map_or(0, |table| table.blocks.len());
        let owned = held + hit.blocks.len();
        let idle = hit.blocks.iter().filter(|&&b| self.slots.refs(b) == 0);
        let copy = usize::from(self.must_copy(id, computed));
        tokens.div_ceil(block_size).saturating_sub(owned) + idle.count() + copy
    }

    /// Whether writing at position `computed` would change what others read: the block there is
    /// partly filled, and it is in the tree or in another table too.
    fn must_copy(&self, id: RequestId, computed: usize) -> bool {
        let index = computed / self.config.block_size;
        let Some(table) = self.tables.get(&id) else {
            return false;
        };
        let Some(&block) = table.blocks.get(index) else {
            return false;
        };
        let shared = index < table.protected || self.slots.refs(block) > 1;
        let skipped = self.config.fault == Fault::CopyOnWriteSkipped;
        !computed.is_multiple_of(self.config.block_size) && shared && !skipped
    }

    /// Puts an admitted request's hit into a new table and locks its path.
    pub(super) fn admit(&mut self, id: RequestId, seq: &HashedTokens, hit: &Hit) {
        let block_size = self.config.block_size;
        let mut table = Table::new();
        if !hit.blocks.is_empty() {
            let tokens = &seq.tokens()[..hit.tokens(block_size)];
            let namespace = namespace(seq);
            let found = self.tree.touch_and_split(Some(&namespace), tokens);
            let current = found.values == hit.blocks || self.config.fault == Fault::StaleHit;
            assert!(current, "request {id}: the hit is stale");
            self.tree.lock(found.node);
            table.node = found.node;
            table.protected = found.values.len();
            table.committed = hit.tokens(block_size);
        }
        for &block in &hit.blocks {
            self.accounting.hit(block, self.slots.refs(block) == 0);
            self.slots.hold(block);
            table.blocks.push(block);
        }
        self.tables.insert(id, table);
    }

    /// Evicts until `blocks` blocks are free. False when the tree has no more to give, which the
    /// caller's comparison of needs excludes unless the bookkeeping is at fault.
    pub(super) fn make_room(&mut self, blocks: usize) -> bool {
        let short = blocks.saturating_sub(self.slots.free.len());
        if short > 0 && self.config.fault == Fault::EvictWhileReferenced {
            let mut held = self.tables.values().flat_map(|table| &table.blocks);
            self.slots.free.extend(held.next().copied());
        }
        let short = blocks.saturating_sub(self.slots.free.len());
        if short == 0 {
            return true;
        }
        for (block, hash) in self.tree.evict(short * self.config.block_size).pages {
            self.slots.take_from_tree(block);
            self.evicted_total += 1;
            let Some(hash) = hash else { continue };
            self.accounting.evicted(block, &hash);
            if self.config.record_evictions {
                self.moves.evicted.push(Evicted { block, hash });
            }
            if self.config.fault == Fault::StaleHit {
                self.ghosts.insert(hash, block);
            }
        }
        blocks <= self.slots.free.len()
    }

    /// The next free block, held once.
    fn take_block(&mut self) -> BlockId {
        // OK because `make_room` was asked for as many as are taken.
        let block = self.slots.free.pop_front().expect("room was made");
        self.slots.hold(block);
        self.accounting.allocated(block);
        block
    }

    /// Gives a table the blocks for `total` blocks in all, after the copy of the block that holds
    /// position `computed` where one is due. Room must have been made.
    pub(super) fn grow(&mut self, id: RequestId, computed: usize, total: usize) {
        if self.must_copy(id, computed) {
            self.copy_block(id, computed / self.config.block_size);
        }
        let held = self.tables.get(&id).map_or(0, |table| table.blocks.len());
        for _ in held..total {
            let block = self.take_block();
            let table = self.tables.entry(id).or_insert_with(Table::new);
            table.blocks.push(block);
        }
    }

    /// Copy-on-write of block `index`. Pages of the tree from there on are no longer this
    /// request's: its lock moves to the node that ends before.
    fn copy_block(&mut self, id: RequestId, index: usize) {
        let to = self.take_block();
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        let from = std::mem::replace(&mut table.blocks[index], to);
        if index < table.protected {
            let block_size = self.config.block_size;
            let (depth, keep) = (table.protected * block_size, index * block_size);
            let shorter = self.tree.cut(table.node, depth, keep);
            self.tree.lock(shorter);
            self.tree.unlock(table.node);
            (table.node, table.protected) = (shorter, index);
        }
        if self.slots.drop_ref(from) {
            self.accounting.released(from);
        }
        self.moves.copies.push((from, to));
        self.accounting.copied();
    }

    /// Gives the whole pages of the first `computed` tokens to the tree: SGLang's
    /// `cache_unfinished_req`. Pages that another request has put there in the meantime take the
    /// place of this request's own, which become free.
    pub(super) fn give_pages(&mut self, id: RequestId, seq: &HashedTokens, computed: usize) {
        let block_size = self.config.block_size;
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        let room = table.blocks.len() * block_size;
        assert!(
            computed <= room,
            "request {id} committed more than it holds"
        );
        table.committed = table.committed.max(computed);
        let pages = computed.min(seq.len()) / block_size;
        let first = table.protected;
        if pages <= first {
            return;
        }
        let namespace = namespace(seq);
        let run = Run {
            tokens: &seq.tokens()[first * block_size..pages * block_size],
            values: &table.blocks[first..pages],
            hashes: &seq.hashes()[first..pages],
            chunked: true,
            ..Run::bare(Some(&namespace), &[])
        };
        let inserted = self.tree.insert_below(table.node, &run);
        self.tree.lock(inserted.node);
        self.tree.unlock(table.node);
        (table.node, table.protected) = (inserted.node, pages);
        let new = first + inserted.present.len();
        for index in new..pages {
            self.slots.give_to_tree(table.blocks[index]);
            self.accounting.named_in(seq.hashes(), index);
        }
        for (index, kept) in (first..).zip(inserted.present) {
            let own = table.blocks[index];
            if own == kept {
                continue;
            }
            self.slots.hold(kept);
            self.slots.drop_ref(own);
            if self.config.fault != Fault::SlotTableNotRewritten {
                table.blocks[index] = kept;
            }
        }
    }
}

/// What separates sequences that must not share: identity, adapter and salt, each tagged by kind.
fn namespace(seq: &HashedTokens) -> Vec<u8> {
    let (identity, keys) = seq.block_keys(0);
    [identity, keys].concat()
}
