//! One pair of connected ends for each transport, and engines on them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pb_contract::{BlockId, Clock, Nanos, RequestId, VirtualClock};
use pb_transfer::{
    Allow, Conversion, Defect, Granularity, HostMemory, Lend, LocalTransport, Memory, Mode,
    MooncakeEngine, MooncakeListener, MooncakeOptions, MooncakeTransport, NixlListener,
    NixlOptions, NixlTransport, Peer, Region, ShmListener, ShmOptions, ShmTransport, SinkAgent,
    SinkEvent, SinkOptions, SourceAgent, SourceEvent, SourceOptions, Tap, TcpOptions, TcpTransport,
    TcpTransportListener, Transport,
};

/// How long a test waits before it calls a hang a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// What carries the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rig {
    Local,
    Shm,
    /// Over so many connections.
    Tcp(u32),
    Nixl,
    Mooncake,
}

/// Source's end and sink's end.
pub(crate) type Ends = (Box<dyn Transport>, Box<dyn Transport>);

/// Names NIXL's `libnixl_capi.so`: the suites run on it too. `NIXL_PLUGIN_DIR` must be set.
pub(crate) const NIXL: &str = "PB_NIXL_LIBRARY";

/// A Python that has Mooncake's transfer engine, or else one that has a stand-in of it.
pub(crate) fn mooncake_python() -> PathBuf {
    let stand_in = || {
        println!("a stand-in for Mooncake: PB_MOONCAKE_PYTHON is not set");
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        here.join("tests/transfer/stand_in/python")
    };
    std::env::var_os("PB_MOONCAKE_PYTHON").map_or_else(stand_in, PathBuf::from)
}

/// All that are there.
pub(crate) fn rigs() -> Vec<Rig> {
    let mut all = vec![
        Rig::Local,
        Rig::Shm,
        Rig::Tcp(1),
        Rig::Tcp(3),
        Rig::Mooncake,
    ];
    match std::env::var_os(NIXL) {
        Some(_) => all.push(Rig::Nixl),
        None => println!("without NIXL: {NIXL} is not set"),
    }
    all
}

pub(crate) fn nixl(library: impl Into<PathBuf>) -> NixlOptions {
    NixlOptions {
        library: library.into(),
        slots: SHM.slots,
        slot_bytes: SHM.slot_bytes,
        stall: PATIENCE,
    }
}

/// An engine of its own for each side, as two servers have.
pub(crate) fn mooncake_engines() -> [MooncakeEngine; 2] {
    let start = |_| MooncakeEngine::start(&mooncake_python(), Ipv4Addr::LOCALHOST).unwrap();
    [0, 1].map(start)
}

/// A connection between two engines.
pub(crate) fn mooncake_pair(
    engines: &[MooncakeEngine; 2],
    clock: Arc<dyn Clock>,
    tap: Option<Tap>,
) -> Ends {
    let options = |engine: &MooncakeEngine| MooncakeOptions {
        engine: engine.clone(),
        slots: SHM.slots,
        slot_bytes: SHM.slot_bytes,
        stall: PATIENCE,
    };
    let (mine, theirs) = (options(&engines[0]), options(&engines[1]));
    let mut listener = MooncakeListener::bind(any_port(), theirs, Arc::clone(&clock)).unwrap();
    let to = listener.address().unwrap();
    // Each side waits for the other's address.
    let connecting =
        std::thread::spawn(move || MooncakeTransport::connect(to, &mine, clock).unwrap());
    let b = listener.accept(PATIENCE).unwrap().unwrap();
    let a = connecting.join().unwrap();
    (Box::new(a.with_tap(tap)), Box::new(b))
}

/// The engines of all tests that do not end them.
fn shared_engines() -> &'static [MooncakeEngine; 2] {
    static ENGINES: OnceLock<[MooncakeEngine; 2]> = OnceLock::new();
    ENGINES.get_or_init(mooncake_engines)
}

pub(crate) const SHM: ShmOptions = ShmOptions {
    slots: 4,
    slot_bytes: 64 << 10,
    stall: PATIENCE,
};

pub(crate) fn tcp(connections: u32) -> TcpOptions {
    TcpOptions {
        connections,
        stall: PATIENCE,
    }
}

pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

impl Rig {
    pub(crate) fn pair(self, clock: Arc<dyn Clock>, tap: Option<Tap>) -> Ends {
        match self {
            Rig::Local => {
                let (a, b) = LocalTransport::pair(clock);
                (Box::new(a.with_tap(tap)), Box::new(b))
            }
            Rig::Shm => {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("socket");
                let mut listener = ShmListener::bind(&path, SHM, Arc::clone(&clock)).unwrap();
                // Each side waits for the other's file.
                let connecting = {
                    let clock = Arc::clone(&clock);
                    std::thread::spawn(move || ShmTransport::connect(&path, SHM, clock).unwrap())
                };
                let b = listener.accept(PATIENCE).unwrap().unwrap();
                let a = connecting.join().unwrap();
                (Box::new(a.with_tap(tap)), Box::new(b))
            }
            Rig::Tcp(connections) => {
                let wall = Arc::clone(&clock);
                let mut listener = TcpTransportListener::bind(any_port(), PATIENCE, wall).unwrap();
                let to = listener.address().unwrap();
                let a = TcpTransport::connect(to, 1, tcp(connections), clock).unwrap();
                let b = listener.accept(PATIENCE).unwrap().unwrap();
                (Box::new(a.with_tap(tap)), Box::new(b))
            }
            Rig::Nixl => {
                let options = nixl(std::env::var_os(NIXL).expect("a library"));
                let wall = Arc::clone(&clock);
                let mut listener = NixlListener::bind(any_port(), options.clone(), wall).unwrap();
                let to = listener.address().unwrap();
                // Each side waits for the other's metadata.
                let connecting = std::thread::spawn(move || {
                    NixlTransport::connect(to, &options, clock).unwrap()
                });
                let b = listener.accept(PATIENCE).unwrap().unwrap();
                let a = connecting.join().unwrap();
                (Box::new(a.with_tap(tap)), Box::new(b))
            }
            Rig::Mooncake => mooncake_pair(shared_engines(), clock, tap),
        }
    }
}

/// Memory of one side.
#[derive(Clone)]
pub(crate) struct Pool {
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) region: Region,
}

pub(crate) const POOL_BLOCKS: u32 = 24;

impl Pool {
    /// Block major, as images lie, headers included.
    pub(crate) fn images(peer: &Peer, header_bytes: u64) -> Pool {
        let (layers, segment) = shape(peer);
        let bytes = u64::from(POOL_BLOCKS) * (header_bytes + u64::from(layers) * segment);
        Pool {
            memory: Arc::new(HostMemory::new(bytes as usize)),
            region: Region::block_major(0, header_bytes, layers, segment),
        }
    }

    /// Layer major.
    pub(crate) fn layers(peer: &Peer) -> Pool {
        let (layers, segment) = shape(peer);
        let bytes = u64::from(POOL_BLOCKS) * u64::from(layers) * segment;
        Pool {
            memory: Arc::new(HostMemory::new(bytes as usize)),
            region: Region::layer_major(0, POOL_BLOCKS, segment),
        }
    }

    pub(crate) fn write(&self, block: BlockId, layer: u32, segment: &[u8]) {
        let at = self.region.offset(block, layer);
        self.memory.write(at, segment).unwrap();
    }

    pub(crate) fn read(&self, block: BlockId, layer: u32) -> Vec<u8> {
        let mut out = vec![0; self.region.segment_bytes() as usize];
        let at = self.region.offset(block, layer);
        self.memory.read(at, &mut out).unwrap();
        out
    }
}

fn shape(peer: &Peer) -> (u32, u64) {
    let geometry = peer.geometry();
    let heads = geometry.heads(peer.tp_rank).len();
    (peer.layers as u32, geometry.segment(heads).bytes() as u64)
}

pub(crate) const LEASE: Nanos = Nanos(1_000_000);
pub(crate) const STALL: Nanos = Nanos(5 * LEASE.0);

pub(crate) fn everything() -> Allow {
    Allow {
        block_size: true,
        tp_degree: true,
        dtype: Conversion::Rounded,
        arithmetic: true,
    }
}

pub(crate) fn source_options() -> SourceOptions {
    SourceOptions {
        allow: everything(),
        lease: LEASE,
        first_id: 100,
        handshake: PATIENCE,
        defect: Defect::None,
    }
}

pub(crate) fn sink_options() -> SinkOptions {
    SinkOptions {
        allow: everything(),
        blocks: 16,
        transfers: 4,
        window_cells: 6,
        stall: STALL,
        retries: 2,
        handshake: PATIENCE,
        defect: Defect::None,
    }
}

/// Two engines that have shaken hands, on one thread and in virtual time.
pub(crate) struct Engines {
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) source: Option<SourceAgent>,
    pub(crate) sink: Option<SinkAgent>,
    pub(crate) from: Pool,
    pub(crate) to: Pool,
    pub(crate) source_events: Vec<SourceEvent>,
    pub(crate) sink_events: Vec<SinkEvent>,
}

impl Engines {
    pub(crate) fn connect(
        rig: Rig,
        source: (&Peer, Pool),
        sink: (&Peer, Pool),
        tap: Option<Tap>,
    ) -> Engines {
        Engines::over(|clock| rig.pair(clock, tap), source, sink)
    }

    pub(crate) fn over(
        connect: impl FnOnce(Arc<dyn Clock>) -> Ends,
        (source, from): (&Peer, Pool),
        (sink, to): (&Peer, Pool),
    ) -> Engines {
        let clock = Arc::new(VirtualClock::new());
        let (a, b) = connect(Arc::clone(&clock) as Arc<dyn Clock>);
        let memory = (Arc::clone(&from.memory), from.region);
        let (me, time) = (source.clone(), Arc::clone(&clock));
        let shaking = std::thread::spawn(move || {
            SourceAgent::connect(a, &me, memory, time, &source_options()).unwrap()
        });
        let memory = (Arc::clone(&to.memory), to.region);
        let time = Arc::clone(&clock);
        let sink = SinkAgent::connect(b, sink, memory, time, &sink_options()).unwrap();
        Engines {
            clock,
            source: Some(shaking.join().unwrap()),
            sink: Some(sink),
            from,
            to,
            source_events: Vec::new(),
            sink_events: Vec::new(),
        }
    }

    /// Virtual time goes on.
    pub(crate) fn pass(&self, time: Nanos) {
        self.clock.advance_to(self.clock.now() + time);
    }

    /// Half a lease goes by, and the sink's renewal arrives, unless the transfer ends first.
    pub(crate) fn pass_half_a_lease(&mut self) {
        self.pass(Nanos(LEASE.0 / 2));
        let renewed = Some(self.clock.now() + LEASE);
        self.until("renewal", |e| {
            let deadline = e.source.as_ref().and_then(|s| s.next_deadline());
            deadline == renewed || e.failed().is_some()
        });
    }

    pub(crate) fn step_source(&mut self) {
        if let Some(source) = &mut self.source {
            self.source_events
                .extend(source.step(Duration::from_millis(1)));
        }
    }

    pub(crate) fn step_sink(&mut self) {
        if let Some(sink) = &mut self.sink {
            self.sink_events.extend(sink.step(Duration::from_millis(1)));
        }
    }

    /// Steps both sides until `done`. A step without news waits a millisecond at least, so the
    /// bound is minutes and only ends a hang.
    pub(crate) fn until(&mut self, what: &str, done: impl Fn(&Engines) -> bool) {
        for _ in 0..60_000 {
            if done(self) {
                return;
            }
            self.step_source();
            self.step_sink();
        }
        panic!(
            "no {what}: {:?}, {:?}",
            self.source_events, self.sink_events
        );
    }

    pub(crate) fn source(&mut self) -> &mut SourceAgent {
        self.source.as_mut().expect("a living source")
    }

    pub(crate) fn sink(&mut self) -> &mut SinkAgent {
        self.sink.as_mut().expect("a living sink")
    }

    pub(crate) fn offered(&self) -> bool {
        let offer = |event: &SinkEvent| matches!(event, SinkEvent::Reserve(_));
        self.sink_events.iter().any(offer)
    }

    pub(crate) fn started(&self) -> bool {
        let start = |event: &SinkEvent| matches!(event, SinkEvent::Started { .. });
        self.sink_events.iter().any(start)
    }

    pub(crate) fn failed(&self) -> Option<pb_transfer::Cause> {
        self.sink_events.iter().find_map(|event| match event {
            SinkEvent::Failed { cause, .. } => Some(*cause),
            _ => None,
        })
    }

    pub(crate) fn freed(&self) -> Option<pb_transfer::Ended> {
        self.source_events.iter().find_map(|event| match event {
            SourceEvent::Freed { ended, .. } => Some(*ended),
            _ => None,
        })
    }
}

pub(crate) fn lend(tokens: u64, blocks: &[u32], mode: Mode, granularity: Granularity) -> Lend {
    Lend {
        request: RequestId(7),
        tokens,
        blocks: blocks.iter().copied().map(BlockId).collect(),
        mode,
        granularity,
    }
}
