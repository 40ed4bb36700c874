//! Cells by Mooncake's transfer engine: the sink reads them out of the source's memory by itself.
//!
//! As with NIXL, messages go over a TCP connection, each side registers slots and tells the other
//! where they are, and the receiver of a slot's number reads the slot with a one-sided read and
//! gives it back. The engine lies in a process of its own ([`MooncakeEngine`]), which maps the
//! memory file that the slots are; here the file is written and read. Mooncake checks every read
//! against what is registered.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::Clock;

use super::meet::{Door, Place, connect, exchange, greeted};
use super::mooncake_engine::{MooncakeEngine, Session};
use super::shm::memory_file;
use super::slots::{Shape, SlotStore, SlotTransport, Theirs};
use super::wire::Socket;
use super::{Arrival, TransportError, TransportKind};

const MAGIC: [u8; 4] = *b"PBMC";

/// How a connection is made.
#[derive(Clone, Debug)]
pub struct MooncakeOptions {
    /// What reads.
    pub engine: MooncakeEngine,
    /// Slots for what this side sends, 1 to 64.
    pub slots: u32,
    /// Bytes of a slot, up to 16 MiB and the same on both sides.
    pub slot_bytes: u32,
    /// How long connecting, a write or a read may make no progress.
    pub stall: Duration,
}

/// A memory file of slots that peers read by Mooncake.
pub struct MooncakeSlots(Arc<File>);

impl SlotStore for MooncakeSlots {
    const KIND: TransportKind = TransportKind::Mooncake;

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), TransportError> {
        let written = self.0.write_all_at(bytes, at);
        written.map_err(|e| TransportError::io("writing a slot", e))
    }
}

/// One peer through Mooncake.
pub type MooncakeTransport = SlotTransport<MooncakeSlots>;

impl MooncakeTransport {
    /// Connects to a listener.
    ///
    /// # Errors
    /// The engine cannot be had, or the peer cannot be reached, or is none.
    pub fn connect(
        to: SocketAddr,
        options: &MooncakeOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<MooncakeTransport, TransportError> {
        MooncakeTransport::on_stream(connect(to, options.stall)?, options, clock)
    }

    fn on_stream(
        mut stream: TcpStream,
        options: &MooncakeOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<MooncakeTransport, TransportError> {
        let shape = Shape::new(options.slots, options.slot_bytes)?;
        // Behind the slots is room for one that is read.
        let landing = shape.bytes();
        let bytes = landing + u64::from(shape.slot_bytes);
        let failed = |e| TransportError::io("making a memory file", e);
        let file = Arc::new(memory_file(bytes).map_err(failed)?);
        let mut session = options.engine.session(&file, bytes, options.stall)?;
        let mine = Place {
            shape,
            base: session.address(),
            metadata: session.name().as_bytes().to_vec(),
        };
        let theirs = exchange(&mut stream, MAGIC, &mine, options.stall)?;
        session.meet(&theirs.metadata)?;
        let theirs = Theirs {
            shape: theirs.shape,
            read: reader(session, theirs.base, Arc::clone(&file), landing),
        };
        let (socket, slots) = (Socket::Tcp(stream), MooncakeSlots(file));
        SlotTransport::over(socket, slots, shape, theirs, options.stall, clock)
    }
}

/// Reads the peer's memory from an address on into bytes.
type Fetch = Box<dyn FnMut(u64, &mut [u8]) -> Result<(), TransportError> + Send>;

/// Reads the peer's slots, whose first is at `base`, by way of the file from `landing` on.
fn reader(mut session: Session, base: u64, file: Arc<File>, landing: u64) -> Fetch {
    Box::new(move |at, out| {
        if out.is_empty() {
            return Ok(());
        }
        session.fetch(base + at, landing, out.len() as u32)?;
        let read = file.read_exact_at(out, landing);
        read.map_err(|e| TransportError::io("reading what Mooncake read", e))
    })
}

/// Where peers connect to.
pub struct MooncakeListener {
    door: Door,
    options: MooncakeOptions,
    clock: Arc<dyn Clock>,
}

impl MooncakeListener {
    /// Listens.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(
        at: SocketAddr,
        options: MooncakeOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<MooncakeListener, TransportError> {
        Ok(MooncakeListener {
            door: Door::bind(at)?,
            options,
            clock,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> Result<SocketAddr, TransportError> {
        self.door.address()
    }

    /// The next peer; none when there is none within `timeout`.
    ///
    /// # Errors
    /// The engine cannot be had, or whoever connected is no peer, or the listener is of no use any
    /// more.
    pub fn accept(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<MooncakeTransport>, TransportError> {
        let stream = self.door.accept(timeout)?;
        let on = |s| MooncakeTransport::on_stream(s, &self.options, Arc::clone(&self.clock));
        stream.map(on).transpose()
    }

    /// Whoever connects next; none when there is nobody within `timeout`.
    ///
    /// # Errors
    /// The listener is of no use any more.
    pub fn arrival(&mut self, timeout: Duration) -> Result<Option<Arrival>, TransportError> {
        let (options, clock) = (self.options.clone(), Arc::clone(&self.clock));
        let on = |stream| {
            Arrival::new(move || {
                greeted(&stream, MAGIC, options.stall)?;
                MooncakeTransport::on_stream(stream, &options, clock)
            })
        };
        Ok(self.door.accept(timeout)?.map(on))
    }
}
