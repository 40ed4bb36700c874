//! Tokenizing and its kin, off the threads that serve connections.
//!
//! A long text takes a while and other streams must not wait for it. A tokenizer also takes
//! hundreds of bytes of memory for each byte of text, so only so much text is worked on at a
//! time; the rest waits its turn.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Text worked on at one time. A longer one is worked on alone.
const AT_ONCE_BYTES: u32 = 1 << 20;
/// The least that a piece of work counts, so that small ones do not come in thousands.
const WORK_BYTES_MIN: u32 = 16 << 10;

/// Work on texts that takes turns by length.
#[derive(Debug)]
pub(crate) struct TextWork {
    turns: Arc<Semaphore>,
}

impl TextWork {
    pub(crate) fn new() -> Self {
        TextWork {
            turns: Arc::new(Semaphore::new(AT_ONCE_BYTES as usize)),
        }
    }

    /// Runs `work` on a text of `bytes` bytes. Work that has begun goes on when the caller is
    /// gone, and counts until it ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let bytes = bytes.clamp(WORK_BYTES_MIN, AT_ONCE_BYTES);
        let turn = Arc::clone(&self.turns).acquire_many_owned(bytes).await;
        let failed = |error: String| ApiError::internal(format!("tokenizing failed: {error}"));
        let turn = turn.map_err(|error| failed(error.to_string()))?;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(turn);
            result
        });
        done.await
            .unwrap_or_else(|error| Err(failed(error.to_string())))
    }
}
