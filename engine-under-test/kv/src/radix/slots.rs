//! Blocks: which are free, which belong to the tree, and how many tables hold each.

use std::collections::VecDeque;

use pb_contract::BlockId;

/// The blocks under a radix tree. A block is free, or in the tree, or owned by requests.
///
/// Free blocks are handed out first in, first out, as SGLang's allocator does: it takes from the
/// front of its list and appends what is freed.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    pub(super) free: VecDeque<BlockId>,
    /// Tables that hold the block.
    pub(super) refs: Vec<u32>,
    pub(super) in_tree: Vec<bool>,
    first: usize,
}

impl Slots {
    /// All free in ascending order; with `null_block`, block 0 is set aside.
    pub(super) fn new(num_blocks: usize, null_block: bool) -> Self {
        let first = usize::from(null_block);
        let mut slots = Slots {
            free: VecDeque::new(),
            refs: vec![0; num_blocks],
            in_tree: vec![false; num_blocks],
            first,
        };
        slots.reset();
        slots
    }

    /// Back to the start. Sound only while nobody refers to a block.
    pub(super) fn reset(&mut self) {
        self.in_tree.fill(false);
        self.free = (self.first..self.refs.len())
            .map(|block| BlockId(block as u32))
            .collect();
    }

    pub(super) fn usable(&self) -> usize {
        self.refs.len() - self.first
    }

    /// Whether the block may be handed out at all.
    pub(super) fn is_usable(&self, block: BlockId) -> bool {
        (self.first..self.refs.len()).contains(&(block.0 as usize))
    }

    pub(super) fn refs(&self, block: BlockId) -> u32 {
        self.refs[block.0 as usize]
    }

    pub(super) fn is_in_tree(&self, block: BlockId) -> bool {
        self.in_tree[block.0 as usize]
    }

    pub(super) fn hold(&mut self, block: BlockId) {
        self.refs[block.0 as usize] += 1;
    }

    /// Drops one reference. A block that nobody holds and that is not in the tree becomes free.
    /// Returns whether it was the last reference to a block in the tree.
    pub(super) fn drop_ref(&mut self, block: BlockId) -> bool {
        let at = block.0 as usize;
        // One too many is left for `check` to report: it is a law of the tables, not of this list.
        self.refs[at] = self.refs[at].saturating_sub(1);
        if self.refs[at] == 0 && !self.in_tree[at] {
            self.free.push_back(block);
        }
        self.refs[at] == 0 && self.in_tree[at]
    }

    pub(super) fn give_to_tree(&mut self, block: BlockId) {
        self.in_tree[block.0 as usize] = true;
    }

    pub(super) fn take_from_tree(&mut self, block: BlockId) {
        self.in_tree[block.0 as usize] = false;
        self.free.push_back(block);
    }
}
