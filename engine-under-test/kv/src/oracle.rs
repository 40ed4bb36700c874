//! A prefix cache by brute force: slow, and simple enough to be believed.
//!
//! Every block that holds a full block's data has the whole prefix up to its end written beside
//! it, tokens and scope, and a lookup compares with all of them. Nothing is indexed and nothing
//! is counted along: references are counted in the block tables whenever they are asked for. A
//! prefix is found once its data is computed, as in a radix tree, and blocks without data are
//! handed out before the least recently released ones with data, the tail of a prefix first.

use std::collections::BTreeMap;

use pb_contract::{BlockId, Buckets, RequestId, TokenId};

use crate::cache::{Evicted, Moves, PrefixCache};
use crate::events::CacheEvent;
use crate::stats::{Accounting, CacheStats};
use crate::{BlockHash, HashedTokens, Hit, KvConfig, KvError};

/// The data of a full block: the prefix that ends with it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    /// Adapter, salt and identity, undigested.
    scope: Vec<u8>,
    /// All tokens from the start to the end of the block.
    tokens: Vec<TokenId>,
    /// What the digest calls it. Told to tiers, never compared.
    hash: BlockHash,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    kept: Option<Kept>,
    /// Tick at which a table last let go of the block.
    released: u64,
}

#[derive(Clone, Debug, Default)]
struct Table {
    blocks: Vec<BlockId>,
    /// Leading tokens whose data is in the blocks.
    computed: usize,
}

/// The brute-force prefix cache.
#[derive(Debug)]
pub struct OracleCache {
    config: KvConfig,
    slots: Vec<Slot>,
    tables: BTreeMap<RequestId, Table>,
    tick: u64,
    moves: Moves,
    evicted_total: u64,
    accounting: Accounting,
}

impl OracleCache {
    /// An empty pool.
    ///
    /// # Errors
    /// When the sizes leave nothing to allocate or are beyond the largest pool.
    pub fn new(config: KvConfig) -> Result<Self, KvError> {
        config.validate()?;
        Ok(OracleCache {
            config,
            slots: vec![Slot::default(); config.num_blocks],
            tables: BTreeMap::new(),
            tick: 0,
            moves: Moves::default(),
            evicted_total: 0,
            accounting: Accounting::new(config.num_blocks),
        })
    }

    fn slot(&self, block: BlockId) -> &Slot {
        &self.slots[block.0 as usize]
    }

    fn slot_mut(&mut self, block: BlockId) -> &mut Slot {
        &mut self.slots[block.0 as usize]
    }

    /// The blocks that may be handed out at all.
    fn usable(&self) -> impl Iterator<Item = BlockId> + use<> {
        let first = u32::from(self.config.null_block);
        (first..self.config.num_blocks as u32).map(BlockId)
    }

    /// Occurrences of every block in tables.
    fn references(&self) -> Vec<u32> {
        let mut references = vec![0; self.config.num_blocks];
        for table in self.tables.values() {
            for block in &table.blocks {
                references[block.0 as usize] += 1;
            }
        }
        references
    }

    /// The partial block that the next token goes into and that must be copied before: another
    /// table holds it too, or it keeps a full block's data that a fork shares in part.
    fn copy_source(&self, id: RequestId, computed: usize) -> Option<usize> {
        let index = computed / self.config.block_size;
        let &block = self.block_table(id).get(index)?;
        let partial = !computed.is_multiple_of(self.config.block_size);
        let shared = self.ref_count(block) > 1 || self.slot(block).kept.is_some();
        (partial && shared).then_some(index)
    }

    /// Takes the first block of the free queue. Its data is lost.
    fn pop(&mut self) -> BlockId {
        // OK because `allocate` compares the need with the length of the queue before.
        let block = *self.free_queue().first().expect("a free block");
        if let Some(kept) = self.slot_mut(block).kept.take() {
            self.evicted_total += 1;
            self.accounting.evicted(block, &kept.hash);
            if self.config.record_evictions {
                let hash = kept.hash;
                self.moves.evicted.push(Evicted { block, hash });
            }
        }
        self.accounting.allocated(block);
        block
    }

    /// Drops a reference to a block that has just left a table.
    fn let_go(&mut self, block: BlockId) {
        self.tick += 1;
        let tick = self.tick;
        self.slot_mut(block).released = tick;
        if self.ref_count(block) == 0 && self.slot(block).kept.is_some() {
            self.accounting.released(block);
        }
    }

    fn release(&mut self, id: RequestId) {
        // Tail first, so that the tail has the older tick.
        while let Some(block) = self.tables.get_mut(&id).and_then(|t| t.blocks.pop()) {
            self.let_go(block);
        }
        self.tables.remove(&id);
    }

    fn prefix(seq: &HashedTokens, blocks: usize) -> (Vec<u8>, &[TokenId]) {
        let (identity, keys) = seq.block_keys(0);
        let tokens = &seq.tokens()[..blocks * seq.block_size()];
        ([identity, keys].concat(), tokens)
    }
}

impl PrefixCache for OracleCache {
    fn config(&self) -> &KvConfig {
        &self.config
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

    fn lookup(&self, seq: &HashedTokens) -> Hit {
        let mut hit = Hit::default();
        for blocks in 1..=seq.len().saturating_sub(1) / self.config.block_size {
            let (scope, tokens) = Self::prefix(seq, blocks);
            let same = |kept: &Kept| kept.scope == scope && kept.tokens == tokens;
            let mut usable = self.usable();
            let Some(block) = usable.find(|&b| self.slot(b).kept.as_ref().is_some_and(same)) else {
                break;
            };
            hit.blocks.push(block);
        }
        hit
    }

    fn blocks_needed(&self, id: RequestId, computed: usize, hit: &Hit, new_tokens: usize) -> usize {
        let block_size = self.config.block_size;
        let tokens = computed
            .saturating_add(hit.tokens(block_size))
            .saturating_add(new_tokens);
        let owned = self.block_table(id).len() + hit.blocks.len();
        let references = self.references();
        let idle = hit.blocks.iter().filter(|b| references[b.0 as usize] == 0);
        let copies = usize::from(self.copy_source(id, computed).is_some());
        tokens.div_ceil(block_size).saturating_sub(owned) + idle.count() + copies
    }

    fn allocate(
        &mut self,
        id: RequestId,
        seq: &HashedTokens,
        computed: usize,
        hit: &Hit,
        new_tokens: usize,
    ) -> bool {
        let block_size = self.config.block_size;
        let held = self.block_table(id).len();
        assert!(new_tokens > 0, "request {id} asks for nothing");
        assert!(
            computed <= held * block_size && (hit.blocks.is_empty() || held == 0),
            "request {id} holds less than it has computed, or was admitted already"
        );
        let within = hit.tokens(block_size) <= seq.len();
        let current = |(index, &block): (usize, &BlockId)| {
            let (scope, tokens) = Self::prefix(seq, index + 1);
            let same = |kept: &Kept| kept.scope == scope && kept.tokens == tokens;
            self.slot(block).kept.as_ref().is_some_and(same)
        };
        assert!(
            within && hit.blocks.iter().enumerate().all(current),
            "request {id}: the hit is stale"
        );
        if self.blocks_needed(id, computed, hit, new_tokens) > self.free_blocks() {
            return false;
        }
        for &block in &hit.blocks {
            let idle = self.ref_count(block) == 0;
            self.accounting.hit(block, idle);
            self.tables.entry(id).or_default().blocks.push(block);
        }
        if let Some(index) = self.copy_source(id, computed) {
            let (from, to) = (self.block_table(id)[index], self.pop());
            self.tables.entry(id).or_default().blocks[index] = to;
            self.moves.copies.push((from, to));
            self.accounting.copied();
            self.let_go(from);
        }
        let total = computed + hit.tokens(block_size) + new_tokens;
        for _ in self.block_table(id).len()..total.div_ceil(block_size) {
            let block = self.pop();
            self.tables.entry(id).or_default().blocks.push(block);
        }
        let table = self.tables.entry(id).or_default();
        table.computed = table.computed.max(hit.tokens(block_size));
        true
    }

    fn receive(&mut self, id: RequestId, seq: &HashedTokens, computed: usize) {
        self.accounting.set_received(true);
        self.commit(id, seq, computed);
        self.accounting.set_received(false);
    }

    fn commit(&mut self, id: RequestId, seq: &HashedTokens, computed: usize) {
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        let before = table.computed / self.config.block_size;
        table.computed = computed;
        let full = table.blocks[before..computed / self.config.block_size].to_vec();
        for (index, block) in full.into_iter().enumerate() {
            let (scope, tokens) = Self::prefix(seq, before + index + 1);
            let hash = seq.hashes()[before + index];
            self.slot_mut(block).kept = Some(Kept {
                scope,
                tokens: tokens.to_vec(),
                hash,
            });
            self.accounting.named_in(seq.hashes(), before + index);
        }
    }

    fn fork(&mut self, parent: RequestId, child: RequestId, tokens: usize) {
        let blocks = tokens.div_ceil(self.config.block_size);
        let shared = self.block_table(parent)[..blocks].to_vec();
        let table = Table {
            blocks: shared,
            computed: tokens,
        };
        self.tables.insert(child, table);
    }

    fn finish(&mut self, id: RequestId, _seq: &HashedTokens) {
        self.release(id);
    }

    fn free(&mut self, id: RequestId) {
        self.release(id);
    }

    fn forget_uncomputed(&mut self, _id: RequestId, _computed: usize) -> Vec<BlockId> {
        // Nothing is found before it is computed.
        Vec::new()
    }

    fn block_table(&self, id: RequestId) -> &[BlockId] {
        self.tables.get(&id).map_or(&[], |table| &table.blocks)
    }

    fn holders(&self, block: BlockId) -> Vec<RequestId> {
        let tables = self.tables.iter();
        let holding = tables.filter(|(_, table)| table.blocks.contains(&block));
        holding.map(|(&id, _)| id).collect()
    }

    fn take_moves(&mut self) -> Moves {
        std::mem::take(&mut self.moves)
    }

    fn free_blocks(&self) -> usize {
        self.free_queue().len()
    }

    fn usable_blocks(&self) -> usize {
        self.usable().count()
    }

    fn reset(&mut self) -> bool {
        if !self.tables.is_empty() {
            return false;
        }
        self.slots.fill(Slot::default());
        self.accounting.reset();
        true
    }

    fn buckets(&self) -> Buckets {
        let references = self.references();
        let active = |b: &BlockId| references[b.0 as usize] > 0;
        let kept = |b: &BlockId| self.slot(*b).kept.is_some();
        Buckets {
            active: self.usable().filter(active).count(),
            reclaimable: self.usable().filter(|b| !active(b) && kept(b)).count(),
            free: self.usable().filter(|b| !active(b) && !kept(b)).count(),
        }
    }

    fn free_queue(&self) -> Vec<BlockId> {
        let references = self.references();
        let idle = self.usable().filter(|b| references[b.0 as usize] == 0);
        let mut queue: Vec<BlockId> = idle.collect();
        queue.sort_by_key(|&b| (self.slot(b).kept.is_some(), self.slot(b).released, b));
        queue
    }

    fn ref_count(&self, block: BlockId) -> u32 {
        assert!(
            (block.0 as usize) < self.slots.len(),
            "no block {}",
            block.0
        );
        let tables = self.tables.values().flat_map(|table| &table.blocks);
        tables.filter(|&&other| other == block).count() as u32
    }

    fn evicted_total(&self) -> u64 {
        self.evicted_total
    }

    fn live_requests(&self) -> usize {
        self.tables.len()
    }

    fn check(&self) -> Result<(), String> {
        for (id, table) in &self.tables {
            let mut blocks = table.blocks.clone();
            blocks.sort_unstable();
            blocks.dedup();
            let usable = |block: &BlockId| self.usable().any(|b| b == *block);
            if blocks.len() < table.blocks.len() || !blocks.iter().all(usable) {
                return Err(format!(
                    "the table of request {id} holds {:?}",
                    table.blocks
                ));
            }
            if table.computed > table.blocks.len() * self.config.block_size {
                return Err(format!("request {id} has computed more than it holds"));
            }
        }
        self.check_kept()
    }
}

impl OracleCache {
    /// What is kept is whole blocks, and the block before every kept one is kept as well: else
    /// a prefix would take up memory and never be found.
    fn check_kept(&self) -> Result<(), String> {
        let block_size = self.config.block_size;
        let kept = || self.slots.iter().filter_map(|slot| slot.kept.as_ref());
        for one in kept() {
            let before = one.tokens.len().saturating_sub(block_size);
            let is_before =
                |other: &Kept| other.scope == one.scope && other.tokens == one.tokens[..before];
            if one.tokens.is_empty() || !one.tokens.len().is_multiple_of(block_size) {
                return Err(format!(
                    "a block keeps a prefix of {} tokens",
                    one.tokens.len()
                ));
            }
            if before > 0 && !kept().any(is_before) {
                return Err(format!("the block before {:?} is not kept", one.tokens));
            }
        }
        Ok(())
    }
}
