//! The seam between the core and whatever computes: CPU kernels now, other backends later.

use pb_contract::{BlockId, Clock, RequestId, TokenId};
use pb_model::forward::{Decoder, ForwardTiming, LogitRows, LogitSink, SeqInput};

/// One request's part of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Request.
    pub id: RequestId,
    /// Tokens to compute.
    pub tokens: Vec<TokenId>,
    /// Absolute position of the first.
    pub start: usize,
    /// Blocks of the request.
    pub block_table: Vec<BlockId>,
    /// Positions that need logits.
    pub rows: LogitRows,
    /// Whether these are prompt tokens (or tokens computed again after a preemption).
    pub is_prefill: bool,
    /// Shift of the rotary positions; 0 except for a planted fault.
    pub rope_offset: usize,
}

/// Computes the chunks of a step.
pub trait Executor: Send {
    /// Computes `chunks` in order and hands the wanted logits to `sink` by chunk number.
    ///
    /// # Errors
    /// The backend's message; no chunk may then be taken as computed.
    fn execute(
        &mut self,
        chunks: &[Chunk],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String>;

    /// Replaces the KV pool; its contents are lost.
    fn resize_kv(&mut self, block_size: usize, num_blocks: usize);

    /// Bytes reserved for the KV pool.
    fn kv_bytes(&self) -> usize;
}

/// An executor over a model's forward pass on the CPU.
pub struct DecoderExecutor {
    decoder: Box<dyn Decoder>,
}

impl DecoderExecutor {
    /// Wraps a decoder.
    pub fn new(decoder: Box<dyn Decoder>) -> Self {
        DecoderExecutor { decoder }
    }
}

impl Executor for DecoderExecutor {
    fn execute(
        &mut self,
        chunks: &[Chunk],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        let batch: Vec<SeqInput<'_>> = chunks
            .iter()
            .map(|c| SeqInput {
                tokens: &c.tokens,
                start: c.start,
                block_table: &c.block_table,
                rows: c.rows,
                is_prefill: c.is_prefill,
                rope_offset: c.rope_offset,
            })
            .collect();
        Ok(self.decoder.forward(&batch, clock, sink))
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        self.decoder.resize_kv(block_size, num_blocks);
    }

    fn kv_bytes(&self) -> usize {
        self.decoder.kv_bytes()
    }
}
