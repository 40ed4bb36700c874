//! Two processes of one machine: cells through a file in memory, frames over a Unix socket.
//!
//! Each side makes a sealed memory file of slots and passes it to the other. Cells are written into
//! a free slot and a message says which; the receiver reads it and gives it back. The file is read
//! and written, not mapped: a mapping would save a copy on each side, but needs `unsafe`, and a
//! peer that shrinks the file would kill the process with a signal instead of an error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pb_contract::{Clock, Nanos};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::tcp::readable;
use super::wire::{Handle, Link, Outgoing, Socket, Writer, inbox, poll};
use super::{
    Incoming, MemoryId, Registered, Tap, TapVerdict, Transport, TransportError, TransportKind,
};
use crate::frame::MAX_PAYLOAD_BYTES;
use crate::memory::{Descriptor, Memory, MemoryKind};
use crate::message::{DataHead, Message, TransferId};
use crate::source::Posted;

/// Most slots in a file.
const MAX_SLOTS: u32 = 1024;

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

/// The slots of this side: which are free, and what lies in the others.
#[derive(Default)]
struct Slots {
    free: Vec<u32>,
    used: BTreeMap<u32, (TransferId, Nanos)>,
}

/// One peer through shared memory.
pub struct ShmTransport {
    clock: Arc<dyn Clock>,
    memories: Registered,
    file: File,
    slot_bytes: u32,
    slots: Arc<Mutex<Slots>>,
    all_slots: u32,
    link: Option<Link>,
    from: Option<Receiver<Result<Incoming, TransportError>>>,
    tap: Option<Tap>,
}

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
        ShmTransport::over(stream.map_err(failed)?, options, clock)
    }

    fn over(
        stream: UnixStream,
        options: ShmOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<ShmTransport, TransportError> {
        let ShmOptions {
            slots,
            slot_bytes,
            stall,
        } = options;
        let slot_limit = MAX_PAYLOAD_BYTES as u32;
        if !(1..=64).contains(&slots) || !(1..=slot_limit).contains(&slot_bytes) {
            let problem =
                format!("{slots} slots of {slot_bytes} bytes: 1 to 64, 1 to {slot_limit}");
            return Err(TransportError::Setup { problem });
        }
        let failed = |e| TransportError::io("making a memory file", e);
        let file = memory_file(u64::from(slots) * u64::from(slot_bytes)).map_err(failed)?;
        let theirs = exchange(&stream, &file, [slots, slot_bytes], stall)?;
        let shared = Slots {
            free: (0..slots).rev().collect(),
            used: BTreeMap::new(),
        };
        let shared = Arc::new(Mutex::new(shared));
        let (to_inbox, from) = inbox();
        let handle = handler(theirs, Arc::clone(&shared), Arc::clone(&clock));
        let link = Link::start(Socket::Unix(stream), stall, &to_inbox, &clock, handle)?;
        Ok(ShmTransport {
            clock,
            memories: Registered::default(),
            file,
            slot_bytes,
            slots: shared,
            all_slots: slots,
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
}

/// The peer's file, and what it said about it.
struct Theirs {
    file: File,
    slots: u32,
    slot_bytes: u32,
}

/// A sealed file of `bytes` bytes, in memory and without a name.
fn memory_file(bytes: u64) -> std::io::Result<File> {
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
    [slots, slot_bytes]: [u32; 2],
    stall: Duration,
) -> Result<Theirs, TransportError> {
    let failed = |e| TransportError::io("exchanging memory files", e);
    let os = |e: rustix::io::Errno| failed(e.into());
    stream.set_read_timeout(Some(stall)).map_err(failed)?;
    let shape = [slots.to_le_bytes(), slot_bytes.to_le_bytes()].concat();
    let fds = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        stream,
        &[IoSlice::new(&shape)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .map_err(os)?;

    let mut shape = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut shape)];
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
    if got.bytes != shape.len() {
        return Err(setup(format!("{} bytes instead of 8", got.bytes)));
    }
    let [a, b, c, d, e, f, g, h] = shape;
    let (slots, slot_bytes) = (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    );
    let bytes = fstat(&fd).map_err(os)?.st_size as u64;
    let sound = slots <= MAX_SLOTS && slot_bytes as usize <= MAX_PAYLOAD_BYTES;
    if !sound || bytes < u64::from(slots) * u64::from(slot_bytes) {
        let problem = format!("a file of {bytes} bytes for {slots} slots of {slot_bytes}");
        return Err(setup(problem));
    }
    Ok(Theirs {
        file: File::from(fd),
        slots,
        slot_bytes,
    })
}

/// Reads slots of the peer's file and gives them back; takes back this side's.
fn handler(
    theirs: Theirs,
    slots: Arc<Mutex<Slots>>,
    clock: Arc<dyn Clock>,
) -> impl FnOnce(&Writer) -> Handle {
    move |writer| {
        let writer = writer.clone();
        Box::new(move |message, _| match message {
            Message::DataInSlot { slot, bytes, head } => {
                let payload = theirs.read(slot, bytes)?;
                let credit = Message::Credit { slot };
                writer.put(Outgoing::message(&credit, TapVerdict::Pass))?;
                Ok(Some(Incoming::Data(head, payload)))
            }
            Message::Credit { slot } => {
                // A panic elsewhere leaves both lists whole.
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
                problem: "a message that shared memory has no use for".to_owned(),
            }),
            message => Ok(Some(Incoming::Message(message))),
        })
    }
}

impl Theirs {
    fn read(&self, slot: u32, bytes: u32) -> Result<Vec<u8>, TransportError> {
        if slot >= self.slots || bytes > self.slot_bytes {
            let problem = format!("{bytes} bytes in slot {slot}");
            return Err(TransportError::Setup { problem });
        }
        let mut payload = vec![0; bytes as usize];
        let at = u64::from(slot) * u64::from(self.slot_bytes);
        let read = self.file.read_exact_at(&mut payload, at);
        read.map_err(|e| TransportError::io("reading a slot", e))?;
        Ok(payload)
    }
}

impl Transport for ShmTransport {
    fn kind(&self) -> TransportKind {
        TransportKind::SharedMemory
    }

    fn reads_in_place(&self, kind: MemoryKind) -> bool {
        kind == MemoryKind::Host
    }

    fn frame_bytes(&self) -> usize {
        self.slot_bytes as usize
    }

    fn frames_in_flight(&self) -> u32 {
        self.all_slots
    }

    fn register(&mut self, memory: Arc<dyn Memory>) -> Result<MemoryId, TransportError> {
        Ok(self.memories.add(memory))
    }

    fn send(&mut self, message: &Message) -> Result<(), TransportError> {
        let tap = self.tap.as_mut().map(|tap| tap(message, &mut Vec::new()));
        let verdict = tap.unwrap_or(TapVerdict::Pass);
        let link = self.link.as_ref().ok_or(TransportError::Closed)?;
        link.put(Outgoing::message(message, verdict))
    }

    fn post(
        &mut self,
        head: DataHead,
        memory: MemoryId,
        from: &[Descriptor],
    ) -> Result<Posted, TransportError> {
        let start = self.clock.now();
        let mut payload = self.memories.read(memory, from)?;
        let id = head.id;
        let message = Message::Data(head);
        let tap = self.tap.as_mut().map(|tap| tap(&message, &mut payload));
        let verdict = tap.unwrap_or(TapVerdict::Pass);
        let Message::Data(head) = message else {
            return Err(TransportError::Closed);
        };
        if payload.len() > self.slot_bytes as usize {
            let problem = format!("{} bytes for a slot of {}", payload.len(), self.slot_bytes);
            return Err(TransportError::Setup { problem });
        }
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            let frames = self.all_slots as usize;
            let slot = slots.free.pop().ok_or(TransportError::Backlog { frames })?;
            slots.used.insert(slot, (id, self.clock.now()));
            slot
        };
        let at = u64::from(slot) * u64::from(self.slot_bytes);
        let written = self.file.write_all_at(&payload, at);
        written.map_err(|e| TransportError::io("writing a slot", e))?;
        let posted = Posted {
            bytes: payload.len() as u64,
            descriptors: from.len() as u64,
            copy_ns: self.clock.now().saturating_sub(start).0,
        };
        let message = Message::DataInSlot {
            slot,
            bytes: payload.len() as u32,
            head,
        };
        let link = self.link.as_ref().ok_or(TransportError::Closed)?;
        link.put(Outgoing::message(&message, verdict))?;
        Ok(posted)
    }

    fn poll(&mut self, timeout: Duration) -> Result<Option<Incoming>, TransportError> {
        poll(self.from.as_ref().ok_or(TransportError::Closed)?, timeout)
    }

    fn close(&mut self) {
        self.from = None;
        if let Some(mut link) = self.link.take() {
            link.close();
        }
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where peers of this machine connect to.
pub struct ShmListener {
    listener: UnixListener,
    options: ShmOptions,
    clock: Arc<dyn Clock>,
}

impl ShmListener {
    /// Listens at a path, which must not exist.
    ///
    /// # Errors
    /// The path cannot be had.
    pub fn bind(
        at: &Path,
        options: ShmOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<ShmListener, TransportError> {
        let failed = |e| TransportError::io(format!("listening at {}", at.display()), e);
        let listener = UnixListener::bind(at).map_err(failed)?;
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
        let failed = |e| TransportError::io("accepting a connection", e);
        let limit = Nanos(timeout.as_nanos() as u64);
        if !readable(&self.listener, limit).map_err(failed)? {
            return Ok(None);
        }
        let (stream, _) = self.listener.accept().map_err(failed)?;
        stream.set_nonblocking(false).map_err(failed)?;
        ShmTransport::over(stream, self.options, Arc::clone(&self.clock)).map(Some)
    }
}
