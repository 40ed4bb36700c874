//! The seam between the core and whatever computes: CPU kernels now, other backends later.

use pb_contract::{BlockId, Clock, Fault, Nanos, RequestId, TokenId};
use pb_model::forward::{Decoder, ForwardTiming, LogitRows, LogitSink, SeqInput};

use crate::device_memory::DeviceMemory;

/// One request's part of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chunk<'a> {
    /// Request.
    pub id: RequestId,
    /// Tokens to compute.
    pub tokens: &'a [TokenId],
    /// Absolute position of the first.
    pub start: usize,
    /// Blocks of the request.
    pub block_table: &'a [BlockId],
    /// Positions that need logits.
    pub rows: LogitRows,
    /// Whether these are prompt tokens (or tokens computed again after a preemption).
    pub is_prefill: bool,
    /// Whether the sequence ends here, so that its next token is chosen.
    pub is_last: bool,
    /// Number of the adapter to apply.
    pub adapter: Option<usize>,
}

impl<'a> Chunk<'a> {
    /// What a forward pass needs of it.
    pub fn input(&self) -> SeqInput<'a> {
        SeqInput {
            tokens: self.tokens,
            start: self.start,
            block_table: self.block_table,
            rows: self.rows,
            is_prefill: self.is_prefill,
            adapter: self.adapter,
        }
    }
}

/// Time that a device spent on one kernel, over all steps that were timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTotal {
    /// Name of the kernel.
    pub kernel: String,
    /// Launches.
    pub launches: u64,
    /// Their time.
    pub time: Nanos,
    /// How much of it is the measurement's own.
    pub overhead: Nanos,
}

/// Computes the chunks of a step.
pub trait Executor: Send {
    /// Computes `chunks` in order and hands the wanted logits to `sink` by chunk number, or,
    /// where there are no logits, a token for each chunk that is its sequence's last. Tells it of
    /// every layer whose keys and values are written ([`LogitSink::layer_written`]), if that costs
    /// it nothing.
    ///
    /// # Errors
    /// The backend's message; no chunk may then be taken as computed.
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String>;

    /// The token at `position` of request `id` from a backend that chooses tokens without logits,
    /// asked for sequences that fork from another; `None` takes the other's.
    fn own_token(&mut self, _id: RequestId, _position: usize) -> Option<TokenId> {
        None
    }

    /// Replaces the KV pool; its contents are lost.
    fn resize_kv(&mut self, block_size: usize, num_blocks: usize);

    /// Plants a fault of the forward pass, or takes it out; faults of other parts are none here.
    ///
    /// # Errors
    /// The backend cannot carry the fault.
    fn set_fault(&mut self, _fault: Fault) -> Result<(), String> {
        Ok(())
    }

    /// Bytes reserved for the KV pool.
    fn kv_bytes(&self) -> usize;

    /// Times by kernel, from a backend that measures them.
    fn kernel_totals(&self) -> Vec<KernelTotal> {
        Vec::new()
    }

    /// Where the memory of its device stands, from a backend that has one. Asks the driver, so not
    /// for every step.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// Copies the keys and values of block `from`, all layers, to block `to`.
    fn copy_block(&mut self, from: BlockId, to: BlockId);

    /// Appends the bytes of a block, all layers, keys then values, to `out`: an opaque image that
    /// [`Executor::write_block`] of an executor with the same shape takes back. All images of an
    /// executor have one length.
    fn read_block(&self, block: BlockId, out: &mut Vec<u8>);

    /// Puts an image of [`Executor::read_block`] into a block.
    ///
    /// # Errors
    /// When the image has the wrong length.
    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), String>;
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
        chunks: &[Chunk<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        let batch: Vec<SeqInput<'_>> = chunks.iter().map(Chunk::input).collect();
        Ok(self.decoder.forward(&batch, clock, sink))
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        self.decoder.resize_kv(block_size, num_blocks);
    }

    fn set_fault(&mut self, fault: Fault) -> Result<(), String> {
        self.decoder.set_fault(fault).map_err(|e| e.to_string())
    }

    fn kv_bytes(&self) -> usize {
        self.decoder.kv_bytes()
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.decoder.copy_block(from, to);
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        self.decoder.read_block(block, out);
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), String> {
        self.decoder
            .write_block(block, image)
            .map_err(|e| e.to_string())
    }
}
