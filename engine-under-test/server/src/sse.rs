//! Server-sent events.
//!
//! The body is pulled: the next chunk is made when the connection can take it, so a slow client
//! costs no memory here; its tokens wait, merged, in the collector. Dropping the body (the client
//! has gone) drops the generation and with it the work.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use pb_contract::wire::Usage;
use serde::Serialize;

use crate::collector::Piece;
use crate::error::ApiError;
use crate::generation::Generation;

/// Bytes of one or more events.
#[derive(Default)]
pub(crate) struct Events(Vec<u8>);

impl Events {
    /// Adds one event.
    pub(crate) fn push(&mut self, event: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        // OK because a Vec takes every write and the wire types have string keys only.
        serde_json::to_writer(&mut self.0, event).unwrap();
        self.0.extend_from_slice(b"\n\n");
    }

    fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

/// How a request type words its events.
pub(crate) trait EventWriter: Send + 'static {
    /// Writes the news of a choice. `usage` goes into the event when present; `opening` is the
    /// usage for an event that comes before the choice's first token.
    fn piece(&mut self, events: &mut Events, choice: usize, piece: Piece, usage: Option<Usages>);

    /// Writes the event that has usage and no choice.
    fn usage(&mut self, events: &mut Events, usage: Usage);
}

/// Usage of a choice before and after the news.
#[derive(Clone, Copy)]
pub(crate) struct Usages {
    /// Before the first token.
    pub(crate) opening: Usage,
    /// Now.
    pub(crate) current: Usage,
}

struct Stream<W> {
    generation: Generation,
    writer: W,
    include_usage: bool,
    continuous_usage: bool,
}

/// The streamed answer.
pub(crate) fn respond<W: EventWriter>(
    generation: Generation,
    writer: W,
    include_usage: bool,
    continuous_usage: bool,
) -> Response {
    let state = Stream {
        generation,
        writer,
        include_usage,
        continuous_usage,
    };
    let chunks = stream::unfold(Some(state), |state| async move {
        let (bytes, state) = state?.chunk().await;
        Some((Ok::<Bytes, Infallible>(bytes), state))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(chunks)).into_response()
}

impl<W: EventWriter> Stream<W> {
    /// The next chunk, and the stream while it goes on.
    async fn chunk(mut self) -> (Bytes, Option<Self>) {
        let mut events = Events::default();
        let goes_on = match self.generation.next().await {
            Some(Ok(pieces)) => {
                for (choice, piece) in pieces {
                    let usage = self.continuous_usage.then(|| Usages {
                        opening: self.generation.opening_usage(choice),
                        current: self.generation.choice_usage(choice),
                    });
                    self.writer.piece(&mut events, choice, piece, usage);
                }
                true
            }
            Some(Err(failure)) => {
                // The status has gone out; the error goes into the stream, as vLLM does it.
                events.push(&ApiError::from(failure).body());
                events.done();
                false
            }
            None => {
                if self.include_usage {
                    self.writer.usage(&mut events, self.generation.usage());
                }
                events.done();
                false
            }
        };
        (Bytes::from(events.0), goes_on.then_some(self))
    }
}
