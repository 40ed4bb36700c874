//! Claims that fail, and engines that go, leave nothing behind. Alone in its process, because it
//! counts the process's descriptors and threads.

#[path = "transfer/engines.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod engines;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use pb_contract::{BlockId, Clock, Nanos, RequestId, Stream, WallClock};
use pb_transfer::service::{
    Claim, Dial, ExportEvent, ExportOptions, Exporter, Held, ImportEvent, ImportOptions, Importer,
    KvListener, Remote,
};
use pb_transfer::{
    Allow, Cause, Defect, Ended, Granularity, HostMemory, Memory, Mode, Peer, Region, SinkOptions,
    TcpOptions,
};

const PATIENCE: Duration = Duration::from_secs(120);
const LONG: Nanos = Nanos::from_secs(120);

fn count(what: &str) -> usize {
    let entries = std::fs::read_dir(format!("/proc/self/{what}")).unwrap();
    entries.count()
}

/// Waits until the count is back: a thread that was joined may show for a moment longer.
fn assert_back(what: &str, before: usize) {
    for _ in 0..10_000 {
        if count(what) <= before {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: {before} before, {} after", count(what));
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
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let (listener, remote) = KvListener::tcp(any, PATIENCE, clock()).unwrap();
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

fn fail_often(cycles: u64) {
    let me = engines::peer([2, 2, 3], 4);
    let mut stranger = me.clone();
    stranger.identity.weights = [9; 32];
    // The port of a client: it is taken, so nobody else can come to listen there.
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let idle = std::net::TcpListener::bind(any).unwrap();
    let client = TcpStream::connect(idle.local_addr().unwrap()).unwrap();
    let refusing = Remote {
        host: "127.0.0.1".to_owned(),
        port: client.local_addr().unwrap().port(),
    };
    let before = [count("fd"), count("task")];
    let (exporter, remote, freed) = exporter(&me);
    for cycle in 0..cycles {
        let ticket = cycle + 1;
        exporter.hold(Held {
            ticket,
            digest: [1; 32],
            tokens: 5,
            blocks: vec![BlockId(0), BlockId(1)],
            since: clock().now(),
            progress: None,
        });
        // Nobody is there; another model; nothing of that name; something else; nobody's host.
        let (mut wrong, told) = importer(&stranger, 2 * cycle);
        wrong.claim(claim(&remote, ticket, [1; 32]));
        assert_eq!(failed(&told), Cause::LinkDown);
        drop(wrong);
        let (mut importer, told) = importer(&me, 2 * cycle + 1);
        importer.claim(claim(&refusing, 7, [1; 32]));
        assert_eq!(failed(&told), Cause::LinkDown);
        importer.claim(claim(&remote, u64::MAX, [1; 32]));
        assert_eq!(failed(&told), Cause::Expired);
        importer.claim(claim(&remote, ticket, [2; 32]));
        assert_eq!(failed(&told), Cause::Mismatch);
        TcpStream::connect((remote.host.as_str(), remote.port))
            .unwrap()
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .unwrap();
        // Claimed, and gone before there is room.
        importer.claim(claim(&remote, ticket, [1; 32]));
        let offered = told.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(
            offered,
            ImportEvent::Room {
                tokens: 5,
                direct: true,
                ..
            }
        ));
        drop(importer);
        let row = freed.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(row, ExportEvent::Row(_)), "{row:?}");
        let ended = Ended::PeerDead;
        let expected = ExportEvent::Freed { ticket, ended };
        assert_eq!(freed.recv_timeout(PATIENCE).unwrap(), expected);
    }
    drop(exporter);
    assert!(freed.try_recv().is_err(), "each hold is freed once");
    assert_back("fd", before[0]);
    assert_back("task", before[1]);
}

#[test]
fn connecting_and_failing_leaves_no_descriptor_and_no_thread() {
    fail_often(60);
}

/// Minutes; `cargo test --release -p pb-transfer --test service_leaks -- --ignored`.
#[test]
#[ignore = "minutes"]
fn ten_thousand_times() {
    fail_often(10_000);
}
