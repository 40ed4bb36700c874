//! The pool of physical blocks: reference counts and one queue of unreferenced blocks.
//!
//! The queue holds both blocks without data and blocks whose data may still be reused; a block
//! loses its data only when it is popped (lazy eviction), so freeing is not evicting. A hit takes
//! a block out of the middle of the queue, which is why the queue is doubly linked through the
//! blocks themselves: push, pop and unlink are all O(1) and allocate nothing.

use pb_contract::{BlockId, Buckets, Fault, FreePlacement};

/// Marks a block that is not in the queue.
const NIL: u32 = u32::MAX;

/// A block taken from the head of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Popped {
    /// The block, referenced once.
    pub block: BlockId,
    /// Whether it held reusable data, which is now lost: the owner of the names must drop its.
    pub evicted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    refs: u32,
    cached: bool,
}

/// Blocks `0..num_blocks` with reference counts and the free queue.
#[derive(Clone, Debug)]
pub struct BlockPool {
    /// One link a block, then the two sentinels.
    links: Vec<Link>,
    slots: Vec<Slot>,
    placement: FreePlacement,
    null_block: bool,
    fault: Fault,
    queued: usize,
    queued_cached: usize,
    evicted_total: u64,
}

impl BlockPool {
    /// A pool whose blocks are all free, in ascending order. With `null_block`, block 0 is set
    /// aside: never handed out, never counted. Panics when no block remains to be handed out or
    /// the count does not fit 32 bits.
    pub fn new(num_blocks: usize, null_block: bool, placement: FreePlacement) -> Self {
        assert!(
            num_blocks > usize::from(null_block),
            "a pool has at least one usable block"
        );
        assert!(num_blocks < NIL as usize - 2, "block ids are 32 bits");
        let mut pool = BlockPool {
            links: vec![
                Link {
                    prev: NIL,
                    next: NIL
                };
                num_blocks + 2
            ],
            slots: vec![Slot::default(); num_blocks],
            placement,
            null_block,
            fault: Fault::None,
            queued: 0,
            queued_cached: 0,
            evicted_total: 0,
        };
        let (head, tail) = (pool.head(), pool.tail());
        pool.links[head as usize].next = tail;
        pool.links[tail as usize].prev = head;
        for block in usize::from(null_block)..num_blocks {
            pool.link_before(tail, block as u32);
        }
        pool
    }

    /// Plants a fault of the pool; others have no effect.
    pub fn with_fault(self, fault: Fault) -> Self {
        BlockPool { fault, ..self }
    }

    /// Blocks in the free queue, the reusable ones included.
    pub fn free_len(&self) -> usize {
        self.queued
    }

    /// Blocks that can ever be handed out.
    pub fn usable_len(&self) -> usize {
        self.slots.len() - usize::from(self.null_block)
    }

    /// Takes the head of the queue; `None` when every block is referenced.
    pub fn pop(&mut self) -> Option<Popped> {
        let block = self.links[self.head() as usize].next;
        if block == self.tail() {
            return None;
        }
        self.unlink(block);
        let slot = &mut self.slots[block as usize];
        let evicted = std::mem::take(&mut slot.cached);
        slot.refs = 1;
        self.evicted_total += u64::from(evicted);
        Some(Popped {
            block: BlockId(block),
            evicted,
        })
    }

    /// Adds a reference to a block with reusable data; an unreferenced one leaves the queue.
    pub fn touch(&mut self, block: BlockId) {
        let slot = self.slots[block.0 as usize];
        assert!(
            slot.cached || self.fault == Fault::StaleHit,
            "block {} holds nothing to reuse",
            block.0
        );
        if self.is_queued(block.0) && self.fault != Fault::EvictWhileReferenced {
            self.unlink(block.0);
        }
        self.slots[block.0 as usize].refs += 1;
    }

    /// Adds a reference to a block that is referenced already, whether its data is reusable or
    /// not. Panics when it is not referenced.
    pub fn share(&mut self, block: BlockId) {
        let slot = &mut self.slots[block.0 as usize];
        assert!(slot.refs > 0, "block {} is nobody's to share", block.0);
        slot.refs += 1;
    }

    /// Drops one reference to each block of a block table, last block first, so that the tail of
    /// a prefix is evicted before its head. Panics on a block without reference (double free).
    pub fn release(&mut self, table: &[BlockId]) {
        let to_head = self.placement == FreePlacement::UnhashedToHead;
        for &BlockId(block) in table.iter().rev() {
            let slot = &mut self.slots[block as usize];
            assert!(slot.refs > 0, "block {block} freed twice");
            slot.refs -= 1;
            let unused = slot.refs == 0 && (slot.cached || !to_head);
            if unused && !self.is_referenced_in_queue(block) {
                self.link_before(self.tail(), block);
            }
        }
        if to_head {
            // In table order, each before the last: the table's last block ends up first.
            for &BlockId(block) in table {
                let slot = self.slots[block as usize];
                let unused = slot.refs == 0 && !slot.cached;
                if unused && !self.is_referenced_in_queue(block) {
                    self.link_before(self.links[self.head() as usize].next, block);
                }
            }
        }
    }

    /// What a second release of `block` does where nothing asserts: another holder loses its
    /// reference, or one block counts as two free ones. For [`Fault::DoubleFree`].
    pub(crate) fn release_again(&mut self, block: BlockId) {
        let slot = &mut self.slots[block.0 as usize];
        match slot.refs {
            0 => self.queued += 1,
            _ => slot.refs -= 1,
        }
    }

    /// Whether the block was left in the queue by a hit, which only the planted fault does.
    fn is_referenced_in_queue(&self, block: u32) -> bool {
        self.fault == Fault::EvictWhileReferenced && self.is_queued(block)
    }

    /// Records whether the block holds reusable data. Its place in the queue stays.
    pub fn set_cached(&mut self, block: BlockId, cached: bool) {
        let queued = self.is_queued(block.0);
        let slot = &mut self.slots[block.0 as usize];
        if queued && slot.cached != cached {
            match cached {
                true => self.queued_cached += 1,
                false => self.queued_cached -= 1,
            }
        }
        slot.cached = cached;
    }

    /// Whether the block holds reusable data.
    pub fn is_cached(&self, block: BlockId) -> bool {
        self.slots[block.0 as usize].cached
    }

    /// References to the block.
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.slots[block.0 as usize].refs
    }

    /// The three disjoint buckets. O(1).
    pub fn buckets(&self) -> Buckets {
        Buckets {
            active: self.usable_len() - self.queued,
            reclaimable: self.queued_cached,
            free: self.queued - self.queued_cached,
        }
    }

    /// Blocks that lost reusable data by being popped, since the start.
    pub fn evicted_total(&self) -> u64 {
        self.evicted_total
    }

    /// The free queue from head to tail.
    pub fn free_queue(&self) -> Vec<BlockId> {
        let mut queue = Vec::with_capacity(self.queued);
        let mut at = self.links[self.head() as usize].next;
        while at != self.tail() && queue.len() < self.queued {
            queue.push(BlockId(at));
            at = self.links[at as usize].next;
        }
        queue
    }

    /// Verifies the pool's own laws: the queue reads the same in both directions, holds exactly
    /// the unreferenced blocks, each once, and the O(1) counters are what a count gives.
    ///
    /// # Errors
    /// A sentence that names the law that does not hold and the block.
    pub fn check(&self) -> Result<(), String> {
        let mut seen = vec![false; self.slots.len()];
        let (mut length, mut cached, mut before) = (0, 0, self.head());
        let mut at = self.links[before as usize].next;
        while at != self.tail() {
            if at as usize >= self.slots.len() || std::mem::replace(&mut seen[at as usize], true) {
                return Err(format!(
                    "the free queue reaches {at} twice or out of the pool"
                ));
            }
            if self.links[at as usize].prev != before {
                return Err(format!("block {at} does not point back to {before}"));
            }
            if self.slots[at as usize].refs != 0 {
                return Err(format!("block {at} is referenced and in the free queue"));
            }
            length += 1;
            cached += usize::from(self.slots[at as usize].cached);
            (before, at) = (at, self.links[at as usize].next);
        }
        if self.links[at as usize].prev != before {
            return Err(format!(
                "the free queue's tail does not point back to {before}"
            ));
        }
        if (length, cached) != (self.queued, self.queued_cached) {
            return Err(format!(
                "the free queue holds {length} blocks, {cached} reusable; counters: {} and {}",
                self.queued, self.queued_cached
            ));
        }
        self.check_unqueued(&seen)
    }

    fn check_unqueued(&self, queued: &[bool]) -> Result<(), String> {
        for (block, slot) in self.slots.iter().enumerate() {
            let is_null = self.null_block && block == 0;
            if is_null && (queued[block] || slot.refs != 0 || slot.cached) {
                return Err("the null block is in use".to_owned());
            }
            if !is_null && !queued[block] && slot.refs == 0 {
                return Err(format!(
                    "block {block} has no reference and is not in the free queue"
                ));
            }
        }
        let buckets = self.buckets();
        match buckets.total() == self.usable_len() {
            true => Ok(()),
            false => Err(format!("{buckets:?} does not sum to {}", self.usable_len())),
        }
    }

    fn head(&self) -> u32 {
        self.slots.len() as u32
    }

    fn tail(&self) -> u32 {
        self.slots.len() as u32 + 1
    }

    fn is_queued(&self, block: u32) -> bool {
        self.links[block as usize].next != NIL
    }

    /// Links `block` in front of `successor` (a queued block or the tail sentinel).
    fn link_before(&mut self, successor: u32, block: u32) {
        assert!(
            !self.is_queued(block),
            "block {block} is in the free queue already"
        );
        let before = self.links[successor as usize].prev;
        self.links[block as usize] = Link {
            prev: before,
            next: successor,
        };
        self.links[before as usize].next = block;
        self.links[successor as usize].prev = block;
        self.queued += 1;
        self.queued_cached += usize::from(self.slots[block as usize].cached);
    }

    fn unlink(&mut self, block: u32) {
        assert!(
            self.is_queued(block),
            "block {block} is not in the free queue"
        );
        let Link { prev, next } = self.links[block as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.links[block as usize] = Link {
            prev: NIL,
            next: NIL,
        };
        self.queued -= 1;
        self.queued_cached -= usize::from(self.slots[block as usize].cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(blocks: &[u32]) -> Vec<BlockId> {
        blocks.iter().map(|&b| BlockId(b)).collect()
    }

    fn pop(pool: &mut BlockPool, count: usize) -> Vec<BlockId> {
        (0..count).map(|_| pool.pop().unwrap().block).collect()
    }

    #[test]
    fn the_null_block_is_never_handed_out_or_counted() {
        let mut pool = BlockPool::new(3, true, FreePlacement::Append);
        assert_eq!(
            pool.buckets(),
            Buckets {
                active: 0,
                reclaimable: 0,
                free: 2
            }
        );
        assert_eq!(pop(&mut pool, 2), ids(&[1, 2]));
        assert_eq!(pool.pop(), None);
        pool.check().unwrap();
    }

    #[test]
    fn both_placements_give_their_hand_worked_queue() {
        for (placement, expected) in [
            (FreePlacement::Append, [4, 5, 3, 2, 1, 0]),
            (FreePlacement::UnhashedToHead, [3, 2, 4, 5, 1, 0]),
        ] {
            let mut pool = BlockPool::new(6, false, placement);
            let table = pop(&mut pool, 4);
            pool.set_cached(table[0], true);
            pool.set_cached(table[1], true);
            pool.release(&table);
            assert_eq!(pool.free_queue(), ids(&expected), "{placement:?}");
            assert_eq!(
                pool.buckets(),
                Buckets {
                    active: 0,
                    reclaimable: 2,
                    free: 4
                }
            );
            pool.check().unwrap();
        }
    }

    #[test]
    fn eviction_happens_at_the_pop_and_is_counted_once() {
        let mut pool = BlockPool::new(2, false, FreePlacement::Append);
        let table = pop(&mut pool, 2);
        pool.set_cached(table[1], true);
        pool.release(&table);
        assert_eq!((pool.evicted_total(), pool.is_cached(table[1])), (0, true));
        assert_eq!(
            pool.pop(),
            Some(Popped {
                block: BlockId(1),
                evicted: true
            })
        );
        assert_eq!(
            pool.pop(),
            Some(Popped {
                block: BlockId(0),
                evicted: false
            })
        );
        assert_eq!((pool.evicted_total(), pool.is_cached(table[1])), (1, false));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_is_caught_at_once() {
        let mut pool = BlockPool::new(2, false, FreePlacement::Append);
        let table = pop(&mut pool, 1);
        pool.release(&table);
        pool.release(&table);
    }

    #[test]
    fn check_finds_a_broken_link_a_wrong_counter_and_a_lost_block() {
        let sound = BlockPool::new(4, false, FreePlacement::Append);
        sound.check().unwrap();
        let mut broken = sound.clone();
        broken.links[2].prev = 0;
        assert!(broken.check().unwrap_err().contains("point back"));
        let mut counter = sound.clone();
        counter.queued_cached = 1;
        assert!(counter.check().unwrap_err().contains("counters"));
        let mut lost = sound.clone();
        lost.unlink(1);
        assert!(
            lost.check()
                .unwrap_err()
                .contains("block 1 has no reference")
        );
        let mut referenced = sound;
        referenced.slots[3].refs = 1;
        assert!(referenced.check().unwrap_err().contains("referenced"));
    }
}
