//! The conservation laws of the manager, all in one place.
//!
//! Each part checks itself; what only holds between the parts is checked here: references are
//! occurrences in block tables, reusable blocks are registered blocks, and the buckets sum to the
//! pool. Tests run it after every operation.

use pb_contract::BlockId;

use crate::manager::KvManager;

impl KvManager {
    /// Verifies every law.
    ///
    /// # Errors
    /// A sentence that names the law that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        self.cache.check()?;
        self.check_references()?;
        self.check_names()
    }

    /// Every reference is one occurrence in one table, and no table holds a block twice.
    fn check_references(&self) -> Result<(), String> {
        let mut occurrences = vec![0u32; self.config().num_blocks];
        for (id, table) in &self.tables {
            if table.shared > table.named || table.named > table.blocks.len() {
                return Err(format!("request {id} has more named blocks than blocks"));
            }
            let mut own = table.blocks.clone();
            own.sort_unstable();
            if own.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(format!("the table of request {id} holds a block twice"));
            }
            own.iter()
                .for_each(|block| occurrences[block.0 as usize] += 1);
        }
        for (block, &expected) in occurrences.iter().enumerate() {
            let refs = self.pool.ref_count(BlockId(block as u32));
            if refs != expected {
                return Err(format!(
                    "block {block}: {refs} references, {expected} in tables"
                ));
            }
        }
        Ok(())
    }

    /// A block is reusable for the pool exactly when the cache can find it.
    fn check_names(&self) -> Result<(), String> {
        let mut cached = 0;
        for block in (0..self.config().num_blocks).map(|block| BlockId(block as u32)) {
            cached += usize::from(self.pool.is_cached(block));
            if self.pool.is_cached(block) != self.cache.is_registered(block) {
                return Err(format!("pool and cache disagree about block {}", block.0));
            }
        }
        match cached == self.cache.len() {
            true => Ok(()),
            false => Err(format!(
                "{cached} reusable blocks, {} registered",
                self.cache.len()
            )),
        }
    }
}
