//! What can go wrong before the server runs.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum MockError {
    /// The script is not valid.
    #[error("script: {0}")]
    Script(String),
    /// A recording is not valid.
    #[error("recording {name}: {reason}")]
    Recording {
        /// File or other name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// An option is out of range.
    #[error("{0}")]
    Option(String),
    /// The log cannot be written.
    #[error("log file {}: {source}; choose a file that can be written", path.display())]
    LogFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A certificate or key cannot be used.
    #[error("{option} {}: {reason}; give a PEM file", path.display())]
    Tls {
        /// `--tls-cert` or `--tls-key`.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}; choose another --port, or 0 for a free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The system refused something else.
    #[error("{what}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}
