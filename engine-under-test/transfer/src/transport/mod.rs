//! How frames and cells get from one engine to the other.
//!
//! A transport moves bytes and keeps no promise about ownership: that is what [`crate::Source`] and
//! [`crate::Sink`] are for. Memory is registered before it is used and named by descriptors, and a
//! posted frame reads it until [`Incoming::Sent`] says otherwise, so that a transport which writes
//! into the peer's memory by itself fits behind the same trait.

mod buffers;
mod inbox;
mod listener;
mod local;
mod meet;
mod mooncake;
mod mooncake_engine;
mod nixl;
mod nixl_ffi;
mod outbox;
mod outgoing;
mod shm;
mod slots;
mod tcp;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::frame::FrameError;
use crate::memory::{Descriptor, Memory, MemoryError, MemoryKind};
use crate::message::{DataHead, Message, TransferId};
use crate::source::Posted;

pub use buffers::CellBytes;
pub use listener::TcpTransportListener;
pub use local::LocalTransport;
pub use mooncake::{MooncakeListener, MooncakeOptions, MooncakeSlots, MooncakeTransport};
pub use mooncake_engine::MooncakeEngine;
pub use nixl::{NixlListener, NixlOptions, NixlSlots, NixlTransport};
pub use shm::{MemoryFile, ShmListener, ShmOptions, ShmTransport};
pub use slots::{SlotStore, SlotTransport};
pub use tcp::{TcpOptions, TcpTransport};

/// Which transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// Two engines in one process.
    Local,
    /// Two processes of one machine, through a file in memory.
    SharedMemory,
    /// Two machines, or one.
    Tcp,
    /// Two machines, or one, by NIXL.
    Nixl,
    /// Two machines, or one, by Mooncake's transfer engine.
    Mooncake,
}

/// Why a transport is of no use any more, or a call of it went wrong.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The peer closed the connection, or its process ended.
    #[error("the peer has closed the connection")]
    Closed,
    /// The connection ended within a frame.
    #[error("the connection was cut {missing} bytes before the end of a frame")]
    Cut {
        /// Bytes that were still to come, of the part that was being read.
        missing: usize,
    },
    /// Bytes that are no frame.
    #[error("the peer sent something else than frames: {0}")]
    Frame(#[from] FrameError),
    /// The peer takes no bytes.
    #[error("the peer took no bytes for {ms} ms")]
    Stalled {
        /// How long, ms.
        ms: u64,
    },
    /// More frames at a time than the transport takes.
    #[error("more than {frames} frames wait to be sent")]
    Backlog {
        /// Its bound.
        frames: usize,
    },
    /// The memory cannot be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A memory that is not registered.
    #[error("memory {0:?} is not registered")]
    Unregistered(MemoryId),
    /// Connections that do not belong together, or a slot that is none.
    #[error("the peer connects wrongly: {problem}")]
    Setup {
        /// What is wrong.
        problem: String,
    },
    /// Something that is loaded at run time is not there.
    #[error("{} cannot be used: {problem}; {install}", library.display())]
    Missing {
        /// A library, or an interpreter.
        library: PathBuf,
        /// What the loader said.
        problem: String,
        /// What would help.
        install: &'static str,
    },
    /// NIXL refused.
    #[error("NIXL, {doing}: status {status}")]
    Nixl {
        /// What was tried.
        doing: &'static str,
        /// What it returned, as in its `wrapper.h`.
        status: i32,
    },
    /// Mooncake refused.
    #[error("Mooncake, {doing}: status {status}")]
    Mooncake {
        /// What was tried.
        doing: &'static str,
        /// What it returned.
        status: i32,
    },
    /// The system refused.
    #[error("{doing}: {error}")]
    Io {
        /// What was tried.
        doing: String,
        /// What it said.
        error: std::io::Error,
    },
}

impl TransportError {
    pub(crate) fn io(doing: impl Into<String>, error: std::io::Error) -> TransportError {
        let doing = doing.into();
        TransportError::Io { doing, error }
    }
}

/// Names a registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryId(u32);

/// What a transport has to tell.
#[derive(Debug)]
pub enum Incoming {
    /// The peer said something.
    Message(Message),
    /// The peer sent cells.
    Data(DataHead, CellBytes),
    /// A posted frame needs the memory no more.
    Sent {
        /// The transfer.
        id: TransferId,
        /// Since it was posted, ns.
        wire_ns: u64,
    },
}

/// One connection to one peer. When a call fails, the connection is over; [`Transport::close`] it.
pub trait Transport: Send {
    /// Which.
    fn kind(&self) -> TransportKind;

    /// Whether it reads memory of this kind where it lies. Other memory is staged through the host.
    fn reads_in_place(&self, kind: MemoryKind) -> bool;

    /// Longest payload of a frame, bytes.
    fn frame_bytes(&self) -> usize;

    /// Most frames that may be posted and not yet sent.
    fn frames_in_flight(&self) -> u32;

    /// Makes memory known to the transport.
    ///
    /// # Errors
    /// The device refused.
    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<MemoryId, TransportError>;

    /// Sends a message.
    ///
    /// # Errors
    /// The connection is over.
    fn send(&mut self, message: &Message) -> Result<(), TransportError>;

    /// Sends cells that lie in registered memory. [`Incoming::Sent`] follows.
    ///
    /// # Errors
    /// The connection is over, or the memory cannot be read.
    fn post(
        &mut self,
        head: DataHead,
        memory: MemoryId,
        from: &[Descriptor],
    ) -> Result<Posted, TransportError>;

    /// What came next; none when nothing came in time.
    ///
    /// # Errors
    /// The connection is over.
    fn poll(&mut self, timeout: Duration) -> Result<Option<Incoming>, TransportError>;

    /// Ends the connection. Afterwards no registered memory is read.
    fn close(&mut self);
}

/// What a tap lets happen to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapVerdict {
    /// It passes, as it is now.
    Pass,
    /// The connection ends after this many bytes of it.
    CutAfter(usize),
}

/// Sees every frame before it leaves, and may alter or cut it: planted faults of tests. `None` in
/// service.
pub type Tap = Box<dyn FnMut(&Message, &mut Vec<u8>) -> TapVerdict + Send>;

/// The registered memories of a transport that stages all of them.
#[derive(Default)]
struct Registered(Vec<Arc<dyn Memory>>);

impl Registered {
    fn add(&mut self, memory: Arc<dyn Memory>) -> MemoryId {
        self.0.push(memory);
        MemoryId(self.0.len() as u32 - 1)
    }

    /// The memory, in which all of `from` must lie, and how many bytes that is.
    fn find(
        &self,
        id: MemoryId,
        from: &[Descriptor],
    ) -> Result<(&Arc<dyn Memory>, usize), TransportError> {
        let memory = self.0.get(id.0 as usize);
        let memory = memory.ok_or(TransportError::Unregistered(id))?;
        let bytes = memory.bytes();
        for range in from {
            let (at, end) = (range.at, range.at.saturating_add(range.bytes));
            if end > bytes {
                return Err(MemoryError::Range { at, end, bytes }.into());
            }
        }
        let sum = from.iter().map(|range| range.bytes).sum::<u64>();
        Ok((memory, sum as usize))
    }

    /// Copies the ranges to `out`, one after the other.
    fn read(memory: &dyn Memory, from: &[Descriptor], out: &mut [u8]) -> Result<(), MemoryError> {
        let mut rest = out;
        for range in from {
            let (now, later) = rest.split_at_mut(range.bytes as usize);
            memory.read(range.at, now)?;
            rest = later;
        }
        Ok(())
    }
}

/// Somebody who has connected and may not have said yet what it is.
pub struct Arrival(Box<dyn FnOnce() -> Result<Box<dyn Transport>, TransportError> + Send>);

impl Arrival {
    fn new<T, F>(meet: F) -> Arrival
    where
        T: Transport + 'static,
        F: FnOnce() -> Result<T, TransportError> + Send + 'static,
    {
        Arrival(Box::new(move || {
            meet().map(|transport| Box::new(transport) as Box<dyn Transport>)
        }))
    }

    /// A peer that has said all it has to.
    pub(crate) fn of<T: Transport + 'static>(transport: T) -> Arrival {
        Arrival::new(move || Ok(transport))
    }

    /// Hears what it has to say first, and waits for that as long as the transport's options allow.
    ///
    /// # Errors
    /// It is no peer, or says nothing in time.
    pub fn meet(self) -> Result<Box<dyn Transport>, TransportError> {
        (self.0)()
    }
}
