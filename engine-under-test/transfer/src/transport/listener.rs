//! Where TCP peers connect to.
//!
//! A connection says first to which session it belongs, and a session is a peer once all of its
//! connections are there. Whoever connects and then says nothing, or only a part, must not keep the
//! others waiting: no read here waits, and what is not complete in time is dropped.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{Clock, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::tcp::{MAX_CONNECTIONS, TcpTransport};
use super::{TransportError, wire};
use crate::frame::{FrameHead, HEADER_BYTES};
use crate::message::Message;

/// Most connections that have not said what they are, and most that wait for the others of their
/// peer.
const MAX_PENDING: usize = 256;
/// Longest body of a first message, bytes; a join's is shorter.
const FIRST_BODY_BYTES: usize = 64;

/// Where peers connect to.
pub struct TcpTransportListener {
    listener: TcpListener,
    stall: Duration,
    clock: Arc<dyn Clock>,
    /// Oldest first.
    strangers: Vec<Stranger>,
    sessions: BTreeMap<u64, Session>,
}

/// A connection that has not said yet what it is.
struct Stranger {
    stream: TcpStream,
    said: Vec<u8>,
    until: Nanos,
}

/// A peer some of whose connections are there.
struct Session {
    of: u32,
    streams: BTreeMap<u32, TcpStream>,
    until: Nanos,
}

impl TcpTransportListener {
    /// Listens on `at`; port 0 takes a free one. `stall` is how long a peer may take to join.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(
        at: SocketAddr,
        stall: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<TcpTransportListener, TransportError> {
        let failed = |e| TransportError::io(format!("listening on {at}"), e);
        let listener = TcpListener::bind(at).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(TcpTransportListener {
            listener,
            stall,
            clock,
            strangers: Vec::new(),
            sessions: BTreeMap::new(),
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

    /// The next peer all of whose connections are there; none when there is none within `timeout`.
    /// A connection that does not say what it is, is dropped.
    ///
    /// # Errors
    /// The listener is of no use any more.
    pub fn accept(&mut self, timeout: Duration) -> Result<Option<TcpTransport>, TransportError> {
        let failed = |e| TransportError::io("accepting a connection", e);
        let mut now = self.clock.now();
        let end = now + Nanos(timeout.as_nanos() as u64);
        loop {
            self.forget(now);
            let left = end.saturating_sub(now);
            let due = self.next_end().map(|at| at.saturating_sub(now));
            let wait = due.map_or(left, |due| due.min(left));
            let (comes, ready) = self.wait(wait).map_err(failed)?;
            if !comes && ready.is_empty() {
                if wait == left {
                    return Ok(None);
                }
                // So much time has passed at least, whatever the clock says.
                now = self.clock.now().max(now + wait);
                continue;
            }
            // From the last on, so that the places of those before stay.
            for place in ready.into_iter().rev() {
                if let Some(streams) = self.listen_to(place) {
                    let clock = Arc::clone(&self.clock);
                    return TcpTransport::over(streams, self.stall, clock).map(Some);
                }
            }
            if comes {
                self.welcome().map_err(failed)?;
            }
            now = self.clock.now();
        }
    }

    /// Takes a connection in.
    fn welcome(&mut self) -> std::io::Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            // Whoever it was has gone again.
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        };
        stream.set_nonblocking(true)?;
        if self.strangers.len() >= MAX_PENDING {
            self.strangers.remove(0);
        }
        self.strangers.push(Stranger {
            stream,
            said: Vec::new(),
            until: self.until(),
        });
        Ok(())
    }

    fn until(&self) -> Nanos {
        self.clock.now() + Nanos(self.stall.as_nanos() as u64)
    }

    /// Drops what is not complete in time.
    fn forget(&mut self, now: Nanos) {
        self.strangers.retain(|stranger| now < stranger.until);
        self.sessions.retain(|_, session| now < session.until);
    }

    /// When [`TcpTransportListener::forget`] has something to do next.
    fn next_end(&self) -> Option<Nanos> {
        let strangers = self.strangers.iter().map(|stranger| stranger.until);
        let sessions = self.sessions.values().map(|session| session.until);
        strangers.chain(sessions).min()
    }

    /// Waits until somebody comes or a stranger speaks: whether the former, and which ones.
    fn wait(&self, timeout: Nanos) -> std::io::Result<(bool, Vec<usize>)> {
        let streams = self
            .strangers
            .iter()
            .map(|stranger| stranger.stream.as_fd());
        let mut fds: Vec<PollFd<'_>> = std::iter::once(self.listener.as_fd())
            .chain(streams)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        wait_for(&mut fds, timeout)?;
        let speaks = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = (0..self.strangers.len()).filter(|&place| speaks(&fds[place + 1]));
        Ok((speaks(&fds[0]), ready.collect()))
    }

    /// Takes what a stranger says. Returns the connections of its peer when it was the last one.
    fn listen_to(&mut self, place: usize) -> Option<Vec<TcpStream>> {
        let said = match self.strangers[place].read() {
            Ok(None) => return None,
            Ok(Some(said)) => Some(said),
            Err(_) => None,
        };
        let Stranger { stream, .. } = self.strangers.remove(place);
        // Whoever is no peer finds the connection closed.
        self.join(stream, said?).ok().flatten()
    }

    /// Adds a connection to its session; returns all of them when it was the last.
    fn join(
        &mut self,
        stream: TcpStream,
        said: Message,
    ) -> Result<Option<Vec<TcpStream>>, TransportError> {
        let setup = |problem: String| TransportError::Setup { problem };
        let Message::Join { session, index, of } = said else {
            return Err(setup("the first message is not a join".to_owned()));
        };
        if !(1..=MAX_CONNECTIONS).contains(&of) || index >= of {
            return Err(setup(format!("connection {index} of {of}")));
        }
        let blocking = stream.set_nonblocking(false);
        blocking.map_err(|e| TransportError::io("accepting a connection", e))?;
        let waiting: usize = self.sessions.values().map(|s| s.streams.len()).sum();
        if waiting >= MAX_PENDING {
            // Most likely of a peer that died while it connected.
            let oldest = self.sessions.iter().min_by_key(|(_, s)| s.until);
            if let Some((&oldest, _)) = oldest {
                self.sessions.remove(&oldest);
            }
        }
        let until = self.until();
        let joined = self.sessions.entry(session).or_insert_with(|| Session {
            of,
            streams: BTreeMap::new(),
            until,
        });
        if joined.of != of || joined.streams.insert(index, stream).is_some() {
            self.sessions.remove(&session);
            return Err(setup(format!("session {session} joins twice")));
        }
        if joined.streams.len() < of as usize {
            return Ok(None);
        }
        let complete = self.sessions.remove(&session);
        Ok(complete.map(|session| session.streams.into_values().collect()))
    }
}

impl Stranger {
    /// Reads what is there of the first message, and nothing beyond it; the message once all of it
    /// is here.
    fn read(&mut self) -> Result<Option<Message>, TransportError> {
        loop {
            let (head, needed) = match self.said.first_chunk::<HEADER_BYTES>() {
                None => (None, HEADER_BYTES),
                Some(header) => {
                    let head = FrameHead::parse(header)?;
                    if head.body_bytes > FIRST_BODY_BYTES || head.payload_bytes > 0 {
                        let problem = "the first message is not a join".to_owned();
                        return Err(TransportError::Setup { problem });
                    }
                    (Some(head), HEADER_BYTES + head.body_bytes)
                }
            };
            if let Some(head) = head
                && self.said.len() == needed
            {
                return Ok(Some(head.message(&self.said[HEADER_BYTES..])?));
            }
            let mut piece = [0; HEADER_BYTES + FIRST_BODY_BYTES];
            match self.stream.read(&mut piece[..needed - self.said.len()]) {
                Ok(0) => return Err(TransportError::Closed),
                Ok(n) => self.said.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if wire::is_gone(&e) => return Err(TransportError::Closed),
                Err(e) => return Err(TransportError::io("reading a first message", e)),
            }
        }
    }
}

/// Waits until there is a connection to accept; false when the time is over.
pub(super) fn readable(listener: &impl AsFd, timeout: Nanos) -> std::io::Result<bool> {
    wait_for(&mut [PollFd::new(listener, PollFlags::IN)], timeout)
}

/// Waits for one of `fds`; false when the time is over. A signal starts the wait again.
fn wait_for(fds: &mut [PollFd<'_>], timeout: Nanos) -> std::io::Result<bool> {
    let limit = Timespec {
        tv_sec: (timeout.0 / 1_000_000_000) as i64,
        tv_nsec: (timeout.0 % 1_000_000_000) as i64,
    };
    loop {
        match poll(fds, Some(&limit)) {
            Ok(n) => return Ok(n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
