//! Frames on their way to a socket.
//!
//! Cells are not gathered into a buffer first: the kernel takes them from where they lie, in as few
//! calls as the socket has room for. While it does, the memory may not be written, so these calls
//! never wait; waiting for a slow peer happens between them.

use std::io::{ErrorKind, IoSlice, Write};
use std::sync::Arc;
use std::time::Duration;

use pb_contract::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::wire::{Socket, is_gone};
use super::{TapVerdict, TransportError};
use crate::frame::encode_frame;
use crate::memory::{Descriptor, Memory};
use crate::message::{Message, TransferId};

/// Ranges in one system call; the kernel takes 1024 at most.
const PARTS: usize = 512;
/// Bytes in one system call, so that writers of the memory do not wait for long.
const CALL_BYTES: u64 = 1 << 20;
/// Bytes that are copied at a time from memory that cannot be looked at; they fit a core's cache.
const STAGING_BYTES: usize = 256 << 10;

/// Frames up to this long are short: a few wake-ups cost as much as copying them.
const SHORT_BYTES: usize = 64 << 10;

/// What follows a frame's body.
pub(super) enum Payload {
    /// These bytes.
    Bytes(Vec<u8>),
    /// What lies in these ranges, which must not change until the frame is written.
    Ranges(Arc<dyn Memory>, Vec<Descriptor>),
}

/// A frame to be written.
pub(super) struct Frame {
    head: Vec<u8>,
    payload: Payload,
    /// Cells: tell when they are written.
    pub(super) done: Option<(TransferId, Nanos)>,
    verdict: TapVerdict,
    /// Bytes, head included.
    bytes: usize,
    /// Of them, how many are in the socket.
    written: usize,
}

impl Frame {
    pub(super) fn message(message: &Message, verdict: TapVerdict) -> Frame {
        let head = encode_frame(message, 0);
        Frame {
            bytes: head.len(),
            head,
            payload: Payload::Bytes(Vec::new()),
            done: None,
            verdict,
            written: 0,
        }
    }

    pub(super) fn cells(
        message: &Message,
        payload: Payload,
        done: (TransferId, Nanos),
        verdict: TapVerdict,
    ) -> Frame {
        let bytes = match &payload {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Ranges(_, ranges) => ranges.iter().map(|r| r.bytes as usize).sum(),
        };
        let head = encode_frame(message, bytes);
        Frame {
            bytes: head.len() + bytes,
            head,
            payload,
            done: Some(done),
            verdict,
            written: 0,
        }
    }

    /// Whether it may be written by whoever has it.
    pub(super) fn is_short(&self) -> bool {
        self.bytes <= SHORT_BYTES && self.verdict == TapVerdict::Pass
    }

    /// Writes what the socket takes at once of a frame that nothing is written of; true when that
    /// is all of it. What is wrong with the socket or the memory is found by the next write.
    pub(super) fn write_now(&mut self, socket: &Socket) -> bool {
        let sent = match &self.payload {
            Payload::Bytes(bytes) => send_now(socket, &self.head, &[bytes]),
            Payload::Ranges(memory, ranges) => {
                let mut sent = Ok(0);
                let mut send = |parts: &[&[u8]]| sent = send_now(socket, &self.head, parts);
                match memory.view(one_call(ranges), &mut send) {
                    Ok(_) => sent,
                    Err(_) => Ok(0),
                }
            }
        };
        self.written = sent.unwrap_or(0);
        self.written == self.bytes
    }
}

/// What of a frame of ranges is still to be written.
struct Rest<'a> {
    head: &'a [u8],
    ranges: Vec<Descriptor>,
    /// The first range that is not written.
    next: usize,
}

impl Rest<'_> {
    fn ranges(&self) -> &[Descriptor] {
        &self.ranges[self.next..]
    }

    /// So many bytes more are written.
    fn written(&mut self, mut bytes: usize) {
        let of_head = bytes.min(self.head.len());
        self.head = &self.head[of_head..];
        bytes -= of_head;
        while let Some(first) = self.ranges.get_mut(self.next) {
            if (bytes as u64) < first.bytes {
                first.at += bytes as u64;
                first.bytes -= bytes as u64;
                return;
            }
            bytes -= first.bytes as usize;
            self.next += 1;
        }
    }
}

/// Writes frames to a socket.
pub(super) struct Out<'a> {
    socket: &'a mut Socket,
    stall: Duration,
    staging: Vec<u8>,
}

impl Out<'_> {
    /// `stall` is how long a write may make no progress; the socket's write timeout is the same.
    pub(super) fn new(socket: &mut Socket, stall: Duration) -> Out<'_> {
        Out {
            socket,
            stall,
            staging: Vec::new(),
        }
    }

    /// Writes all that is left of a frame, or as much of it as a planted cut leaves.
    pub(super) fn write(&mut self, frame: &Frame) -> Result<(), TransportError> {
        match (&frame.payload, frame.verdict) {
            (Payload::Bytes(bytes), TapVerdict::CutAfter(n)) => {
                let all = [frame.head.as_slice(), bytes].concat();
                // It is to be cut; where exactly makes no difference to this side.
                let _ = self.socket.write_all(&all[..n.min(all.len())]);
                self.socket.shutdown();
                Err(TransportError::Closed)
            }
            (Payload::Bytes(bytes), _) => {
                let of_head = frame.written.min(frame.head.len());
                let (head, rest) = (&frame.head[of_head..], &bytes[frame.written - of_head..]);
                self.parts([head, rest])
            }
            (Payload::Ranges(memory, ranges), _) => {
                let mut rest = Rest {
                    head: &frame.head,
                    ranges: ranges.clone(),
                    next: 0,
                };
                rest.written(frame.written);
                self.ranges(rest, memory.as_ref())
            }
        }
    }

    /// Writes bytes of this process.
    fn parts(&mut self, [head, rest]: [&[u8]; 2]) -> Result<(), TransportError> {
        let mut parts = [IoSlice::new(head), IoSlice::new(rest)];
        let mut parts = &mut parts[..];
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match self.socket.write_vectored(parts) {
                Ok(0) => return Err(TransportError::Closed),
                Ok(n) => IoSlice::advance_slices(&mut parts, n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
        Ok(())
    }

    /// Writes ranges of memory from where they lie.
    fn ranges(&mut self, mut rest: Rest<'_>, memory: &dyn Memory) -> Result<(), TransportError> {
        while !rest.ranges().is_empty() {
            let batch = one_call(rest.ranges());
            let mut sent = Ok(0);
            let mut send = |parts: &[&[u8]]| sent = send_now(self.socket, rest.head, parts);
            if !memory.view(batch, &mut send)? {
                return self.staged(rest.head, memory, rest.ranges());
            }
            match sent {
                Ok(n) => rest.written(n),
                Err(rustix::io::Errno::AGAIN) => self.wait()?,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(self.failed(e.into())),
            }
        }
        // Left when there are no ranges, or the last of them are empty.
        self.parts([rest.head, &[]])
    }

    /// Writes ranges by way of a buffer.
    fn staged(
        &mut self,
        mut head: &[u8],
        memory: &dyn Memory,
        ranges: &[Descriptor],
    ) -> Result<(), TransportError> {
        let mut staging = std::mem::take(&mut self.staging);
        staging.resize(STAGING_BYTES, 0);
        let mut filled = 0;
        for range in ranges {
            let (mut at, end) = (range.at, range.at + range.bytes);
            while at < end {
                let n = (end - at).min((STAGING_BYTES - filled) as u64) as usize;
                memory.read(at, &mut staging[filled..filled + n])?;
                (at, filled) = (at + n as u64, filled + n);
                if filled == STAGING_BYTES {
                    self.parts([head, &staging])?;
                    head = &[];
                    filled = 0;
                }
            }
        }
        self.parts([head, &staging[..filled]])?;
        self.staging = staging;
        Ok(())
    }

    /// Waits until the socket takes bytes again.
    fn wait(&self) -> Result<(), TransportError> {
        let limit = Timespec {
            tv_sec: self.stall.as_secs() as i64,
            tv_nsec: i64::from(self.stall.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&*self.socket, PollFlags::OUT)];
        match poll(&mut fds, Some(&limit)) {
            Ok(0) => Err(self.failed(ErrorKind::TimedOut.into())),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(self.failed(e.into())),
        }
    }

    fn failed(&self, error: std::io::Error) -> TransportError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let ms = self.stall.as_millis() as u64;
                TransportError::Stalled { ms }
            }
            _ if is_gone(&error) => TransportError::Closed,
            _ => TransportError::io("writing a frame", error),
        }
    }
}

/// The first ranges, as many as one call takes: at least one if there is one, however long.
fn one_call(ranges: &[Descriptor]) -> &[Descriptor] {
    let mut bytes = 0;
    let fits = |range: &&Descriptor| {
        bytes += range.bytes;
        bytes <= CALL_BYTES
    };
    let n = ranges.iter().take(PARTS).take_while(fits).count();
    &ranges[..n.max(1).min(ranges.len())]
}

/// Gives the kernel what it takes without waiting.
fn send_now(socket: &Socket, head: &[u8], parts: &[&[u8]]) -> rustix::io::Result<usize> {
    // A range may be shown as several parts; what is left over is sent by the next call.
    let all = std::iter::once(&head).chain(parts.iter().take(PARTS));
    let parts: Vec<IoSlice<'_>> = all.map(|part| IoSlice::new(part)).collect();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags)
}
