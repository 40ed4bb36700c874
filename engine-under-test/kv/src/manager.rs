//! Block tables of requests over one pool and one prefix cache.
//!
//! The rules are those of vLLM V1, because a wrong order here gives wrong output, not a slow
//! engine: the need is checked before anything changes; hit blocks are referenced before new
//! ones are popped (else a hit block could be handed out as new); blocks are named when they are
//! scheduled, so that a second request of the same step can already share them; a table is
//! released tail first, so that the head of a prefix outlives its tail.

use std::collections::BTreeMap;

use pb_contract::{BlockId, Buckets, PrefixCacheKind, RequestId};

use crate::cache::{NoCache, PrefixCache};
use crate::hash_chain::HashChain;
use crate::pool::{BlockPool, FreePlacement};
use crate::tokens::HashedTokens;

/// Largest pool. At 16 tokens a block this is a quarter of a billion tokens.
pub const MAX_BLOCKS: usize = 1 << 24;

/// Why a pool cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// A block must hold a token.
    #[error("block_size = 0: must be at least 1")]
    ZeroBlockSize,
    /// Nothing could ever be allocated.
    #[error("num_blocks = {num_blocks}: leaves no usable block{}", null_note(*null_block))]
    NoUsableBlock {
        /// Blocks asked for.
        num_blocks: usize,
        /// Whether one of them is the null block.
        null_block: bool,
    },
    /// More blocks than the pool's bookkeeping is made for.
    #[error("num_blocks = {num_blocks}: must be at most {MAX_BLOCKS}")]
    TooManyBlocks {
        /// Blocks asked for.
        num_blocks: usize,
    },
}

fn null_note(null_block: bool) -> &'static str {
    if null_block {
        " beside the null block"
    } else {
        ""
    }
}

/// What a [`KvManager`] is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Tokens in a block.
    pub block_size: usize,
    /// Blocks in the pool, the null block included.
    pub num_blocks: usize,
    /// How shared prefixes are found.
    pub prefix_cache: PrefixCacheKind,
    /// Set block 0 aside (as vLLM does, whose block numbers then agree with ours).
    pub null_block: bool,
    /// Where freed blocks enter the queue. Without a prefix cache always [`FreePlacement::Append`].
    pub placement: FreePlacement,
    /// Compare tokens and keys on a hit, for a digest that may collide.
    pub verify_tokens: bool,
}

impl KvConfig {
    /// The defaults: no null block, blocks without data reused first, digest trusted.
    pub const fn new(block_size: usize, num_blocks: usize, prefix_cache: PrefixCacheKind) -> Self {
        KvConfig {
            block_size,
            num_blocks,
            prefix_cache,
            null_block: false,
            placement: FreePlacement::UnhashedToHead,
            verify_tokens: false,
        }
    }
}

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
    /// Leading blocks that came from the cache: never this request's to forget.
    pub(crate) shared: usize,
}

/// Allocates blocks to requests and finds the blocks that they can share.
#[derive(Debug)]
pub struct KvManager {
    config: KvConfig,
    pub(crate) pool: BlockPool,
    pub(crate) cache: Box<dyn PrefixCache>,
    pub(crate) tables: BTreeMap<RequestId, Table>,
}

impl KvManager {
    /// An empty pool.
    ///
    /// # Errors
    /// When the sizes leave nothing to allocate or are beyond [`MAX_BLOCKS`].
    pub fn new(config: KvConfig) -> Result<Self, KvError> {
        let KvConfig {
            block_size,
            num_blocks,
            prefix_cache,
            null_block,
            ..
        } = config;
        if block_size == 0 {
            return Err(KvError::ZeroBlockSize);
        }
        if num_blocks <= usize::from(null_block) {
            return Err(KvError::NoUsableBlock {
                num_blocks,
                null_block,
            });
        }
        if num_blocks > MAX_BLOCKS {
            return Err(KvError::TooManyBlocks { num_blocks });
        }
        let (cache, placement): (Box<dyn PrefixCache>, _) = match prefix_cache {
            PrefixCacheKind::None => (Box::new(NoCache), FreePlacement::Append),
            PrefixCacheKind::HashChain => (
                Box::new(HashChain::new(num_blocks, config.verify_tokens)),
                config.placement,
            ),
        };
        Ok(KvManager {
            config,
            pool: BlockPool::new(num_blocks, null_block, placement),
            cache,
            tables: BTreeMap::new(),
        })
    }

    /// What the manager was asked to be.
    pub fn config(&self) -> &KvConfig {
        &self.config
    }

    /// The cached prefix of `seq`: at most the full blocks of its first `len - 1` tokens, because
    /// the last token must be computed to give logits. Changes nothing.
    pub fn lookup(&self, seq: &HashedTokens) -> Hit {
        let max_blocks = seq.len().saturating_sub(1) / self.config.block_size;
        Hit {
            blocks: self.cache.lookup(seq, max_blocks),
        }
    }

    /// Gives request `id` the blocks for `new_tokens` more tokens, on top of `computed` tokens in
    /// its own table, or of `hit` when it is admitted (then `computed` is 0). Returns false, and
    /// changes nothing, when the free queue is too short.
    ///
    /// Panics when the arguments contradict the table or when `hit` is out of date: both are
    /// faults of the caller.
    pub fn allocate(
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
        let current = |(index, &block): (usize, &BlockId)| self.cache.holds(seq, index, block);
        assert!(
            hit.blocks.iter().enumerate().all(current),
            "request {id}: the hit is stale"
        );
        if self.blocks_needed(id, computed, hit, new_tokens) > self.pool.free_len() {
            return false;
        }
        let total_tokens = computed + hit.tokens(block_size) + new_tokens;
        // The hits leave the free queue before anything is popped from it.
        hit.blocks.iter().for_each(|&block| self.pool.touch(block));
        let table = self.tables.entry(id).or_default();
        if held == 0 {
            table.blocks.extend_from_slice(&hit.blocks);
            (table.named, table.shared) = (hit.blocks.len(), hit.blocks.len());
        }
        for _ in table.blocks.len()..total_tokens.div_ceil(block_size) {
            // OK because the need was compared with the length of the queue above.
            let popped = self.pool.pop().expect("the free queue is long enough");
            if popped.evicted {
                self.cache.remove(popped.block);
            }
            table.blocks.push(popped.block);
        }
        self.name_full_blocks(id, seq, total_tokens);
        true
    }

    /// Blocks that the same [`KvManager::allocate`] would take out of the free queue: new ones,
    /// and hit blocks that nobody references at present.
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
        let owned = self.block_table(id).len() + hit.blocks.len();
        let queued = hit
            .blocks
            .iter()
            .filter(|&&block| self.pool.ref_count(block) == 0)
            .count();
        tokens.div_ceil(block_size).saturating_sub(owned) + queued
    }

    /// Offers the blocks that `total_tokens` tokens fill to the cache.
    fn name_full_blocks(&mut self, id: RequestId, seq: &HashedTokens, total_tokens: usize) {
        let full = total_tokens.min(seq.len()) / self.config.block_size;
        let Some(table) = self.tables.get_mut(&id) else {
            return;
        };
        for index in table.named..full {
            let parent = index.checked_sub(1).map(|before| table.blocks[before]);
            let block = table.blocks[index];
            if self.cache.insert(seq, index, block, parent) {
                self.pool.set_cached(block, true);
            }
        }
        table.named = table.named.max(full);
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

    /// Releases the blocks of a request (finished, aborted or preempted), tail first. Named
    /// blocks stay reusable. A request without blocks is fine: it was still waiting.
    pub fn free(&mut self, id: RequestId) {
        if let Some(table) = self.tables.remove(&id) {
            self.pool.release(&table.blocks);
        }
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
        for &block in &forgotten {
            self.cache.remove(block);
            self.pool.set_cached(block, false);
        }
        forgotten
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

    /// Requests that hold blocks.
    pub fn live_requests(&self) -> usize {
        self.tables.len()
    }
}
