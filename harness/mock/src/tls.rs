//! TLS in front of the server.
//!
//! The bytes of a connection are decrypted here and passed to the server over a second, local
//! connection: what is written and when is decided in one place, whatever the transport. The log
//! tells when bytes were handed over to be encrypted, tens of microseconds before they leave.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::error::MockError;
use crate::options::Tls;

/// Reads certificate and key.
///
/// # Errors
/// A file that cannot be read or is none of its kind.
pub(crate) fn acceptor(files: &Tls) -> Result<TlsAcceptor, MockError> {
    let cert = |reason: String| MockError::Tls {
        option: "--tls-cert",
        path: files.cert.clone(),
        reason,
    };
    let key = |reason: String| MockError::Tls {
        option: "--tls-key",
        path: files.key.clone(),
        reason,
    };
    let chain = CertificateDer::pem_file_iter(&files.cert).map_err(|e| cert(e.to_string()))?;
    let chain = chain.collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| cert(error.to_string()))?;
    if chain.is_empty() {
        return Err(cert("no certificate in it".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| key(e.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| cert(error.to_string()))?;
    let mut config = config
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| key(format!("does not fit the certificate: {error}")))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts encrypted connections and passes them to the server at `inner` until the stop.
pub(crate) async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    inner: SocketAddr,
    mut stop: watch::Receiver<bool>,
) {
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    let acceptor = acceptor.clone();
                    tokio::spawn(async move {
                        // Errors of a connection are the client's to see.
                        let _ = relay(socket, acceptor, inner).await;
                    });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

async fn relay(socket: TcpStream, acceptor: TlsAcceptor, inner: SocketAddr) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut outside = acceptor.accept(socket).await?;
    let mut inside = TcpStream::connect(inner).await?;
    inside.set_nodelay(true)?;
    tokio::io::copy_bidirectional(&mut outside, &mut inside).await?;
    Ok(())
}

/// Where the server listens for what was decrypted.
pub(crate) fn inner_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}
