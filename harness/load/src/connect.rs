//! From an address to an open byte stream, each part timed by itself.
//!
//! The name is resolved once, before the run: a resolver's delay is no part of any latency, and a
//! name that does not resolve is known before the first request. TLS is verified always.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use pb_contract::{Clock, FailKind, Nanos, WallClock};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::endpoint::{Endpoint, HttpVersion};
use crate::lag::{ReadLag, ReadLags};
use crate::stamps::Stamped;

/// A connection that could not be made.
#[derive(Debug)]
pub(crate) struct ConnectFailure {
    pub(crate) kind: FailKind,
    pub(crate) message: String,
}

impl ConnectFailure {
    pub(crate) fn new(kind: FailKind, message: impl std::fmt::Display) -> Self {
        ConnectFailure {
            kind,
            message: message.to_string(),
        }
    }
}

/// How long the connections of a run took to make; absent parts were not needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectTimes {
    /// Connections made.
    pub count: u64,
    /// Of these, made because a request found none free: its latency has the time in it.
    pub during_requests: u64,
    /// Resolving the name, once.
    pub dns_ns: Nanos,
    /// TCP handshakes, summed.
    pub tcp_sum_ns: Nanos,
    /// The longest TCP handshake.
    pub tcp_max_ns: Nanos,
    /// TLS handshakes, summed.
    pub tls_sum_ns: Nanos,
    /// The longest TLS handshake.
    pub tls_max_ns: Nanos,
}

/// An open byte stream to the server.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(Stamped),
    Tls(Box<TlsStream<Stamped>>),
}

/// Makes byte streams to one endpoint.
pub(crate) struct Connector {
    endpoint: Endpoint,
    addresses: Vec<SocketAddr>,
    /// The address that answered last: the first to try.
    preferred: AtomicUsize,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    times: Mutex<ConnectTimes>,
    lags: Arc<ReadLags>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector")
            .field("endpoint", &self.endpoint)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl Connector {
    /// Resolves the endpoint's name and reads its roots.
    pub(crate) async fn new(endpoint: &Endpoint) -> Result<Connector, ConnectFailure> {
        let start = WallClock.now();
        let unresolved = |why: &dyn std::fmt::Display| {
            let message = format!("{}: the name does not resolve: {why}", endpoint.authority());
            ConnectFailure::new(DNS, message)
        };
        let found = tokio::net::lookup_host(endpoint.address()).await;
        let addresses: Vec<SocketAddr> = found.map_err(|error| unresolved(&error))?.collect();
        if addresses.is_empty() {
            return Err(unresolved(&"no address"));
        }
        let dns_ns = WallClock.now() - start;
        let tls = endpoint.is_secure().then(|| tls_of(endpoint)).transpose()?;
        Ok(Connector {
            endpoint: endpoint.clone(),
            addresses,
            preferred: AtomicUsize::new(0),
            tls,
            times: Mutex::new(ConnectTimes {
                dns_ns,
                ..ConnectTimes::default()
            }),
            lags: Arc::default(),
        })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn addresses(&self) -> usize {
        self.addresses.len()
    }

    pub(crate) fn times(&self) -> ConnectTimes {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How late the connections were read.
    pub(crate) fn read_lag(&self) -> ReadLag {
        self.lags.summary()
    }

    /// Counts a connection that a request had to wait for.
    pub(crate) fn during_request(&self) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.during_requests += 1;
    }

    /// Opens a byte stream, without Nagle's delay.
    pub(crate) async fn open(&self) -> Result<Socket, ConnectFailure> {
        let start = WallClock.now();
        let socket = self.tcp().await?;
        socket.set_nodelay(true).map_err(|e| self.refused(&e))?;
        let connected = WallClock.now();
        let stamped = Stamped::new(socket, Arc::clone(&self.lags));
        let socket = match &self.tls {
            None => Socket::Plain(stamped),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stamped).await;
                let stream = stream.map_err(|error| self.tls_failed(&error))?;
                self.check_protocol(&stream)?;
                Socket::Tls(Box::new(stream))
            }
        };
        self.count(connected - start, WallClock.now() - connected);
        Ok(socket)
    }

    /// Connects to the first address that answers.
    async fn tcp(&self) -> Result<TcpStream, ConnectFailure> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failure = None;
        for step in 0..self.addresses.len() {
            let index = (first + step) % self.addresses.len();
            match TcpStream::connect(self.addresses[index]).await {
                Ok(socket) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(socket);
                }
                Err(error) => failure = Some(self.refused(&error)),
            }
        }
        // OK because `new` refuses an empty list, so the loop ran.
        Err(failure.expect("an endpoint has an address"))
    }

    fn count(&self, tcp: Nanos, tls: Nanos) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.count += 1;
        times.tcp_sum_ns += tcp;
        times.tcp_max_ns = times.tcp_max_ns.max(tcp);
        if self.tls.is_some() {
            times.tls_sum_ns += tls;
            times.tls_max_ns = times.tls_max_ns.max(tls);
        }
    }

    /// A failure of this machine is not blamed on the server.
    fn refused(&self, error: &io::Error) -> ConnectFailure {
        use rustix::io::Errno;
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        let (kind, hint) = match errno {
            Some(Errno::ADDRNOTAVAIL) => (
                FailKind::ClientPortExhausted,
                "; this machine has no local port left",
            ),
            Some(Errno::MFILE | Errno::NFILE) => (
                FailKind::ClientPortExhausted,
                "; this machine has no file descriptor left: raise `ulimit -n`",
            ),
            _ => (FailKind::Connect, ""),
        };
        let message = format!("{}: {error}{hint}", self.endpoint.authority());
        ConnectFailure::new(kind, message)
    }

    fn tls_failed(&self, error: &io::Error) -> ConnectFailure {
        let message = format!("{}: TLS: {error}", self.endpoint.authority());
        ConnectFailure::new(TLS, message)
    }

    /// The server must have agreed to the protocol that was asked for; one that does not take
    /// part in the agreement speaks HTTP/1.1.
    fn check_protocol(&self, stream: &TlsStream<Stamped>) -> Result<(), ConnectFailure> {
        let agreed = stream.get_ref().1.alpn_protocol();
        let wanted = protocol(self.endpoint.http_version());
        let silent_http1 = agreed.is_none() && wanted == HTTP1;
        if agreed == Some(wanted) || silent_http1 {
            return Ok(());
        }
        let message = format!(
            "{}: the server does not offer {} over TLS",
            self.endpoint.authority(),
            self.endpoint.http_version(),
        );
        Err(ConnectFailure::new(TLS, message))
    }
}

const HTTP1: &[u8] = b"http/1.1";

/// The name of a version in the TLS handshake.
fn protocol(version: HttpVersion) -> &'static [u8] {
    match version {
        HttpVersion::Http1 => HTTP1,
        HttpVersion::Http2 => b"h2",
    }
}

/// The verifying side of TLS: Mozilla's roots and those of the endpoint's own file.
fn tls_of(endpoint: &Endpoint) -> Result<(TlsConnector, ServerName<'static>), ConnectFailure> {
    let failed = |message: String| ConnectFailure::new(TLS, message);
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(path) = endpoint.root_file() {
        add_roots(&mut roots, path).map_err(failed)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(format!("TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol(endpoint.http_version()).to_vec()];
    let (host, _) = endpoint.address();
    let name = ServerName::try_from(host.to_owned()).map_err(|error| {
        failed(format!(
            "{host}: not a name that a certificate has: {error}"
        ))
    })?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

fn add_roots(roots: &mut RootCertStore, path: &Path) -> Result<(), String> {
    let unusable = |error: &dyn std::fmt::Display| {
        format!(
            "root certificates {}: {error}: give a PEM file",
            path.display()
        )
    };
    let found = CertificateDer::pem_file_iter(path).map_err(|error| unusable(&error))?;
    let mut count = 0;
    for certificate in found {
        let certificate = certificate.map_err(|error| unusable(&error))?;
        roots.add(certificate).map_err(|error| unusable(&error))?;
        count += 1;
    }
    if count == 0 {
        return Err(unusable(&"no certificate in it"));
    }
    Ok(())
}

/// Kind of a name that does not resolve.
const DNS: FailKind = FailKind::Dns;
/// Kind of a TLS handshake that fails.
const TLS: FailKind = FailKind::Tls;

impl Socket {
    /// The stamps of the bytes below any encryption.
    pub(crate) fn stamps(&self) -> Arc<crate::stamps::Stamps> {
        match self {
            Socket::Plain(stream) => stream.stamps(),
            Socket::Tls(stream) => stream.get_ref().0.stamps(),
        }
    }

    /// Whether the peer of an idle connection has said nothing and not hung up.
    pub(crate) fn is_quiet(&mut self) -> bool {
        match self {
            Socket::Plain(stream) => stream.is_quiet(),
            // What waits may be a record of TLS itself, which says nothing to us.
            Socket::Tls(stream) => {
                let (mut byte, mut cx) = ([0], Context::from_waker(Waker::noop()));
                let read = Pin::new(stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte));
                read.is_pending()
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Socket::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Socket::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Socket::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Socket::Plain(stream) => stream.is_write_vectored(),
            Socket::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn connector(url: &str) -> Result<Connector, ConnectFailure> {
        Connector::new(&Endpoint::parse(url).unwrap()).await
    }

    #[tokio::test]
    async fn row_51_a_shortage_of_this_machine_is_not_blamed_on_the_server() {
        use rustix::io::Errno;
        let connector = connector("http://127.0.0.1:9").await.unwrap();
        for (errno, kind, part) in [
            (
                Errno::ADDRNOTAVAIL,
                FailKind::ClientPortExhausted,
                "local port",
            ),
            (
                Errno::MFILE,
                FailKind::ClientPortExhausted,
                "file descriptor",
            ),
            (
                Errno::NFILE,
                FailKind::ClientPortExhausted,
                "file descriptor",
            ),
            (Errno::CONNREFUSED, FailKind::Connect, "refused"),
        ] {
            let failure = connector.refused(&io::Error::from(errno));
            assert_eq!(failure.kind, kind);
            assert!(failure.message.contains(part), "{}", failure.message);
        }
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_is_known_before_the_run() {
        let failure = connector("http://no-such-host.invalid:1")
            .await
            .unwrap_err();
        assert_eq!(failure.kind, DNS);
        assert!(
            failure.message.contains("no-such-host.invalid:1"),
            "{}",
            failure.message
        );
        assert!(
            failure.message.contains("does not resolve"),
            "{}",
            failure.message
        );
    }

    #[tokio::test]
    async fn a_root_file_that_is_none_is_named() {
        let endpoint = Endpoint::parse("https://127.0.0.1:1").unwrap();
        for path in ["/no/such/file.pem", "/dev/null"] {
            let failure = Connector::new(&endpoint.clone().with_root_file(path)).await;
            let failure = failure.unwrap_err();
            assert_eq!(failure.kind, TLS);
            assert!(failure.message.contains(path), "{}", failure.message);
        }
    }
}
