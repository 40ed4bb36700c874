//! The meeting point of the engine thread and one HTTP response.
//!
//! The engine thread never waits for a client. What a client has not read yet is merged: the
//! tokens of a choice that pile up become one piece, and so one event, when the client reads
//! again. The memory is bounded by `max_tokens` of the request, not by the client's patience.
//! When the response is dropped, finished or not, its [`Reader`] goes with it and aborts what
//! still runs: that is how a disconnect frees blocks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pb_contract::{FinishReason, RequestId, TokenId, TokenLogprobs};
use tokio::sync::Notify;

use crate::engine::EngineHandle;
use crate::kv::KvTransferParams;
use crate::waits::LockWaits;

/// What happened to one choice since it was last read.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    /// Prompt tokens taken from the prefix cache; set once.
    pub(crate) cached_tokens: Option<u32>,
    /// Log-probabilities of prompt positions 1 and up, in order.
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
    /// New text.
    pub(crate) text: String,
    /// New tokens.
    pub(crate) tokens: Vec<TokenId>,
    /// One entry a new token when asked for.
    pub(crate) logprobs: Vec<TokenLogprobs>,
    /// How the choice ended; set once.
    pub(crate) finish: Option<Finish>,
    /// Where another engine finds the choice's KV; comes with the end.
    pub(crate) transfer: Option<KvTransferParams>,
}

impl Piece {
    /// Appends what came later.
    pub(crate) fn merge(&mut self, later: Piece) {
        self.cached_tokens = self.cached_tokens.or(later.cached_tokens);
        self.prompt_logprobs.extend(later.prompt_logprobs);
        self.text.push_str(&later.text);
        self.tokens.extend(later.tokens);
        self.logprobs.extend(later.logprobs);
        self.finish = self.finish.take().or(later.finish);
        self.transfer = self.transfer.take().or(later.transfer);
    }
}

/// How a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finish {
    /// Why.
    pub(crate) reason: FinishReason,
    /// What stopped it, when that was not an end-of-sequence token.
    pub(crate) cause: Option<StopCause>,
}

/// What stopped a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A token of `stop_token_ids`.
    Token(TokenId),
    /// A stop string.
    Text(String),
}

/// Why a request gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The core refused it.
    Refused(String),
    /// Too many requests in flight.
    Overloaded,
    /// The engine failed or is gone.
    Engine(String),
    /// The KV that another engine has computed did not come.
    Transfer(String),
}

struct State {
    pieces: Vec<Piece>,
    unfinished: usize,
    failure: Option<Failure>,
}

/// What both halves share.
struct Inner {
    state: Mutex<State>,
    wake: Notify,
    streaming: bool,
}

/// The writing half, in the hands of the engine thread. When its last owner drops it with choices
/// still open, the reader gets a failure rather than waiting for ever.
pub(crate) struct Collector {
    inner: Arc<Inner>,
}

impl Collector {
    /// For `choices` choices; when not `streaming` the reader is woken only at the very end.
    pub(crate) fn new(choices: usize, streaming: bool) -> Self {
        let pieces = (0..choices).map(|_| Piece::default()).collect();
        let state = State {
            pieces,
            unfinished: choices,
            failure: None,
        };
        let inner = Inner {
            state: Mutex::new(state),
            wake: Notify::new(),
            streaming,
        };
        Collector {
            inner: Arc::new(inner),
        }
    }

    /// Adds the news of a choice, all at once: a token and the end that it brings are never
    /// seen apart. Must not be called for a choice after its end. For the engine thread, whose
    /// waits are counted.
    pub(crate) fn add(&self, choice: usize, news: Piece, waits: &LockWaits) {
        let ends = news.finish.is_some();
        let shows = ends || !news.tokens.is_empty();
        let mut state = waits.lock(&self.inner.state);
        state.pieces[choice].merge(news);
        state.unfinished -= usize::from(ends);
        let done = state.unfinished == 0;
        drop(state);
        if done || (self.inner.streaming && shows) {
            self.inner.wake.notify_one();
        }
    }

    /// Ends the whole request with a failure.
    pub(crate) fn fail(&self, failure: Failure) {
        self.inner.lock().failure.get_or_insert(failure);
        self.inner.wake.notify_one();
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let open = self.inner.lock().unfinished > 0;
        if open {
            self.fail(Failure::Engine("the engine dropped the request".to_owned()));
        }
    }
}

impl Inner {
    /// What can be read now: pieces by choice first, then the failure.
    fn take(&self) -> Option<Result<Vec<(usize, Piece)>, Failure>> {
        let mut state = self.lock();
        let whole = state.unfinished == 0;
        let mut taken = Vec::new();
        if self.streaming || whole {
            for (choice, piece) in state.pieces.iter_mut().enumerate() {
                if !piece.tokens.is_empty() || piece.finish.is_some() {
                    taken.push((choice, std::mem::take(piece)));
                }
            }
        }
        if !taken.is_empty() {
            return Some(Ok(taken));
        }
        state.failure.clone().map(Err)
    }

    /// A poisoned lock only means that another thread panicked; the pieces are still whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reading half. Dropping it aborts the choices that have not ended.
pub(crate) struct Reader {
    inner: Arc<Inner>,
    engine: EngineHandle,
    /// Choices whose end has not been read.
    open: Vec<Option<RequestId>>,
}

impl Reader {
    pub(crate) fn new(
        collector: &Collector,
        engine: EngineHandle,
        ids: impl Iterator<Item = RequestId>,
    ) -> Self {
        Reader {
            inner: Arc::clone(&collector.inner),
            engine,
            open: ids.map(Some).collect(),
        }
    }

    /// Waits for news of any choice. After the last choice has ended, do not call again.
    pub(crate) async fn next(&mut self) -> Result<Vec<(usize, Piece)>, Failure> {
        loop {
            if let Some(news) = self.inner.take() {
                for (choice, piece) in news.iter().flatten() {
                    if piece.finish.is_some() {
                        self.open[*choice] = None;
                    }
                }
                return news;
            }
            // A wake-up between the look and the wait is stored, so it is not lost.
            self.inner.wake.notified().await;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let open: Vec<RequestId> = self.open.iter().flatten().copied().collect();
        if !open.is_empty() {
            self.engine.abort(open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits() -> LockWaits {
        LockWaits::new(Arc::new(pb_contract::WallClock))
    }

    fn token(collector: &Collector, choice: usize, token: TokenId, text: &str) {
        let (tokens, text) = (vec![token], text.to_owned());
        collector.add(
            choice,
            Piece {
                tokens,
                text,
                ..Piece::default()
            },
            &waits(),
        );
    }

    fn end(collector: &Collector, choice: usize, rest: &str) {
        let (text, finish) = (rest.to_owned(), Some(LENGTH));
        collector.add(
            choice,
            Piece {
                text,
                finish,
                ..Piece::default()
            },
            &waits(),
        );
    }

    const LENGTH: Finish = Finish {
        reason: FinishReason::Length,
        cause: None,
    };

    #[test]
    fn unread_tokens_of_a_choice_merge_into_one_piece() {
        let collector = Collector::new(2, true);
        assert!(collector.inner.take().is_none());
        collector.add(
            0,
            Piece {
                cached_tokens: Some(16),
                ..Piece::default()
            },
            &waits(),
        );
        assert!(collector.inner.take().is_none(), "no event without a token");
        for (i, text) in ["a", "b", "c"].iter().enumerate() {
            token(&collector, 0, i as u32, text);
        }
        token(&collector, 1, 9, "z");
        let news = collector.inner.take().unwrap().unwrap();
        assert_eq!(news.len(), 2);
        assert_eq!(
            (news[0].1.text.as_str(), &news[0].1.tokens[..]),
            ("abc", &[0, 1, 2][..])
        );
        assert_eq!(news[0].1.cached_tokens, Some(16));
        assert_eq!((news[1].0, news[1].1.text.as_str()), (1, "z"));
        assert!(collector.inner.take().is_none());
    }

    #[test]
    fn a_whole_response_is_read_once_every_choice_has_ended() {
        let collector = Collector::new(2, false);
        token(&collector, 0, 1, "x");
        end(&collector, 0, "y");
        assert!(collector.inner.take().is_none());
        end(&collector, 1, "");
        let news = collector.inner.take().unwrap().unwrap();
        assert_eq!(
            (news[0].1.text.as_str(), news[0].1.finish.clone()),
            ("xy", Some(LENGTH))
        );
        assert_eq!(news.len(), 2);
    }

    #[test]
    fn what_came_before_a_failure_is_read_before_it() {
        let collector = Collector::new(1, true);
        token(&collector, 0, 1, "x");
        collector.fail(Failure::Engine("broken".to_owned()));
        collector.fail(Failure::Overloaded);
        assert_eq!(collector.inner.take().unwrap().unwrap()[0].1.text, "x");
        let failure = collector.inner.take().unwrap().unwrap_err();
        assert_eq!(
            failure,
            Failure::Engine("broken".to_owned()),
            "the first failure counts"
        );
    }

    #[test]
    fn a_collector_dropped_with_open_choices_fails_its_reader() {
        let collector = Collector::new(1, false);
        let inner = Arc::clone(&collector.inner);
        drop(collector);
        assert!(matches!(inner.take(), Some(Err(Failure::Engine(_)))));
    }
}
