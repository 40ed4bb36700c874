//! How the two ends find each other.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use pb_contract::Clock;

use crate::transport::{
    Arrival, LocalTransport, MooncakeListener, MooncakeOptions, MooncakeTransport, NixlListener,
    NixlOptions, NixlTransport, ShmListener, ShmOptions, ShmTransport, TcpOptions, TcpTransport,
    TcpTransportListener, Transport, TransportError,
};

/// Where KV is held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remote {
    /// Host name or address; the path of a socket for shared memory; anything within a process.
    pub host: String,
    /// Port; 0 where there is none.
    pub port: u16,
}

impl Remote {
    fn at(address: SocketAddr) -> Remote {
        Remote {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

/// Where an exporter waits for those who claim.
pub enum KvListener {
    /// TCP.
    Tcp(TcpTransportListener),
    /// A socket in the file system, which is removed at the end.
    Shm(ShmListener, PathBuf),
    /// NIXL, with messages over TCP.
    Nixl(NixlListener),
    /// Mooncake, with messages over TCP.
    Mooncake(MooncakeListener),
    /// Engines of one process.
    Local(Receiver<LocalTransport>),
}

impl KvListener {
    /// Listens on TCP; port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn tcp(
        at: SocketAddr,
        stall: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<(KvListener, Remote), TransportError> {
        let listener = TcpTransportListener::bind(at, stall, clock)?;
        let remote = Remote::at(listener.address()?);
        Ok((KvListener::Tcp(listener), remote))
    }

    /// Listens on TCP for peers with NIXL; port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn nixl(
        at: SocketAddr,
        options: NixlOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<(KvListener, Remote), TransportError> {
        let listener = NixlListener::bind(at, options, clock)?;
        let remote = Remote::at(listener.address()?);
        Ok((KvListener::Nixl(listener), remote))
    }

    /// Listens on TCP for peers with Mooncake; port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn mooncake(
        at: SocketAddr,
        options: MooncakeOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<(KvListener, Remote), TransportError> {
        let listener = MooncakeListener::bind(at, options, clock)?;
        let remote = Remote::at(listener.address()?);
        Ok((KvListener::Mooncake(listener), remote))
    }

    /// Listens at a path, which must not exist.
    ///
    /// # Errors
    /// The path cannot be had.
    pub fn shm(
        at: &Path,
        options: ShmOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<(KvListener, Remote), TransportError> {
        let listener = ShmListener::bind(at, options, clock)?;
        let remote = Remote {
            host: at.display().to_string(),
            port: 0,
        };
        Ok((KvListener::Shm(listener, at.to_owned()), remote))
    }

    /// Whoever connects next; none when there is nobody within `timeout`.
    pub(super) fn accept(&mut self, timeout: Duration) -> Result<Option<Arrival>, TransportError> {
        match self {
            KvListener::Tcp(listener) => Ok(listener.accept(timeout)?.map(Arrival::of)),
            KvListener::Shm(listener, _) => listener.arrival(timeout),
            KvListener::Nixl(listener) => listener.arrival(timeout),
            KvListener::Mooncake(listener) => listener.arrival(timeout),
            KvListener::Local(peers) => match peers.recv_timeout(timeout) {
                Ok(peer) => Ok(Some(Arrival::of(peer))),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(RecvTimeoutError::Disconnected) => Err(TransportError::Closed),
            },
        }
    }
}

impl Drop for KvListener {
    fn drop(&mut self) {
        if let KvListener::Shm(_, path) = self {
            // Somebody may have tidied up before.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// How an importer reaches an exporter.
#[derive(Clone)]
pub enum Dial {
    /// Over TCP.
    Tcp {
        /// Connections and their patience.
        options: TcpOptions,
        /// Go to loopback addresses only: a request says where to connect to, and whoever sends
        /// requests must not choose hosts of a network for this process to talk to.
        loopback_only: bool,
    },
    /// Over TCP, cells by NIXL.
    Nixl {
        /// The library and its slots.
        options: NixlOptions,
        /// As of `Tcp`.
        loopback_only: bool,
    },
    /// Over TCP, cells by Mooncake.
    Mooncake {
        /// The engine and its slots.
        options: MooncakeOptions,
        /// As of `Tcp`.
        loopback_only: bool,
    },
    /// Through shared memory.
    Shm(ShmOptions),
    /// To the one exporter of this process that has the other end.
    Local(Sender<LocalTransport>),
}

impl Dial {
    /// Connects. `session` must differ from that of any other connection there at the time.
    pub(super) fn connect(
        &self,
        to: &Remote,
        session: u64,
        clock: Arc<dyn Clock>,
    ) -> Result<Box<dyn Transport>, TransportError> {
        match self {
            Dial::Tcp {
                options,
                loopback_only,
            } => {
                let address = resolve(to, *loopback_only)?;
                let transport = TcpTransport::connect(address, session, *options, clock)?;
                Ok(Box::new(transport))
            }
            Dial::Nixl {
                options,
                loopback_only,
            } => {
                let address = resolve(to, *loopback_only)?;
                let transport = NixlTransport::connect(address, options, clock)?;
                Ok(Box::new(transport))
            }
            Dial::Mooncake {
                options,
                loopback_only,
            } => {
                let address = resolve(to, *loopback_only)?;
                let transport = MooncakeTransport::connect(address, options, clock)?;
                Ok(Box::new(transport))
            }
            Dial::Shm(options) => {
                let transport = ShmTransport::connect(Path::new(&to.host), *options, clock)?;
                Ok(Box::new(transport))
            }
            Dial::Local(peers) => {
                let (mine, theirs) = LocalTransport::pair(clock);
                peers.send(theirs).map_err(|_| TransportError::Closed)?;
                Ok(Box::new(mine))
            }
        }
    }
}

fn resolve(to: &Remote, loopback_only: bool) -> Result<SocketAddr, TransportError> {
    let Remote { host, port } = to;
    let mut found = (host.as_str(), *port)
        .to_socket_addrs()
        .map_err(|e| TransportError::io(format!("looking up {host}"), e))?;
    let address = found.next().ok_or_else(|| TransportError::Setup {
        problem: format!("{host} has no address"),
    })?;
    if loopback_only && !address.ip().is_loopback() {
        let problem = format!(
            "{} is not a loopback address, and this engine listens on one only",
            address.ip()
        );
        return Err(TransportError::Setup { problem });
    }
    Ok(address)
}
