//! Block data on its way: to tiers, to and from the swap pool, and copies on write.
//!
//! Between planning and computing every block still holds what it held before the step. So first
//! everything is read that is about to be overwritten, then copies are made in their order, then
//! images are put into the blocks of admitted requests.

use pb_contract::{BlockId, Fault};
use pb_kv::Evicted;

use super::Engine;
use crate::kv_adapter::{Admission, PlanLog};

impl Engine {
    /// Finds out how long a block image is, if images will be needed.
    pub(super) fn measure_image(&mut self) {
        if !self.tiers.is_empty() || self.swap.has_room(1) {
            self.image_bytes = self.block_image(BlockId(0)).len();
        }
    }

    /// The keys and values of a block as bytes, see [`crate::Executor::read_block`].
    pub fn block_image(&self, block: BlockId) -> Vec<u8> {
        let mut image = Vec::with_capacity(self.image_bytes);
        self.executor.read_block(block, &mut image);
        image
    }

    /// Moves the data of a planned step.
    ///
    /// # Errors
    /// The backend refused an image.
    pub(super) fn move_blocks(&mut self, log: &mut PlanLog) -> Result<(), String> {
        let moves = self.kv.take_moves();
        log.note(moves);
        self.save_evicted(&log.moves.evicted);
        for released in &log.released {
            self.swap_out(released);
        }
        for &(from, to) in &log.moves.copies {
            self.executor.copy_block(from, to);
        }
        for admission in &log.admissions {
            self.fill(admission)?;
        }
        Ok(())
    }

    /// Moves what an allocation outside of a step has made necessary, before its blocks are
    /// written.
    pub(super) fn move_now(&mut self) {
        let moves = self.kv.take_moves();
        self.save_evicted(&moves.evicted);
        for (from, to) in moves.copies {
            self.executor.copy_block(from, to);
        }
    }

    /// Gives the data of blocks that are about to be overwritten to the tiers.
    fn save_evicted(&mut self, evicted: &[Evicted]) {
        if self.tiers.is_empty() {
            return;
        }
        for evicted in evicted {
            let image = self.block_image(evicted.block);
            self.tiers.store(&evicted.hash, &image);
        }
    }

    /// Puts images from tiers or from the swap pool into the blocks of an admitted request.
    fn fill(&mut self, admission: &Admission) -> Result<(), String> {
        let id = admission.id;
        for (index, image) in &admission.images {
            let block = self.kv.block_table(id)[*index];
            self.executor.write_block(block, image)?;
        }
        let Some(swapped) = self.swap.take(id) else {
            return Ok(());
        };
        let block_size = self.config.block_size;
        let first = admission.pool_tokens / block_size;
        let tokens = admission.pool_tokens + admission.swapped_tokens;
        let mut images = swapped.images.iter().enumerate();
        let mut count = tokens.div_ceil(block_size);
        if self.config.fault == Fault::SwapLosesBlock && admission.swapped_tokens > 0 {
            count -= 1;
        }
        images.by_ref().take(first).for_each(drop);
        for (index, image) in images.take_while(|&(index, _)| index < count) {
            let block = self.kv.block_table(id)[index];
            self.executor.write_block(block, image)?;
        }
        Ok(())
    }
}
