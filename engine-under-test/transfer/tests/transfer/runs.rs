//! One transfer between two engines, for the suites.

use pb_contract::{BlockId, Stream};
use pb_transfer::{
    Ended, Granularity, Mode, Peer, SinkEvent, SourceEvent, Span, Tap, TransferId, TransferRow,
};

use crate::relayout::{Tensor, converted, segment};
use crate::rigs::{Engines, Pool, Rig, lend};

pub(crate) const SHAPE: [usize; 3] = [2, 4, 3];
pub(crate) const LAYERS: u32 = 2;
pub(crate) const MODES: [Mode; 2] = [Mode::Pull, Mode::Push];
pub(crate) const GRANULARITIES: [Granularity; 3] =
    [Granularity::Bulk, Granularity::Chunk, Granularity::Layer];
/// Where the source's blocks lie: partly side by side, partly not.
pub(crate) const TABLE: [u32; 5] = [3, 4, 5, 11, 2];

/// A transfer with random contents, between pools that are block major.
pub(crate) struct Run {
    pub(crate) engines: Engines,
    pub(crate) source: Peer,
    pub(crate) sink: Peer,
    pub(crate) tensor: Tensor,
    pub(crate) id: TransferId,
}

pub(crate) fn run(
    rig: Rig,
    (source, sink): (&Peer, &Peer),
    how: (Mode, Granularity),
    tap: Option<Tap>,
) -> Run {
    let pools = (Pool::images(source, 24), Pool::images(sink, 0));
    start(rig, (source, sink), pools, how, tap)
}

pub(crate) fn start(
    rig: Rig,
    (source, sink): (&Peer, &Peer),
    (from, to): (Pool, Pool),
    (mode, granularity): (Mode, Granularity),
    tap: Option<Tap>,
) -> Run {
    let engines = Engines::connect(rig, (source, from), (sink, to), tap);
    lend_on(engines, (source, sink), (mode, granularity))
}

/// Lends a request with random contents.
pub(crate) fn lend_on(
    mut engines: Engines,
    (source, sink): (&Peer, &Peer),
    (mode, granularity): (Mode, Granularity),
) -> Run {
    let block_size = source.identity.engine.block_size;
    let tokens = TABLE.len() * block_size - 1;
    let mut stream = Stream::new(8, "conformance");
    let tensor = Tensor::random(tokens, source.identity.kv.dtype, &mut stream);
    let id = engines
        .source()
        .lend(lend(tokens as u64, &TABLE, mode, granularity));
    Run {
        engines,
        source: source.clone(),
        sink: sink.clone(),
        tensor,
        id,
    }
}

impl Run {
    /// Computes cells as an engine would: they are written, and only then sealed.
    pub(crate) fn compute(&mut self, span: Span) {
        for (block, layer) in span.iter() {
            let at = [layer as usize, block as usize];
            let bytes = segment(&self.source, 0..SHAPE[1], &self.tensor, at, &|x, _| x);
            self.engines
                .from
                .write(BlockId(TABLE[block as usize]), layer, &bytes);
        }
        let id = self.id;
        self.engines.source().seal(id, span).unwrap();
    }

    /// Chunk by chunk and layer by layer.
    pub(crate) fn compute_all(&mut self) {
        for (block, blocks) in [(0, 2), (2, 3)] {
            for layer in 0..LAYERS {
                let span = Span {
                    block,
                    blocks,
                    layer,
                    layers: 1,
                };
                self.compute(span);
            }
        }
        let id = self.id;
        self.engines.source().prefill_ended(id);
    }

    /// Waits for the offer and gives it every other block, from the back.
    pub(crate) fn reserve(&mut self) {
        self.engines.until("offer", Engines::offered);
        let tokens = self.tensor.tokens;
        let needed = self.sink.geometry().blocks_for(tokens) as u32;
        let blocks = (0..needed).map(|i| BlockId(2 * (needed - i)));
        let (id, blocks) = (self.id, blocks.collect());
        assert!(self.engines.sink().reserved(id, blocks));
    }

    pub(crate) fn finish(&mut self) -> TransferRow {
        self.engines.until("start", Engines::started);
        self.engines
            .until("end of the lease", |e| e.freed().is_some());
        assert_eq!(self.engines.freed(), Some(Ended::Acknowledged));
        self.check_bytes();
        self.row()
    }

    pub(crate) fn row(&mut self) -> TransferRow {
        let rows = self.engines.source().take_rows();
        let [row] = rows.try_into().expect("one row");
        row
    }

    /// What lies in the sink's blocks against what an engine of its kind would have stored.
    pub(crate) fn check_bytes(&self) {
        let started = self
            .engines
            .sink_events
            .iter()
            .find_map(|event| match event {
                SinkEvent::Started { blocks, .. } => Some(blocks.clone()),
                _ => None,
            });
        for (i, block) in started.expect("a start").into_iter().enumerate() {
            for layer in 0..SHAPE[0] {
                let map = |bits, side| converted(&self.source, &self.sink, layer, bits, side);
                let expected = segment(&self.sink, 0..SHAPE[1], &self.tensor, [layer, i], &map);
                let got = self.engines.to.read(block, layer as u32);
                assert_eq!(got, expected, "block {i}, layer {layer}");
            }
        }
    }

    /// Both sides are as if nothing had been.
    pub(crate) fn check_clean(&mut self) {
        self.engines.until("clean ends", |e| {
            let leases = e.source.as_ref().map_or(0, |s| s.leases());
            let transfers = e.sink.as_ref().map_or(0, |s| s.transfers());
            leases + transfers == 0
        });
        let frees = self.engines.source_events.iter();
        let frees = frees
            .filter(|event| matches!(event, SourceEvent::Freed { .. }))
            .count();
        let ends =
            self.engines.sink_events.iter().filter(|event| {
                matches!(event, SinkEvent::Started { .. } | SinkEvent::Failed { .. })
            });
        let ends = ends.count();
        assert!(self.engines.source.is_none() || frees == 1, "{frees} frees");
        assert!(self.engines.sink.is_none() || ends <= 1, "{ends} ends");
    }
}
