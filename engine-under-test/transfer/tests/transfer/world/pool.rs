//! A pool of blocks that knows whose each is.

use pb_contract::BlockId;

use super::CELL_BYTES;

/// What lies in a block that is nobody's.
const POISON: [u8; CELL_BYTES] = [0xee; CELL_BYTES];

/// Blocks with owners.
pub(super) struct Pool {
    layers: u32,
    pub(super) owner: Vec<Option<u64>>,
    cells: Vec<[u8; CELL_BYTES]>,
}

impl Pool {
    pub(super) fn new(blocks: u32, layers: u32) -> Pool {
        Pool {
            layers,
            owner: vec![None; blocks as usize],
            cells: vec![POISON; (blocks * layers) as usize],
        }
    }

    pub(super) fn allocate(&mut self, owner: u64, n: u32) -> Option<Vec<BlockId>> {
        let free = (0..self.owner.len()).filter(|&b| self.owner[b].is_none());
        let blocks: Vec<usize> = free.take(n as usize).collect();
        if blocks.len() < n as usize {
            return None;
        }
        blocks.iter().for_each(|&b| self.owner[b] = Some(owner));
        Some(blocks.into_iter().map(|b| BlockId(b as u32)).collect())
    }

    pub(super) fn free(&mut self, owner: u64, blocks: &[BlockId]) -> Result<(), String> {
        for block in blocks {
            if self.owner[block.0 as usize] != Some(owner) {
                return Err(format!("{owner} frees block {}, which is not its", block.0));
            }
            self.owner[block.0 as usize] = None;
            // The pool may use it for something else at once.
            (0..self.layers).for_each(|layer| *self.cell(*block, layer) = POISON);
        }
        Ok(())
    }

    pub(super) fn cell(&mut self, block: BlockId, layer: u32) -> &mut [u8; CELL_BYTES] {
        &mut self.cells[(block.0 * self.layers + layer) as usize]
    }

    pub(super) fn used(&self) -> usize {
        self.owner.iter().filter(|owner| owner.is_some()).count()
    }
}
