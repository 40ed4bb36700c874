//! A batch of chunks as rows, places in the pool, and attention work.

use pb_contract::BlockId;
use pb_core::Chunk;
use pb_kernels_cuda::ops::BatchSeq;

/// Everything about a batch that the host knows.
pub(crate) struct Batch<'a> {
    chunks: &'a [Chunk<'a>],
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// Block and slot of every row.
    pub(crate) slots: Vec<[u32; 2]>,
    tables: Vec<Vec<u32>>,
}

impl<'a> Batch<'a> {
    /// Resolves `chunks` against blocks of `block_size` tokens.
    ///
    /// # Errors
    /// A sentence, when a chunk is empty, names an adapter or its table does not cover it. Blocks
    /// and tokens that do not exist are refused by the operations.
    pub(crate) fn new(chunks: &'a [Chunk<'a>], block_size: usize) -> Result<Self, String> {
        let mut batch = Batch {
            chunks,
            tokens: Vec::new(),
            positions: Vec::new(),
            slots: Vec::new(),
            tables: Vec::with_capacity(chunks.len()),
        };
        for chunk in chunks {
            let end = chunk.start + chunk.tokens.len();
            if chunk.tokens.is_empty() || chunk.block_table.len() * block_size < end {
                return Err(format!(
                    "request {}: {} blocks of {block_size} for tokens {}..{end}",
                    chunk.id,
                    chunk.block_table.len(),
                    chunk.start
                ));
            }
            if chunk.adapter.is_some() {
                return Err(format!(
                    "request {}: this backend has no adapters",
                    chunk.id
                ));
            }
            batch.tokens.extend_from_slice(chunk.tokens);
            for position in chunk.start..end {
                let BlockId(block) = chunk.block_table[position / block_size];
                batch.slots.push([block, (position % block_size) as u32]);
                batch.positions.push(position as u32);
            }
            let table = chunk.block_table.iter().map(|b| b.0);
            batch.tables.push(table.collect());
        }
        Ok(batch)
    }

    /// Attention work of the chunks for which `chosen` holds.
    pub(crate) fn seqs(&self, chosen: impl Fn(&Chunk<'_>) -> bool) -> Vec<BatchSeq<'_>> {
        let mut q_row = 0;
        let mut seqs = Vec::new();
        for (chunk, table) in self.chunks.iter().zip(&self.tables) {
            let q_len = chunk.tokens.len();
            if chosen(chunk) {
                seqs.push(BatchSeq {
                    q_row,
                    q_len,
                    start_pos: chunk.start,
                    block_table: table,
                });
            }
            q_row += q_len;
        }
        seqs
    }
}
