//! Requests that keep a server busy while another one is checked.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pb_contract::TokenId;
use tokio::task::JoinSet;

use super::ask::Asker;

/// Output tokens of each; long enough to decode beside several checked requests.
const TOKENS: usize = 64;

/// What the tasks share.
#[derive(Default)]
struct Shared {
    in_flight: AtomicUsize,
    output_tokens: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// Requests in flight until it is dropped; each is followed by the next one.
pub(super) struct Background {
    tasks: JoinSet<()>,
    shared: Arc<Shared>,
}

impl Background {
    /// Keeps `count` requests in flight, with the prompts read backwards: text that no checked
    /// request has.
    pub(super) fn start(asker: &Asker, prompts: &[Vec<TokenId>], count: usize) -> Background {
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        for prompt in prompts.iter().cycle().take(count) {
            let prompt: Vec<TokenId> = prompt.iter().rev().copied().collect();
            let (asker, shared) = (asker.clone(), Arc::clone(&shared));
            tasks.spawn(async move {
                loop {
                    shared.in_flight.fetch_add(1, Ordering::Relaxed);
                    let served = asker.keep_busy(&prompt, TOKENS).await;
                    shared.in_flight.fetch_sub(1, Ordering::Relaxed);
                    match served {
                        Ok(tokens) => {
                            let tokens = u64::from(tokens);
                            shared.output_tokens.fetch_add(tokens, Ordering::Relaxed);
                        }
                        Err(error) => {
                            // Once is enough to know; a refused server is not asked for ever.
                            let failure = shared.failure.lock();
                            *failure.unwrap_or_else(PoisonError::into_inner) =
                                Some(format!("{error:#}"));
                            return;
                        }
                    }
                }
            });
        }
        Background { tasks, shared }
    }

    /// Requests whose answer is awaited now.
    pub(super) fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Ends them. Output tokens of those that had ended, and why one failed if one did.
    pub(super) async fn stop(mut self) -> (u64, Option<String>) {
        self.tasks.shutdown().await;
        let failure = self.shared.failure.lock();
        let failure = failure.unwrap_or_else(PoisonError::into_inner).clone();
        (self.shared.output_tokens.load(Ordering::Relaxed), failure)
    }
}
