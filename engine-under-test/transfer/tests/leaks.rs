//! Connections that fail leave nothing behind (Mooncake #1845, NIXL #2044). Alone in its process,
//! because it counts the process's descriptors and threads.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{Clock, WallClock};
use pb_transfer::{
    Message, ShmListener, ShmOptions, ShmTransport, TcpOptions, TcpTransport, TcpTransportListener,
    Transport, encode_frame,
};

const PATIENCE: Duration = Duration::from_secs(120);
const CYCLES: u32 = 500;

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}"))
        .unwrap()
        .count()
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

#[test]
fn connections_that_fail_leave_no_descriptor_and_no_thread() {
    let clock: Arc<dyn Clock> = Arc::new(WallClock);
    let tcp = TcpOptions {
        connections: 2,
        stall: PATIENCE,
    };
    let shm = ShmOptions {
        slots: 2,
        slot_bytes: 4096,
        stall: PATIENCE,
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut listener = TcpTransportListener::bind(any, PATIENCE, Arc::clone(&clock)).unwrap();
    let to = listener.address().unwrap();
    let mut shm_listener = ShmListener::bind(&path, shm, Arc::clone(&clock)).unwrap();
    // The port of a client: it is taken, so nobody else can come to listen there.
    let idle = std::net::TcpListener::bind(any).unwrap();
    let client = TcpStream::connect(idle.local_addr().unwrap()).unwrap();
    let refusing = client.local_addr().unwrap();
    let before = [count("fd"), count("task")];
    for cycle in 0..CYCLES {
        // Nobody listens.
        assert!(TcpTransport::connect(refusing, 1, tcp, Arc::clone(&clock)).is_err());
        // One of two connections, and a stranger.
        let half = Message::Join {
            session: u64::from(cycle),
            index: 0,
            of: 2,
        };
        let mut stream = TcpStream::connect(to).unwrap();
        std::io::Write::write_all(&mut stream, &encode_frame(&half, 0)).unwrap();
        drop(stream);
        // A good one; either side may go first.
        let session = u64::from(CYCLES + cycle);
        let a = TcpTransport::connect(to, session, tcp, Arc::clone(&clock)).unwrap();
        let b = listener.accept(PATIENCE).unwrap().unwrap();
        let (first, mut second) = if cycle % 2 == 0 { (a, b) } else { (b, a) };
        drop(first);
        assert!(second.poll(PATIENCE).is_err());
        drop(second);
        // Shared memory, likewise.
        let (at, time) = (path.clone(), Arc::clone(&clock));
        let connecting = std::thread::spawn(move || ShmTransport::connect(&at, shm, time).unwrap());
        let mut served = shm_listener.accept(PATIENCE).unwrap().unwrap();
        drop(connecting.join().unwrap());
        assert!(served.poll(PATIENCE).is_err());
    }
    // Halves that never became whole are dropped with their listener at the latest.
    drop((listener, shm_listener));
    assert_back("fd", before[0] - 2);
    assert_back("task", before[1]);
}
