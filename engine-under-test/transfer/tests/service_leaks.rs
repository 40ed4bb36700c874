//! Claims that fail, and engines that go, leave nothing behind (Mooncake #1845, NIXL #2044). Alone
//! in its process, because it counts the process's descriptors, threads and pages.

#[path = "transfer/engines.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod engines;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pb_contract::{BlockId, Clock, Nanos, RequestId, Stream, WallClock};
use pb_transfer::service::{
    Claim, Dial, ExportEvent, ExportOptions, Exporter, Held, ImportEvent, ImportOptions, Importer,
    KvListener, Progress, Remote,
};
use pb_transfer::{
    Allow, Cause, Defect, Ended, Granularity, HostMemory, Memory, Mode, Peer, Region, SinkOptions,
    TcpOptions,
};

const PATIENCE: Duration = Duration::from_secs(120);
const LONG: Nanos = Nanos::from_secs(120);

/// Growth that is no leak: pages that the allocator keeps for threads to come.
const SLACK_KIB: usize = 8 << 10;
/// Cycles after which the process has what it keeps: arenas of the allocator, buffers.
const WARM_UP: u64 = 40;

/// The tests of this file count the same process.
static ALONE: Mutex<()> = Mutex::new(());

/// What the process has of what could leak.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    resident_kib: usize,
}

impl Holdings {
    fn now() -> Holdings {
        let count = |what| {
            std::fs::read_dir(format!("/proc/self/{what}"))
                .unwrap()
                .count()
        };
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.trim().split(' ').next());
        Holdings {
            descriptors: count("fd"),
            threads: count("task"),
            resident_kib: kib.and_then(|kib| kib.parse().ok()).unwrap(),
        }
    }

    /// Waits until no more is held than `self`, for `looks` milliseconds: a thread that was joined
    /// may show for a moment longer.
    fn is_back(self, looks: u32) -> Result<Holdings, String> {
        let mut now = Holdings::now();
        for _ in 0..looks {
            if now.descriptors <= self.descriptors && now.threads <= self.threads {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            now = Holdings::now();
        }
        for (what, before, after, slack) in [
            ("descriptors", self.descriptors, now.descriptors, 0),
            ("threads", self.threads, now.threads, 0),
            (
                "KiB resident",
                self.resident_kib,
                now.resident_kib,
                SLACK_KIB,
            ),
        ] {
            if after > before + slack {
                return Err(format!("{what}: {before} before, {after} after"));
            }
        }
        Ok(now)
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(WallClock)
}

fn memory(me: &Peer) -> (Arc<dyn Memory>, Region) {
    let (layers, segment) = (me.layers, me.geometry().segment(me.kv_heads).bytes());
    let region = Region::block_major(0, 0, layers as u32, segment as u64);
    (Arc::new(HostMemory::new(8 * layers * segment)), region)
}

fn exporter(me: &Peer) -> (Exporter, Remote, Receiver<ExportEvent>) {
    let (listener, remote) = KvListener::tcp(any(), PATIENCE, clock()).unwrap();
    let options = ExportOptions {
        allow: Allow::default(),
        lease: LONG,
        mode: Mode::Pull,
        granularity: Granularity::Bulk,
        handshake: PATIENCE,
    };
    let (told, events) = channel();
    let tell = Arc::new(move |event| drop(told.send(event)));
    let ids = Stream::new(1, "test");
    let started = Exporter::start(
        listener,
        me.clone(),
        memory(me),
        options,
        clock(),
        ids,
        tell,
    );
    (started.unwrap(), remote, events)
}

fn importer(me: &Peer, seed: u64) -> (Importer, Receiver<ImportEvent>) {
    let options = ImportOptions {
        sink: SinkOptions {
            allow: Allow::default(),
            blocks: 8,
            transfers: 4,
            window_cells: 4,
            stall: LONG,
            retries: 1,
            handshake: PATIENCE,
            defect: Defect::None,
        },
        dial: Dial::Tcp {
            options: TcpOptions {
                connections: 2,
                stall: PATIENCE,
            },
            loopback_only: true,
        },
        claim: LONG,
        peers: 2,
    };
    let (told, events) = channel();
    let tell = Arc::new(move |event| drop(told.send(event)));
    let sessions = Stream::new(seed, "test");
    let importer = Importer::new(me.clone(), memory(me), options, clock(), sessions, tell);
    (importer, events)
}

fn claim(remote: &Remote, ticket: u64, digest: [u8; 32]) -> Claim {
    Claim {
        request: RequestId(ticket),
        remote: remote.clone(),
        ticket,
        digest,
        early: false,
    }
}

fn failed(events: &Receiver<ImportEvent>) -> Cause {
    match events.recv_timeout(PATIENCE).unwrap() {
        ImportEvent::Failed { cause, .. } => cause,
        other => panic!("{other:?}"),
    }
}

/// A planted fault: what each cycle leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leak {
    Nothing,
    Descriptor,
    Thread,
    /// A MiB.
    Memory,
    /// Blocks under a ticket that nobody claims.
    Hold,
}

/// What planted faults leave behind, to be tidied up by the test.
#[derive(Default)]
struct Left {
    descriptors: Vec<TcpListener>,
    memory: Vec<Vec<u8>>,
    /// Closed by dropping it, which ends the threads.
    threads: Option<Sender<()>>,
    ends: Arc<Mutex<Option<Receiver<()>>>>,
}

impl Left {
    fn leave(&mut self, leak: Leak, exporter: &Exporter, cycle: u64) {
        match leak {
            Leak::Nothing => {}
            Leak::Descriptor => self.descriptors.push(TcpListener::bind(any()).unwrap()),
            Leak::Memory => self.memory.push(vec![1; 1 << 20]),
            Leak::Hold => exporter.hold(held(1 << 40 | cycle)),
            Leak::Thread => {
                if self.threads.is_none() {
                    let (sender, receiver) = channel();
                    self.threads = Some(sender);
                    self.ends = Arc::new(Mutex::new(Some(receiver)));
                }
                let ends = Arc::clone(&self.ends);
                std::thread::spawn(move || {
                    let ends = ends.lock().unwrap();
                    ends.as_ref().map(|ends| ends.recv())
                });
            }
        }
    }
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn held(ticket: u64) -> Held {
    Held {
        ticket,
        digest: [1; 32],
        tokens: 5,
        blocks: vec![BlockId(0), BlockId(1)],
        since: clock().now(),
        progress: None,
    }
}

/// One cycle: nobody is there; another model; nothing of that name; something else; nobody's host;
/// claimed, and gone before there is room.
fn fail(me: &Peer, stranger: &Peer, refusing: &Remote, remote: &Remote, ticket: u64) {
    let (mut wrong, told) = importer(stranger, 2 * ticket);
    wrong.claim(claim(remote, ticket, [1; 32]));
    assert_eq!(failed(&told), Cause::LinkDown);
    drop(wrong);
    let (mut importer, told) = importer(me, 2 * ticket + 1);
    importer.claim(claim(refusing, 7, [1; 32]));
    assert_eq!(failed(&told), Cause::LinkDown);
    importer.claim(claim(remote, u64::MAX, [1; 32]));
    assert_eq!(failed(&told), Cause::Expired);
    importer.claim(claim(remote, ticket, [2; 32]));
    assert_eq!(failed(&told), Cause::Mismatch);
    TcpStream::connect((remote.host.as_str(), remote.port))
        .unwrap()
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .unwrap();
    importer.claim(claim(remote, ticket, [1; 32]));
    let offered = told.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(
        offered,
        ImportEvent::Room {
            tokens: 5,
            direct: true,
            ..
        }
    ));
}

/// Runs the cycles; what is held before and afterwards, or what of it is too much.
fn fail_often(cycles: u64, leak: Leak) -> Result<[Holdings; 2], String> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let me = engines::peer([2, 2, 3], 4);
    let mut stranger = me.clone();
    stranger.identity.weights = [9; 32];
    // The port of a client: it is taken, so nobody else can come to listen there.
    let idle = TcpListener::bind(any()).unwrap();
    let client = TcpStream::connect(idle.local_addr().unwrap()).unwrap();
    let refusing = Remote {
        host: "127.0.0.1".to_owned(),
        port: client.local_addr().unwrap().port(),
    };
    let mut left = Left::default();
    let start = Holdings::now();
    let (exporter, remote, freed) = exporter(&me);
    let mut warm = start;
    for ticket in 1..=cycles {
        exporter.hold(held(ticket));
        fail(&me, &stranger, &refusing, &remote, ticket);
        let row = freed.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(row, ExportEvent::Row(_)), "{row:?}");
        let ended = Ended::PeerDead;
        let expected = ExportEvent::Freed { ticket, ended };
        assert_eq!(freed.recv_timeout(PATIENCE).unwrap(), expected);
        left.leave(leak, &exporter, ticket);
        if ticket == WARM_UP {
            warm = Holdings::now();
        }
    }
    for _ in 0..2_000 {
        if exporter.connections() == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if exporter.connections() > 0 {
        return Err(format!("{} connections", exporter.connections()));
    }
    let depth = exporter.queue_depth();
    if depth > 0 {
        return Err(format!("{depth} tickets with their blocks are still held"));
    }
    drop(exporter);
    assert!(freed.try_recv().is_err(), "each hold is freed once");
    // Memory as it was when warm; of descriptors and threads none may be left.
    let resident_kib = warm.resident_kib;
    let before = Holdings {
        resident_kib,
        ..start
    };
    let looks = if leak == Leak::Nothing { 10_000 } else { 20 };
    Ok([before, before.is_back(looks)?])
}

#[test]
fn connecting_and_failing_leaves_nothing_and_what_is_left_is_found() {
    fail_often(60, Leak::Nothing).unwrap();
    for (leak, word) in [
        (Leak::Descriptor, "descriptors"),
        (Leak::Thread, "threads"),
        (Leak::Memory, "KiB resident"),
        (Leak::Hold, "still held"),
    ] {
        let found = fail_often(WARM_UP + 10, leak).unwrap_err();
        assert!(found.contains(word), "{leak:?}: {found}");
    }
}

/// The prompt may wait for its next step for long, and then nobody tells of its progress.
#[test]
fn a_streamed_prompt_is_forgotten_when_its_claimant_cancels_and_stays_connected() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let me = engines::peer([2, 2, 3], 4);
    let (exporter, remote, freed) = exporter(&me);
    let (mut importer, told) = importer(&me, 1);
    let progress = Arc::new(Progress::new(me.layers));
    exporter.hold(Held {
        progress: Some(Arc::clone(&progress)),
        ..held(1)
    });
    importer.claim(claim(&remote, 1, [1; 32]));
    let offered = told.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(offered, ImportEvent::Room { .. }), "{offered:?}");
    assert_eq!(Arc::strong_count(&progress), 2, "it is looked at");
    importer.cancel(RequestId(1));
    let row = freed.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(row, ExportEvent::Row(_)), "{row:?}");
    let end = freed.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(end, ExportEvent::Freed { ticket: 1, .. }),
        "{end:?}"
    );
    for _ in 0..2_000 {
        if Arc::strong_count(&progress) == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(Arc::strong_count(&progress), 1, "nobody looks any more");
    assert_eq!(exporter.connections(), 1);
}

/// Half a minute; `cargo test --release -p pb-transfer --test service_leaks -- --ignored
/// --nocapture`.
#[test]
#[ignore = "half a minute"]
fn ten_thousand_times() {
    let begin = clock().now();
    let [before, after] = fail_often(10_000, Leak::Nothing).unwrap();
    let took = clock().now().saturating_sub(begin).to_duration();
    println!("{took:.1?}: {before:?}, then {after:?}");
}
