//! What the router knows of the workers' caches.
//!
//! Two sources: events that a worker reports, numbered so that a gap is seen, and, where a worker
//! reports none, the router's own routing, believed for a while. Either is knowledge of the past:
//! a block may be gone by the time a request arrives, and then it is computed again. Only time is
//! lost by that; how much is bounded, because knowledge that was not renewed in time counts for
//! nothing.

use std::collections::BTreeMap;

use pb_contract::Nanos;
use pb_kv::BlockHash;

use crate::worker::WorkerId;

/// One event of a worker's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheChange {
    /// These blocks can be reused now.
    Stored(Vec<BlockHash>),
    /// These blocks are gone.
    Removed(Vec<BlockHash>),
    /// All blocks are gone.
    Cleared,
}

/// An event with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheEvent {
    /// Number; each event of a worker has the next one.
    pub seq: u64,
    /// What happened.
    pub change: CacheChange,
}

/// What a worker answered to "what has happened since?".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPage {
    /// The engine's name, new after each start.
    pub engine: String,
    /// The oldest event that it still has.
    pub oldest_seq: u64,
    /// The number to ask from next.
    pub next_seq: u64,
    /// Events in order.
    pub events: Vec<CacheEvent>,
}

/// How a page was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// It continued what was known.
    Continued,
    /// Events were missing: what was known is forgotten, and what the page says is known.
    Gap,
    /// The engine is another one: what was known is forgotten; ask from 0.
    Restarted,
}

/// Knowledge of one worker's cache.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Blocks, with the time until which they are believed in.
    blocks: BTreeMap<BlockHash, Nanos>,
    engine: Option<String>,
    next_seq: u64,
    /// When events were last read; none while the worker reports none.
    read_at: Option<Nanos>,
}

/// Which blocks each worker has, as far as is known.
#[derive(Clone, Debug)]
pub struct KvIndex {
    known: BTreeMap<WorkerId, Known>,
    max_staleness_ns: Nanos,
    ttl_ns: Nanos,
    max_blocks: usize,
}

impl KvIndex {
    /// Knows nothing yet. `max_staleness_ns` is for workers with events, `ttl_ns` for the others.
    pub fn new(max_staleness_ns: Nanos, ttl_ns: Nanos, max_blocks: usize) -> Self {
        KvIndex {
            known: BTreeMap::new(),
            max_staleness_ns,
            ttl_ns,
            max_blocks,
        }
    }

    /// Event to ask `worker` from.
    pub fn next_seq(&self, worker: WorkerId) -> u64 {
        self.known.get(&worker).map_or(0, |known| known.next_seq)
    }

    /// Blocks known of `worker`.
    pub fn blocks(&self, worker: WorkerId) -> usize {
        self.known
            .get(&worker)
            .map_or(0, |known| known.blocks.len())
    }

    /// Forgets all that was known of `worker`.
    pub fn forget(&mut self, worker: WorkerId) {
        self.known.remove(&worker);
    }

    /// Takes in what `worker` answered at `now`.
    pub fn read(&mut self, now: Nanos, worker: WorkerId, page: &EventPage) -> Intake {
        let known = self.known.entry(worker).or_default();
        let other = known.engine.as_ref().is_some_and(|e| *e != page.engine);
        if other || page.next_seq < known.next_seq {
            *known = Known {
                engine: Some(page.engine.clone()),
                ..Known::default()
            };
            return Intake::Restarted;
        }
        // From the first page on, the worker's events are all that is believed.
        if known.read_at.is_none() {
            known.blocks.clear();
        }
        known.engine = Some(page.engine.clone());
        let gap = page.oldest_seq > known.next_seq;
        if gap {
            known.blocks.clear();
        }
        let from = known.next_seq;
        for event in page.events.iter().filter(|event| event.seq >= from) {
            known.apply(&event.change, self.max_blocks);
        }
        known.next_seq = page.next_seq;
        known.read_at = Some(now);
        if gap { Intake::Gap } else { Intake::Continued }
    }

    /// Notes that `worker` has computed `blocks`, if it reports no events by itself.
    pub fn predict(&mut self, now: Nanos, worker: WorkerId, blocks: &[BlockHash]) {
        let known = self.known.entry(worker).or_default();
        if known.read_at.is_some() {
            return;
        }
        let until = now + self.ttl_ns;
        if known.blocks.len() + blocks.len() > self.max_blocks {
            known.blocks.retain(|_, &mut until| until > now);
        }
        for &block in blocks {
            if known.blocks.len() < self.max_blocks {
                known.blocks.insert(block, until);
            }
        }
    }

    /// Leading blocks of a prompt that `worker` has, as far as `now` can be told.
    pub fn overlap(&self, now: Nanos, worker: WorkerId, prompt: &[BlockHash]) -> usize {
        let Some(known) = self.known.get(&worker) else {
            return 0;
        };
        let stale = known
            .read_at
            .is_some_and(|at| now.saturating_sub(at) > self.max_staleness_ns);
        if stale {
            return 0;
        }
        let has = |block: &&BlockHash| known.blocks.get(*block).is_some_and(|&until| until > now);
        prompt.iter().take_while(has).count()
    }
}

impl Known {
    fn apply(&mut self, change: &CacheChange, max_blocks: usize) {
        match change {
            CacheChange::Stored(blocks) => {
                for &block in blocks {
                    // A block too many is one that is not known of: it costs time, not memory.
                    if self.blocks.len() < max_blocks {
                        self.blocks.insert(block, Nanos(u64::MAX));
                    }
                }
            }
            CacheChange::Removed(blocks) => {
                for block in blocks {
                    self.blocks.remove(block);
                }
            }
            CacheChange::Cleared => self.blocks.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: WorkerId = WorkerId(3);

    fn block(n: u8) -> BlockHash {
        BlockHash([n; 32])
    }

    fn blocks(numbers: impl IntoIterator<Item = u8>) -> Vec<BlockHash> {
        numbers.into_iter().map(block).collect()
    }

    fn page(oldest_seq: u64, events: &[(u64, CacheChange)]) -> EventPage {
        let next_seq = events.last().map_or(oldest_seq, |(seq, _)| seq + 1);
        EventPage {
            engine: "a".to_owned(),
            oldest_seq,
            next_seq,
            events: events
                .iter()
                .map(|(seq, change)| CacheEvent {
                    seq: *seq,
                    change: change.clone(),
                })
                .collect(),
        }
    }

    fn index() -> KvIndex {
        KvIndex::new(Nanos(100), Nanos(1000), 8)
    }

    #[test]
    fn the_leading_run_counts_and_nothing_behind_a_hole() {
        let mut index = index();
        let stored = CacheChange::Stored(blocks([1, 2, 4]));
        assert_eq!(
            index.read(Nanos(0), W, &page(0, &[(0, stored)])),
            Intake::Continued
        );
        assert_eq!(index.overlap(Nanos(0), W, &blocks([1, 2, 3, 4])), 2);
        assert_eq!(index.overlap(Nanos(0), W, &blocks([2, 1])), 2);
        assert_eq!(index.overlap(Nanos(0), W, &blocks([3, 1])), 0);
        assert_eq!(index.overlap(Nanos(0), WorkerId(4), &blocks([1])), 0);
        let removed = CacheChange::Removed(blocks([1]));
        index.read(Nanos(1), W, &page(0, &[(1, removed)]));
        assert_eq!(index.overlap(Nanos(1), W, &blocks([1, 2])), 0);
        assert_eq!(index.blocks(W), 2);
    }

    #[test]
    fn knowledge_that_is_not_renewed_counts_for_nothing() {
        let mut index = index();
        index.read(
            Nanos(0),
            W,
            &page(0, &[(0, CacheChange::Stored(blocks([1])))]),
        );
        assert_eq!(index.overlap(Nanos(100), W, &blocks([1])), 1);
        assert_eq!(index.overlap(Nanos(101), W, &blocks([1])), 0);
        // An answer without news renews it.
        index.read(Nanos(150), W, &page(1, &[]));
        assert_eq!(index.overlap(Nanos(250), W, &blocks([1])), 1);
    }

    #[test]
    fn a_gap_and_a_restart_forget() {
        let mut index = index();
        index.read(
            Nanos(0),
            W,
            &page(0, &[(0, CacheChange::Stored(blocks([1])))]),
        );
        // Events 1 to 4 are lost: block 1 may be gone.
        let after = page(5, &[(5, CacheChange::Stored(blocks([2])))]);
        assert_eq!(index.read(Nanos(1), W, &after), Intake::Gap);
        assert_eq!(index.overlap(Nanos(1), W, &blocks([1])), 0);
        assert_eq!(index.overlap(Nanos(1), W, &blocks([2])), 1);
        assert_eq!(index.next_seq(W), 6);
        let other = EventPage {
            engine: "b".to_owned(),
            ..page(0, &[(0, CacheChange::Stored(blocks([2])))])
        };
        assert_eq!(index.read(Nanos(2), W, &other), Intake::Restarted);
        assert_eq!((index.blocks(W), index.next_seq(W)), (0, 0));
        assert_eq!(index.read(Nanos(3), W, &other), Intake::Continued);
        assert_eq!(index.overlap(Nanos(3), W, &blocks([2])), 1);
        // The same name that counts from the start again has lost its memory too.
        index.read(
            Nanos(4),
            W,
            &EventPage {
                next_seq: 9,
                oldest_seq: 1,
                ..other.clone()
            },
        );
        assert_eq!(index.read(Nanos(5), W, &other), Intake::Restarted);
    }

    #[test]
    fn an_event_that_is_told_twice_counts_once() {
        let mut index = index();
        let both = [
            (0, CacheChange::Stored(blocks([1]))),
            (1, CacheChange::Removed(blocks([1]))),
        ];
        index.read(Nanos(0), W, &page(0, &both));
        // Told again with a later one: block 1 must not come back.
        let again = [both[0].clone(), (2, CacheChange::Stored(blocks([2])))];
        index.read(Nanos(1), W, &page(0, &again));
        assert_eq!(index.overlap(Nanos(1), W, &blocks([1])), 0);
        assert_eq!(index.overlap(Nanos(1), W, &blocks([2])), 1);
    }

    #[test]
    fn predictions_end_by_time_or_by_the_first_event() {
        let mut index = index();
        index.predict(Nanos(0), W, &blocks([1, 2]));
        assert_eq!(index.overlap(Nanos(999), W, &blocks([1, 2])), 2);
        assert_eq!(index.overlap(Nanos(1000), W, &blocks([1, 2])), 0);
        index.predict(Nanos(500), W, &blocks([1]));
        index.read(Nanos(600), W, &page(0, &[]));
        assert_eq!(index.overlap(Nanos(600), W, &blocks([1])), 0);
        index.predict(Nanos(601), W, &blocks([1]));
        assert_eq!(
            index.overlap(Nanos(601), W, &blocks([1])),
            0,
            "events are believed"
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut index = index();
        index.read(
            Nanos(0),
            W,
            &page(0, &[(0, CacheChange::Stored(blocks(0..50)))]),
        );
        assert_eq!(index.blocks(W), 8);
        index.predict(Nanos(0), WorkerId(4), &blocks(0..50));
        assert_eq!(index.blocks(WorkerId(4)), 8);
        // Room comes back when predictions have run out.
        index.predict(Nanos(2000), WorkerId(4), &blocks(50..60));
        assert_eq!(index.overlap(Nanos(2000), WorkerId(4), &blocks(50..60)), 8);
    }
}
