//! The bytes of messages: round trips, every altered bit, garbage.

use pb_contract::{KvDtype, RequestId, Stream};
use pb_transfer::{
    Cause, DataHead, FrameHead, Granularity, HEADER_BYTES, Message, Mode, Offer, Span, TransferId,
    checksum, encode_frame, fuzz_frames,
};

use crate::engines::{at_rank, peer, with_dtype};

fn head(blocks: u32, layers: u32) -> DataHead {
    let span = Span::whole(blocks, layers);
    DataHead {
        id: TransferId(9),
        span,
        sums: (0..span.cells()).map(|n| n.wrapping_mul(77)).collect(),
    }
}

/// One of each kind, and of each variant of what is in them.
fn messages() -> Vec<Message> {
    let id = TransferId(1 << 40);
    let mut all = vec![
        Message::Join {
            session: 5,
            index: 1,
            of: 3,
        },
        Message::Refuse {
            reason: "kv.dtype differs".to_owned(),
        },
        Message::Want {
            id,
            span: Span::whole(3, 2),
        },
        Message::Data(head(3, 2)),
        Message::DataInSlot {
            slot: 2,
            bytes: 96,
            head: head(1, 4),
        },
        Message::Credit { slot: 2 },
        Message::Renew { id },
        Message::Ack { id, cells: 12 },
        Message::Claim {
            ticket: 1 << 52,
            digest: std::array::from_fn(|n| n as u8),
            early: false,
        },
        Message::Claim {
            ticket: 7,
            digest: [255; 32],
            early: true,
        },
    ];
    all.extend(Cause::ALL.map(|cause| Message::Abort { id, cause }));
    all.extend(Cause::ALL.map(|cause| Message::Decline { ticket: 3, cause }));
    for mode in [Mode::Pull, Mode::Push] {
        for granularity in [Granularity::Bulk, Granularity::Chunk, Granularity::Layer] {
            all.push(Message::Offer(Offer {
                id,
                request: RequestId(4),
                tokens: 33,
                blocks: 3,
                mode,
                granularity,
                lease_ns: 1_000_000,
            }));
        }
    }
    for dtype in [
        KvDtype::F64,
        KvDtype::F32,
        KvDtype::Bf16,
        KvDtype::F16,
        KvDtype::Fp8E4m3,
        KvDtype::Fp8E5m2,
        KvDtype::Int8,
    ] {
        let mut peer = at_rank(with_dtype(peer([2, 4, 8], 16), dtype, 0.5), 2, 1);
        peer.identity.positional.sliding_window = (dtype == KvDtype::F16).then_some(128);
        all.push(Message::Hello(Box::new(peer)));
    }
    all
}

fn decode(frame: &[u8]) -> Option<Message> {
    let (header, body) = frame.split_first_chunk::<HEADER_BYTES>()?;
    let head = FrameHead::parse(header).ok()?;
    head.message(body.get(..head.body_bytes)?).ok()
}

#[test]
fn every_message_comes_back() {
    for message in messages() {
        let frame = encode_frame(&message, 0);
        assert_eq!(decode(&frame), Some(message));
    }
}

#[test]
fn a_frame_has_the_documented_bytes() {
    let frame = encode_frame(&Message::Credit { slot: 258 }, 0);
    assert_eq!(frame[..16], *b"PBTX\x01\x08\0\0\x04\0\0\0\0\0\0\0");
    assert_eq!(frame[24..], [2, 1, 0, 0]);
}

#[test]
fn every_altered_bit_and_every_cut_is_noticed() {
    for message in messages() {
        let frame = encode_frame(&message, 0);
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit} of {message:?}");
        }
        for n in 0..frame.len() {
            assert_eq!(decode(&frame[..n]), None, "{n} bytes of {message:?}");
        }
    }
}

/// A frame whose sum is right, around any body.
fn sealed(kind: u8, body: &[u8], payload: u32) -> Vec<u8> {
    let mut frame = b"PBTX\x01".to_vec();
    frame.extend([kind, 0, 0]);
    frame.extend((body.len() as u32).to_le_bytes());
    frame.extend(payload.to_le_bytes());
    let mut summed = frame.clone();
    summed.extend(body);
    frame.extend(xxhash_rust::xxh3::xxh3_64(&summed).to_le_bytes());
    frame.extend(body);
    frame
}

#[test]
fn mutated_bodies_with_a_right_checksum_neither_panic_nor_change_on_the_way() {
    let mut stream = Stream::new(3, "frames");
    let seeds: Vec<Vec<u8>> = messages().iter().map(|m| encode_frame(m, 0)).collect();
    let mut decoded = 0;
    for _ in 0..60_000 {
        let seed = &seeds[stream.below(seeds.len() as u64) as usize];
        let mut kind = seed[5];
        let mut body = seed[HEADER_BYTES..].to_vec();
        for _ in 0..=stream.below(3) {
            let at = stream.below(body.len() as u64) as usize;
            match stream.below(5) {
                0 => body[at] = stream.next_u64() as u8,
                1 => body[at] ^= 1 << stream.below(8),
                2 => body.truncate(at.max(1)),
                3 => body.insert(at, 0xff),
                _ => kind = stream.below(14) as u8,
            }
        }
        let payload = if stream.below(4) == 0 { 3 } else { 0 };
        let mut data = sealed(kind, &body, payload);
        data.extend([0; 3]);
        decoded += fuzz_frames(&data);
    }
    // Neither all nor none: the mutations reach both sides of the decoder.
    assert!((5_000..55_000).contains(&decoded), "{decoded}");
}

#[test]
fn random_bytes_are_no_messages() {
    let mut stream = Stream::new(4, "garbage");
    for _ in 0..20_000 {
        let n = stream.below(200) as usize;
        let mut data: Vec<u8> = (0..n).map(|_| stream.next_u64() as u8).collect();
        if n > 8 && stream.below(2) == 0 {
            data[..8].copy_from_slice(b"PBTX\x01\x06\0\0");
        }
        assert_eq!(fuzz_frames(&data), 0);
    }
}

#[test]
fn lengths_beyond_their_bounds_are_refused_before_anything_is_read() {
    let mut header = [0; HEADER_BYTES];
    header[..5].copy_from_slice(b"PBTX\x01");
    header[5] = 6;
    for (at, text) in [
        (8, "body of 4294967295 bytes: at most 65536"),
        (12, "payload of 4294967295 bytes: at most 16777216"),
    ] {
        let mut bad = header;
        bad[at..at + 4].fill(0xff);
        assert_eq!(FrameHead::parse(&bad).unwrap_err().to_string(), text);
    }
    let text = FrameHead::parse(b"GET / HTTP/1.1\r\nHost: ab").unwrap_err();
    assert!(
        text.to_string().starts_with("a frame starts with [47, 45"),
        "{text}"
    );
}

#[test]
fn a_cell_in_the_wrong_place_does_not_have_its_checksum() {
    let sum = checksum(TransferId(1), 2, 3, b"cell");
    let others = [
        checksum(TransferId(2), 2, 3, b"cell"),
        checksum(TransferId(1), 3, 2, b"cell"),
        checksum(TransferId(1), 2, 4, b"cell"),
        checksum(TransferId(1), 1, 3, b"cell"),
        checksum(TransferId(1), 2, 3, b"cels"),
    ];
    assert!(!others.contains(&sum));
}
