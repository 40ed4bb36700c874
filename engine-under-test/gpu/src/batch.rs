//! A batch of chunks as rows, places in the pool, and attention work.

use pb_contract::BlockId;
use pb_core::Chunk;
use pb_kernels_cuda::ops::BatchSeq;

/// Rows as the host knows them.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) positions: &'a [u32],
    /// Block and slot of every row.
    pub(crate) slots: &'a [[u32; 2]],
}

/// Everything about a batch that the host knows.
pub(crate) struct Batch<'a> {
    chunks: &'a [Chunk<'a>],
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// Block and slot of every row.
    pub(crate) slots: Vec<[u32; 2]>,
    tables: Vec<Vec<u32>>,
    /// Adapter of every row.
    pub(crate) adapters: Vec<Option<usize>>,
}

impl<'a> Batch<'a> {
    /// Resolves `chunks` against blocks of `block_size` tokens and `adapters` adapters.
    ///
    /// # Errors
    /// A sentence, when a chunk is empty, names an adapter that does not exist or its table does
    /// not cover it. Blocks and tokens that do not exist are refused by the operations.
    pub(crate) fn new(
        chunks: &'a [Chunk<'a>],
        block_size: usize,
        adapters: usize,
    ) -> Result<Self, String> {
        let mut batch = Batch {
            chunks,
            tokens: Vec::new(),
            positions: Vec::new(),
            slots: Vec::new(),
            tables: Vec::with_capacity(chunks.len()),
            adapters: Vec::new(),
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
            if let Some(adapter) = chunk.adapter.filter(|a| *a >= adapters) {
                return Err(format!(
                    "request {}: adapter {adapter} of {adapters}",
                    chunk.id
                ));
            }
            let rows = std::iter::repeat_n(chunk.adapter, chunk.tokens.len());
            batch.adapters.extend(rows);
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

    /// Its rows.
    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows {
            tokens: &self.tokens,
            positions: &self.positions,
            slots: &self.slots,
        }
    }

    /// Whether every chunk is one token of a sequence that is past its prompt.
    pub(crate) fn is_decode(&self) -> bool {
        let single = |c: &Chunk<'_>| !c.is_prefill && c.tokens.len() == 1;
        self.chunks.iter().all(single)
    }

    /// Whether some chunk is part of a prompt.
    pub(crate) fn has_prefill(&self) -> bool {
        self.chunks.iter().any(|c| c.is_prefill)
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
