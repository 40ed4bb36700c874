//! What an ideal prefix cache would find in a trace: the check values of a replay.

use crate::trace::TraceRow;
use crate::trace::lru::LruSet;
use crate::trace::prompt::mix;

/// Totals over the rows of a trace. A hit is a leading block that is in the cache when the
/// request arrives, with requests in file order and each computed before the next arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReuseStats {
    /// Requests.
    pub requests: u64,
    /// Named blocks, partial ones included.
    pub blocks: u64,
    /// Of those, hits.
    pub hit_blocks: u64,
    /// Blocks that differ; of those still in the cache when it is limited.
    pub unique_blocks: u64,
    /// Prompt tokens.
    pub tokens: u64,
    /// Tokens of the hit blocks.
    pub hit_tokens: u64,
    /// Full named blocks.
    pub full_blocks: u64,
    /// Of those, hits.
    pub hit_full_blocks: u64,
    /// Full blocks of the engine's size in all prompts.
    pub engine_blocks: u64,
    /// Engine blocks that lie in hit full named blocks: a floor, because the trace cannot show
    /// finer sharing.
    pub hit_engine_blocks: u64,
}

/// The reuse of `rows` in a cache of `capacity` named blocks (`None`: unlimited) with plain LRU:
/// all blocks of a prompt are used in order, first to last. `engine_block` is the block size of an
/// engine in tokens, for the last two totals.
///
/// Panics when `engine_block` is zero.
pub fn prefix_reuse<'a>(
    rows: impl IntoIterator<Item = &'a TraceRow>,
    engine_block: usize,
    capacity: Option<usize>,
) -> ReuseStats {
    let mut counter = ReuseCounter::new(engine_block, capacity);
    rows.into_iter().for_each(|row| counter.add(row));
    counter.stats()
}

/// Identities of the prefixes that end with each named block: a name counts with all before it.
fn chain(row: &TraceRow) -> impl Iterator<Item = u64> {
    row.block_ids.iter().scan(0x7072_6566_6978, |prefix, &id| {
        *prefix = mix(*prefix ^ mix(id));
        Some(*prefix)
    })
}

/// [`prefix_reuse`] a row at a time.
#[derive(Debug)]
pub struct ReuseCounter {
    engine_block: usize,
    cache: LruSet,
    stats: ReuseStats,
}

impl ReuseCounter {
    /// An empty cache; see [`prefix_reuse`].
    ///
    /// Panics when `engine_block` is zero.
    pub fn new(engine_block: usize, capacity: Option<usize>) -> Self {
        assert!(engine_block > 0, "a block holds at least one token");
        ReuseCounter {
            engine_block,
            cache: LruSet::new(capacity),
            stats: ReuseStats::default(),
        }
    }

    /// The next request.
    pub fn add(&mut self, row: &TraceRow) {
        let cache = &mut self.cache;
        let hits = chain(row)
            .take_while(|&prefix| cache.contains(prefix))
            .count();
        let full = row.input_tokens.checked_div(row.block_tokens).unwrap_or(0);
        let full_hit_tokens = hits.min(full) * row.block_tokens;
        let stats = &mut self.stats;
        stats.requests += 1;
        stats.blocks += row.block_ids.len() as u64;
        stats.hit_blocks += hits as u64;
        stats.tokens += row.input_tokens as u64;
        stats.hit_tokens += (hits * row.block_tokens).min(row.input_tokens) as u64;
        stats.full_blocks += full as u64;
        stats.hit_full_blocks += hits.min(full) as u64;
        stats.engine_blocks += (row.input_tokens / self.engine_block) as u64;
        stats.hit_engine_blocks += (full_hit_tokens / self.engine_block) as u64;
        chain(row).for_each(|prefix| cache.touch(prefix));
        stats.unique_blocks = cache.len() as u64;
    }

    /// Totals so far.
    pub fn stats(&self) -> ReuseStats {
        self.stats
    }
}

/// What an engine with its own block size and pool would find, with plain LRU and instant
/// prefill. Full blocks only; the last token of a prompt is always computed.
#[derive(Debug)]
pub struct PoolCounter {
    engine_block: usize,
    unlimited: bool,
    cache: LruSet,
    stats: PoolStats,
}

/// Totals of a [`PoolCounter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Requests.
    pub requests: u64,
    /// Prompt tokens.
    pub tokens: u64,
    /// Full blocks of all prompts.
    pub blocks: u64,
    /// Blocks found.
    pub hit_blocks: u64,
    /// Tokens found: whole blocks.
    pub hit_tokens: u64,
}

impl PoolCounter {
    /// An empty pool of `capacity` blocks (`None`: unlimited) of `engine_block` tokens.
    ///
    /// Panics when `engine_block` is zero.
    pub fn new(engine_block: usize, capacity: Option<usize>) -> Self {
        assert!(engine_block > 0, "a block holds at least one token");
        PoolCounter {
            engine_block,
            unlimited: capacity.is_none(),
            cache: LruSet::new(capacity),
            stats: PoolStats::default(),
        }
    }

    /// The next request; the tokens that the cache holds of its prompt.
    pub fn add(&mut self, row: &TraceRow) -> usize {
        let prefixes: Vec<u64> = chain(row).collect();
        let full = row.input_tokens / self.engine_block;
        // A block is what its last token's name and all before it make it.
        let key = |block: usize| {
            let last_token = (block + 1) * self.engine_block - 1;
            let named = last_token.checked_div(row.block_tokens);
            let prefix = named.and_then(|name| prefixes.get(name).copied());
            prefix.map(|prefix| mix(prefix ^ mix(block as u64)))
        };
        let most = row.input_tokens.saturating_sub(1) / self.engine_block;
        let held = |block: &usize| key(*block).is_some_and(|key| self.cache.contains(key));
        let hits = (0..most).take_while(held).count();
        for block in 0..full {
            // Blocks that nothing else shares only take room.
            let own = || mix(!row.number) ^ mix(block as u64 + (1 << 40));
            match key(block) {
                Some(key) => self.cache.touch(key),
                None if self.unlimited => break,
                None => self.cache.touch(mix(own())),
            }
        }
        let hit_tokens = hits * self.engine_block;
        self.stats.requests += 1;
        self.stats.tokens += row.input_tokens as u64;
        self.stats.blocks += full as u64;
        self.stats.hit_blocks += hits as u64;
        self.stats.hit_tokens += hit_tokens as u64;
        hit_tokens
    }

    /// Totals so far.
    pub fn stats(&self) -> PoolStats {
        self.stats
    }
}
