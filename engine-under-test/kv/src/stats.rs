//! What became of the blocks: lifetimes, idle times, reuse and recomputation.
//!
//! The three times are those that vLLM publishes as `kv_block_lifetime_seconds`,
//! `kv_block_idle_before_evict_seconds` and `kv_block_reuse_gap_seconds`, in nanoseconds of the
//! engine's injected clock. All memory is bounded: histograms of fixed size, one record a block
//! and the names of the last evictions.

use pb_contract::BlockId;

use crate::digest::BlockHash;
use crate::events::{CacheEvent, EventLog};

/// Buckets of a [`Log2Histogram`]: the value zero, and one for each bit length.
pub const LOG2_BUCKETS: usize = 65;

/// A histogram of `u64` values by their bit length: bucket 0 counts zeros, bucket `b` the values
/// from `2^(b-1)` to `2^b - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log2Histogram {
    buckets: [u64; LOG2_BUCKETS],
    count: u64,
    sum: u64,
}

impl Default for Log2Histogram {
    fn default() -> Self {
        Log2Histogram {
            buckets: [0; LOG2_BUCKETS],
            count: 0,
            sum: 0,
        }
    }
}

impl Log2Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        let bits = (u64::BITS - value.leading_zeros()) as usize;
        self.buckets[bits] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of the values; stays at the largest `u64` once it would be more.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Values in each bucket.
    pub fn buckets(&self) -> &[u64; LOG2_BUCKETS] {
        &self.buckets
    }

    /// Largest value of bucket `bucket`.
    pub const fn upper_bound(bucket: usize) -> u64 {
        match bucket {
            0 => 0,
            1..64 => (1 << bucket) - 1,
            _ => u64::MAX,
        }
    }
}

/// Counters and histograms of a cache since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks handed out.
    pub allocated_blocks: u64,
    /// Blocks taken from the cache by admissions.
    pub hit_blocks: u64,
    /// Blocks that lost reusable data to an allocation.
    pub evicted_blocks: u64,
    /// Names given again within as many evictions as the pool has blocks, after their block had
    /// been evicted: work done twice.
    pub recomputed_blocks: u64,
    /// Shared partial blocks copied before a write.
    pub copied_blocks: u64,
    /// From allocation to eviction, of evicted blocks.
    pub lifetime_ns: Log2Histogram,
    /// From the last release to eviction, of evicted blocks.
    pub idle_before_evict_ns: Log2Histogram,
    /// From release to the next hit, of blocks that nobody referenced in between.
    pub reuse_gap_ns: Log2Histogram,
    /// Blocks handed out between the same two moments: the smallest number of additional
    /// allocations that the block has survived.
    pub reuse_distance_blocks: Log2Histogram,
}

impl CacheStats {
    /// Share of evicted blocks that were recomputed soon after, from 0 to 1; `None` before the
    /// first eviction. "Soon" is within as many further evictions as the pool has blocks: a pool
    /// of twice the size would have kept them. Near 1 the pool is too small for its working set.
    pub fn thrash_index(&self) -> Option<f64> {
        let evicted = self.evicted_blocks;
        (evicted > 0).then(|| self.recomputed_blocks as f64 / evicted as f64)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct BlockTimes {
    allocated_ns: u64,
    released_ns: u64,
    /// [`CacheStats::allocated_blocks`] at the release.
    released_at: u64,
}

/// Names in one set of [`Recent`]: a cache line.
const WAYS: usize = 8;

/// Bits of an eviction's number; the others hold bits of the name.
const NUMBER_BITS: u32 = 40;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

/// The last evictions, each as 24 bits of its name and its number, in small sets found by digest:
/// one cache line a call, because it is asked about every block that is named. A set that
/// overflows loses its oldest, which happens to fewer than one name in a thousand.
#[derive(Clone, Debug)]
struct Recent {
    /// Evictions that are remembered.
    window: u64,
    /// Number of the last eviction, counted from 1; 0 marks an empty place.
    last: u64,
    sets: Vec<[u64; WAYS]>,
}

impl Recent {
    fn new(window: usize) -> Self {
        let sets = (window / 2).next_power_of_two();
        Recent {
            window: window as u64,
            last: 0,
            sets: vec![[0; WAYS]; sets],
        }
    }

    fn set(&mut self, name: &BlockHash) -> &mut [u64; WAYS] {
        let index = name.word() as usize & (self.sets.len() - 1);
        &mut self.sets[index]
    }

    /// The bits of a name that are kept: not those that chose the set.
    fn tag(name: &BlockHash) -> u64 {
        name.word() & !NUMBER_MASK
    }

    fn push(&mut self, name: &BlockHash) {
        self.last += 1;
        let (last, entry) = (self.last, Self::tag(name) | self.last & NUMBER_MASK);
        let age = |&entry: &u64| last.wrapping_sub(entry) & NUMBER_MASK;
        let set = self.set(name);
        let empty = set.iter().position(|&entry| entry == 0);
        let oldest = || (0..WAYS).max_by_key(|&way| age(&set[way]));
        if let Some(way) = empty.or_else(oldest) {
            set[way] = entry;
        }
    }

    /// Takes one eviction of this name out; whether there was one in the window.
    fn take(&mut self, name: &BlockHash) -> bool {
        let (last, window, tag) = (self.last, self.window, Self::tag(name));
        let live = |&entry: &u64| {
            let age = last.wrapping_sub(entry) & NUMBER_MASK;
            entry != 0 && entry & !NUMBER_MASK == tag && age < window
        };
        let set = self.set(name);
        match set.iter().position(live) {
            Some(way) => {
                set[way] = 0;
                true
            }
            None => false,
        }
    }

    fn clear(&mut self) {
        self.sets.fill([0; WAYS]);
    }
}

/// Keeps a [`CacheStats`] up to date. A cache owns one and reports each event.
#[derive(Clone, Debug)]
pub struct Accounting {
    now_ns: u64,
    times: Vec<BlockTimes>,
    recent: Recent,
    stats: CacheStats,
    events: EventLog,
    /// What is named now came from elsewhere.
    received: bool,
}

impl Accounting {
    /// For blocks `0..num_blocks`, at time zero.
    pub fn new(num_blocks: usize) -> Self {
        Accounting {
            now_ns: 0,
            times: vec![BlockTimes::default(); num_blocks],
            recent: Recent::new(num_blocks),
            stats: CacheStats::default(),
            events: EventLog::default(),
            received: false,
        }
    }

    /// Whether the data of blocks that are named from now on was computed elsewhere.
    pub fn set_received(&mut self, received: bool) {
        self.received = received;
    }

    /// Collects [`CacheEvent`]s from now on; they must be taken, because the list grows until they
    /// are.
    pub fn record_events(&mut self) {
        self.events.start();
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.take()
    }

    /// The counters so far.
    pub fn stats(&self) -> &CacheStats {
        &self.stats
    }

    /// Sets the time of what follows. An earlier time than before is ignored.
    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// `block` was handed out for new data.
    pub fn allocated(&mut self, block: BlockId) {
        self.stats.allocated_blocks += 1;
        self.times[block.0 as usize].allocated_ns = self.now_ns;
    }

    /// The last reference to `block` was dropped and its data stays reusable.
    pub fn released(&mut self, block: BlockId) {
        let times = &mut self.times[block.0 as usize];
        times.released_ns = self.now_ns;
        times.released_at = self.stats.allocated_blocks;
    }

    /// An admission found `block` in the cache; `idle` when nobody referenced it.
    pub fn hit(&mut self, block: BlockId, idle: bool) {
        self.stats.hit_blocks += 1;
        if idle {
            let times = &self.times[block.0 as usize];
            self.stats
                .reuse_gap_ns
                .record(self.now_ns - times.released_ns);
            self.stats
                .reuse_distance_blocks
                .record(self.stats.allocated_blocks - times.released_at);
        }
    }

    /// `block`, called `name`, lost its data to an allocation. Precedes
    /// [`Accounting::allocated`].
    pub fn evicted(&mut self, block: BlockId, name: &BlockHash) {
        let times = &self.times[block.0 as usize];
        self.stats.evicted_blocks += 1;
        self.stats
            .lifetime_ns
            .record(self.now_ns - times.allocated_ns);
        self.stats
            .idle_before_evict_ns
            .record(self.now_ns - times.released_ns);
        self.recent.push(name);
        self.events.removed(*name);
    }

    /// A block lost its name because its data was never computed.
    pub fn unnamed(&mut self, name: &BlockHash) {
        self.events.removed(*name);
    }

    /// A block with new data was given `name`.
    pub fn named(&mut self, name: &BlockHash) {
        let evicted = self.recent.take(name);
        self.stats.recomputed_blocks += u64::from(evicted && !self.received);
    }

    /// Block `index` of a sequence with these names was given its name.
    pub fn named_in(&mut self, names: &[BlockHash], index: usize) {
        self.named(&names[index]);
        let parent = index.checked_sub(1).map(|before| names[before]);
        self.events.stored(names[index], parent);
    }

    /// A shared partial block was copied.
    pub fn copied(&mut self) {
        self.stats.copied_blocks += 1;
    }

    /// The cache was emptied on request: what is computed again was not thrashed.
    pub fn reset(&mut self) {
        self.recent.clear();
        self.events.cleared();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(byte: u8) -> BlockHash {
        BlockHash([byte; 32])
    }

    #[test]
    fn values_fall_into_the_bucket_of_their_bit_length() {
        let mut histogram = Log2Histogram::default();
        for value in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            histogram.record(value);
        }
        let filled = [(0, 1), (1, 1), (2, 2), (3, 1), (10, 1), (11, 1), (64, 1)];
        for (bucket, &count) in histogram.buckets().iter().enumerate() {
            let expected = filled.iter().find(|(b, _)| *b == bucket);
            assert_eq!(count, expected.map_or(0, |f| f.1), "bucket {bucket}");
        }
        assert_eq!((histogram.count(), histogram.sum()), (8, u64::MAX));
        let bounds = [0, 1, 3, 10, 63, 64].map(Log2Histogram::upper_bound);
        assert_eq!(bounds, [0, 1, 7, 1023, i64::MAX as u64, u64::MAX]);
    }

    #[test]
    fn a_blocks_life_is_measured_between_its_events() {
        let mut accounting = Accounting::new(2);
        let block = BlockId(1);
        accounting.set_now(100);
        accounting.allocated(block);
        accounting.set_now(150);
        accounting.released(block);
        accounting.allocated(BlockId(0));
        accounting.set_now(180);
        accounting.hit(block, true); // gap 30, one block handed out in between
        accounting.hit(block, false); // shared while referenced: no gap
        accounting.set_now(200);
        accounting.released(block);
        accounting.set_now(207);
        accounting.evicted(block, &name(1)); // lifetime 107, idle 7
        let stats = accounting.stats();
        let sums = [
            stats.reuse_gap_ns.sum(),
            stats.reuse_distance_blocks.sum(),
            stats.lifetime_ns.sum(),
            stats.idle_before_evict_ns.sum(),
        ];
        assert_eq!(sums, [30, 1, 107, 7]);
        assert_eq!((stats.hit_blocks, stats.reuse_gap_ns.count()), (2, 1));
        accounting.set_now(50);
        accounting.allocated(block);
        accounting.evicted(block, &name(2));
        assert_eq!(
            accounting.stats().lifetime_ns.sum(),
            107,
            "time stood still"
        );
    }

    #[test]
    fn hardly_any_of_the_remembered_names_is_lost() {
        // As many names as the window holds, spread by a digest: nearly all are found again.
        let window = 10_000;
        let mut recent = Recent::new(window);
        let names: Vec<_> = (0..2 * window as u64)
            .map(|n| BlockHash(*blake3::hash(&n.to_le_bytes()).as_bytes()))
            .collect();
        names.iter().for_each(|name| recent.push(name));
        let (old, new) = names.split_at(window);
        assert!(!old.iter().any(|name| recent.take(name)));
        let found = new.iter().filter(|name| recent.take(name)).count();
        assert!(found > window - window / 1000, "{found}");
        assert!(!new.iter().any(|name| recent.take(name)), "taken once");
    }

    #[test]
    fn only_names_of_the_last_evictions_count_as_recomputed() {
        let mut accounting = Accounting::new(2);
        assert_eq!(accounting.stats().thrash_index(), None);
        for byte in [1, 2, 3] {
            accounting.evicted(BlockId(0), &name(byte));
        }
        accounting.named(&name(1)); // three evictions ago: outside the window of two
        assert_eq!(accounting.stats().thrash_index(), Some(0.0));
        accounting.named(&name(3));
        accounting.named(&name(3)); // a second copy of what was recomputed once
        accounting.named(&name(9)); // never evicted
        assert_eq!(accounting.stats().recomputed_blocks, 1);
        accounting.evicted(BlockId(0), &name(3));
        accounting.evicted(BlockId(1), &name(3));
        accounting.named(&name(3));
        accounting.named(&name(3)); // both evictions are made good
        assert_eq!(accounting.stats().recomputed_blocks, 3);
        assert_eq!(accounting.stats().thrash_index(), Some(0.6));
        accounting.evicted(BlockId(0), &name(4));
        accounting.reset();
        accounting.named(&name(4));
        assert_eq!(accounting.stats().recomputed_blocks, 3);
    }
}
