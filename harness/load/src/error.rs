//! Why a run cannot be made. (Why one request failed is a row, not an error.)

use pb_contract::FailKind;

use crate::connect::ConnectFailure;
use crate::driver::PlanError;
use crate::endpoint::Endpoint;

/// A run or a control request that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// An address that is none.
    #[error("base URL {url:?}: {reason}")]
    Url {
        /// The address as given.
        url: String,
        /// What is wrong with it and what to write.
        reason: String,
    },
    /// A header that HTTP does not allow.
    #[error("header {name:?}: {reason}")]
    Header {
        /// Its name as given.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A key that no header can carry.
    #[error("API key: {reason}")]
    Key {
        /// What is wrong with it, without the key.
        reason: String,
    },
    /// A route that no request can have.
    #[error("route {route:?}: {reason}")]
    Route {
        /// The route as given.
        route: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The system allows fewer open files than the run needs connections.
    #[error(
        "the run needs {needed} file descriptors and may have {limit}: raise the limit \
         (`ulimit -n`) or use fewer connections"
    )]
    Descriptors {
        /// Connections, open files and some spare ones.
        needed: u64,
        /// The limit, already raised as far as it goes.
        limit: u64,
    },
    /// The system has fewer local ports than the run needs connections.
    #[error(
        "client_port_exhausted: the run needs {needed} local ports and this machine has \
         {available} for the target: widen net.ipv4.ip_local_port_range, give the target more \
         addresses, or use fewer connections"
    )]
    Ports {
        /// Connections.
        needed: u64,
        /// Ports of the range for each address of the target, summed.
        available: u64,
    },
    /// The target does not answer.
    #[error("cannot connect: {reason}")]
    Connect {
        /// Which part of connecting failed.
        kind: FailKind,
        /// Host and port.
        address: String,
        /// The system's words.
        reason: String,
    },
    /// The plan contradicts itself.
    #[error("the plan cannot be executed: {0}")]
    Plan(#[from] PlanError),
    /// A control request was answered with an error.
    #[error("{request}: HTTP {status}: {message}")]
    Status {
        /// Method and path.
        request: String,
        /// HTTP status.
        status: u16,
        /// Message of the body.
        message: String,
    },
    /// A control request could not be made or its answer is not what it should be.
    #[error("{request}: {reason}")]
    Control {
        /// Method and path.
        request: String,
        /// What happened.
        reason: String,
    },
    /// The server has no such route.
    #[error("{request}: the server does not have this route")]
    Unsupported {
        /// Method and path.
        request: String,
    },
    /// A condition did not come about in time.
    #[error("{what} did not happen within {seconds} s: {last}")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// The limit.
        seconds: f64,
        /// What was seen last.
        last: String,
    },
    /// The operating system refused something that the shell needs.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

impl LoadError {
    /// A connection that could not be made before a run.
    pub(crate) fn connect(endpoint: &Endpoint, failure: ConnectFailure) -> LoadError {
        LoadError::Connect {
            kind: failure.kind,
            address: endpoint.authority(),
            reason: endpoint.secrets().hide(&failure.message).into_owned(),
        }
    }
}
