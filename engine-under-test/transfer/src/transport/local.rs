//! Two engines in one process.
//!
//! The channels have no bound of their own: cells are bounded by the frames in flight, which the
//! other side's reading gives back, and messages by the protocol.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pb_contract::{Clock, Nanos};

use super::buffers::{Buffers, CellBytes};
use super::{
    Incoming, MemoryId, Registered, Tap, TapVerdict, Transport, TransportError, TransportKind,
};
use crate::memory::{Descriptor, Memory, MemoryKind};
use crate::message::{DataHead, Message, TransferId};
use crate::source::Posted;

const FRAME_BYTES: usize = 1 << 20;
const FRAMES_IN_FLIGHT: u32 = 8;

enum Item {
    Message(Message),
    Data(DataHead, CellBytes),
    /// The oldest frame was taken.
    Taken,
}

/// One end of a pair.
pub struct LocalTransport {
    clock: Arc<dyn Clock>,
    memories: Registered,
    to: Option<Sender<Item>>,
    from: Receiver<Item>,
    in_flight: VecDeque<(TransferId, Nanos)>,
    buffers: Buffers,
    tap: Option<Tap>,
}

impl LocalTransport {
    /// Two connected ends.
    pub fn pair(clock: Arc<dyn Clock>) -> (LocalTransport, LocalTransport) {
        let (to_b, from_a) = channel();
        let (to_a, from_b) = channel();
        let end = |to, from| LocalTransport {
            clock: Arc::clone(&clock),
            memories: Registered::default(),
            to: Some(to),
            from,
            in_flight: VecDeque::new(),
            buffers: Buffers::default(),
            tap: None,
        };
        (end(to_b, from_b), end(to_a, from_a))
    }

    /// With a tap on what this end sends.
    #[must_use]
    pub fn with_tap(mut self, tap: Option<Tap>) -> Self {
        self.tap = tap;
        self
    }

    fn put(&mut self, message: Message, mut payload: CellBytes) -> Result<(), TransportError> {
        if let Some(tap) = &mut self.tap {
            let mut bytes = payload.to_vec();
            if tap(&message, &mut bytes) != TapVerdict::Pass {
                // There are no half frames here: what is cut is gone.
                self.to = None;
            }
            payload = bytes.into();
        }
        let item = match message {
            Message::Data(head) => Item::Data(head, payload),
            message => Item::Message(message),
        };
        let to = self.to.as_ref().ok_or(TransportError::Closed)?;
        to.send(item).map_err(|_| TransportError::Closed)
    }
}

impl Transport for LocalTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::Local
    }

    fn reads_in_place(&self, kind: MemoryKind) -> bool {
        kind == MemoryKind::Host
    }

    fn frame_bytes(&self) -> usize {
        FRAME_BYTES
    }

    fn frames_in_flight(&self) -> u32 {
        FRAMES_IN_FLIGHT
    }

    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<MemoryId, TransportError> {
        Ok(self.memories.add(memory))
    }

    fn send(&mut self, message: &Message) -> Result<(), TransportError> {
        self.put(message.clone(), CellBytes::empty())
    }

    fn post(
        &mut self,
        head: DataHead,
        memory: MemoryId,
        from: &[Descriptor],
    ) -> Result<Posted, TransportError> {
        if self.in_flight.len() >= FRAMES_IN_FLIGHT as usize {
            let frames = FRAMES_IN_FLIGHT as usize;
            return Err(TransportError::Backlog { frames });
        }
        let start = self.clock.now();
        let (memory, bytes) = self.memories.find(memory, from)?;
        let mut payload = self.buffers.take(bytes);
        Registered::read(memory.as_ref(), from, &mut payload)?;
        let posted = Posted {
            bytes: payload.len() as u64,
            descriptors: from.len() as u64,
            copy_ns: self.clock.now().saturating_sub(start).0,
        };
        self.in_flight.push_back((head.id, self.clock.now()));
        self.put(Message::Data(head), payload)?;
        Ok(posted)
    }

    fn poll(&mut self, timeout: Duration) -> Result<Option<Incoming>, TransportError> {
        match self.from.recv_timeout(timeout) {
            Ok(Item::Message(message)) => Ok(Some(Incoming::Message(message))),
            Ok(Item::Data(head, payload)) => {
                // A peer that has gone is told of by the next poll.
                if let Some(to) = &self.to {
                    let _ = to.send(Item::Taken);
                }
                Ok(Some(Incoming::Data(head, payload)))
            }
            Ok(Item::Taken) => Ok(self.in_flight.pop_front().map(|(id, posted)| {
                let wire_ns = self.clock.now().saturating_sub(posted).0;
                Incoming::Sent { id, wire_ns }
            })),
            Err(RecvTimeoutError::Timeout) if self.to.is_some() => Ok(None),
            Err(_) => Err(TransportError::Closed),
        }
    }

    fn close(&mut self) {
        self.to = None;
        self.in_flight.clear();
        self.from = channel().1;
    }
}
