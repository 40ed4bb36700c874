//! Two processes of one machine: cells through a file in memory, frames over a Unix socket.
//!
//! Each side makes a sealed memory file of slots and passes it to the other. Cells are written into
//! a free slot and a message says which; the receiver reads it and gives it back. The file is read
//! and written, not mapped: a mapping would save a copy on each side, but needs `unsafe`, and a
//! peer that shrinks the file would kill the process with a signal instead of an error.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{Clock, Nanos};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::listener::readable;
use super::slots::{Shape, SlotStore, SlotTransport, Theirs};
use super::wire::Socket;
use super::{Arrival, TransportError, TransportKind};

/// How a connection is made.
#[derive(Clone, Copy, Debug)]
pub struct ShmOptions {
    /// Slots for what this side sends, 1 to 64.
    pub slots: u32,
    /// Bytes of a slot, up to 16 MiB. Memory is taken as slots are first used.
    pub slot_bytes: u32,
    /// How long connecting, or a write, may make no progress.
    pub stall: Duration,
}

/// A memory file of this side's slots.
pub struct MemoryFile(File);

impl SlotStore for MemoryFile {
    const KIND: TransportKind = TransportKind::SharedMemory;

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), TransportError> {
        let written = self.0.write_all_at(bytes, at);
        written.map_err(|e| TransportError::io("writing a slot", e))
    }
}

/// One peer through shared memory.
pub type ShmTransport = SlotTransport<MemoryFile>;

impl ShmTransport {
    /// Connects to the listener at a path.
    ///
    /// # Errors
    /// Nobody listens there, or it is no peer.
    pub fn connect(
        to: &Path,
        options: ShmOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<ShmTransport, TransportError> {
        let stream = UnixStream::connect(to);
        let failed = |e| TransportError::io(format!("connecting to {}", to.display()), e);
        ShmTransport::on_stream(stream.map_err(failed)?, options, clock)
    }

    fn on_stream(
        stream: UnixStream,
        options: ShmOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<ShmTransport, TransportError> {
        let stall = options.stall;
        let shape = Shape::new(options.slots, options.slot_bytes)?;
        let failed = |e| TransportError::io("making a memory file", e);
        let file = memory_file(shape.bytes()).map_err(failed)?;
        let theirs = exchange(&stream, &file, shape, stall)?;
        let socket = Socket::Unix(stream);
        SlotTransport::over(socket, MemoryFile(file), shape, theirs, stall, clock)
    }
}

/// A sealed file of `bytes` bytes, in memory and without a name.
pub(super) fn memory_file(bytes: u64) -> std::io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("prefillbench-transfer", flags)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(File::from(fd))
}

/// Sends this side's file and takes the other's.
fn exchange(
    stream: &UnixStream,
    file: &File,
    shape: Shape,
    stall: Duration,
) -> Result<Theirs, TransportError> {
    let failed = |e| TransportError::io("exchanging memory files", e);
    let os = |e: rustix::io::Errno| failed(e.into());
    stream.set_read_timeout(Some(stall)).map_err(failed)?;
    let fds = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        stream,
        &[IoSlice::new(&shape.encode())],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .map_err(os)?;

    let mut said = [0; Shape::BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut said)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(stream, &mut parts, &mut control, flags).map_err(os)?;
    let fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<OwnedFd>>()),
        _ => None,
    });
    let fd = fds.flatten().next();
    stream.set_read_timeout(None).map_err(failed)?;
    let setup = |problem: String| TransportError::Setup { problem };
    let fd = fd.ok_or_else(|| setup("no memory file came".to_owned()))?;
    if got.bytes != said.len() {
        return Err(setup(format!("{} bytes instead of 8", got.bytes)));
    }
    let bytes = fstat(&fd).map_err(os)?.st_size as u64;
    let shape = Shape::decode(said, bytes)?;
    let file = File::from(fd);
    let read = move |at: u64, out: &mut [u8]| {
        let read = file.read_exact_at(out, at);
        read.map_err(|e| TransportError::io("reading a slot", e))
    };
    Ok(Theirs {
        shape,
        read: Box::new(read),
    })
}

/// Whether a path is a socket on which nobody listens: a process that was killed left it.
fn is_left(at: &Path) -> bool {
    // Connecting to any other file is refused as well.
    let is_socket = std::fs::symlink_metadata(at).is_ok_and(|at| at.file_type().is_socket());
    let refused = |e: std::io::Error| e.kind() == ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(at).err().is_some_and(refused)
}

/// Where peers of this machine connect to.
pub struct ShmListener {
    listener: UnixListener,
    options: ShmOptions,
    clock: Arc<dyn Clock>,
}

impl ShmListener {
    /// Listens at a path, which must not exist, unless it is the socket of a process that is gone.
    ///
    /// # Errors
    /// The path cannot be had.
    pub fn bind(
        at: &Path,
        options: ShmOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<ShmListener, TransportError> {
        let failed = |e| TransportError::io(format!("listening at {}", at.display()), e);
        let listener = match UnixListener::bind(at) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(at) => {
                std::fs::remove_file(at).map_err(failed)?;
                UnixListener::bind(at).map_err(failed)?
            }
            bound => bound.map_err(failed)?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(ShmListener {
            listener,
            options,
            clock,
        })
    }

    /// The next peer; none when there is none within `timeout`.
    ///
    /// # Errors
    /// Whoever connected is no peer, or the listener is of no use any more.
    pub fn accept(&mut self, timeout: Duration) -> Result<Option<ShmTransport>, TransportError> {
        let stream = self.stream(timeout)?;
        let on = |stream| ShmTransport::on_stream(stream, self.options, Arc::clone(&self.clock));
        stream.map(on).transpose()
    }

    /// Whoever connects next; none when there is nobody within `timeout`.
    ///
    /// # Errors
    /// The listener is of no use any more.
    pub fn arrival(&mut self, timeout: Duration) -> Result<Option<Arrival>, TransportError> {
        let (options, clock) = (self.options, Arc::clone(&self.clock));
        let on = |stream| Arrival::new(move || ShmTransport::on_stream(stream, options, clock));
        Ok(self.stream(timeout)?.map(on))
    }

    fn stream(&self, timeout: Duration) -> Result<Option<UnixStream>, TransportError> {
        let failed = |e| TransportError::io("accepting a connection", e);
        let limit = Nanos(timeout.as_nanos() as u64);
        if !readable(&self.listener, limit).map_err(failed)? {
            return Ok(None);
        }
        let (stream, _) = self.listener.accept().map_err(failed)?;
        stream.set_nonblocking(false).map_err(failed)?;
        Ok(Some(stream))
    }
}
