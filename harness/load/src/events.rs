//! What the events of a completion stream mean.
//!
//! Which event carries a token decides every latency, and servers differ: an event may only
//! announce the role, carry reasoning instead of text, several tokens at once, none at all, only
//! the usage, or an error under status 200. The rules are here, apart from sockets, so that they
//! can be tested on recorded bytes.
//!
//! An event carries *content* when one of its choices has text, reasoning, tool-call arguments or
//! token ids. (Token ids count although their text may be held back for half a character: the
//! token has been generated.) Tokens announced by an event without content are added to the next
//! one with content.

use pb_contract::wire::Usage;
use pb_contract::{FailKind, Nanos};
use serde::{Deserialize, Serialize};

use crate::body::{ChoiceBody, EventBody};
use crate::error_body::error_text;
use crate::secrets::Secrets;
use crate::sse::{SseEvent, SseParser};
use crate::usual::{Changed, Usual};

/// Longest finish reason that is kept, in characters.
const MAX_REASON_CHARS: usize = 200;

/// Where the number of tokens of an event came from, best evidence first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountRule {
    /// The event lists its token ids.
    TokenIds,
    /// The usage so far grew.
    ContinuousUsage,
    /// The event lists its tokens' log-probabilities.
    Logprobs,
    /// Nothing says: one token an event, an estimate.
    #[default]
    OnePerEvent,
}

/// One event that carried content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentEvent {
    /// When its last byte arrived.
    pub at: Nanos,
    /// Tokens that it carried.
    pub tokens: u32,
}

/// Everything a stream told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamOutcome {
    /// First event of any kind.
    pub first_event: Option<Nanos>,
    /// First event with content that is not reasoning.
    pub first_output: Option<Nanos>,
    /// Events with content, in order.
    pub content: Vec<ContentEvent>,
    /// Output tokens, those that no content event followed included.
    pub streamed_tokens: u32,
    /// The weakest rule that had to be used for a token count.
    pub count_rule: Option<CountRule>,
    /// Why generation ended.
    pub finish_reason: Option<String>,
    /// The server's own counts.
    pub usage: Option<Usage>,
    /// Prompt tokens from the cache as llama.cpp's `timings` give them.
    pub timings_cache_tokens: Option<u32>,
    /// The answer's text, reasoning and tool calls left out; kept only when it was asked for.
    pub text: String,
    /// `[DONE]` was seen.
    pub done: bool,
    /// Why the stream is not a success.
    pub failure: Option<(FailKind, String)>,
}

impl StreamOutcome {
    /// First event with content.
    pub fn first_token(&self) -> Option<Nanos> {
        self.content.first().map(|event| event.at)
    }

    /// Prompt tokens that came from the server's cache, when it says so in any way.
    pub fn cached_tokens(&self) -> Option<u32> {
        let details = self.usage.and_then(|usage| usage.prompt_tokens_details);
        details
            .and_then(|details| details.cached_tokens)
            .or(self.timings_cache_tokens)
    }

    /// Last event with content.
    pub fn last_token(&self) -> Option<Nanos> {
        self.content.last().map(|event| event.at)
    }
}

/// A stream being read.
#[derive(Debug)]
pub struct StreamReading {
    parser: SseParser,
    state: Interpreter,
    bytes: u64,
}

impl StreamReading {
    /// A reading whose events may hold at most `max_event_bytes`, and its text, where that is
    /// kept, no more in all.
    pub fn new(max_event_bytes: usize) -> Self {
        let parser = SseParser::new(max_event_bytes);
        StreamReading {
            parser,
            state: Interpreter {
                most_text_bytes: max_event_bytes,
                ..Interpreter::default()
            },
            bytes: 0,
        }
    }

    /// Fails a stream that has more than `most` events with content: each is kept until the
    /// request has ended.
    pub fn keeping_events(mut self, most: usize) -> Self {
        self.state.most_events = Some(most);
        self
    }

    /// Keeps the text of the answer, which the next turn of a conversation needs.
    pub fn keeping_text(mut self) -> Self {
        self.state.keep_text = true;
        self
    }

    /// Hides these in all that the stream says of itself.
    pub fn hiding(mut self, secrets: &Secrets) -> Self {
        self.state.secrets = secrets.clone();
        self
    }

    /// Takes bytes of the response body that arrived at `at`.
    pub fn bytes(&mut self, at: Nanos, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let state = &mut self.state;
        if let Err(error) = self.parser.feed(bytes, &mut |event| state.event(at, event)) {
            state.fail(FailKind::Protocol, error.to_string());
        }
    }

    /// Whether the stream has failed for good: reading on can add nothing.
    pub fn failed(&self) -> bool {
        self.state.outcome.failure.is_some()
    }

    /// Whether an event with content has been seen.
    pub fn has_content(&self) -> bool {
        !self.state.outcome.content.is_empty()
    }

    /// Whether the server has said that it is done (`[DONE]`).
    pub fn done(&self) -> bool {
        self.state.outcome.done
    }

    /// What was read so far, for a stream that the client gave up.
    pub fn abandon(self) -> StreamOutcome {
        self.state.settle()
    }

    /// The end of the stream. `broken` says why the connection ended, when it did not end
    /// properly. A stream succeeds when it gave a finish reason or `[DONE]`, at least one token,
    /// and no error.
    pub fn end(self, broken: Option<&str>) -> StreamOutcome {
        let (bytes, partial) = (self.bytes, self.parser.has_partial());
        let mut outcome = self.state.settle();
        if outcome.failure.is_some() {
            return outcome;
        }
        let ended = outcome.finish_reason.is_some() || outcome.done;
        outcome.failure = if !ended && bytes > 0 && outcome.first_event.is_none() && !partial {
            Some((
                FailKind::Protocol,
                "the response is not an event stream".to_owned(),
            ))
        } else if !ended {
            let why = broken.unwrap_or("the stream ended without a finish reason and [DONE]");
            Some((FailKind::Truncated, why.to_owned()))
        } else if outcome.content.is_empty() {
            Some((
                FailKind::NoTokens,
                "the stream ended without a token".to_owned(),
            ))
        } else {
            None
        };
        outcome
    }
}

/// The state that events change.
#[derive(Debug, Default)]
struct Interpreter {
    outcome: StreamOutcome,
    /// Tokens announced since the last content event.
    pending: u32,
    /// Tokens counted so far by any rule, so that a usage that comes only with the last event
    /// adds what the events before it did not show, not the whole output again.
    counted: u32,
    keep_text: bool,
    /// Bytes of text that are kept at most.
    most_text_bytes: usize,
    /// Content events that are kept at most.
    most_events: Option<usize>,
    secrets: Secrets,
    /// What the events of this stream look like but for their text.
    usual: Option<Usual>,
}

impl Interpreter {
    fn event(&mut self, at: Nanos, event: &SseEvent) {
        if self.outcome.failure.is_some() {
            return;
        }
        self.outcome.first_event.get_or_insert(at);
        if let Some(usual) = &self.usual
            && event.error.is_none()
            && event.event != "error"
            && let Some(changed) = usual.changed(&event.data)
        {
            let choice = Choice::of_text(changed);
            return self.choices(at, &[choice], None);
        }
        if let Some(error) = &event.error {
            return self.fail(FailKind::InBandError, self.said(error));
        }
        if event.data.trim() == "[DONE]" {
            self.outcome.done = true;
            return;
        }
        if event.event == "error" {
            return self.fail(FailKind::InBandError, self.said(&event.data));
        }
        // A list would fill the fields in order.
        if !event.data.trim_start().starts_with('{') {
            // Hidden before it is cut, or a part would stay.
            let data = self.secrets.hide(&event.data);
            let start: String = data.chars().take(80).collect();
            let message = format!("an event is not a JSON object: {start:?}");
            return self.fail(FailKind::Protocol, message);
        }
        match serde_json::from_str::<EventBody<'_>>(&event.data) {
            Ok(body) if body.error.is_present() => {
                self.fail(FailKind::InBandError, self.said(&event.data));
            }
            Ok(body) => {
                self.body(at, &body);
                if let Some(usual) = learn(&event.data, &body) {
                    self.usual = Some(usual);
                }
            }
            Err(error) => {
                let error = error.to_string();
                let message = format!("an event is not JSON: {}", self.secrets.hide(&error));
                self.fail(FailKind::Protocol, message);
            }
        }
    }

    fn body(&mut self, at: Nanos, body: &EventBody<'_>) {
        let said = body.usage.is_object().then_some(&body.usage);
        let usage = said.and_then(|usage| Usage::deserialize(usage).ok());
        let choices = &body.choices.0;
        if !choices.is_empty() {
            let read: Vec<Choice<'_>> = choices
                .iter()
                .map(|choice| Choice::read(&choice.0))
                .collect();
            self.choices(at, &read, usage.as_ref());
        }
        if usage.is_some() {
            self.outcome.usage = usage;
        }
        if let Some(cached) = body.timings.get("cache_n").and_then(|value| value.as_u64()) {
            self.outcome.timings_cache_tokens = u32::try_from(cached).ok();
        }
    }

    fn choices(&mut self, at: Nanos, choices: &[Choice<'_>], usage: Option<&Usage>) {
        for reason in choices.iter().filter_map(|choice| choice.finish_reason) {
            let reason = self.secrets.hide(reason);
            self.outcome.finish_reason = Some(reason.chars().take(MAX_REASON_CHARS).collect());
        }
        if self.keep_text {
            let texts = choices.iter().filter_map(|choice| choice.text);
            self.outcome.text.extend(texts);
            if self.outcome.text.len() > self.most_text_bytes {
                let limit = self.most_text_bytes;
                let message = format!("the text of the stream is larger than {limit} bytes");
                return self.fail(FailKind::Protocol, message);
            }
        }
        let has_content = choices.iter().any(Choice::has_content);
        let (tokens, rule) = self.count(choices, usage);
        self.pending = self.pending.saturating_add(tokens);
        if self.pending > 0 {
            self.outcome.count_rule = self.outcome.count_rule.max(Some(rule));
        }
        if has_content {
            // An event with content and no countable token is the rest of a token's text: it
            // arrives, but it adds no token, so it is not a token instant either.
            if self.pending > 0 {
                if let Some(most) = self.most_events
                    && self.outcome.content.len() >= most
                {
                    let message = format!("the stream has more than {most} events with content");
                    return self.fail(FailKind::Protocol, message);
                }
                self.outcome.content.push(ContentEvent {
                    at,
                    tokens: self.pending,
                });
                let streamed = &mut self.outcome.streamed_tokens;
                *streamed = streamed.saturating_add(self.pending);
                self.pending = 0;
            }
            if choices.iter().any(Choice::has_output) {
                self.outcome.first_output.get_or_insert(at);
            }
        }
    }

    /// Tokens of an event by the best evidence that it has.
    fn count(&mut self, choices: &[Choice<'_>], usage: Option<&Usage>) -> (u32, CountRule) {
        if choices.iter().any(|choice| choice.token_ids.is_some()) {
            let ids = total(choices.iter().filter_map(|choice| choice.token_ids));
            self.counted = self.counted.saturating_add(ids);
            return (ids, CountRule::TokenIds);
        }
        if let Some(usage) = usage {
            let grown = usage.completion_tokens.saturating_sub(self.counted);
            self.counted = self.counted.max(usage.completion_tokens);
            return (grown, CountRule::ContinuousUsage);
        }
        if choices.iter().any(|choice| choice.logprobs.is_some()) {
            let listed = total(choices.iter().filter_map(|choice| choice.logprobs));
            self.counted = self.counted.saturating_add(listed);
            return (listed, CountRule::Logprobs);
        }
        let carrying = choices.iter().filter(|choice| choice.has_content()).count() as u32;
        self.counted = self.counted.saturating_add(carrying);
        (carrying, CountRule::OnePerEvent)
    }

    /// The message of an error body.
    fn said(&self, body: &str) -> String {
        error_text(&self.secrets.hide(body))
    }

    fn fail(&mut self, kind: FailKind, message: String) {
        self.outcome.failure.get_or_insert((kind, message));
    }

    /// Adds the tokens that no content event followed to the total.
    fn settle(mut self) -> StreamOutcome {
        let streamed = &mut self.outcome.streamed_tokens;
        *streamed = streamed.saturating_add(self.pending);
        self.outcome
    }
}

/// A sum that a server's absurd counts do not make small.
fn total(counts: impl Iterator<Item = u32>) -> u32 {
    counts.fold(0, u32::saturating_add)
}

/// What an event teaches about the next ones: one that holds a text, perhaps its token ids, and
/// nothing else that counts.
fn learn(data: &str, body: &EventBody<'_>) -> Option<Usual> {
    let [choice] = body.choices.0.as_slice() else {
        return None;
    };
    let read = Choice::read(&choice.0);
    let text = read.text?;
    let only_text = !read.tool_call
        && !read.reasoning
        && read.logprobs.is_none()
        && read.finish_reason.is_none();
    // Anything in these would be new at each event.
    let nothing_else = body.usage.is_null() && body.timings.is_null();
    match only_text && nothing_else {
        true => Usual::learn(data, text, read.token_ids),
        false => None,
    }
}

/// What one choice of an event says.
#[derive(Debug)]
struct Choice<'a> {
    text: Option<&'a str>,
    tool_call: bool,
    reasoning: bool,
    token_ids: Option<u32>,
    logprobs: Option<u32>,
    finish_reason: Option<&'a str>,
}

impl<'a> Choice<'a> {
    fn read(choice: &'a ChoiceBody<'_>) -> Self {
        let (delta, logprobs) = (&choice.delta.0, &choice.logprobs.0);
        let tool_call = delta.tool_calls.0.iter().any(|call| {
            let function = &call.0.function.0;
            function.arguments.text().is_some() || function.name.text().is_some()
        });
        let reasoning = delta.reasoning.text().or(delta.reasoning_content.text());
        Choice {
            text: choice.text.text().or(delta.content.text()),
            tool_call,
            reasoning: reasoning.is_some(),
            token_ids: choice.token_ids.length(),
            logprobs: logprobs.tokens.length().or(logprobs.content.length()),
            finish_reason: choice.finish_reason.text(),
        }
    }

    /// A choice that has a text, perhaps token ids, and nothing else.
    fn of_text(changed: Changed<'a>) -> Self {
        Choice {
            text: Some(changed.text),
            tool_call: false,
            reasoning: false,
            token_ids: changed.ids,
            logprobs: None,
            finish_reason: None,
        }
    }

    /// Text or a tool call.
    fn has_output(&self) -> bool {
        self.text.is_some() || self.tool_call
    }

    fn has_content(&self) -> bool {
        self.has_output() || self.reasoning || self.token_ids.is_some_and(|count| count > 0)
    }
}
