//! Layers arrive while those above them are computed.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pb_contract::{BlockId, Clock, EngineRequest, Nanos, Stream, WallClock};
use pb_core::disagg::{KvEngine, KvTask, OnFailure};
use pb_core::{Chunk, Executor};
use pb_kv::{CacheIdentity, EngineFormat, KvFormat, Positional};
use pb_model::forward::{LayerKv, LogitRows, LogitSink};
use pb_transfer::service::{Claim, Dial, ImportEvent, ImportOptions, Importer, Remote};
use pb_transfer::{Allow, Defect, Ended, HostMemory, Memory, Peer, Region, SinkOptions};

use crate::LAYERS;
use crate::common::{config, expected, greedy, layered, prompt};
use crate::hooked::NoLogits;
use crate::layers::{hooked, streaming};
use crate::pair::{Rig, SHAPE, ports, ticket, with_ports};

const B: usize = 4;
/// Bytes of one layer of one block of the toy.
const CELL_BYTES: usize = B * 8;
/// Blocks of the prompt in front of its last one.
const FULL: usize = 3;
/// A slow machine may need it.
const LONG: Nanos = Nanos::from_secs(60);

type Cells = BTreeMap<(usize, usize), Vec<u8>>;

/// The cells of a prompt, found without an engine: the toy alone, token by token.
fn cells(request: &EngineRequest) -> Cells {
    let tokens = &request.prompt;
    let blocks = tokens.len().div_ceil(B);
    let mut toy = layered();
    toy.resize_kv(B, blocks);
    let table: Vec<BlockId> = (0..blocks as u32).map(BlockId).collect();
    for start in 0..tokens.len() {
        let chunk = Chunk {
            id: request.id,
            tokens: &tokens[start..=start],
            start,
            block_table: &table,
            rows: LogitRows::None,
            is_prefill: true,
            is_last: false,
            adapter: None,
        };
        toy.execute(&[chunk], &WallClock, &mut NoLogits).unwrap();
    }
    let mut all = BTreeMap::new();
    for (index, &block) in table.iter().enumerate() {
        let mut image = Vec::new();
        toy.read_block(block, &mut image);
        for (layer, cell) in image.chunks_exact(CELL_BYTES).enumerate() {
            all.insert((index, layer), cell.to_vec());
        }
    }
    all
}

/// How the toy engines of these tests are told apart from others.
fn peer() -> Peer {
    let config = config(B, 64);
    Peer {
        identity: CacheIdentity {
            weights: [0; 32],
            positional: Positional::default(),
            kv: KvFormat {
                dtype: config.kv_dtype,
                scales: Vec::new(),
                layout: "block image 1".to_owned(),
            },
            engine: EngineFormat {
                numerics: config.numerics,
                block_size: B,
                revision: "simulated".to_owned(),
            },
        },
        layers: LAYERS,
        kv_heads: 1,
        d_head: 1,
        tp_degree: 1,
        tp_rank: 0,
    }
}

/// A decode side without an engine: what arrives lies in a memory that can be looked at.
struct Sink {
    importer: Importer,
    events: Receiver<ImportEvent>,
    memory: Arc<HostMemory>,
    region: Region,
    started: bool,
}

impl Sink {
    /// One that asks for `window_cells` cells of a layer ahead, and claims a prompt at once.
    fn claim(
        (remote, dial): (Remote, Dial),
        window_cells: u64,
        (request, digest): (&EngineRequest, [u8; 32]),
    ) -> Sink {
        let memory = Arc::new(HostMemory::new((FULL + 1) * LAYERS * CELL_BYTES));
        let region = Region::block_major(0, 0, LAYERS as u32, CELL_BYTES as u64);
        let options = ImportOptions {
            sink: SinkOptions {
                allow: Allow::default(),
                blocks: 64,
                transfers: 4,
                window_cells,
                stall: LONG,
                retries: 1,
                handshake: LONG.to_duration(),
                defect: Defect::None,
            },
            dial,
            claim: LONG,
            peers: 1,
        };
        let (sender, events) = channel();
        let sender = Mutex::new(sender);
        let tell = Arc::new(move |event| drop(sender.lock().unwrap().send(event)));
        let place = (Arc::clone(&memory) as Arc<dyn Memory>, region);
        let sessions = Stream::new(7, "sessions");
        let clock = Arc::new(WallClock);
        let mut importer = Importer::new(peer(), place, options, clock, sessions, tell);
        importer.claim(Claim {
            request: request.id,
            remote,
            ticket: ticket(request.id),
            digest,
            early: true,
        });
        Sink {
            importer,
            events,
            memory,
            region,
            started: false,
        }
    }

    /// Answers what is told within a millisecond.
    fn answer(&mut self) {
        while let Ok(event) = self.events.recv_timeout(Duration::from_millis(1)) {
            match event {
                ImportEvent::Room { request, .. } => {
                    let table = (0..=FULL as u32).map(BlockId).collect();
                    self.importer.reserved(request, table, 0);
                }
                ImportEvent::Started { .. } => self.started = true,
                ImportEvent::Failed { reason, .. } => panic!("{reason}"),
            }
        }
    }

    fn cell(&self, block: usize, layer: usize) -> Vec<u8> {
        let mut cell = vec![0; CELL_BYTES];
        let at = self.region.offset(BlockId(block as u32), layer as u32);
        self.memory.read(at, &mut cell).unwrap();
        cell
    }

    /// Waits until the full blocks have all layers below `layer`, and sees that nothing else is
    /// there.
    fn wait_below(&mut self, layer: usize, right: &Cells, wait: Nanos) -> Result<(), String> {
        let until = WallClock.now() + wait;
        let due = |&(b, l): &(usize, usize)| b < FULL && l < layer;
        loop {
            let mut cells = right.iter().filter(|(at, _)| due(at));
            if cells.all(|(&(b, l), cell)| self.cell(b, l) == *cell) {
                break;
            }
            if WallClock.now() > until {
                return Err(format!("layers below {layer} have not arrived"));
            }
            self.answer();
        }
        for &(b, l) in right.keys().filter(|at| !due(at)) {
            assert_eq!(self.cell(b, l), [0; CELL_BYTES], "block {b}, layer {l}");
        }
        Ok(())
    }

    /// Waits for the end, and sees that everything is there.
    fn finish(&mut self, prefill: &mut KvEngine, right: &Cells, last_tokens: usize) {
        let until = WallClock.now() + LONG;
        while prefill.stats().exports > 0 || !self.started {
            assert!(WallClock.now() < until, "no end");
            self.answer();
            prefill.take_news();
        }
        for (&(b, l), cell) in right {
            // Slots without a token are whatever they were.
            let used = if b < FULL {
                CELL_BYTES
            } else {
                last_tokens * 8
            };
            assert_eq!(
                self.cell(b, l)[..used],
                cell[..used],
                "block {b}, layer {l}"
            );
        }
    }
}

/// Computes a prompt in one step, with so many tokens in its last block. In front of each layer it
/// is looked whether those below have arrived, for `wait` at most; then `tell` is called.
fn layers_arrive(
    last_tokens: usize,
    wait: Nanos,
    window_cells: u64,
    mut tell: impl FnMut(usize, &dyn LayerKv, &mut dyn LogitSink) + Send + 'static,
) -> Result<(), String> {
    let request = greedy(1, &prompt("gate", FULL * B + last_tokens), 6);
    let (out, into, remote) = ports(Rig::Tcp);
    let right = cells(&request);
    let digest = hooked(16, Box::new(|_, _, _| Ok(()))).prompt_digest(&request);
    let to = (remote, into.dial.unwrap());
    let sink = Sink::claim(to, window_cells, (&request, digest.unwrap()));
    let sink = Arc::new(Mutex::new(sink));
    let (watched, expected_cells) = (Arc::clone(&sink), right.clone());
    let gate = move |layer: usize, kv: &dyn LayerKv, told: &mut dyn LogitSink| {
        let mut sink = watched.lock().unwrap();
        sink.wait_below(layer, &expected_cells, wait)?;
        tell(layer, kv, told);
        Ok(())
    };
    let engine = hooked(16, Box::new(gate));
    let mut prefill = with_ports(engine, SHAPE, out, &streaming(OnFailure::Fail));
    let task = KvTask::Stream(ticket(request.id));
    prefill.add(request.clone(), task).unwrap();
    prefill.step(&WallClock).map_err(|e| e.message)?;
    prefill.check()?;
    let over = prefill.take_handed_off();
    assert_eq!(over[0].ticket, ticket(request.id));
    assert_eq!(over[0].first_token, expected(&request)[0]);
    sink.lock()
        .unwrap()
        .finish(&mut prefill, &right, last_tokens);
    let row = &prefill.take_rows()[0];
    let all = ((FULL + 1) * LAYERS * CELL_BYTES) as u64;
    assert_eq!((row.ended, row.bytes), (Ended::Acknowledged, all));
    // At least what has arrived in front of the last layer, at most all but the last block.
    let layer = (FULL * CELL_BYTES) as u64;
    let early = layer * (LAYERS as u64 - 1)..=layer * LAYERS as u64;
    assert!(early.contains(&row.early_bytes), "{row:?}");
    assert!(row.exposed_ns < Some(row.total_ns), "{row:?}");
    Ok(())
}

#[test]
fn each_layer_arrives_while_those_above_are_computed() {
    // Also where far fewer cells than the prompt has are asked for ahead.
    for (last_tokens, window_cells) in [(2, 256), (2, 4), (B, 256)] {
        let told =
            |layer, kv: &dyn LayerKv, told: &mut dyn LogitSink| told.layer_written(layer, kv);
        layers_arrive(last_tokens, LONG, window_cells, told).unwrap();
    }
    // Planted: nobody is told of a layer before the step has ended.
    let late = layers_arrive(2, Nanos::from_millis(300), 256, |_, _, _| {});
    assert_eq!(late, Err("layers below 1 have not arrived".to_owned()));
}
