//! Cells by NIXL: the sink reads them out of the source's memory by itself.
//!
//! Messages go over a TCP connection. Each side registers slots with NIXL and tells the other where
//! they are; cells are written into a free slot, a message says which, and the receiver reads the
//! slot with a one-sided transfer and gives it back. What moves the bytes is UCX's choice: RDMA
//! where there is a card, shared memory or TCP elsewhere.
//!
//! The sink does not let anyone write its blocks, nor the source read its own from afar: a block
//! that is freed must not be reached by a transfer that is not known to have ended, and cells are
//! judged before they lie in a block. That costs a copy on each side.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pb_contract::Clock;

use super::meet::{Door, Place, connect, exchange, greeted};
use super::nixl_ffi::{Agent, Arena};
use super::slots::{Shape, SlotStore, SlotTransport, Theirs};
use super::wire::Socket;
use super::{Arrival, TransportError, TransportKind};

const MAGIC: [u8; 4] = *b"PBNX";

/// How a connection is made.
#[derive(Clone, Debug)]
pub struct NixlOptions {
    /// NIXL's `libnixl_capi.so`. Its plugins are found by the variable `NIXL_PLUGIN_DIR`.
    pub library: PathBuf,
    /// Slots for what this side sends, 1 to 64.
    pub slots: u32,
    /// Bytes of a slot, up to 16 MiB and the same on both sides.
    pub slot_bytes: u32,
    /// How long connecting, a write or a read may make no progress.
    pub stall: Duration,
}

impl NixlOptions {
    /// Tries whether NIXL is there, with its plugin.
    ///
    /// # Errors
    /// It is not, with what to install.
    pub fn check(&self) -> Result<(), TransportError> {
        let arena = Arc::new(Arena::new(1)?);
        Agent::new(&self.library, &name(), arena).map(drop)
    }
}

/// Registered slots.
pub struct NixlSlots(Arc<Arena>);

impl SlotStore for NixlSlots {
    const KIND: TransportKind = TransportKind::Nixl;

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), TransportError> {
        self.0.write(at as usize, bytes);
        Ok(())
    }
}

/// One peer through NIXL.
pub type NixlTransport = SlotTransport<NixlSlots>;

impl NixlTransport {
    /// Connects to a listener.
    ///
    /// # Errors
    /// NIXL is not installed, or the peer cannot be reached, or is none.
    pub fn connect(
        to: SocketAddr,
        options: &NixlOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<NixlTransport, TransportError> {
        NixlTransport::on_stream(connect(to, options.stall)?, options, clock)
    }

    fn on_stream(
        mut stream: TcpStream,
        options: &NixlOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<NixlTransport, TransportError> {
        let shape = Shape::new(options.slots, options.slot_bytes)?;
        // Behind the slots is room for one that is read.
        let landing = shape.bytes() as usize;
        let arena = Arc::new(Arena::new(landing + shape.slot_bytes as usize)?);
        let mut agent = Agent::new(&options.library, &name(), Arc::clone(&arena))?;
        let mine = Place {
            shape,
            base: arena.address() as u64,
            metadata: agent.metadata()?,
        };
        let patience = options.stall;
        let theirs = exchange(&mut stream, MAGIC, &mine, patience)?;
        agent.meet(&theirs.metadata)?;
        let (base, reads) = (theirs.base as usize, Arc::clone(&arena));
        let read = move |at: u64, out: &mut [u8]| {
            if !out.is_empty() {
                agent.fetch(base + at as usize, landing, out.len(), patience)?;
                reads.read(landing, out);
            }
            Ok(())
        };
        let theirs = Theirs {
            shape: theirs.shape,
            read: Box::new(read),
        };
        let socket = Socket::Tcp(stream);
        SlotTransport::over(socket, NixlSlots(arena), shape, theirs, patience, clock)
    }
}

/// A name that no other agent has.
fn name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("prefillbench-{host}-{}-{number}", std::process::id())
}

/// Where peers connect to.
pub struct NixlListener {
    door: Door,
    options: NixlOptions,
    clock: Arc<dyn Clock>,
}

impl NixlListener {
    /// Listens.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(
        at: SocketAddr,
        options: NixlOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<NixlListener, TransportError> {
        Ok(NixlListener {
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
    /// NIXL is not installed, or whoever connected is no peer, or the listener is of no use any
    /// more.
    pub fn accept(&mut self, timeout: Duration) -> Result<Option<NixlTransport>, TransportError> {
        let stream = self.door.accept(timeout)?;
        let on = |s| NixlTransport::on_stream(s, &self.options, Arc::clone(&self.clock));
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
                NixlTransport::on_stream(stream, &options, clock)
            })
        };
        Ok(self.door.accept(timeout)?.map(on))
    }
}
