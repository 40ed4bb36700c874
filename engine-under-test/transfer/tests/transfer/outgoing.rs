//! What TCP puts on the wire, byte for byte, and what it does to the memory meanwhile.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{Clock, Stream, WallClock};
use pb_transfer::{
    DataHead, Descriptor, HostMemory, Incoming, Memory, MemoryError, MemoryKind, Message, Span,
    TcpTransport, TransferId, Transport, TransportError, encode_frame,
};

use crate::rigs::{PATIENCE, any_port, tcp};

/// Memory that can be copied and not be looked at.
#[derive(Debug)]
struct Opaque(HostMemory);

impl Memory for Opaque {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Device { ordinal: 0 }
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.0.read(at, out)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), MemoryError> {
        self.0.write(at, from)
    }
}

const BYTES: u64 = 8 << 20;

fn random(bytes: u64) -> Vec<u8> {
    let mut stream = Stream::new(4, "outgoing");
    (0..bytes).map(|_| stream.below(256) as u8).collect()
}

fn filled(content: &[u8]) -> HostMemory {
    let memory = HostMemory::new(content.len());
    memory.write(0, content).unwrap();
    memory
}

fn connected() -> (TcpTransport, TcpStream) {
    let listener = TcpListener::bind(any_port()).unwrap();
    let to = listener.local_addr().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(WallClock);
    let transport = TcpTransport::connect(to, 3, tcp(1), clock).unwrap();
    let (mut raw, _) = listener.accept().unwrap();
    let join = Message::Join {
        session: 3,
        index: 0,
        of: 1,
    };
    let mut first = vec![0; encode_frame(&join, 0).len()];
    raw.read_exact(&mut first).unwrap();
    (transport, raw)
}

fn head() -> DataHead {
    DataHead {
        id: TransferId(5),
        span: Span::cell(0, 0),
        sums: vec![9],
    }
}

/// Ranges of all lengths, the empty one included; more than one system call takes.
fn ragged(longest: u64, ranges: usize) -> Vec<Descriptor> {
    let mut stream = Stream::new(5, "ranges");
    let draw = |_| {
        let bytes = stream.below(longest + 1);
        let at = stream.below(BYTES - bytes + 1);
        Descriptor { at, bytes }
    };
    (0..ranges).map(draw).collect()
}

#[test]
fn the_wire_has_the_head_and_then_each_range() {
    let content = random(BYTES);
    let whole = vec![Descriptor {
        at: 0,
        bytes: BYTES,
    }];
    let layouts = [
        whole,
        ragged(700, 3_000),
        ragged(900_000, 20),
        ragged(0, 3),
        vec![],
    ];
    for ranges in layouts {
        let memories: [Arc<dyn Memory>; 2] = [
            Arc::new(filled(&content)),
            Arc::new(Opaque(filled(&content))),
        ];
        for memory in memories {
            let (mut transport, mut raw) = connected();
            let id = transport.register(memory).unwrap();
            let posted = transport.post(head(), id, &ranges).unwrap();
            let part = |d: &Descriptor| content[d.at as usize..(d.at + d.bytes) as usize].to_vec();
            let payload: Vec<u8> = ranges.iter().flat_map(part).collect();
            assert_eq!(posted.bytes, payload.len() as u64);
            let mut expected = encode_frame(&Message::Data(head()), payload.len());
            expected.extend(payload);
            // Slowly at first, so that the socket is full in the middle of a range.
            let mut found = vec![0; expected.len()];
            let some = found.len().min(4096);
            std::thread::sleep(Duration::from_millis(20));
            raw.read_exact(&mut found[..some]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            raw.read_exact(&mut found[some..]).unwrap();
            assert!(found == expected, "{} ranges", ranges.len());
            let sent = transport.poll(PATIENCE).unwrap();
            assert!(matches!(sent, Some(Incoming::Sent { .. })), "{sent:?}");
        }
    }
}

#[test]
fn a_peer_that_reads_nothing_holds_up_no_writer_of_the_memory() {
    let memory = Arc::new(filled(&random(BYTES)));
    let (mut transport, _raw) = connected();
    let id = transport
        .register(Arc::clone(&memory) as Arc<dyn Memory>)
        .unwrap();
    let whole = [Descriptor {
        at: 0,
        bytes: BYTES,
    }];
    const FRAMES: usize = 8;
    for _ in 0..FRAMES {
        transport.post(head(), id, &whole).unwrap();
    }
    // The socket is full when this writes, or it soon will be: either way it must get its turn
    // long before the connection is given up.
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        memory.write(0, &[0; 4096]).unwrap();
    }
    let mut sent = 0;
    while let Some(told) = transport.poll(Duration::ZERO).unwrap() {
        assert!(matches!(told, Incoming::Sent { .. }), "{told:?}");
        sent += 1;
    }
    assert!(sent < FRAMES, "64 MiB fit no socket");
    transport.close();
    assert!(matches!(
        transport.post(head(), id, &whole),
        Err(TransportError::Closed)
    ));
}

#[test]
fn ranges_beyond_the_memory_are_refused_before_anything_is_sent() {
    let (mut transport, _raw) = connected();
    let id = transport.register(Arc::new(HostMemory::new(100))).unwrap();
    for (at, bytes) in [(0, 101), (100, 1), (u64::MAX, 2)] {
        let refused = transport.post(head(), id, &[Descriptor { at, bytes }]);
        let Err(TransportError::Memory(MemoryError::Range { bytes: 100, .. })) = refused else {
            panic!("{refused:?}");
        };
    }
}

/// What a frame of one cell looks like on the wire.
fn on_wire(content: &[u8], range: Descriptor) -> Vec<u8> {
    let mut frame = encode_frame(&Message::Data(head()), range.bytes as usize);
    frame.extend(&content[range.at as usize..(range.at + range.bytes) as usize]);
    frame
}

#[test]
fn short_frames_keep_their_order_when_the_socket_is_full() {
    // Short ones only, of which the socket takes a part at the end; and long ones among them, which
    // go to the thread.
    fill_a_socket(|number| 50_000 + number % 3);
    fill_a_socket(|number| match number % 7 {
        6 => 100_000,
        n => 5_000 + n,
    });
}

/// Posts frames of so many bytes, and messages between them, until the socket takes no more; only
/// then reads them.
fn fill_a_socket(bytes: fn(u64) -> u64) {
    let content = random(BYTES);
    let (mut transport, mut raw) = connected();
    let id = transport.register(Arc::new(filled(&content))).unwrap();
    let (mut expected, mut in_flight, mut number) = (Vec::new(), 0, 0);
    loop {
        while in_flight < transport.frames_in_flight() {
            let bytes = bytes(number);
            let at = number * 997 % (BYTES - bytes);
            let range = Descriptor { at, bytes };
            transport.post(head(), id, &[range]).unwrap();
            expected.extend(on_wire(&content, range));
            let slot = number as u32;
            transport.send(&Message::Credit { slot }).unwrap();
            expected.extend(encode_frame(&Message::Credit { slot }, 0));
            (in_flight, number) = (in_flight + 1, number + 1);
        }
        match transport.poll(Duration::from_secs(2)).unwrap() {
            Some(Incoming::Sent { .. }) => in_flight -= 1,
            None => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(number > 20, "{number}");
    let mut found = vec![0; expected.len()];
    raw.read_exact(&mut found).unwrap();
    assert!(found == expected, "frames are out of order or cut");
    for _ in 0..in_flight {
        let sent = transport.poll(PATIENCE).unwrap();
        assert!(matches!(sent, Some(Incoming::Sent { .. })), "{sent:?}");
    }
}

#[test]
fn a_short_frame_is_sent_when_it_is_posted_and_the_peer_is_heard_before_that_is_told() {
    let content = random(BYTES);
    let (mut transport, mut raw) = connected();
    let id = transport.register(Arc::new(filled(&content))).unwrap();
    let range = Descriptor { at: 3, bytes: 4096 };
    transport.post(head(), id, &[range]).unwrap();
    // No thread has anything to do with it.
    let sent = transport.poll(Duration::ZERO).unwrap();
    assert!(matches!(sent, Some(Incoming::Sent { .. })), "{sent:?}");
    let expected = on_wire(&content, range);
    let mut found = vec![0; expected.len()];
    raw.read_exact(&mut found).unwrap();
    assert!(found == expected);
    let words = encode_frame(&Message::Credit { slot: 1 }, 0);
    raw.write_all(&words).unwrap();
    // A message that TCP has no use for: an error, as soon as it is there.
    for _ in 0..10_000 {
        transport.post(head(), id, &[range]).unwrap();
        raw.read_exact(&mut found).unwrap();
        match transport.poll(Duration::ZERO) {
            Ok(Some(Incoming::Sent { .. })) => {}
            Ok(other) => panic!("{other:?}"),
            Err(TransportError::Setup { .. }) => return,
            Err(other) => panic!("{other}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the peer was not heard");
}
