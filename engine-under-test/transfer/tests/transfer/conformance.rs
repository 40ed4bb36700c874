//! One suite for every transport: what arrives is right, and costs what it should.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pb_contract::{BlockId, KvDtype, Nanos, Stream};
use pb_transfer::{
    Cause, Ended, Granularity, HostMemory, Memory, MemoryError, MemoryKind, Mode, Peer, Span, legs,
};

use crate::engines::{at_rank, peer, with_dtype};
use crate::relayout::{Tensor, segment};
use crate::rigs::{Engines, Pool, Rig, lend, rigs};
use crate::runs::{GRANULARITIES, LAYERS, MODES, SHAPE, TABLE, run, start};

#[test]
fn every_mode_and_granularity_gives_the_same_bytes_and_the_right_counts() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        for how in MODES
            .into_iter()
            .flat_map(|m| GRANULARITIES.map(|g| (m, g)))
        {
            let mut run = run(rig, (&engine, &engine), how, None);
            run.reserve();
            run.engines.pass(Nanos(1_000));
            run.compute_all();
            run.engines.pass(Nanos(500));
            let row = run.finish();
            // 5 blocks of 4 tokens, 2 layers, keys and values, 4 heads of 3 f32.
            assert_eq!(row.bytes, 5 * 4 * 2 * 2 * 4 * 3 * 4, "{rig:?} {how:?}");
            assert_eq!((row.cells, row.resent_cells), (10, 0), "{rig:?} {how:?}");
            assert_eq!((row.tokens, row.blocks), (19, 5));
            assert_eq!((row.total_ns, row.exposed_ns), (1_500, Some(500)));
            assert_eq!(
                (&*row.mode, &*row.granularity),
                (how.0.name(), how.1.name())
            );
            run.check_clean();
        }
    }
}

#[test]
fn blocks_and_types_are_re_laid_out_on_arrival() {
    for rig in rigs() {
        for (dtype, block_size) in [
            (KvDtype::F32, 3),
            (KvDtype::Bf16, 4),
            (KvDtype::Fp8E4m3, 16),
        ] {
            let source = peer(SHAPE, 4);
            let sink = with_dtype(peer(SHAPE, block_size), dtype, 0.03);
            let mut run = run(
                rig,
                (&source, &sink),
                (Mode::Pull, Granularity::Layer),
                None,
            );
            run.compute_all();
            run.reserve();
            run.finish();
            run.check_clean();
        }
    }
}

/// What one leg sends: bytes by its row. The source's rank has the whole of its heads' blocks.
fn send_leg(rig: Rig, [source, sink]: [&Peer; 2], to: &Pool, tensor: &Tensor) -> u64 {
    let from = Pool::images(source, 24);
    let mut engines = Engines::connect(rig, (source, from), (sink, to.clone()), None);
    let how = (Mode::Push, Granularity::Layer);
    let id = engines
        .source()
        .lend(lend(tensor.tokens as u64, &TABLE, how.0, how.1));
    let heads = source.geometry().heads(source.tp_rank);
    let whole = Span::whole(TABLE.len() as u32, LAYERS);
    for (block, layer) in whole.iter() {
        let at = [layer as usize, block as usize];
        let bytes = segment(source, heads.clone(), tensor, at, &|x, _| x);
        engines
            .from
            .write(BlockId(TABLE[block as usize]), layer, &bytes);
    }
    engines.source().seal(id, whole).unwrap();
    engines.until("offer", Engines::offered);
    let needed = sink.geometry().blocks_for(tensor.tokens) as u32;
    let table = (0..needed).map(BlockId).collect();
    assert!(engines.sink().reserved(id, table));
    engines.until("end", |e| e.started() && e.freed().is_some());
    engines.source().take_rows()[0].bytes
}

#[test]
fn each_rank_sends_the_heads_that_are_needed_and_no_byte_more() {
    let mut stream = Stream::new(9, "ranks");
    let tokens = TABLE.len() * 4 - 1;
    let tensor = Tensor::random(tokens, KvDtype::F32, &mut stream);
    for rig in rigs() {
        for (degrees, block_size) in [([2, 1], 4), ([1, 2], 4), ([2, 4], 3), ([4, 2], 16)] {
            let mut bytes = 0;
            let sinks = (0..degrees[1]).map(|r| at_rank(peer(SHAPE, block_size), degrees[1], r));
            for sink in sinks {
                let to = Pool::images(&sink, 0);
                let source = at_rank(peer(SHAPE, 4), degrees[0], 0);
                for leg in legs(&source.geometry(), &sink.geometry(), sink.tp_rank) {
                    let source = at_rank(source.clone(), degrees[0], leg.source_rank);
                    bytes += send_leg(rig, [&source, &sink], &to, &tensor);
                }
                let heads = sink.geometry().heads(sink.tp_rank);
                for block in 0..sink.geometry().blocks_for(tokens) {
                    for layer in 0..SHAPE[0] {
                        let at = [layer, block];
                        let expected = segment(&sink, heads.clone(), &tensor, at, &|x, _| x);
                        let got = to.read(BlockId(block as u32), layer as u32);
                        assert_eq!(got, expected, "{rig:?} {degrees:?} {at:?}");
                    }
                }
            }
            // 5 blocks of 4 tokens, 2 layers, keys and values, 4 heads of 3 f32, once.
            assert_eq!(bytes, 5 * 4 * 2 * 2 * 4 * 3 * 4, "{rig:?} {degrees:?}");
        }
    }
}

#[test]
fn neighbours_are_one_descriptor() {
    let engine = peer(SHAPE, 4);
    // Blocks 3, 4, 5 touch, 11 and 2 stand alone.
    let images = || Pool::images(&engine, 0);
    let headed = || Pool::images(&engine, 24);
    let layered = || Pool::layers(&engine);
    for rig in rigs() {
        for (from, granularity, descriptors) in [
            // Blocks with all layers side by side.
            (images(), Granularity::Bulk, 3),
            // With a header between them.
            (headed(), Granularity::Bulk, 5),
            // Each layer has its own runs.
            (layered(), Granularity::Bulk, 6),
            // Layers apart in memory that holds blocks together: one for each cell.
            (images(), Granularity::Layer, 10),
            // Two chunks, blocks 3 4 and blocks 5 11 2, in two layers.
            (layered(), Granularity::Layer, 8),
        ] {
            let how = (Mode::Push, granularity);
            let mut run = start(rig, (&engine, &engine), (from, images()), how, None);
            run.reserve();
            // The request for cells is there before they are computed.
            run.engines.until("the request", |e| {
                e.source.as_ref().is_some_and(|s| s.queue_depth() == 0)
            });
            run.compute_all();
            let row = run.finish();
            assert_eq!(row.descriptors, descriptors, "{rig:?} {granularity:?}");
        }
    }
}

/// Memory of a device that only copies to and from it can reach, and may fail.
#[derive(Debug)]
struct Device(HostMemory, AtomicBool);

impl Memory for Device {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device { ordinal: 1 }
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.0.read(at, out)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), MemoryError> {
        if self.1.load(Ordering::SeqCst) {
            let problem = "out of order".to_owned();
            return Err(MemoryError::Device {
                ordinal: 1,
                problem,
            });
        }
        self.0.write(at, from)
    }
}

#[test]
fn memory_of_a_device_is_staged_and_its_failure_is_a_cause() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        for fails in [false, true] {
            let device = |fails| {
                let mut pool = Pool::images(&engine, 0);
                let host = HostMemory::new(pool.memory.bytes() as usize);
                pool.memory = Arc::new(Device(host, fails));
                pool
            };
            let pools = (device(false.into()), device(fails.into()));
            let how = (Mode::Pull, Granularity::Chunk);
            let mut run = start(rig, (&engine, &engine), pools, how, None);
            run.compute_all();
            run.reserve();
            if fails {
                run.engines
                    .until("ends", |e| e.freed().is_some() && e.failed().is_some());
                assert_eq!(run.engines.failed(), Some(Cause::Memory), "{rig:?}");
            } else {
                run.finish();
            }
            run.check_clean();
        }
    }
}
#[test]
fn a_transfer_that_is_too_large_is_refused_at_once() {
    let engine = peer(SHAPE, 4);
    for rig in rigs() {
        let pools = (Pool::images(&engine, 0), Pool::images(&engine, 0));
        let mut engines = Engines::connect(rig, (&engine, pools.0), (&engine, pools.1), None);
        let table: Vec<u32> = (0..17).collect();
        engines
            .source()
            .lend(lend(17 * 4, &table, Mode::Pull, Granularity::Bulk));
        engines.until("ends", |e| e.freed().is_some() && e.failed().is_some());
        assert_eq!(engines.failed(), Some(Cause::NoRoom), "{rig:?}");
        assert_eq!(engines.freed(), Some(Ended::Aborted));
    }
}
