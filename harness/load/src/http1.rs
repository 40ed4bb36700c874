//! HTTP/1.1, one request at a time, read by the task that waits for it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use pb_contract::Nanos;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connect::Socket;
use crate::http::{Broken, Read, SendFailure};
use crate::response::{Piece, ResponseHead, ResponseReader};
use crate::stamps::Stamps;

/// Bytes that one read takes.
const READ_BYTES: usize = 64 << 10;

thread_local! {
    /// Where reads land: nothing stays in it, so one serves all connections of a thread.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Http1 {
    socket: Socket,
    stamps: Arc<Stamps>,
    reader: ResponseReader,
    /// Bytes of the request that are not written yet.
    unsent: Bytes,
    /// Some bytes of the request were written.
    begun: bool,
    /// All of them have left this process.
    flushed: bool,
    /// Data that came with the head.
    early: Vec<u8>,
    /// Why nothing more is to be read.
    broken: Option<Broken>,
    /// The response has ended.
    ended: bool,
}

impl Http1 {
    /// Over an open socket.
    pub(crate) fn new(socket: Socket) -> Http1 {
        Http1 {
            stamps: socket.stamps(),
            socket,
            reader: ResponseReader::new(),
            unsent: Bytes::new(),
            begun: false,
            flushed: true,
            early: Vec::new(),
            broken: None,
            ended: true,
        }
    }

    /// Whether a request can be sent: the peer has neither spoken nor hung up.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.ended && self.broken.is_none() && self.socket.is_quiet()
    }

    /// Whether another request may follow.
    pub(crate) fn is_reusable(&self) -> bool {
        self.reader.is_reusable() && self.flushed && self.broken.is_none()
    }

    /// Writes a request, as far as the socket takes it at once.
    pub(crate) fn start(&mut self, request: Bytes) {
        self.stamps.begin();
        self.reader.next_response();
        self.early.clear();
        (self.unsent, self.begun, self.flushed, self.ended) = (request, false, false, false);
        // What cannot be written now, and an error, is found again by the wait for the head.
        let _ = self.poll_write(&mut Context::from_waker(Waker::noop()));
    }

    /// Waits for the response head.
    pub(crate) async fn head(&mut self) -> Result<ResponseHead, SendFailure> {
        let mut head = None;
        poll_fn(|cx| self.poll_head(cx, &mut head)).await?;
        // OK because the poll ends well with a head only.
        Ok(head.expect("a head was read"))
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut Option<ResponseHead>,
    ) -> Poll<Result<(), SendFailure>> {
        let written = match self.poll_write(cx) {
            Poll::Ready(Err(error)) => Some(error),
            _ => None,
        };
        if let Some(error) = &written
            && !self.begun
        {
            return Poll::Ready(Err(SendFailure::Unsent(error.to_string())));
        }
        // A server may refuse before it has read the whole request.
        loop {
            let Poll::Ready(read) = self.poll_read(cx, head, &mut |_, _| {}) else {
                return match written {
                    Some(error) => Poll::Ready(Err(SendFailure::Broken(error.into()))),
                    None => Poll::Pending,
                };
            };
            if head.is_some() {
                return Poll::Ready(Ok(()));
            }
            if let Read::Broken(broken) = read {
                return Poll::Ready(Err(SendFailure::Broken(broken)));
            }
        }
    }

    /// Reads on and lends the data of the body to `sink` with the instant of its arrival.
    pub(crate) async fn read(&mut self, sink: &mut (impl FnMut(Nanos, &[u8]) + Send)) -> Read {
        if !self.early.is_empty() {
            sink(self.stamps.last_read(), &self.early);
            self.early.clear();
            return self.after_data();
        }
        poll_fn(|cx| {
            // A large request may still be on its way.
            if !self.flushed
                && let Poll::Ready(Err(error)) = self.poll_write(cx)
            {
                self.broken.get_or_insert(error.into());
            }
            self.poll_read(cx, &mut None, sink)
        })
        .await
    }

    fn after_data(&self) -> Read {
        match &self.broken {
            Some(broken) => Read::Broken(broken.clone()),
            None if self.ended => Read::End,
            None => Read::Data,
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            match Pin::new(&mut self.socket).poll_write(cx, &self.unsent) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    self.unsent.advance(count);
                    self.begun = true;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        if !self.flushed {
            match Pin::new(&mut self.socket).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.flushed = true,
                other => return other,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// One read and what is in it.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut Option<ResponseHead>,
        sink: &mut impl FnMut(Nanos, &[u8]),
    ) -> Poll<Read> {
        if self.ended || self.broken.is_some() {
            return Poll::Ready(self.after_data());
        }
        SCRATCH.with_borrow_mut(|scratch| {
            loop {
                let mut buffer = ReadBuf::new(scratch);
                match Pin::new(&mut self.socket).poll_read(cx, &mut buffer) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => self.broken = Some(error.into()),
                    Poll::Ready(Ok(())) if buffer.filled().is_empty() => self.hung_up(),
                    Poll::Ready(Ok(())) => {
                        if !self.take(buffer.filled(), head, sink) {
                            continue;
                        }
                    }
                }
                return Poll::Ready(self.after_data());
            }
        })
    }

    fn hung_up(&mut self) {
        match self.reader.end() {
            Ok(()) => self.ended = true,
            Err(error) => self.broken = Some(error.into()),
        }
    }

    /// Takes the bytes of a read; whether they held a head, data or an end.
    fn take(
        &mut self,
        mut bytes: &[u8],
        head: &mut Option<ResponseHead>,
        sink: &mut impl FnMut(Nanos, &[u8]),
    ) -> bool {
        let at = self.stamps.last_read();
        let mut found = false;
        loop {
            match self.reader.next(&mut bytes) {
                Ok(None) => break,
                Ok(Some(Piece::Head(new))) => (*head, found) = (Some(new), true),
                Ok(Some(Piece::Data(data))) => {
                    found = true;
                    match head.is_some() {
                        true => self.early.extend_from_slice(data),
                        false => sink(at, data),
                    }
                }
                Ok(Some(Piece::End)) => {
                    (self.ended, found) = (true, true);
                    if !bytes.is_empty() {
                        // Nobody asked for what follows: the connection is not used again.
                        let _ = self.reader.end();
                    }
                    break;
                }
                Err(error) => {
                    (self.broken, found) = (Some(error.into()), true);
                    break;
                }
            }
        }
        found
    }
}
