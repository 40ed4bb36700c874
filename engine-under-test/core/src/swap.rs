//! Host memory for the blocks of preempted requests.

use std::collections::BTreeMap;

use pb_contract::RequestId;

/// What one swapped request left: the images of the blocks that hold its first `tokens` tokens.
pub(crate) struct Swapped {
    /// Tokens whose keys and values are in the images.
    pub(crate) tokens: usize,
    /// One image a block, in order; the last may be partly filled.
    pub(crate) images: Vec<Vec<u8>>,
}

/// A bounded pool of block images by request.
#[derive(Default)]
pub(crate) struct SwapPool {
    capacity_blocks: usize,
    used_blocks: usize,
    requests: BTreeMap<RequestId, Swapped>,
}

impl SwapPool {
    /// A pool of `capacity_blocks` blocks; none at all is legal and always full.
    pub(crate) fn new(capacity_blocks: usize) -> Self {
        SwapPool {
            capacity_blocks,
            ..SwapPool::default()
        }
    }

    /// Blocks in use.
    pub(crate) fn used_blocks(&self) -> usize {
        self.used_blocks
    }

    /// Whether `blocks` more would fit.
    pub(crate) fn has_room(&self, blocks: usize) -> bool {
        self.used_blocks + blocks <= self.capacity_blocks
    }

    /// Keeps a request's images, in place of older ones of the same request.
    pub(crate) fn put(&mut self, id: RequestId, swapped: Swapped) {
        self.take(id);
        self.used_blocks += swapped.images.len();
        self.requests.insert(id, swapped);
    }

    /// What is kept of a request.
    pub(crate) fn get(&self, id: RequestId) -> Option<&Swapped> {
        self.requests.get(&id)
    }

    /// Gives a request's images out and their place back.
    pub(crate) fn take(&mut self, id: RequestId) -> Option<Swapped> {
        let swapped = self.requests.remove(&id)?;
        self.used_blocks -= swapped.images.len();
        Some(swapped)
    }

    /// Checks that the count is that of the images, within the capacity, and that every request
    /// is one of those for which `is_swapped` holds.
    ///
    /// # Errors
    /// The law that does not hold.
    pub(crate) fn check(&self, is_swapped: impl Fn(RequestId) -> bool) -> Result<(), String> {
        let images: usize = self.requests.values().map(|s| s.images.len()).sum();
        if images != self.used_blocks || images > self.capacity_blocks {
            return Err(format!(
                "swap pool: {images} images, {} counted, {} allowed",
                self.used_blocks, self.capacity_blocks
            ));
        }
        match self.requests.keys().find(|&&id| !is_swapped(id)) {
            Some(id) => Err(format!(
                "swap pool: holds request {id}, which is not swapped"
            )),
            None => Ok(()),
        }
    }
}
