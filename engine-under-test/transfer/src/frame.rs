//! Messages as bytes.
//!
//! | offset | bytes | field |
//! |---:|---:|---|
//! | 0 | 4 | magic `PBTX` |
//! | 4 | 1 | version: 1 |
//! | 5 | 1 | kind of the message |
//! | 6 | 2 | zero |
//! | 8 | 4 | length of the body, at most 64 KiB |
//! | 12 | 4 | length of the payload (cells) that follows it, at most 16 MiB |
//! | 16 | 8 | XXH3 of the 16 bytes before and of the body |
//! | 24 | - | body, payload |
//!
//! Integers are little endian. The sum covers what says where cells belong; cells have sums of
//! their own in the body. A message has one form only: what decodes encodes to the same bytes.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::codec::{Cursor, decode, encode};
use crate::message::{Message, TransferId};

const MAGIC: &[u8; 4] = b"PBTX";
const VERSION: u8 = 1;

/// Bytes before the body.
pub const HEADER_BYTES: usize = 24;
/// Longest body, bytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;
/// Longest payload, bytes: one cell must fit.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;
/// Most cells in a frame, so that their sums fit the body.
pub const MAX_FRAME_CELLS: u64 = 4096;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The start of another protocol or version.
    #[error("a frame starts with {found:02x?}: expected \"PBTX\" and version {VERSION}")]
    Magic {
        /// The first five bytes.
        found: [u8; 5],
    },
    /// A length beyond its bound.
    #[error("{field} of {bytes} bytes: at most {largest}")]
    Length {
        /// Which.
        field: &'static str,
        /// Its value.
        bytes: usize,
        /// Its bound.
        largest: usize,
    },
    /// Altered on the way.
    #[error("a frame does not have its checksum")]
    Checksum,
    /// A body that is not one of its kind.
    #[error("a body of kind {kind}: {problem}")]
    Body {
        /// Kind.
        kind: u8,
        /// What is wrong.
        problem: &'static str,
    },
}

/// The first bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    kind: u8,
    /// Length of the body, bytes.
    pub body_bytes: usize,
    /// Length of the payload, bytes.
    pub payload_bytes: usize,
    fixed: [u8; 16],
    sum: u64,
}

impl FrameHead {
    /// Reads the fixed part. The lengths are within their bounds afterwards, and not yet verified.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<FrameHead, FrameError> {
        let mut fixed = [0; 16];
        fixed.copy_from_slice(&bytes[..16]);
        if bytes[..4] != *MAGIC || bytes[4] != VERSION || bytes[6..8] != [0, 0] {
            let mut found = [0; 5];
            found.copy_from_slice(&bytes[..5]);
            return Err(FrameError::Magic { found });
        }
        let mut rest = Cursor::new(&bytes[8..]);
        let mut word = || rest.u32().map_or(0, |n| n as usize);
        let (body_bytes, payload_bytes) = (word(), word());
        for (field, bytes, largest) in [
            ("body", body_bytes, MAX_BODY_BYTES),
            ("payload", payload_bytes, MAX_PAYLOAD_BYTES),
        ] {
            if bytes > largest {
                return Err(FrameError::Length {
                    field,
                    bytes,
                    largest,
                });
            }
        }
        Ok(FrameHead {
            kind: bytes[5],
            body_bytes,
            payload_bytes,
            fixed,
            sum: rest.u64().unwrap_or(0),
        })
    }

    /// Verifies the body and reads the message.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn message(&self, body: &[u8]) -> Result<Message, FrameError> {
        if body.len() != self.body_bytes || frame_sum(&self.fixed, body) != self.sum {
            return Err(FrameError::Checksum);
        }
        let kind = self.kind;
        let message = decode(kind, body).map_err(|problem| FrameError::Body { kind, problem })?;
        if self.payload_bytes > 0 && !matches!(message, Message::Data(_)) {
            return Err(FrameError::Body {
                kind,
                problem: "a payload, which only cells have",
            });
        }
        Ok(message)
    }
}

fn frame_sum(fixed: &[u8; 16], body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(fixed);
    hasher.update(body);
    hasher.digest()
}

/// Header and body of a message that `payload_bytes` of payload will follow.
///
/// # Panics
/// When body or payload are longer than their bounds: both are bounded before a message is made.
pub fn encode_frame(message: &Message, payload_bytes: usize) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    let kind = encode(message, &mut out);
    let body_bytes = out.len() - HEADER_BYTES;
    assert!(body_bytes <= MAX_BODY_BYTES, "body of {body_bytes} bytes");
    assert!(
        payload_bytes <= MAX_PAYLOAD_BYTES,
        "payload of {payload_bytes} bytes"
    );
    out[..4].copy_from_slice(MAGIC);
    (out[4], out[5]) = (VERSION, kind);
    out[8..12].copy_from_slice(&(body_bytes as u32).to_le_bytes());
    out[12..16].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    let mut fixed = [0; 16];
    fixed.copy_from_slice(&out[..16]);
    let sum = frame_sum(&fixed, &out[HEADER_BYTES..]);
    out[16..24].copy_from_slice(&sum.to_le_bytes());
    out
}

/// The sum of a cell: XXH3 of its bytes, seeded by the transfer and the place of the cell, so that
/// right bytes in the wrong place are wrong.
pub fn checksum(id: TransferId, block: u32, layer: u32, cell: &[u8]) -> u64 {
    let place = u64::from(block) << 32 | u64::from(layer);
    // Both are mixed: a plain sum of the two would make neighbours alike.
    let seed = xxh3_64_with_seed(&place.to_le_bytes(), id.0);
    xxh3_64_with_seed(cell, seed)
}

/// Treats `data` as the bytes of a connection and returns how many messages were in it. For
/// fuzzing: must return whatever the bytes are, and a message must encode to the bytes it was
/// decoded from.
pub fn fuzz_frames(data: &[u8]) -> usize {
    let (mut rest, mut messages) = (data, 0);
    while let Some((header, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let Ok(head) = FrameHead::parse(header) else {
            break;
        };
        let Some((body, after)) = after.split_at_checked(head.body_bytes) else {
            break;
        };
        let Ok(message) = head.message(body) else {
            break;
        };
        let frame = HEADER_BYTES + head.body_bytes;
        assert_eq!(encode_frame(&message, head.payload_bytes), rest[..frame]);
        messages += 1;
        let Some(after) = after.get(head.payload_bytes..) else {
            break;
        };
        rest = after;
    }
    messages
}
