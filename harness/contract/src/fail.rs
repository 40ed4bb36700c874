//! Why a request failed. A failure is a row of the results, never a log line or a zero.

use serde::{Deserialize, Serialize};

/// The kinds of failure; their counts and the successes sum to the requests offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailKind {
    /// The name does not resolve.
    Dns,
    /// The connection could not be made.
    Connect,
    /// The TLS handshake failed, or the server does not offer the protocol.
    Tls,
    /// This machine ran out of local ports or of file descriptors.
    ClientPortExhausted,
    /// No connection within the limit.
    TimeoutConnect,
    /// No event with generated content within the limit.
    TimeoutFirstToken,
    /// The stream was silent for longer than the limit.
    TimeoutIdle,
    /// The request as a whole took longer than the limit.
    TimeoutTotal,
    /// The server answered with a status other than 200.
    HttpStatus,
    /// An error object inside a stream whose status was 200.
    InBandError,
    /// Bytes that are not what the protocol says.
    Protocol,
    /// The stream ended without a finish reason and without `[DONE]`.
    Truncated,
    /// The stream ended properly but carried no token.
    NoTokens,
    /// The harness gave the request up (run ended).
    Cancelled,
    /// The request was due but never sent.
    NotOffered,
}
