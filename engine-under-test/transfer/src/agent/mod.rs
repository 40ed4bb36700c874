//! The shells: a state machine, a transport and the memory that the blocks lie in.
//!
//! An agent is driven by its owner's thread: `step` waits for the peer for a while, does what is to
//! be done and tells what happened. A dead connection is an event, not an error: the leases end,
//! and every request has its outcome.

mod sink;
mod source;

use std::time::Duration;

use crate::frame::MAX_FRAME_CELLS;
use crate::handshake::{Agreement, Allow, Peer, Refusal, agree};
use crate::memory::MemoryError;
use crate::message::{Message, TransferId};
use crate::source::ProtocolError;
use crate::transport::{Incoming, Transport, TransportError};

pub use sink::{SinkAgent, SinkEvent, SinkOptions};
pub use source::{SourceAgent, SourceEvent, SourceOptions};

/// Messages that one step takes, so that it ends.
const MESSAGES_PER_STEP: usize = 256;

/// Why a connection is of no use.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The engines do not fit, or the other side thinks so.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The transport.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A message that makes no sense.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// Nothing came in the time for the handshake.
    #[error("no handshake within {ms} ms")]
    Silent {
        /// Time, ms.
        ms: u64,
    },
    /// A cell is larger than a frame.
    #[error(
        "a cell has {cell_bytes} bytes, a frame of this transport {frame_bytes}: use smaller blocks"
    )]
    CellTooLarge {
        /// Bytes of a cell.
        cell_bytes: usize,
        /// Bytes of a frame.
        frame_bytes: usize,
    },
    /// The region does not lie in the memory, or is not of the engine's shape.
    #[error("the region does not fit: {problem}")]
    Region {
        /// What is wrong.
        problem: String,
    },
    /// Memory could not be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Which end of a handshake.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Source,
    Sink,
}

/// Exchanges hellos and compares them.
fn shake(
    transport: &mut dyn Transport,
    role: Role,
    me: &Peer,
    allow: &Allow,
    limit: Duration,
) -> Result<Agreement, AgentError> {
    transport.send(&Message::Hello(Box::new(me.clone())))?;
    let they = match transport.poll(limit)? {
        Some(Incoming::Message(Message::Hello(they))) => they,
        Some(Incoming::Message(Message::Refuse { reason })) => {
            return Err(Refusal::ByPeer { reason }.into());
        }
        Some(_) => {
            return Err(AgentError::Protocol(ProtocolError {
                id: TransferId(0),
                problem: "something else than a hello comes first",
            }));
        }
        None => {
            let ms = limit.as_millis() as u64;
            return Err(AgentError::Silent { ms });
        }
    };
    let agreed = match role {
        Role::Source => agree(me, &they, allow),
        Role::Sink => agree(&they, me, allow),
    };
    if let Err(refusal) = &agreed {
        let reason = refusal.to_string();
        transport.send(&Message::Refuse { reason })?;
        // The peer closes when it has read that; closing first could take the words back. One that
        // has refused by itself needs no words.
        while let Ok(Some(said)) = transport.poll(limit) {
            if matches!(said, Incoming::Message(Message::Refuse { .. })) {
                break;
            }
        }
    }
    Ok(agreed?)
}

/// Cells in a frame.
fn frame_cells(transport: &dyn Transport, cell_bytes: usize) -> Result<u64, AgentError> {
    let frame_bytes = transport.frame_bytes();
    match (frame_bytes / cell_bytes) as u64 {
        0 => Err(AgentError::CellTooLarge {
            cell_bytes,
            frame_bytes,
        }),
        n => Ok(n.min(MAX_FRAME_CELLS)),
    }
}
