//! The process that has Mooncake's transfer engine.
//!
//! Mooncake's wheel has a Python module and no C interface, so a Python process beside this one has
//! the engine, for all connections (`mooncake.py` has the protocol). It ends with its owner,
//! however that ends: its standard input closes. When it ends by itself, the connections through it
//! are over, and the next one starts another.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::TransportError;
use super::wire::is_gone;

const SCRIPT: &str = include_str!("mooncake.py");
/// What makes it run.
const INSTALL: &str = "install Mooncake's transfer engine for that Python, 3.9 or newer, with \
     `pip install --no-deps mooncake-transfer-engine-non-cuda`, and the libraries that it uses \
     (Debian: libibverbs1, librdmacm1, libnuma1)";
/// Longest first line that is read.
const MAX_LINE_BYTES: u64 = 4096;
/// How long Python and the engine may take to start.
const START: Duration = Duration::from_secs(60);

/// Mooncake's transfer engine, in a process of its own for all connections of this one.
#[derive(Clone, Debug)]
pub struct MooncakeEngine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    python: PathBuf,
    host: Ipv4Addr,
    process: Mutex<Option<Process>>,
}

/// A running process.
#[derive(Debug)]
struct Process {
    child: Child,
    control: UnixStream,
    /// What peers call its engine.
    name: String,
}

impl MooncakeEngine {
    /// Starts the process with the interpreter `python`. Peers reach its engine at `host`; it
    /// listens on all addresses of the machine, as Mooncake does, on ports of its choice.
    ///
    /// # Errors
    /// There is no such Python or no Mooncake in it, with what to install; or it does not start.
    pub fn start(python: &Path, host: Ipv4Addr) -> Result<MooncakeEngine, TransportError> {
        let process = Process::start(python, host)?;
        Ok(MooncakeEngine(Arc::new(Inner {
            python: python.to_owned(),
            host,
            process: Mutex::new(Some(process)),
        })))
    }

    /// The number of its process; none when it could not be started again.
    pub fn process_id(&self) -> Option<u32> {
        let process = self.0.process.lock();
        let process = process.unwrap_or_else(PoisonError::into_inner);
        process.as_ref().map(|process| process.child.id())
    }

    /// A connection's part of the engine, with `file` of `bytes` bytes registered.
    pub(super) fn session(
        &self,
        file: &File,
        bytes: u64,
        patience: Duration,
    ) -> Result<Session, TransportError> {
        // A process is whole whatever happened to whoever held the lock.
        let process = self.0.process.lock();
        let mut process = process.unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = process.as_mut() {
            match running.session(file, bytes, patience) {
                Err(TransportError::Closed) => {}
                made => return made,
            }
        }
        // It has ended since it was last asked for anything.
        *process = None;
        let fresh = process.insert(Process::start(&self.0.python, self.0.host)?);
        fresh.session(file, bytes, patience)
    }
}

impl Process {
    fn start(python: &Path, host: Ipv4Addr) -> Result<Process, TransportError> {
        let failed = |e| TransportError::io("starting Mooncake's process", e);
        let missing = |problem: String| TransportError::Missing {
            library: python.to_owned(),
            problem,
            install: INSTALL,
        };
        let (control, theirs) = UnixStream::pair().map_err(failed)?;
        control.set_read_timeout(Some(START)).map_err(failed)?;
        let child = Command::new(python)
            .args(["-c", SCRIPT, &host.to_string()])
            .env("MC_LOG_LEVEL", "ERROR")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            // A Ctrl-C is for its owner, which may still have something to send.
            .process_group(0)
            .spawn()
            .map_err(|e| missing(e.to_string()))?;
        // From here on dropping it ends the process.
        let mut process = Process {
            child,
            control,
            name: String::new(),
        };
        let mut said = String::new();
        let reader = process.control.try_clone().map_err(failed)?;
        let read = BufReader::new(reader.take(MAX_LINE_BYTES)).read_line(&mut said);
        read.map_err(failed)?;
        match said.trim_end().split_once(' ') {
            Some(("ready", name)) => process.name = name.to_owned(),
            Some(("missing", problem)) => return Err(missing(problem.to_owned())),
            Some(("refused", status)) => {
                let problem = format!("Mooncake does not start: status {status}");
                return Err(TransportError::Setup { problem });
            }
            _ => return Err(missing("it ended at once, and says why above".to_owned())),
        }
        Ok(process)
    }

    /// [`TransportError::Closed`] when the process has ended.
    fn session(
        &mut self,
        file: &File,
        bytes: u64,
        patience: Duration,
    ) -> Result<Session, TransportError> {
        let failed = |e: std::io::Error| match is_gone(&e) {
            true => TransportError::Closed,
            false => TransportError::io("asking Mooncake's process", e),
        };
        let (mine, theirs) = UnixStream::pair().map_err(failed)?;
        let fds = [theirs.as_fd(), file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let message = bytes.to_le_bytes();
        let parts = [IoSlice::new(&message)];
        let sent = sendmsg(&self.control, &parts, &mut control, SendFlags::NOSIGNAL);
        sent.map_err(|e| failed(e.into()))?;
        // The process has its own now; were this one open, its end would go unnoticed.
        drop(theirs);
        mine.set_read_timeout(Some(patience)).map_err(failed)?;
        let mut session = Session {
            socket: mine,
            name: self.name.clone(),
            address: 0,
            patience,
        };
        let mut said = [0; 8];
        session.read(&mut said)?;
        let status = i64::from_le_bytes(said);
        session.address = u64::try_from(status).map_err(|_| TransportError::Mooncake {
            doing: "registering memory",
            status: status as i32,
        })?;
        Ok(session)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has nothing to finish. One that has ended already is waited for all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection's part of the engine: one registered file and one peer.
pub(super) struct Session {
    socket: UnixStream,
    name: String,
    address: u64,
    patience: Duration,
}

impl Session {
    /// What peers call the engine.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Address of the file's first byte, for peers.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Names the peer that is read from.
    pub(super) fn meet(&mut self, peer: &[u8]) -> Result<(), TransportError> {
        let named = std::str::from_utf8(peer).is_ok_and(|peer| !peer.is_empty());
        let length = u16::try_from(peer.len()).ok().filter(|_| named);
        let length = length.ok_or_else(|| TransportError::Setup {
            problem: "its engine has no name".to_owned(),
        })?;
        self.write(&[&length.to_le_bytes(), peer].concat())
    }

    /// Reads `bytes` bytes at an address of the peer to the file from `to` on.
    pub(super) fn fetch(&mut self, from: u64, to: u64, bytes: u32) -> Result<(), TransportError> {
        let mut request = Vec::with_capacity(20);
        request.extend(from.to_le_bytes());
        request.extend(to.to_le_bytes());
        request.extend(bytes.to_le_bytes());
        self.write(&request)?;
        let mut said = [0; 4];
        self.read(&mut said)?;
        match i32::from_le_bytes(said) {
            0 => Ok(()),
            status => Err(TransportError::Mooncake {
                doing: "reading the peer's memory",
                status,
            }),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        let written = self.socket.write_all(bytes);
        written.map_err(|e| self.failed(e))
    }

    fn read(&mut self, out: &mut [u8]) -> Result<(), TransportError> {
        let read = self.socket.read_exact(out);
        read.map_err(|e| self.failed(e))
    }

    fn failed(&self, error: std::io::Error) -> TransportError {
        match error.kind() {
            ErrorKind::UnexpectedEof => TransportError::Closed,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let ms = self.patience.as_millis() as u64;
                TransportError::Stalled { ms }
            }
            _ if is_gone(&error) => TransportError::Closed,
            _ => TransportError::io("asking Mooncake's process", error),
        }
    }
}
