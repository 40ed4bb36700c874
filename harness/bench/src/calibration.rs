//! The client's own error, found against a server whose times are known.

use serde::{Deserialize, Serialize};

use crate::distribution::Spread;

/// What a short run against the scripted server on this machine showed of the client. A run that
/// could not be calibrated has a `problem` and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calibration {
    /// Class of the load that was rehearsed: `burst`, `open`, `closed` or `mixed`.
    pub load: Option<String>,
    /// How the rehearsed load was smaller than that of the run; null when it was not.
    pub bounded: Option<String>,
    /// Requests of the calibration.
    pub requests: u64,
    /// Of these, requests that were found in the server's log.
    pub compared: u64,
    /// Streams at once, at most.
    pub streams: u64,
    /// Requests per second; absent when all were due at once.
    pub rate_rps: Option<f64>,
    /// Tokens that were compared.
    pub tokens: u64,
    /// First token: the client's stamp minus the server's write, both of one clock.
    pub ttft_error_ms: Option<Spread>,
    /// Every event with tokens: the client's stamp minus the server's write.
    pub read_error_ms: Option<Spread>,
    /// Standard deviation of the difference between gaps as read and as written, with its sign.
    pub itl_error_sd_ms: Option<f64>,
    /// Token gaps: the size of the difference between what was read and what was written.
    pub itl_error_ms: Option<Spread>,
    /// The client's delay in sending.
    pub driver_lag_ms: Option<Spread>,
    /// How late the scripted server itself was; not the client's fault.
    pub server_late_ms: Option<Spread>,
    /// Processor time of the client over the time of the calibration; 1 is one whole core.
    pub cpu_share: Option<f64>,
    /// Why there is no calibration, or what is wrong with it.
    pub problem: Option<String>,
}
