//! Between machines: several TCP connections, so that one is not the limit.
//!
//! Messages go over the first connection and keep their order; frames of cells take the connections
//! in turn. The side that connects draws a session and says on each connection which of how many it
//! is, so that one listener serves many peers.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use pb_contract::Clock;

use super::inbox::{Arrivals, inbox};
use super::outbox::Outbox;
use super::outgoing::{Frame, Payload};
use super::wire::{Handle, Link, Socket};
use super::{
    Incoming, MemoryId, Registered, Tap, TapVerdict, Transport, TransportError, TransportKind,
};
use crate::frame::encode_frame;
use crate::memory::{Descriptor, Memory, MemoryKind};
use crate::message::{DataHead, Message};
use crate::source::Posted;

const FRAME_BYTES: usize = 1 << 20;
const FRAMES_PER_CONNECTION: u32 = 4;
/// Most connections of one peer.
pub(super) const MAX_CONNECTIONS: u32 = 64;

/// How connections are made.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    /// Connections, 1 to 64; the side that connects decides.
    pub connections: u32,
    /// How long connecting, or a write, may make no progress.
    pub stall: Duration,
}

/// One peer over TCP.
pub struct TcpTransport {
    clock: Arc<dyn Clock>,
    memories: Registered,
    links: Vec<Link>,
    from: Option<Arrivals>,
    next: usize,
    /// Frames that were written when they were posted.
    sent: VecDeque<Incoming>,
    tap: Option<Tap>,
}

impl TcpTransport {
    /// Connects to a listener. `session` must differ from that of any other transport that connects
    /// to it at the time.
    ///
    /// # Errors
    /// The peer cannot be reached, or the number of connections is out of range.
    pub fn connect(
        to: SocketAddr,
        session: u64,
        options: TcpOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<TcpTransport, TransportError> {
        let of = options.connections;
        if !(1..=MAX_CONNECTIONS).contains(&of) {
            let problem = format!("{of} connections, must be 1 to {MAX_CONNECTIONS}");
            return Err(TransportError::Setup { problem });
        }
        let failed = |e| TransportError::io(format!("connecting to {to}"), e);
        let mut streams = Vec::with_capacity(of as usize);
        for index in 0..of {
            let mut stream = TcpStream::connect_timeout(&to, options.stall).map_err(failed)?;
            let join = Message::Join { session, index, of };
            let join = encode_frame(&join, 0);
            std::io::Write::write_all(&mut stream, &join).map_err(failed)?;
            streams.push(stream);
        }
        TcpTransport::over(streams, options.stall, clock)
    }

    pub(super) fn over(
        streams: Vec<TcpStream>,
        stall: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<TcpTransport, TransportError> {
        let (to_inbox, from) = inbox();
        let mut transport = TcpTransport {
            clock,
            memories: Registered::default(),
            links: Vec::with_capacity(streams.len()),
            from: Some(from),
            next: 0,
            sent: VecDeque::new(),
            tap: None,
        };
        for stream in streams {
            let no_delay = stream.set_nodelay(true);
            no_delay.map_err(|e| TransportError::io("setting up a connection", e))?;
            let socket = Socket::Tcp(stream);
            let link = Link::start(socket, stall, &to_inbox, &transport.clock, handler)?;
            transport.links.push(link);
        }
        Ok(transport)
    }

    /// With a tap on what this end sends.
    #[must_use]
    pub fn with_tap(mut self, tap: Option<Tap>) -> Self {
        self.tap = tap;
        self
    }
}

fn handler(_: &Outbox) -> Handle {
    Box::new(|message, payload| match message {
        Message::Data(head) => Ok(Some(Incoming::Data(head, payload))),
        Message::Join { .. } | Message::DataInSlot { .. } | Message::Credit { .. } => {
            Err(TransportError::Setup {
                problem: "a message that TCP has no use for".to_owned(),
            })
        }
        message => Ok(Some(Incoming::Message(message))),
    })
}

impl Transport for TcpTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn reads_in_place(&self, kind: MemoryKind) -> bool {
        kind == MemoryKind::Host
    }

    fn frame_bytes(&self) -> usize {
        FRAME_BYTES
    }

    fn frames_in_flight(&self) -> u32 {
        FRAMES_PER_CONNECTION * self.links.len() as u32
    }

    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<MemoryId, TransportError> {
        Ok(self.memories.add(memory))
    }

    fn send(&mut self, message: &Message) -> Result<(), TransportError> {
        let tap = self.tap.as_mut().map(|tap| tap(message, &mut Vec::new()));
        let verdict = tap.unwrap_or(TapVerdict::Pass);
        let first = self.links.first().ok_or(TransportError::Closed)?;
        first.put(Frame::message(message, verdict)).map(drop)
    }

    fn post(
        &mut self,
        head: DataHead,
        memory: MemoryId,
        from: &[Descriptor],
    ) -> Result<Posted, TransportError> {
        let start = self.clock.now();
        let (memory, bytes) = self.memories.find(memory, from)?;
        let id = head.id;
        let message = Message::Data(head);
        let mut verdict = TapVerdict::Pass;
        let payload = match &mut self.tap {
            None => Payload::Ranges(Arc::clone(memory), from.to_vec()),
            Some(tap) => {
                let mut payload = vec![0; bytes];
                Registered::read(memory.as_ref(), from, &mut payload)?;
                verdict = tap(&message, &mut payload);
                Payload::Bytes(payload)
            }
        };
        let posted = Posted {
            bytes: bytes as u64,
            descriptors: from.len() as u64,
            // Read while it is written, and part of the time on the wire.
            copy_ns: 0,
        };
        self.next = (self.next + 1) % self.links.len().max(1);
        let link = self.links.get(self.next).ok_or(TransportError::Closed)?;
        if link.put(Frame::cells(&message, payload, (id, start), verdict))? {
            let wire_ns = self.clock.now().saturating_sub(start).0;
            self.sent.push_back(Incoming::Sent { id, wire_ns });
        }
        Ok(posted)
    }

    fn poll(&mut self, timeout: Duration) -> Result<Option<Incoming>, TransportError> {
        let from = self.from.as_mut().ok_or(TransportError::Closed)?;
        if self.sent.is_empty() {
            return from.poll(timeout);
        }
        // The peer goes first, or whoever posts whenever a frame is sent would never hear it.
        match from.poll(Duration::ZERO)? {
            None => Ok(self.sent.pop_front()),
            incoming => Ok(incoming),
        }
    }

    fn close(&mut self) {
        self.from = None;
        self.links.iter_mut().for_each(Link::close);
        self.links.clear();
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}
