//! From tokens to the text of one choice: detokenizing, `min_tokens` and stop strings.
//!
//! This runs on the engine thread, right after the step that made the token, so that a stop
//! string ends its request before another token is computed and the count of output tokens does
//! not depend on how fast the client reads. The work for a byte of text is a few operations for
//! each stop string, whatever their lengths.

use std::sync::Arc;

use pb_contract::TokenId;

use crate::stop::{Released, StopMatcher, StopSet};
use crate::text::Detokenizer;

/// The text side of one choice.
pub(crate) struct OutputState {
    detokenizer: Box<dyn Detokenizer>,
    stops: StopMatcher,
    min_tokens: u32,
    output_tokens: u32,
}

impl OutputState {
    pub(crate) fn new(
        detokenizer: Box<dyn Detokenizer>,
        stops: Arc<StopSet>,
        min_tokens: u32,
    ) -> Self {
        let stops = StopMatcher::new(stops);
        OutputState {
            detokenizer,
            stops,
            min_tokens,
            output_tokens: 0,
        }
    }

    /// Takes a token; `ends` says that it is the stop token that ended the request, whose text
    /// is not part of the output. Gives the new text and the stop string that it completed.
    pub(crate) fn push(&mut self, token: TokenId, ends: bool) -> (String, Option<String>) {
        self.output_tokens = self.output_tokens.saturating_add(1);
        if ends {
            return (String::new(), None);
        }
        let piece = self.detokenizer.push(token);
        let may_stop = self.output_tokens > self.min_tokens;
        let Released { text, stop } = self.stops.push(&piece, may_stop);
        (text, stop.map(|number| self.stops.stop(number).to_owned()))
    }

    /// Takes a token in that another engine has given out; gives the text that went with it. What
    /// is held back of it comes with later tokens.
    pub(crate) fn prime(&mut self, token: TokenId) -> String {
        self.push(token, false).0
    }

    /// The text still held back, when generation ends without a stop string. Bytes of an
    /// incomplete character are dropped, as vLLM drops them.
    pub(crate) fn flush(&mut self) -> String {
        self.stops.flush()
    }
}
