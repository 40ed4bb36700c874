//! Laws that hold between operations, whatever the cache, seen through the trait alone.

use pb_contract::{BlockId, Buckets, RequestId};

use super::session::{Broken, Scripted, Session, law};
use crate::Hit;

/// All that can be seen of a cache, for comparing before with after.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    free_queue: Vec<BlockId>,
    free_blocks: usize,
    buckets: Buckets,
    evicted_total: u64,
    live_requests: usize,
    tables: Vec<(RequestId, Vec<BlockId>)>,
}

impl Observed {
    pub(crate) fn of(session: &Session) -> Self {
        let cache = &*session.cache;
        let holding = session.requests.values().filter(|r| r.scheduled > 0);
        let tables = holding.map(|r| (r.id, cache.block_table(r.id).to_vec()));
        Observed {
            free_queue: cache.free_queue(),
            free_blocks: cache.free_blocks(),
            buckets: cache.buckets(),
            evicted_total: cache.evicted_total(),
            live_requests: cache.live_requests(),
            tables: tables.collect(),
        }
    }

    pub(crate) fn free_blocks(&self) -> usize {
        self.free_blocks
    }

    pub(crate) fn live_requests(&self) -> usize {
        self.live_requests
    }

    /// The block table that a request had.
    pub(crate) fn table(&self, id: RequestId) -> &[BlockId] {
        let found = self.tables.iter().find(|(other, _)| *other == id);
        found.map_or(&[], |(_, table)| table)
    }

    /// Tables that held the block.
    fn references(&self, block: BlockId) -> usize {
        let held = self.tables.iter().flat_map(|(_, table)| table);
        held.filter(|&&other| other == block).count()
    }
}

/// Verifies every law that holds between two operations.
pub(crate) fn check(session: &Session) -> Result<(), Broken> {
    session.cache.check().map_err(Broken)?;
    let tables = Observed::of(session).tables;
    tables_are_right(session, &tables)?;
    statistics_are_right(session)?;
    pool_is_whole(session, &tables)
}

/// Tables are as long as their tokens need, and their slots hold what the request computed.
fn tables_are_right(session: &Session, tables: &[(RequestId, Vec<BlockId>)]) -> Result<(), Broken> {
    let config = session.cache.config();
    let holding = session.requests.iter().filter(|(_, r)| r.scheduled > 0);
    for ((name, request), (_, table)) in holding.zip(tables) {
        law!(
            table.len() == request.scheduled.div_ceil(config.block_size),
            "{name} has {} blocks for {} tokens",
            table.len(),
            request.scheduled
        );
        let mut blocks: Vec<u32> = table.iter().map(|block| block.0).collect();
        blocks.sort_unstable();
        law!(
            blocks.windows(2).all(|pair| pair[0] < pair[1]),
            "the table of {name} holds a block twice"
        );
        law!(
            !config.null_block || blocks.first() != Some(&0),
            "the table of {name} holds the null block"
        );
        let contents = &session.contents;
        let valid = [(request.computed, false), (request.start, true)];
        for (tokens, promised) in valid {
            if let Some(at) = contents.first_wrong(table, &request.path, tokens, promised) {
                let at = format!("position {at} of {name} lies in a slot with other data");
                return Err(Broken(at));
            }
        }
    }
    let waiting = session.requests.iter().filter(|(_, r)| r.scheduled == 0);
    for (name, request) in waiting {
        let table = session.cache.block_table(request.id);
        law!(
            table.is_empty(),
            "{name} waits and holds {} blocks",
            table.len()
        );
    }
    Ok(())
}

/// The cache has counted what the session has seen.
fn statistics_are_right(session: &Session) -> Result<(), Broken> {
    let (stats, counted) = (session.cache.stats(), session.counted);
    let figures = [
        (
            "allocated",
            stats.allocated_blocks,
            counted.allocated_blocks,
        ),
        ("hit", stats.hit_blocks, counted.hit_blocks),
        ("copied", stats.copied_blocks, counted.copied_blocks),
        ("evicted", stats.evicted_blocks, counted.evicted_blocks),
        (
            "evicted",
            session.cache.evicted_total(),
            counted.evicted_blocks,
        ),
        (
            "dated evicted",
            stats.lifetime_ns.count(),
            counted.evicted_blocks,
        ),
    ];
    for (what, figure, seen) in figures {
        law!(
            figure == seen,
            "{figure} {what} blocks in the statistics, {seen} seen"
        );
    }
    Ok(())
}

/// References are occurrences in tables, the free queue is the rest, and the buckets sum up.
fn pool_is_whole(session: &Session, tables: &[(RequestId, Vec<BlockId>)]) -> Result<(), Broken> {
    let cache = &*session.cache;
    let config = cache.config();
    let mut references = vec![0u32; config.num_blocks];
    let held = tables.iter().flat_map(|(_, table)| table);
    held.for_each(|block| references[block.0 as usize] += 1);
    let mut queued = vec![false; config.num_blocks];
    let queue = cache.free_queue();
    for block in &queue {
        let twice = std::mem::replace(&mut queued[block.0 as usize], true);
        law!(!twice, "block {} is twice in the free queue", block.0);
    }
    let first = usize::from(config.null_block);
    law!(
        !queued[..first].contains(&true),
        "the null block is in the free queue"
    );
    for block in first..config.num_blocks {
        let counted = cache.ref_count(BlockId(block as u32));
        law!(
            counted == references[block],
            "block {block} has {counted} references, {} in tables",
            references[block]
        );
        law!(
            queued[block] == (counted == 0),
            "block {block} has {counted} references; in the free queue: {}",
            queued[block]
        );
    }
    let buckets = cache.buckets();
    let usable = config.num_blocks - first;
    law!(
        buckets.total() == usable && cache.usable_blocks() == usable,
        "{buckets:?} does not sum to {usable} usable blocks"
    );
    let active = references.iter().filter(|&&count| count > 0).count();
    law!(
        buckets.active == active && cache.free_blocks() == queue.len(),
        "{buckets:?}, {} free blocks: {active} are in tables, {} in the queue",
        cache.free_blocks(),
        queue.len()
    );
    law!(
        cache.live_requests() == tables.len(),
        "{} live requests, {} hold blocks",
        cache.live_requests(),
        tables.len()
    );
    Ok(())
}

/// The copies that an allocation must have made: one when the first block that it writes was
/// held by another table, or when it holds cached data beyond that position; else none.
pub(crate) fn copies(
    session: &Session,
    request: &Scripted,
    held: &[BlockId],
    table: &[BlockId],
    before: &Observed,
) -> Result<Vec<(BlockId, BlockId)>, Broken> {
    let block_size = session.cache.config().block_size;
    let index = request.start / block_size;
    if request.start.is_multiple_of(block_size) || index >= held.len() {
        return Ok(Vec::new());
    }
    let (from, to) = (held[index], table[index]);
    let shared = before.references(from) > 1;
    // A fork can end inside a block that its parent went on to fill. Such a block is full, and
    // may be cached or not: a copy is right, writing is right only if it is not cached, which
    // the contents tell at the next hit.
    let full = session.contents.full(from).is_some();
    law!(
        (from != to) == shared || (full && from != to),
        "block {} is held {} times and written in place: {}",
        from.0,
        before.references(from),
        from == to
    );
    Ok(match from == to {
        true => Vec::new(),
        false => vec![(from, to)],
    })
}

/// An allocation appends to the table, takes unreferenced blocks only, and as many as announced.
/// Returns how many blocks it took that are not hits.
pub(crate) fn taken(
    session: &Session,
    before: &Observed,
    (held, table): (&[BlockId], &[BlockId]),
    hit: &Hit,
    needed: usize,
) -> Result<usize, Broken> {
    let kept = [held, &hit.blocks].concat();
    law!(table.len() >= kept.len(), "an allocation shortened a table");
    let taken = table.iter().filter(|block| !kept.contains(block));
    let mut fresh = 0;
    for block in taken {
        law!(
            before.references(*block) == 0,
            "block {} was handed out while in use",
            block.0
        );
        fresh += 1;
    }
    let idle_hits = hit.blocks.iter().filter(|b| before.references(**b) == 0);
    let count = fresh + idle_hits.count();
    law!(count == needed, "{count} blocks taken, {needed} announced");
    let released = kept
        .iter()
        .filter(|&&b| session.cache.ref_count(b) == 0)
        .count();
    let free = session.cache.free_blocks() + needed - released;
    law!(
        free == before.free_blocks,
        "{needed} blocks taken, but {} of {} are left",
        session.cache.free_blocks(),
        before.free_blocks
    );
    Ok(fresh)
}
