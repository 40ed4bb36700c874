//! Reading request bodies, within bounds of size, time and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::StatusCode;
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::error::ApiError;
use super::options::RouterOptions;

/// The memory that bodies take together.
#[derive(Debug, Default)]
pub(crate) struct BodyMemory(AtomicUsize);

/// A body, and its share of the memory, given back when dropped.
#[derive(Debug)]
pub(crate) struct HeldBody {
    pub(crate) bytes: Bytes,
    _share: Share,
}

#[derive(Debug)]
struct Share {
    memory: Arc<BodyMemory>,
    bytes: usize,
}

impl Share {
    /// Takes more bytes; false, and nothing taken, when they are not there.
    fn grow(&mut self, bytes: usize, limit: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|&used| used <= limit);
        let used = &self.memory.0;
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if taken.is_ok() {
            self.bytes += bytes;
        }
        taken.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Reads a whole body.
pub(crate) async fn read(
    memory: &Arc<BodyMemory>,
    options: &RouterOptions,
    body: Body,
) -> Result<HeldBody, ApiError> {
    let limit = options.body_limit_bytes;
    let mut share = Share {
        memory: Arc::clone(memory),
        bytes: 0,
    };
    let reading = async {
        let (mut body, mut bytes) = (body, Vec::new());
        let mut refused = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                ApiError::bad_request(format!("The request body could not be read: {error}"))
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            // A refused body is read on and not kept, for as long as a body may take, so that the
            // answer is not lost with the connection.
            if refused.is_some() {
                continue;
            }
            if data.len() > limit - bytes.len() {
                let message =
                    format!("The request body is larger than the limit of {limit} bytes.");
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                refused = Some(ApiError::new(status, "RequestEntityTooLarge", message));
            } else if !share.grow(data.len(), options.held_bodies_bytes.max(limit)) {
                refused = Some(ApiError::unavailable(
                    "The request bodies in flight take too much memory; try again later.",
                ));
            } else {
                bytes.extend_from_slice(&data);
            }
        }
        refused.map_or(Ok(bytes), Err)
    };
    let bytes = match timeout(options.body_timeout_ns.to_duration(), reading).await {
        Ok(bytes) => bytes?,
        Err(_) => {
            let message = "The request body took too long to arrive.";
            let status = StatusCode::REQUEST_TIMEOUT;
            return Err(ApiError::new(status, "RequestTimeoutError", message));
        }
    };
    Ok(HeldBody {
        bytes: Bytes::from(bytes),
        _share: share,
    })
}
