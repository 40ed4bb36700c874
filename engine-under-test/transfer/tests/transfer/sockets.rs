//! What only real sockets can do: garbage, strangers, other processes that are killed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{BlockId, Clock, WallClock};
use pb_transfer::{
    AgentError, Allow, Cause, Ended, Granularity, Lend, Message, Mode, MooncakeEngine,
    NixlListener, Peer, Refusal, ShmListener, ShmTransport, SinkAgent, SinkEvent, SourceAgent,
    SourceEvent, Span, TcpTransport, TcpTransportListener, Transport, TransportError, encode_frame,
};

use crate::engines::peer;
use crate::rigs::{PATIENCE, Pool, SHM, any_port, lend, nixl, sink_options, source_options, tcp};

fn wall() -> Arc<dyn Clock> {
    Arc::new(WallClock)
}

fn listener() -> TcpTransportListener {
    TcpTransportListener::bind(any_port(), PATIENCE, wall()).unwrap()
}

/// The first error of a connection; messages before it are skipped.
fn first_error(transport: &mut dyn Transport) -> TransportError {
    loop {
        if let Err(error) = transport.poll(PATIENCE) {
            return error;
        }
    }
}

#[test]
fn strangers_are_dropped_and_peers_still_served() {
    let mut listener = listener();
    let to = listener.address().unwrap();
    let mut stranger = TcpStream::connect(to).unwrap();
    stranger
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let silent_end = TcpStream::connect(to).unwrap();
    drop(silent_end);
    let other_first = encode_frame(&Message::Credit { slot: 1 }, 0);
    TcpStream::connect(to)
        .unwrap()
        .write_all(&other_first)
        .unwrap();
    for (index, of) in [(0, 0), (1, 1), (0, 65)] {
        let session = 9;
        let join = encode_frame(&Message::Join { session, index, of }, 0);
        TcpStream::connect(to).unwrap().write_all(&join).unwrap();
    }
    let good = TcpTransport::connect(to, 1, tcp(3), wall()).unwrap();
    let accepted = listener.accept(PATIENCE).unwrap();
    assert!(accepted.is_some());
    // The stranger finds the connection closed.
    assert!(matches!(stranger.read(&mut [0; 1]), Ok(0) | Err(_)));
    drop(good);
    assert!(listener.accept(Duration::ZERO).unwrap().is_none());
}

#[test]
fn who_says_nothing_holds_up_nobody() {
    let mut listener = listener();
    let to = listener.address().unwrap();
    let silent = TcpStream::connect(to).unwrap();
    let mut slow = TcpStream::connect(to).unwrap();
    let join = Message::Join {
        session: 7,
        index: 0,
        of: 1,
    };
    let join = encode_frame(&join, 0);
    slow.write_all(&join[..5]).unwrap();
    let begin = wall().now();
    let good = TcpTransport::connect(to, 1, tcp(3), wall()).unwrap();
    assert!(listener.accept(PATIENCE).unwrap().is_some());
    let took = wall().now().saturating_sub(begin).to_duration();
    assert!(took < PATIENCE / 4, "{took:?}");
    // What comes in pieces is a join all the same, and what follows it is left to the transport.
    for byte in &join[5..join.len() - 1] {
        slow.write_all(&[*byte]).unwrap();
        assert!(listener.accept(Duration::ZERO).unwrap().is_none());
    }
    slow.write_all(
        &[
            &join[join.len() - 1..],
            b"nonsense, and longer than a header",
        ]
        .concat(),
    )
    .unwrap();
    let mut peer = listener.accept(PATIENCE).unwrap().expect("a peer");
    let error = first_error(&mut peer).to_string();
    assert!(error.contains("something else than frames"), "{error}");
    drop((silent, good));
}

#[test]
fn who_does_not_join_in_time_is_dropped() {
    let stall = Duration::from_millis(30);
    let mut listener = TcpTransportListener::bind(any_port(), stall, wall()).unwrap();
    let to = listener.address().unwrap();
    let [silent, mut slow, mut half] = [(); 3].map(|()| TcpStream::connect(to).unwrap());
    slow.write_all(b"PBTX").unwrap();
    let join = Message::Join {
        session: 7,
        index: 0,
        of: 2,
    };
    half.write_all(&encode_frame(&join, 0)).unwrap();
    for mut stream in [silent, slow, half] {
        stream.set_read_timeout(Some(stall)).unwrap();
        let begin = wall().now();
        // Their time begins when they are accepted.
        let closed = loop {
            assert!(listener.accept(stall).unwrap().is_none());
            match stream.read(&mut [0; 1]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                closed => break closed,
            }
            let waited = wall().now().saturating_sub(begin).to_duration();
            assert!(waited < PATIENCE, "still open");
        };
        let reset = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(
            matches!(&closed, Ok(0)) || closed.as_ref().is_err_and(reset),
            "{closed:?}"
        );
    }
}

#[test]
fn garbage_after_a_good_start_is_an_error_of_its_kind() {
    for (bytes, expected) in [
        (
            &b"nonsense that is longer than a header"[..],
            "something else than frames",
        ),
        (b"PBTX\x01", "cut 19 bytes before"),
        (b"", "closed the connection"),
    ] {
        let mut listener = listener();
        let mut raw = TcpStream::connect(listener.address().unwrap()).unwrap();
        let join = Message::Join {
            session: 1,
            index: 0,
            of: 1,
        };
        raw.write_all(&encode_frame(&join, 0)).unwrap();
        let mut transport = listener.accept(PATIENCE).unwrap().unwrap();
        raw.write_all(bytes).unwrap();
        raw.shutdown(std::net::Shutdown::Write).unwrap();
        let text = first_error(&mut transport).to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_peer_that_announces_more_than_is_believed_is_cut_off() {
    let mut listener = listener();
    let mut raw = TcpStream::connect(listener.address().unwrap()).unwrap();
    let join = Message::Join {
        session: 1,
        index: 0,
        of: 1,
    };
    raw.write_all(&encode_frame(&join, 0)).unwrap();
    let mut transport = listener.accept(PATIENCE).unwrap().unwrap();
    let mut frame = encode_frame(&Message::Credit { slot: 1 }, 0);
    frame[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    raw.write_all(&frame).unwrap();
    let text = first_error(&mut transport).to_string();
    assert!(
        text.contains("payload of 4294967295 bytes: at most 16777216"),
        "{text}"
    );
}

#[test]
fn a_refused_handshake_tells_both_sides_the_field() {
    let (source, sink) = (peer([2, 4, 3], 4), peer([2, 4, 3], 8));
    // Either side may be the strict one.
    for strict_sink in [true, false] {
        let mut listener = listener();
        let to = listener.address().unwrap();
        let me = source.clone();
        let connecting = std::thread::spawn(move || {
            let transport = TcpTransport::connect(to, 1, tcp(1), wall()).unwrap();
            let pool = Pool::images(&me, 0);
            let mut options = source_options();
            if !strict_sink {
                options.allow = Allow::default();
            }
            let memory = (pool.memory, pool.region);
            let mut agent =
                SourceAgent::connect(Box::new(transport), &me, memory, wall(), &options)?;
            loop {
                for event in agent.step(PATIENCE) {
                    if let SourceEvent::Down(error) = event {
                        return Err::<(), _>(error);
                    }
                }
            }
        });
        let transport = listener.accept(PATIENCE).unwrap().unwrap();
        let pool = Pool::images(&sink, 0);
        let mut options = sink_options();
        if strict_sink {
            options.allow = Allow::default();
        }
        let memory = (pool.memory, pool.region);
        let agent = SinkAgent::connect(Box::new(transport), &sink, memory, wall(), &options);
        let sink_error = match agent {
            Err(error) => error,
            Ok(mut agent) => loop {
                let mut events = agent.step(PATIENCE).into_iter();
                let down = events.find_map(|event| match event {
                    SinkEvent::Down(error) => Some(error),
                    _ => None,
                });
                if let Some(error) = down {
                    break error;
                }
            },
        };
        let source_error = connecting.join().unwrap().unwrap_err();
        let (refused, told) = match strict_sink {
            true => (sink_error, source_error),
            false => (source_error, sink_error),
        };
        let AgentError::Refused(Refusal::Differs { field, .. }) = &refused else {
            panic!("{refused}");
        };
        assert_eq!(*field, "engine.block_size");
        assert!(
            matches!(&told, AgentError::Refused(Refusal::ByPeer { .. })),
            "{told}"
        );
        assert!(
            told.to_string().contains("source has 4, sink has 8"),
            "{told}"
        );
    }
}

#[test]
fn setups_that_make_no_sense_are_refused() {
    let to = listener().address().unwrap();
    for connections in [0, 65] {
        let refused = TcpTransport::connect(to, 1, tcp(connections), wall());
        let text = refused.err().expect("a refusal").to_string();
        assert!(text.contains("must be 1 to 64"), "{text}");
    }
    let library = "/nonexistent/libnixl_capi.so";
    let mut nixl = NixlListener::bind(any_port(), nixl(library), wall()).unwrap();
    let _stream = TcpStream::connect(nixl.address().unwrap()).unwrap();
    let text = nixl.accept(PATIENCE).err().expect("a refusal").to_string();
    assert!(
        text.starts_with(library) && text.contains("pip install --no-deps nixl-cu13"),
        "{text}"
    );
    let python = Path::new("/nonexistent/python");
    let missing = MooncakeEngine::start(python, Ipv4Addr::LOCALHOST);
    let text = missing.expect_err("a refusal").to_string();
    assert!(
        text.starts_with("/nonexistent/python cannot be used: No such file")
            && text.contains("pip install --no-deps mooncake-transfer-engine-non-cuda"),
        "{text}"
    );
    // It starts, says nothing and ends.
    let silent = MooncakeEngine::start(Path::new("/bin/true"), Ipv4Addr::LOCALHOST);
    let text = silent.expect_err("a refusal").to_string();
    assert!(
        text.starts_with("/bin/true cannot be used: it ended at once"),
        "{text}"
    );
    let missing = ShmTransport::connect(Path::new("/nonexistent/socket"), SHM, wall());
    let text = missing.err().expect("a refusal").to_string();
    assert!(
        text.starts_with("connecting to /nonexistent/socket"),
        "{text}"
    );
}

#[test]
fn a_socket_that_a_killed_process_left_is_replaced_and_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kv.sock");
    // Dropped without removing the file, as the system does it for a killed process.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let alive = ShmListener::bind(&path, SHM, wall()).unwrap();
    let refused = |path: &Path| {
        let refused = ShmListener::bind(path, SHM, wall()).err();
        refused.expect("a refusal").to_string()
    };
    assert!(refused(&path).starts_with("listening at "), "{path:?}");
    drop(alive);
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(refused(&file).contains("file"));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

/// What the child process is to do.
const ROLE: &str = "PB_TRANSFER_CHILD";
/// Where the parent listens.
const PATH: &str = "PB_TRANSFER_PATH";

const TABLE: [u32; 5] = [3, 4, 5, 11, 2];

fn engine() -> Peer {
    peer([2, 4, 3], 4)
}

/// The bytes of a cell, the same in both processes.
fn pattern(block: usize, layer: u32, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i * 31 + block * 7 + layer as usize * 3) as u8)
        .collect()
}

fn options() -> (pb_transfer::SourceOptions, pb_transfer::SinkOptions) {
    let (mut source, mut sink) = (source_options(), sink_options());
    // On the wall clock, and the machine may be slow.
    source.lease = pb_contract::Nanos::from_secs(600);
    sink.stall = pb_contract::Nanos::from_secs(600);
    (source, sink)
}

/// A source that has computed the first `blocks` blocks.
fn source(transport: Box<dyn Transport>, blocks: u32) -> SourceAgent {
    let (me, pool) = (engine(), Pool::images(&engine(), 0));
    let memory = (Arc::clone(&pool.memory), pool.region);
    let mut agent = SourceAgent::connect(transport, &me, memory, wall(), &options().0).unwrap();
    let offer: Lend = lend(20, &TABLE, Mode::Push, Granularity::Layer);
    let id = agent.lend(offer);
    let span = Span::whole(blocks, 2);
    for (block, layer) in span.iter() {
        let bytes = pool.region.segment_bytes() as usize;
        let bytes = pattern(block as usize, layer, bytes);
        pool.write(BlockId(TABLE[block as usize]), layer, &bytes);
    }
    agent.seal(id, span).unwrap();
    agent
}

fn sink(transport: Box<dyn Transport>) -> (SinkAgent, Pool) {
    let (me, pool) = (engine(), Pool::images(&engine(), 0));
    let memory = (Arc::clone(&pool.memory), pool.region);
    let agent = SinkAgent::connect(transport, &me, memory, wall(), &options().1).unwrap();
    (agent, pool)
}

/// Serves one transfer until the source goes; checks its bytes, or returns why there are none.
fn run_sink((mut agent, pool): (SinkAgent, Pool)) -> Result<(), Cause> {
    let (mut outcome, mut down) = (None, false);
    loop {
        for event in agent.step(Duration::from_millis(50)) {
            match event {
                SinkEvent::Reserve(offer) => {
                    // Not taken: the source was killed right after its offer.
                    if agent.reserved(offer.id, (10..15).map(BlockId).collect()) {
                        println!("reserved");
                    }
                }
                SinkEvent::Started { blocks, .. } => {
                    for (i, layer) in (0..5).flat_map(|i| [(i, 0), (i, 1)]) {
                        let got = pool.read(blocks[i], layer);
                        assert_eq!(got, pattern(i, layer, got.len()));
                    }
                    outcome = Some(Ok(()));
                }
                SinkEvent::Failed { cause, .. } => outcome = Some(Err(cause)),
                SinkEvent::Declined { .. } => unreachable!("nothing was claimed"),
                // Killed before it offered anything.
                SinkEvent::Down(_) => down = true,
            }
        }
        if down {
            return outcome.unwrap_or(Err(Cause::LinkDown));
        }
    }
}

/// Steps until the lease has ended.
fn run_source(mut agent: SourceAgent) -> Ended {
    loop {
        for event in agent.step(Duration::from_millis(50)) {
            if let SourceEvent::Freed { ended, .. } = event {
                assert_eq!(agent.leases(), 0);
                return ended;
            }
        }
    }
}

/// Not a test of its own: what the other process does.
#[test]
fn child() {
    let (Ok(role), Ok(path)) = (std::env::var(ROLE), std::env::var(PATH)) else {
        return;
    };
    let transport: Box<dyn Transport> = match path.strip_prefix("tcp ") {
        Some(to) => {
            let to = to.parse().unwrap();
            Box::new(TcpTransport::connect(to, 5, tcp(2), wall()).unwrap())
        }
        None => Box::new(ShmTransport::connect(Path::new(&path), SHM, wall()).unwrap()),
    };
    match role.as_str() {
        "sink" => assert_eq!(run_sink(sink(transport)), Ok(())),
        "source" => assert_eq!(run_source(source(transport, 5)), Ended::Acknowledged),
        // Half a prefill; it waits to be killed.
        _ => drop(run_source(source(transport, 2))),
    }
}

/// Starts the child and returns it with this side's end.
fn with_child(role: &str, shared_memory: bool) -> (Child, Box<dyn Transport>) {
    let start = |path: String| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sockets::child", "--nocapture"])
            .env(ROLE, role)
            .env(PATH, path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    if shared_memory {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let mut listener = ShmListener::bind(&path, SHM, wall()).unwrap();
        let child = start(path.to_string_lossy().into_owned());
        let accepted = listener.accept(PATIENCE).unwrap();
        (child, Box::new(accepted.expect("a child that connects")))
    } else {
        let mut listener = listener();
        let child = start(format!("tcp {}", listener.address().unwrap()));
        let accepted = listener.accept(PATIENCE).unwrap();
        (child, Box::new(accepted.expect("a child that connects")))
    }
}

#[test]
fn two_processes_transfer_in_both_directions() {
    for shared_memory in [true, false] {
        let (mut child, end) = with_child("sink", shared_memory);
        assert_eq!(run_source(source(end, 5)), Ended::Acknowledged);
        assert!(child.wait().unwrap().success());
        let (mut child, end) = with_child("source", shared_memory);
        assert_eq!(run_sink(sink(end)), Ok(()));
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_killed_process_is_an_outcome_of_the_other() {
    for shared_memory in [true, false] {
        let (mut child, end) = with_child("sink", shared_memory);
        let agent = source(end, 2);
        // It has room and waits for the rest of the prefill, which does not come.
        let mut said = Vec::new();
        let mut output = child.stdout.take().unwrap();
        let agent = std::thread::scope(|scope| {
            let running = scope.spawn(move || run_source(agent));
            while !said.ends_with(b"reserved\n") {
                let mut byte = [0];
                output.read_exact(&mut byte).unwrap();
                said.push(byte[0]);
            }
            child.kill().unwrap();
            running.join().unwrap()
        });
        assert_eq!(agent, Ended::PeerDead);
        child.wait().unwrap();

        let (mut child, end) = with_child("half a source", shared_memory);
        // Whenever it is killed, the sink must not start: half of the cells never come.
        let connected = sink(end);
        let ended = std::thread::scope(|scope| {
            let running = scope.spawn(move || run_sink(connected));
            child.kill().unwrap();
            running.join().unwrap()
        });
        assert!(ended.is_err());
        child.wait().unwrap();
    }
}
