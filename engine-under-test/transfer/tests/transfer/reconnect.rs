//! Claims that come while their connection ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pb_contract::{BlockId, Clock, Nanos, RequestId, Stream, WallClock};
use pb_transfer::service::{
    Claim, Dial, ExportOptions, Exporter, Held, ImportEvent, ImportOptions, Importer, KvListener,
    Remote,
};
use pb_transfer::{
    Allow, Cause, Granularity, HostMemory, Memory, Mode, Peer, Region, SinkOptions, TcpOptions,
};

use crate::engines::peer;
use crate::rigs::sink_options;

const PATIENCE: Duration = Duration::from_secs(120);
const LONG: Nanos = Nanos::from_secs(120);
const DIGEST: [u8; 32] = [1; 32];

fn clock() -> Arc<dyn Clock> {
    Arc::new(WallClock)
}

fn me() -> Peer {
    peer([2, 2, 4], 4)
}

fn memory() -> (Arc<dyn Memory>, Region) {
    let (layers, segment) = (2, me().geometry().segment(2).bytes());
    let region = Region::block_major(0, 0, layers as u32, segment as u64);
    (Arc::new(HostMemory::new(8 * layers * segment)), region)
}

/// An engine that holds KV under a ticket; none when the address is taken.
fn exporter(at: SocketAddr, ticket: u64) -> Option<(Exporter, Remote)> {
    let (listener, remote) = KvListener::tcp(at, PATIENCE, clock()).ok()?;
    let options = ExportOptions {
        allow: Allow::default(),
        lease: LONG,
        mode: Mode::Pull,
        granularity: Granularity::Bulk,
        handshake: PATIENCE,
    };
    let ids = Stream::new(ticket, "test");
    let ignore = Arc::new(|_| {});
    let started = Exporter::start(listener, me(), memory(), options, clock(), ids, ignore);
    let exporter = started.unwrap();
    exporter.hold(Held {
        ticket,
        digest: DIGEST,
        tokens: 5,
        blocks: vec![BlockId(0), BlockId(1)],
        since: clock().now(),
        progress: None,
    });
    Some((exporter, remote))
}

/// One that fetches. Whoever tells that a claim has failed waits for the word to go on.
fn importer(go_on: Receiver<()>) -> (Importer, Receiver<ImportEvent>) {
    let options = ImportOptions {
        sink: SinkOptions {
            stall: LONG,
            ..sink_options()
        },
        dial: Dial::Tcp {
            options: TcpOptions {
                connections: 1,
                stall: PATIENCE,
            },
            loopback_only: true,
        },
        claim: LONG,
        peers: 2,
    };
    let (told, events) = channel();
    let ways = Mutex::new((told, go_on));
    let tell = Arc::new(move |event| {
        let ways = ways.lock().unwrap();
        let failed = matches!(event, ImportEvent::Failed { .. });
        ways.0.send(event).unwrap();
        if failed {
            // An error: the test has ended.
            let _ = ways.1.recv_timeout(PATIENCE);
        }
    });
    let sessions = Stream::new(3, "test");
    let importer = Importer::new(me(), memory(), options, clock(), sessions, tell);
    (importer, events)
}

fn claim(remote: &Remote, ticket: u64) -> Claim {
    Claim {
        request: RequestId(ticket),
        remote: remote.clone(),
        ticket,
        digest: DIGEST,
        early: false,
    }
}

#[test]
fn what_is_claimed_while_a_connection_ends_goes_over_the_next_one() {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (first, remote) = exporter(any, 1).unwrap();
    let (go, go_on) = channel();
    let (mut importer, events) = importer(go_on);
    importer.claim(claim(&remote, 1));
    let told = events.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(told, ImportEvent::Room { .. }), "{told:?}");
    // It goes in the middle of a transfer, and another process takes its place.
    drop(first);
    let told = events.recv_timeout(PATIENCE).unwrap();
    let lost = matches!(
        told,
        ImportEvent::Failed {
            cause: Cause::LinkDown,
            ..
        }
    );
    assert!(lost, "{told:?}");
    let at = format!("{}:{}", remote.host, remote.port).parse().unwrap();
    let Some((_second, _)) = exporter(at, 2) else {
        // Somebody else has the port: nothing to be seen here.
        return;
    };
    // The thread of the old connection still tells of its end.
    importer.claim(claim(&remote, 2));
    go.send(()).unwrap();
    drop(go);
    let told = events.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(told, ImportEvent::Room { .. }), "{told:?}");
}
