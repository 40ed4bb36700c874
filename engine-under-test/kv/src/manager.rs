//! Block tables of requests over one pool and one prefix cache.
//!
//! The rules are those of vLLM V1, because a wrong order here gives wrong output, not a slow
//! engine: the need is checked before anything changes; hit blocks are referenced before new
//! ones are popped (else a hit block could be handed out as new); blocks are named when they are
//! scheduled, so that a second request of the same step can already share them; a table is
//! released tail first, so that the head of a prefix outlives its tail.

mod release;

use std::collections::BTreeMap;

use pb_contract::{BlockId, Buckets, Fault, FreePlacement, PrefixCacheKind, RequestId};

use crate::block_index::{BlockIndex, NoIndex};
use crate::cache::{Evicted, Moves};
use crate::config::{KvConfig, KvError};
use crate::hash_chain::HashChain;
use crate::pool::BlockPool;
use crate::stats::{Accounting, CacheStats};
use crate::tokens::HashedTokens;

/// Cached blocks at the start of a sequence. Valid only until the next change of the manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// The blocks, first block of the sequence first.
    pub blocks: Vec<BlockId>,
}

impl Hit {
    /// Tokens that need not be computed.
    pub fn tokens(&self, block_size: usize) -> usize {
        self.blocks.len() * block_size
    }

    /// Keeps the first `blocks` blocks.
    pub fn truncate(&mut self, blocks: usize) {
        self.blocks.truncate(blocks);
    }
}

/// The blocks of one running request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<BlockId>,
    /// Leading blocks that have been offered to the cache (hit blocks included).
    pub(crate) named: usize,
    /// Leading full blocks that came from the cache or from a parent: never this request's to
    /// forget.
    pub(crate) shared: usize,
    /// Tokens whose data is in the blocks.
    pub(crate) committed: usize,
    /// Tokens that it was given room for.
    pub(crate) granted: usize,
    /// First block that it has written, or was told to write, since it last shared its blocks.
    pub(crate) writes_from: usize,
}

/// What is known of the data in a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Data {
    /// The request that was last told to write it.
    pub(crate) writer: RequestId,
    /// Whether all of it has been computed.
    pub(crate) computed: bool,
}

/// Allocates blocks to requests and finds the blocks that they can share.
#[derive(Debug)]
pub struct KvManager {
    config: KvConfig,
    pub(crate) pool: BlockPool,
    pub(crate) cache: Box<dyn BlockIndex>,
    pub(crate) tables: BTreeMap<RequestId, Table>,
    pub(crate) data: Vec<Data>,
    pub(crate) accounting: Accounting,
    moves: Moves,
}

impl KvManager {
    /// An empty pool.
    ///
    /// # Errors
    /// When the sizes leave nothing to allocate or are beyond [`crate::MAX_BLOCKS`], and for the
    /// caches that only [`crate::build`] makes.
    pub fn new(config: KvConfig) -> Result<Self, KvError> {
        config.validate()?;
        let num_blocks = config.num_blocks;
        let (cache, placement): (Box<dyn BlockIndex>, _) = match config.prefix_cache {
            PrefixCacheKind::None => (Box::new(NoIndex), FreePlacement::Append),
            PrefixCacheKind::HashChain => (
                Box::new(HashChain::new(num_blocks, config.verifies())),
                config.placement,
            ),
            kind => return Err(KvError::NotAChain { kind }),
        };
        let pool = BlockPool::new(num_blocks, config.null_block, placement);
        Ok(KvManager {
            pool: pool.with_fault(config.fault),
            config,
            cache,
            tables: BTreeMap::new(),
            data: vec![Data::default(); num_blocks],
            accounting: Accounting::new(num_blocks),
            moves: Moves::default(),
        })
    }

    /// What the manager was asked to be.
    pub fn config(&self) -> &KvConfig {
        &self.config
    }

    /// The cached prefix of `seq`: at most the full blocks of its first `len - 1` tokens, because
    /// the last token must be computed to give logits. Changes nothing.
    pub fn lookup(&self, seq: &HashedTokens) -> Hit {
        let spared = usize::from(self.config.fault != Fault::HitOffByOne);
        let max_blocks = seq.len().saturating_sub(spared) / self.config.block_size;
        Hit {
            blocks: self.cache.lookup(seq, max_blocks),
        }
    }

    /// Gives request `id` the blocks for `new_tokens` more tokens, on top of `computed` tokens in
    /// its own table, or of `hit` when it is admitted (then `computed` is 0). Returns false, and
    /// changes nothing, when the free queue is too short.
    ///
    /// Panics when the arguments contradict the table, when `hit` is out of date or when the
    /// digest of `seq` may collide and hits are not compared: faults of the caller.
    pub fn allocate(
        &mut self,
        id: RequestId,
        seq: &HashedTokens,
        computed: usize,
        hit: &Hit,
        new_tokens: usize,
    ) -> bool {
        if hit.blocks.is_empty() && self.extend_in_place(id, computed, new_tokens) {
            return true;
        }
        self.check_arguments(id, seq, computed, hit, new_tokens);
        if self.blocks_needed(id, computed, hit, new_tokens) > self.pool.free_len() {
            return false;
        }
        let block_size = self.config.block_size;
        let start = computed + hit.tokens(block_size);
        let total_tokens = start + new_tokens;
        // The hits leave the free queue before anything is popped from it.
        for &block in &hit.blocks {
            self.accounting.hit(block, self.pool.ref_count(block) == 0);
            self.pool.touch(block);
        }
        let place = self.tables.entry(id).or_insert_with(|| Table {
            blocks: hit.blocks.clone(),
            named: hit.blocks.len(),
            shared: hit.blocks.len(),
            committed: start,
            granted: start,
            writes_from: hit.blocks.len(),
        });
        let mut table = std::mem::take(place);
        if self.needs_copy(&table, computed) {
            self.copy_on_write(&mut table.blocks[computed / block_size]);
        }
        while table.blocks.len() < total_tokens.div_ceil(block_size) {
            table.blocks.push(self.take_block());
        }
        for &block in &table.blocks[start / block_size..] {
            self.data[block.0 as usize].writer = id;
        }
        table.writes_from = table.writes_from.min(start / block_size);
        table.granted = table.granted.max(total_tokens);
        self.name_full_blocks(&mut table, seq, total_tokens);
        self.tables.insert(id, table);
        true
    }

    /// The common case of a decode: the tokens go into the last block of the request's own table
    /// and do not fill it, so nothing is popped, copied or named.
    fn extend_in_place(&mut self, id: RequestId, computed: usize, new_tokens: usize) -> bool {
        let block_size = self.config.block_size;
        let Some(table) = self.tables.get_mut(&id) else {
            return false;
        };
        let (index, total) = (computed / block_size, computed + new_tokens);
        let last = index + 1 == table.blocks.len() && total < table.blocks.len() * block_size;
        let own = last && {
            let block = table.blocks[index];
            self.pool.ref_count(block) == 1 && !self.pool.is_cached(block)
        };
        if !own || new_tokens == 0 || self.config.fault == Fault::PartialBlockShared {
            return false;
        }
        self.data[table.blocks[index].0 as usize].writer = id;
        table.writes_from = table.writes_from.min(index);
        table.granted = table.granted.max(total);
        true
    }

    fn check_arguments(
        &self,
        id: RequestId,
        seq: &HashedTokens,
        computed: usize,
        hit: &Hit,
        new_tokens: usize,
    ) {
        let block_size = self.config.block_size;
        assert!(
            seq.block_size() == block_size,
            "sequence and pool differ in block size"
        );
        assert!(
            self.config.verifies() || !seq.options().kind.needs_verification(),
            "request {id}: its digest may collide and hits are not compared"
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
        let current = |(index, &block): (usize, &BlockId)| self.cache.holds(seq, index, block);
        assert!(
            hit.blocks.iter().enumerate().all(current),
            "request {id}: the hit is stale"
        );
    }

    /// Blocks that the same [`KvManager::allocate`] would take out of the free queue: new ones,
    /// hit blocks that nobody references at present, and a copy of a shared partial block.
    pub fn blocks_needed(
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
        let table = self.tables.get(&id);
        let owned = table.map_or(0, |table| table.blocks.len()) + hit.blocks.len();
        let copies = usize::from(table.is_some_and(|table| self.needs_copy(table, computed)));
        let queued = hit
            .blocks
            .iter()
            .filter(|&&block| self.pool.ref_count(block) == 0)
            .count();
        tokens.div_ceil(block_size).saturating_sub(owned) + queued + copies
    }

    /// Whether a write at position `computed` would change a block that others see: one that a
    /// fork shares, or that its parent has filled beyond the fork and named.
    fn needs_copy(&self, table: &Table, computed: usize) -> bool {
        let partial = !computed.is_multiple_of(self.config.block_size);
        let Some(&block) = table.blocks.get(computed / self.config.block_size) else {
            return false;
        };
        let seen = self.pool.ref_count(block) > 1 || self.pool.is_cached(block);
        partial && seen && self.config.fault != Fault::CopyOnWriteSkipped
    }

    /// Puts a fresh block in the place of a shared one.
    fn copy_on_write(&mut self, place: &mut BlockId) {
        let fresh = self.take_block();
        let shared = std::mem::replace(place, fresh);
        self.moves.copies.push((shared, fresh));
        self.accounting.copied();
        self.release(&[shared]);
    }

    /// Takes the head of the free queue, which loses its name.
    fn take_block(&mut self) -> BlockId {
        // OK because the need was compared with the length of the queue before.
        let popped = self.pool.pop().expect("the free queue is long enough");
        let block = popped.block;
        if popped.evicted && self.config.fault != Fault::StaleHit {
            let hash = self.cache.remove(block);
            self.accounting.evicted(block, &hash);
            if self.config.record_evictions {
                self.moves.evicted.push(Evicted { block, hash });
            }
        }
        self.accounting.allocated(block);
        self.data[block.0 as usize].computed = false;
        block
    }

    /// Offers the blocks that `total_tokens` tokens fill to the cache. A block is named only after
    /// the one before it, so that nothing can be reached over data that was taken back.
    fn name_full_blocks(&mut self, table: &mut Table, seq: &HashedTokens, total_tokens: usize) {
        let tokens = total_tokens.min(seq.len());
        let full = match self.config.fault {
            Fault::PartialBlockShared => {
                let started = tokens.div_ceil(self.config.block_size);
                started.min(seq.hashes().len())
            }
            _ => tokens / self.config.block_size,
        };
        // What is shared is its writer's to name.
        for index in table.named.max(table.shared)..full {
            let parent = index.checked_sub(1).map(|before| table.blocks[before]);
            if parent.is_some_and(|parent| !self.pool.is_cached(parent)) {
                return;
            }
            let block = table.blocks[index];
            let stale = self.config.fault == Fault::StaleHit && self.cache.is_registered(block);
            let unnamed = !self.pool.is_cached(block) && !stale;
            if unnamed && self.cache.insert(seq, index, block, parent) {
                self.pool.set_cached(block, true);
                self.accounting.named_in(seq.hashes(), index);
            }
            table.named = index + 1;
        }
    }

    /// Tells that the data of the request's first `computed` tokens is in its blocks now. Panics
    /// when it has room for less.
    pub fn commit(&mut self, id: RequestId, computed: usize) {
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        assert!(
            computed <= table.granted,
            "request {id} has room for {} tokens, not for {computed}",
            table.granted
        );
        let block_size = self.config.block_size;
        let full = computed / block_size;
        let first = (table.committed / block_size).max(table.shared).min(full);
        for &block in &table.blocks[first..full] {
            self.data[block.0 as usize].computed = true;
        }
        table.committed = computed;
    }

    /// Names what a request has committed and nobody was to find before; see
    /// [`crate::PrefixCache::receive`].
    pub fn publish(&mut self, id: RequestId, seq: &HashedTokens) {
        if let Some(mut table) = self.tables.remove(&id) {
            let committed = table.committed;
            self.accounting.set_received(true);
            self.name_full_blocks(&mut table, seq, committed);
            self.accounting.set_received(false);
            self.tables.insert(id, table);
        }
    }

    /// Lets `child` share the blocks that hold the first `tokens` tokens of `parent`. The first of
    /// the two that writes into a shared partial block gets a copy.
    ///
    /// Panics when the parent has committed fewer tokens or the child holds blocks already.
    pub fn fork(&mut self, parent: RequestId, child: RequestId, tokens: usize) {
        assert!(
            !self.tables.contains_key(&child),
            "request {child} holds blocks already"
        );
        let block_size = self.config.block_size;
        let (covering, full) = (tokens.div_ceil(block_size), tokens / block_size);
        let source = self.tables.get_mut(&parent);
        let source = source.filter(|table| tokens <= table.committed);
        // OK because the caller forks what it has committed: anything else is its fault.
        let source = source.expect("the parent has committed what is shared");
        source.writes_from = source.writes_from.max(covering);
        let table = Table {
            blocks: source.blocks[..covering].to_vec(),
            named: source.named.min(full),
            shared: full,
            committed: tokens,
            granted: tokens,
            writes_from: covering,
        };
        table
            .blocks
            .iter()
            .for_each(|&block| self.pool.share(block));
        self.tables.insert(child, table);
    }

    /// Blocks that can be handed out: those without data and those that are reclaimable.
    pub fn free_blocks(&self) -> usize {
        self.pool.free_len()
    }

    /// Blocks that could ever be handed out (the pool without the null block).
    pub fn usable_blocks(&self) -> usize {
        self.pool.usable_len()
    }

    /// The blocks of a request in the order of its tokens; empty when it holds none.
    pub fn block_table(&self, id: RequestId) -> &[BlockId] {
        self.tables.get(&id).map_or(&[], |table| &table.blocks)
    }

    /// Requests whose tables hold `block`, in ascending order.
    pub fn holders(&self, block: BlockId) -> Vec<RequestId> {
        let holding = self
            .tables
            .iter()
            .filter(|(_, table)| table.blocks.contains(&block));
        holding.map(|(&id, _)| id).collect()
    }

    /// Forgets every cached prefix; refused (false) while any block is referenced.
    pub fn reset(&mut self) -> bool {
        if self.pool.buckets().active > 0 {
            return false;
        }
        for block in self.pool.free_queue() {
            self.pool.set_cached(block, false);
        }
        self.cache.clear();
        self.accounting.reset();
        true
    }

    /// The three disjoint buckets.
    pub fn buckets(&self) -> Buckets {
        self.pool.buckets()
    }

    /// The free queue from head to tail, reclaimable blocks included.
    pub fn free_queue(&self) -> Vec<BlockId> {
        self.pool.free_queue()
    }

    /// References to a block. Panics when there is no such block.
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.pool.ref_count(block)
    }

    /// Blocks that lost cached data to an allocation, since the start.
    pub fn evicted_total(&self) -> u64 {
        self.pool.evicted_total()
    }

    /// Data movements that have become necessary since the last call.
    pub fn take_moves(&mut self) -> Moves {
        std::mem::take(&mut self.moves)
    }

    /// Sets the logical time of what follows, for the statistics only.
    pub fn set_now(&mut self, now_ns: u64) {
        self.accounting.set_now(now_ns);
    }

    /// Counters and histograms since the start.
    pub fn stats(&self) -> &CacheStats {
        self.accounting.stats()
    }

    /// Requests that hold blocks.
    pub fn live_requests(&self) -> usize {
        self.tables.len()
    }
}
