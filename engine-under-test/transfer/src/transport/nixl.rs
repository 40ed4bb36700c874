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

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pb_contract::{Clock, Nanos};

use super::listener::readable;
use super::nixl_ffi::{Agent, Arena};
use super::slots::{Shape, SlotStore, SlotTransport, Theirs};
use super::wire::Socket;
use super::{TransportError, TransportKind};

const MAGIC: &[u8; 4] = b"PBNX";
/// Longest metadata that a peer is believed to have.
const MAX_METADATA_BYTES: u32 = 1 << 20;
/// Magic, slots, address of the first, length of the metadata.
const HELLO_BYTES: usize = 4 + Shape::BYTES + 8 + 4;

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
        let stream = TcpStream::connect_timeout(&to, options.stall);
        let failed = |e| TransportError::io(format!("connecting to {to}"), e);
        NixlTransport::on_stream(stream.map_err(failed)?, options, clock)
    }

    fn on_stream(
        mut stream: TcpStream,
        options: &NixlOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<NixlTransport, TransportError> {
        let shape = Shape::new(options.slots, options.slot_bytes)?;
        let set_up = |e| TransportError::io("exchanging metadata", e);
        stream.set_nodelay(true).map_err(set_up)?;
        // Behind the slots is room for one that is read.
        let landing = shape.bytes() as usize;
        let arena = Arc::new(Arena::new(landing + shape.slot_bytes as usize)?);
        let mut agent = Agent::new(&options.library, &name(), Arc::clone(&arena))?;
        stream
            .set_read_timeout(Some(options.stall))
            .map_err(set_up)?;
        stream
            .set_write_timeout(Some(options.stall))
            .map_err(set_up)?;
        tell(&mut stream, shape, &arena, &agent.metadata()?)?;
        let (theirs, base) = learn(&mut stream, shape, &mut agent)?;
        stream.set_read_timeout(None).map_err(set_up)?;
        let (reads, patience) = (Arc::clone(&arena), options.stall);
        let read = move |at: u64, out: &mut [u8]| {
            if !out.is_empty() {
                agent.fetch(base + at as usize, landing, out.len(), patience)?;
                reads.read(landing, out);
            }
            Ok(())
        };
        let theirs = Theirs {
            shape: theirs,
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

fn tell(
    stream: &mut TcpStream,
    shape: Shape,
    arena: &Arena,
    metadata: &[u8],
) -> Result<(), TransportError> {
    let mut hello = Vec::with_capacity(HELLO_BYTES + metadata.len());
    hello.extend(MAGIC);
    hello.extend(shape.encode());
    hello.extend((arena.address() as u64).to_le_bytes());
    hello.extend((metadata.len() as u32).to_le_bytes());
    hello.extend(metadata);
    let told = stream.write_all(&hello);
    told.map_err(|e| TransportError::io("telling metadata", e))
}

/// The peer's slots, and the address of the first.
fn learn(
    stream: &mut TcpStream,
    mine: Shape,
    agent: &mut Agent,
) -> Result<(Shape, usize), TransportError> {
    let failed = |e| TransportError::io("learning the peer's metadata", e);
    let setup = |problem: String| TransportError::Setup { problem };
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).map_err(failed)?;
    let (magic, rest) = hello.split_at(MAGIC.len());
    let (said, rest) = rest.split_at(Shape::BYTES);
    let (base, length) = rest.split_at(8);
    if magic != MAGIC {
        return Err(setup(format!("it begins with {magic:02x?}, not PBNX")));
    }
    let mut word = [0; 8];
    word.copy_from_slice(base);
    let base = u64::from_le_bytes(word);
    word = [0; 8];
    word[..4].copy_from_slice(length);
    let length = u64::from_le_bytes(word);
    let mut shape = [0; Shape::BYTES];
    shape.copy_from_slice(said);
    // NIXL checks reads against what the peer has registered, so that is not asked for here.
    let shape = Shape::decode(shape, u64::MAX)?;
    if shape.slot_bytes != mine.slot_bytes {
        let (theirs, mine) = (shape.slot_bytes, mine.slot_bytes);
        return Err(setup(format!(
            "its slots have {theirs} bytes, these {mine}"
        )));
    }
    if length > u64::from(MAX_METADATA_BYTES) || base.checked_add(shape.bytes()).is_none() {
        return Err(setup(format!(
            "{length} bytes of metadata for slots at {base:#x}"
        )));
    }
    let mut metadata = vec![0; length as usize];
    stream.read_exact(&mut metadata).map_err(failed)?;
    agent.meet(&metadata)?;
    Ok((shape, base as usize))
}

/// Where peers connect to.
pub struct NixlListener {
    listener: TcpListener,
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
        let failed = |e| TransportError::io(format!("listening on {at}"), e);
        let listener = TcpListener::bind(at).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(NixlListener {
            listener,
            options,
            clock,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> Result<SocketAddr, TransportError> {
        let address = self.listener.local_addr();
        address.map_err(|e| TransportError::io("asking for the address", e))
    }

    /// The next peer; none when there is none within `timeout`.
    ///
    /// # Errors
    /// NIXL is not installed, or whoever connected is no peer, or the listener is of no use any
    /// more.
    pub fn accept(&mut self, timeout: Duration) -> Result<Option<NixlTransport>, TransportError> {
        let failed = |e| TransportError::io("accepting a connection", e);
        let limit = Nanos(timeout.as_nanos() as u64);
        if !readable(&self.listener, limit).map_err(failed)? {
            return Ok(None);
        }
        let (stream, _) = self.listener.accept().map_err(failed)?;
        stream.set_nonblocking(false).map_err(failed)?;
        NixlTransport::on_stream(stream, &self.options, Arc::clone(&self.clock)).map(Some)
    }
}
