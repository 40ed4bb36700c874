//! The conservation laws of the manager, all in one place.
//!
//! Each part checks itself; what only holds between the parts is checked here: references are
//! occurrences in block tables, reusable blocks are registered blocks, and the buckets sum to the
//! pool. Tests run it after every operation.

use pb_contract::{BlockId, RequestId};

use crate::manager::{KvManager, Table};

impl KvManager {
    /// Verifies every law.
    ///
    /// # Errors
    /// A sentence that names the law that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        self.cache.check()?;
        self.check_references()?;
        self.check_names()?;
        for (&id, table) in &self.tables {
            self.check_sharing(id, table)?;
        }
        Ok(())
    }

    /// Every reference is one occurrence in one table, and no table holds a block twice.
    fn check_references(&self) -> Result<(), String> {
        let mut occurrences = vec![0u32; self.config().num_blocks];
        for (id, table) in &self.tables {
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

    /// A block is reusable for the pool exactly when the cache can find it, and nothing is
    /// reusable that was never computed, unless its writer still holds it.
    fn check_names(&self) -> Result<(), String> {
        let mut cached = 0;
        for block in (0..self.config().num_blocks).map(|block| BlockId(block as u32)) {
            let number = block.0;
            cached += usize::from(self.pool.is_cached(block));
            if self.pool.is_cached(block) != self.cache.is_registered(block) {
                return Err(format!("pool and cache disagree about block {number}"));
            }
            let computed = self.data[number as usize].computed;
            if self.pool.is_cached(block) && self.pool.ref_count(block) == 0 && !computed {
                return Err(format!("block {number} is reusable but was never computed"));
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

    /// Only full blocks are named, a block has one writer, and what a request shares was computed
    /// or has a writer that still will.
    fn check_sharing(&self, id: RequestId, table: &Table) -> Result<(), String> {
        let block_size = self.config().block_size;
        let length = table.blocks.len();
        if table.named > length || table.shared > length || table.committed > table.granted {
            return Err(format!("the table of request {id} contradicts itself"));
        }
        if length != table.granted.div_ceil(block_size) {
            return Err(format!(
                "request {id}: {length} blocks for {} tokens",
                table.granted
            ));
        }
        if table.named * block_size > table.granted {
            return Err(format!("request {id} named a block before it was full"));
        }
        for &block in &table.blocks[table.writes_from.min(length)..] {
            let writer = self.data[block.0 as usize].writer;
            if writer != id {
                let block = block.0;
                return Err(format!("block {block} is written by {id} and by {writer}"));
            }
        }
        for block in &table.blocks[..table.shared] {
            let data = self.data[block.0 as usize];
            let writer = self.tables.get(&data.writer);
            if !data.computed && !writer.is_some_and(|table| table.blocks.contains(block)) {
                let block = block.0;
                return Err(format!(
                    "request {id} shares block {block}, which nobody computes"
                ));
            }
        }
        Ok(())
    }
}
