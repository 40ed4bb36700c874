//! An executor with a hook between its layers.

use pb_contract::{BlockId, Clock, TokenId};
use pb_core::{Chunk, Executor};
use pb_model::forward::{ForwardTiming, LayerKv, LogitRow, LogitSink, RowUse};

/// Called when a layer is written, before anybody else is told: whether, and of what, is its to
/// say. An error fails the step.
pub(crate) type Hook =
    Box<dyn FnMut(usize, &dyn LayerKv, &mut dyn LogitSink) -> Result<(), String> + Send>;

/// An executor and its hook.
pub(crate) struct Hooked {
    inner: Box<dyn Executor>,
    hook: Hook,
}

impl Hooked {
    pub(crate) fn new(inner: Box<dyn Executor>, hook: Hook) -> Hooked {
        Hooked { inner, hook }
    }
}

/// The sink of a step, behind the hook.
struct Between<'a> {
    sink: &'a mut dyn LogitSink,
    hook: &'a mut Hook,
    failure: Option<String>,
}

impl LogitSink for Between<'_> {
    fn row(&mut self, seq: usize, position: usize, logits: LogitRow<'_>) {
        self.sink.row(seq, position, logits);
    }

    fn token(&mut self, seq: usize, token: TokenId) {
        self.sink.token(seq, token);
    }

    fn row_use(&self, seq: usize, position: usize) -> RowUse {
        self.sink.row_use(seq, position)
    }

    fn chosen(&mut self, seq: usize, token: TokenId) {
        self.sink.chosen(seq, token);
    }

    fn layer_written(&mut self, layer: usize, kv: &dyn LayerKv) {
        if self.failure.is_none() {
            self.failure = (self.hook)(layer, kv, self.sink).err();
        }
    }
}

impl Executor for Hooked {
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        let mut between = Between {
            sink,
            hook: &mut self.hook,
            failure: None,
        };
        let timing = self.inner.execute(chunks, clock, &mut between)?;
        between.failure.map_or(Ok(timing), Err)
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        self.inner.resize_kv(block_size, num_blocks);
    }

    fn kv_bytes(&self) -> usize {
        self.inner.kv_bytes()
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.inner.copy_block(from, to);
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        self.inner.read_block(block, out);
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), String> {
        self.inner.write_block(block, image)
    }
}

/// Takes nothing.
pub(crate) struct NoLogits;

impl LogitSink for NoLogits {
    fn row(&mut self, _seq: usize, _position: usize, _logits: LogitRow<'_>) {}

    fn token(&mut self, _seq: usize, _token: TokenId) {}
}
