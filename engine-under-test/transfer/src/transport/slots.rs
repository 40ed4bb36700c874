//! Transports whose cells lie in slots: the sender writes a free slot and says which, the receiver
//! reads it and gives it back. What the slots lie in, and how the receiver reaches them, differs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pb_contract::{Clock, Nanos};

use super::buffers::{Buffers, CellBytes};
use super::inbox::{Arrivals, inbox};
use super::outbox::Outbox;
use super::outgoing::Frame;
use super::wire::{Handle, Link, Socket};
use super::{
    Incoming, MemoryId, Registered, Tap, TapVerdict, Transport, TransportError, TransportKind,
};
use crate::frame::MAX_PAYLOAD_BYTES;
use crate::memory::{Descriptor, Memory, MemoryKind};
use crate::message::{DataHead, Message, TransferId};
use crate::source::Posted;

/// Most slots that a peer is believed to have.
const MAX_SLOTS: u32 = 1024;

/// How many slots of which size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) slots: u32,
    pub(super) slot_bytes: u32,
}

impl Shape {
    pub(super) const BYTES: usize = 8;

    /// Checks what this side is set up with: 1 to 64 slots of up to 16 MiB.
    pub(super) fn new(slots: u32, slot_bytes: u32) -> Result<Shape, TransportError> {
        let slot_limit = MAX_PAYLOAD_BYTES as u32;
        if !(1..=64).contains(&slots) || !(1..=slot_limit).contains(&slot_bytes) {
            let problem =
                format!("{slots} slots of {slot_bytes} bytes: 1 to 64, 1 to {slot_limit}");
            return Err(TransportError::Setup { problem });
        }
        Ok(Shape { slots, slot_bytes })
    }

    pub(super) fn encode(self) -> [u8; Shape::BYTES] {
        let mut out = [0; Shape::BYTES];
        out[..4].copy_from_slice(&self.slots.to_le_bytes());
        out[4..].copy_from_slice(&self.slot_bytes.to_le_bytes());
        out
    }

    /// What a peer says that it has, which lies in `bytes` bytes.
    pub(super) fn decode(said: [u8; Shape::BYTES], bytes: u64) -> Result<Shape, TransportError> {
        let [a, b, c, d, e, f, g, h] = said;
        let shape = Shape {
            slots: u32::from_le_bytes([a, b, c, d]),
            slot_bytes: u32::from_le_bytes([e, f, g, h]),
        };
        let Shape { slots, slot_bytes } = shape;
        let sound = slots <= MAX_SLOTS && slot_bytes as usize <= MAX_PAYLOAD_BYTES;
        if !sound || bytes < shape.bytes() {
            let problem = format!("{bytes} bytes for {slots} slots of {slot_bytes}");
            return Err(TransportError::Setup { problem });
        }
        Ok(shape)
    }

    pub(super) fn bytes(self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    fn offset(self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.slot_bytes)
    }
}

/// What this side's slots lie in.
pub trait SlotStore: Send + 'static {
    /// Which transport.
    const KIND: TransportKind;

    /// Writes bytes of a slot that is free.
    ///
    /// # Errors
    /// The system refused.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), TransportError>;
}

/// Reads from an offset in the peer's slots on.
type ReadSlots = Box<dyn FnMut(u64, &mut [u8]) -> Result<(), TransportError> + Send>;

/// The peer's slots.
pub(super) struct Theirs {
    pub(super) shape: Shape,
    pub(super) read: ReadSlots,
}

/// The slots of this side: which are free, and what lies in the others.
#[derive(Default)]
struct Slots {
    free: Vec<u32>,
    used: BTreeMap<u32, (TransferId, Nanos)>,
}

/// One peer, through slots.
pub struct SlotTransport<S> {
    clock: Arc<dyn Clock>,
    memories: Registered,
    store: S,
    shape: Shape,
    slots: Arc<Mutex<Slots>>,
    link: Option<Link>,
    from: Option<Arrivals>,
    tap: Option<Tap>,
}

impl<S: SlotStore> SlotTransport<S> {
    /// `socket` carries the messages. `stall` is how long a write may make no progress.
    pub(super) fn over(
        socket: Socket,
        store: S,
        shape: Shape,
        theirs: Theirs,
        stall: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<SlotTransport<S>, TransportError> {
        let slots = Slots {
            free: (0..shape.slots).rev().collect(),
            used: BTreeMap::new(),
        };
        let slots = Arc::new(Mutex::new(slots));
        let (to_inbox, from) = inbox();
        let handle = handler(theirs, Arc::clone(&slots), Arc::clone(&clock));
        let link = Link::start(socket, stall, &to_inbox, &clock, handle)?;
        Ok(SlotTransport {
            clock,
            memories: Registered::default(),
            store,
            shape,
            slots,
            link: Some(link),
            from: Some(from),
            tap: None,
        })
    }

    /// With a tap on what this end sends.
    #[must_use]
    pub fn with_tap(mut self, tap: Option<Tap>) -> Self {
        self.tap = tap;
        self
    }

    fn take_slot(&self, id: TransferId) -> Result<u32, TransportError> {
        let frames = self.shape.slots as usize;
        // A panic elsewhere leaves both lists whole.
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.free.pop().ok_or(TransportError::Backlog { frames })?;
        slots.used.insert(slot, (id, self.clock.now()));
        Ok(slot)
    }

    /// Copies ranges of memory to a slot, from where they lie if memory can be looked at.
    fn fill(
        &self,
        at: u64,
        memory: &dyn Memory,
        from: &[Descriptor],
    ) -> Result<(), TransportError> {
        let mut wrote = Ok(());
        let mut write = |parts: &[&[u8]]| {
            let mut at = at;
            wrote = parts.iter().try_for_each(|part| {
                self.store.write(at, part)?;
                at += part.len() as u64;
                Ok(())
            });
        };
        if !memory.view(from, &mut write)? {
            let mut bytes = vec![0; from.iter().map(|range| range.bytes as usize).sum()];
            Registered::read(memory, from, &mut bytes)?;
            write(&[bytes.as_slice()]);
        }
        wrote
    }
}

/// Reads slots of the peer and gives them back; takes back this side's.
fn handler(
    mut theirs: Theirs,
    slots: Arc<Mutex<Slots>>,
    clock: Arc<dyn Clock>,
) -> impl FnOnce(&Outbox) -> Handle {
    move |outbox| {
        let outbox = outbox.clone();
        let buffers = Buffers::default();
        Box::new(move |message, _| match message {
            Message::DataInSlot { slot, bytes, head } => {
                let payload = theirs.take(slot, bytes, &buffers)?;
                let credit = Message::Credit { slot };
                outbox.put(Frame::message(&credit, TapVerdict::Pass))?;
                Ok(Some(Incoming::Data(head, payload)))
            }
            Message::Credit { slot } => {
                let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
                let Some((id, posted)) = slots.used.remove(&slot) else {
                    let problem = format!("slot {slot} is given back and was not taken");
                    return Err(TransportError::Setup { problem });
                };
                slots.free.push(slot);
                let wire_ns = clock.now().saturating_sub(posted).0;
                Ok(Some(Incoming::Sent { id, wire_ns }))
            }
            Message::Join { .. } | Message::Data(_) => Err(TransportError::Setup {
                problem: "a message that slots have no use for".to_owned(),
            }),
            message => Ok(Some(Incoming::Message(message))),
        })
    }
}

impl Theirs {
    fn take(
        &mut self,
        slot: u32,
        bytes: u32,
        buffers: &Buffers,
    ) -> Result<CellBytes, TransportError> {
        if slot >= self.shape.slots || bytes > self.shape.slot_bytes {
            let problem = format!("{bytes} bytes in slot {slot}");
            return Err(TransportError::Setup { problem });
        }
        let mut payload = buffers.take(bytes as usize);
        (self.read)(self.shape.offset(slot), &mut payload)?;
        Ok(payload)
    }
}

impl<S: SlotStore> Transport for SlotTransport<S> {
    fn kind(&self) -> TransportKind {
        S::KIND
    }

    fn reads_in_place(&self, kind: MemoryKind) -> bool {
        kind == MemoryKind::Host
    }

    fn frame_bytes(&self) -> usize {
        self.shape.slot_bytes as usize
    }

    fn frames_in_flight(&self) -> u32 {
        self.shape.slots
    }

    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<MemoryId, TransportError> {
        Ok(self.memories.add(memory))
    }

    fn send(&mut self, message: &Message) -> Result<(), TransportError> {
        let tap = self.tap.as_mut().map(|tap| tap(message, &mut Vec::new()));
        let verdict = tap.unwrap_or(TapVerdict::Pass);
        let link = self.link.as_ref().ok_or(TransportError::Closed)?;
        link.put(Frame::message(message, verdict)).map(drop)
    }

    fn post(
        &mut self,
        head: DataHead,
        memory: MemoryId,
        from: &[Descriptor],
    ) -> Result<Posted, TransportError> {
        let start = self.clock.now();
        let (memory, mut bytes) = self.memories.find(memory, from)?;
        let id = head.id;
        let mut message = Message::Data(head);
        let (mut tapped, mut verdict) = (None, TapVerdict::Pass);
        if let Some(tap) = &mut self.tap {
            let mut payload = vec![0; bytes];
            Registered::read(memory.as_ref(), from, &mut payload)?;
            verdict = tap(&message, &mut payload);
            bytes = payload.len();
            tapped = Some(payload);
        }
        if bytes > self.shape.slot_bytes as usize {
            let problem = format!("{bytes} bytes for a slot of {}", self.shape.slot_bytes);
            return Err(TransportError::Setup { problem });
        }
        let slot = self.take_slot(id)?;
        let at = self.shape.offset(slot);
        match &tapped {
            Some(payload) => self.store.write(at, payload)?,
            None => self.fill(at, memory.as_ref(), from)?,
        }
        let posted = Posted {
            bytes: bytes as u64,
            descriptors: from.len() as u64,
            copy_ns: self.clock.now().saturating_sub(start).0,
        };
        if let Message::Data(head) = message {
            let bytes = bytes as u32;
            message = Message::DataInSlot { slot, bytes, head };
        }
        let link = self.link.as_ref().ok_or(TransportError::Closed)?;
        link.put(Frame::message(&message, verdict))?;
        Ok(posted)
    }

    fn poll(&mut self, timeout: Duration) -> Result<Option<Incoming>, TransportError> {
        let from = self.from.as_mut().ok_or(TransportError::Closed)?;
        from.poll(timeout)
    }

    fn close(&mut self) {
        self.end();
    }
}

impl<S> SlotTransport<S> {
    fn end(&mut self) {
        self.from = None;
        if let Some(mut link) = self.link.take() {
            link.close();
        }
    }
}

impl<S> Drop for SlotTransport<S> {
    fn drop(&mut self) {
        self.end();
    }
}
