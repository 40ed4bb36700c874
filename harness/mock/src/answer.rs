//! An answer laid out in time, before it is framed for a connection.

use pb_contract::Nanos;
use serde_json::json;

use crate::ask::{Ask, Reply};
use crate::event::{End, Event, Head, UsageNote};
use crate::fault::FaultKind;
use crate::generate::Generator;
use crate::log::WriteKind;
use crate::options::{MockOptions, Persona};
use crate::parts::rendered;
use crate::recording::Recording;
use crate::render::Renderer;
use crate::rest::Rest;
use crate::script::Rule;

/// Between the last event and a fault that would come with the next one when there is none.
const AFTER_LAST_NS: u64 = 1_000_000;

/// Events of a stream that are made before its first byte is due, so that making them makes
/// nothing late. A longer stream is made by and by, or it would fill the memory.
const EVENTS_BEFOREHAND: u64 = 16_384;

/// Tokens of an answer that must be made as a whole: one that is not streamed, or has a fault.
const MOST_WHOLE_TOKENS: u64 = 1 << 18;

/// Part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Nanoseconds after the start.
    pub(crate) at_ns: u64,
    /// End of its bytes in the data.
    pub(crate) end: usize,
    /// Tokens in it.
    pub(crate) tokens: u32,
    /// What it is.
    pub(crate) kind: WriteKind,
}

/// How a response is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Pieces of so many bytes.
    Every(usize, Nanos),
    /// Two pieces, cut at this byte of the body.
    At(usize, Nanos),
}

/// A response in time.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The head; none: the data begins with one (a recording), or nothing is ever sent.
    pub(crate) head: Option<Head>,
    /// When the head goes out; none: with the first part.
    pub(crate) head_at_ns: Option<u64>,
    /// All bytes of the body.
    pub(crate) data: Vec<u8>,
    /// Its parts in order of time.
    pub(crate) parts: Vec<Part>,
    /// The length is not known beforehand.
    pub(crate) streamed: bool,
    /// How it ends.
    pub(crate) end: End,
    /// When it ends.
    pub(crate) end_at_ns: u64,
    /// How the bytes are cut.
    pub(crate) split: Option<Split>,
    /// Finish reason sent, for the counters.
    pub(crate) finish: Option<String>,
    /// What follows and is made when it is due: its end is this answer's.
    pub(crate) rest: Option<Box<Rest>>,
}

impl Answer {
    /// A reply, whole and at once.
    pub(crate) fn reply(reply: Reply, at_ns: u64) -> Answer {
        let part = Part {
            at_ns,
            end: reply.body.len(),
            tokens: 0,
            kind: WriteKind::Body,
        };
        Answer {
            head: Some(reply.head),
            head_at_ns: None,
            data: reply.body,
            parts: vec![part],
            streamed: false,
            end: End::Finish,
            end_at_ns: at_ns,
            split: None,
            finish: None,
            rest: None,
        }
    }

    /// Nothing, ever.
    fn never() -> Answer {
        Answer {
            head: None,
            parts: Vec::new(),
            end: End::Stall,
            ..Answer::reply(Reply::text(200, "", String::new()), 0)
        }
    }

    /// A recorded response.
    pub(crate) fn recording(recording: &Recording) -> Answer {
        let mut answer = Answer {
            end: End::Close,
            end_at_ns: recording.reads.last().map_or(0, |read| read.0),
            ..Answer::never()
        };
        for (at_ns, bytes) in &recording.reads {
            answer.data.extend_from_slice(bytes);
            answer.push(*at_ns, 0, WriteKind::Raw);
        }
        answer
    }

    fn push(&mut self, at_ns: u64, tokens: u32, kind: WriteKind) {
        let end = self.data.len();
        self.parts.push(Part {
            at_ns,
            end,
            tokens,
            kind,
        });
    }

    /// Output tokens in it, those included that are still to be made.
    pub(crate) fn tokens(&self) -> u64 {
        let made: u64 = self.parts.iter().map(|part| u64::from(part.tokens)).sum();
        made + self.rest.as_ref().map_or(0, |rest| rest.tokens())
    }
}

/// The events of an answer and what surrounds them.
struct Draft {
    head: Head,
    head_at_ns: Option<u64>,
    events: Vec<Event>,
    end: End,
    split: Option<Split>,
}

/// The answer to a request: `events` from the generator or from the script's rule, changed by a
/// fault, as bytes.
pub(crate) fn build(
    ask: &Ask,
    options: &MockOptions,
    number: u64,
    cached: usize,
    rule: Option<&Rule>,
    fault: Option<&FaultKind>,
) -> Answer {
    if let Some(Rule {
        body: Some(body),
        status,
        content_type,
        ..
    }) = rule
    {
        let content_type = content_type.as_deref().unwrap_or("application/json");
        let mut reply = Reply::text(*status, content_type, body.clone());
        reply.head.fields = rule.map(|r| r.headers.clone()).unwrap_or_default();
        return Answer::reply(reply, rule.and_then(|r| r.head_at_ns).unwrap_or(0));
    }
    if rule.is_none() {
        let generator = Generator::new(ask, options, number, cached);
        let tokens = u64::from(generator.tokens()) * u64::from(ask.choices);
        match ask.stream && fault.is_none() {
            true if tokens > EVENTS_BEFOREHAND => {
                let rest = Rest::new(generator, ask, options, (number, cached));
                return by_and_by(rest, blank(ask, options));
            }
            false if tokens > MOST_WHOLE_TOKENS => return too_long(tokens),
            _ => {}
        }
    }
    let mut draft = draft(ask, options, number, cached, rule);
    match fault {
        Some(FaultKind::NeverAnswers) => return Answer::never(),
        Some(FaultKind::Status {
            status,
            retry_after_s,
        }) => return refusal(*status, *retry_after_s),
        Some(fault) => spoil(&mut draft, fault),
        None => {}
    }
    let renderer = Renderer::new(ask, &options.style, number, cached);
    match ask.stream {
        true => streamed(draft, renderer),
        false => whole(draft, renderer),
    }
}

/// A draft without events.
fn blank(ask: &Ask, options: &MockOptions) -> Draft {
    let content_type = match ask.stream {
        true => "text/event-stream; charset=utf-8",
        false => "application/json",
    };
    let mut head = Head::new(200, content_type);
    if options.persona != Persona::Vllm {
        head.fields.push(("Server".into(), "llama.cpp".into()));
    }
    Draft {
        head,
        head_at_ns: options.timing.head_ns.map(|at| at.0),
        events: Vec::new(),
        end: End::Finish,
        split: None,
    }
}

/// The beginning of a long stream, with what makes the rest.
fn by_and_by(mut rest: Rest, blank: Draft) -> Answer {
    let (data, parts) = rest.next();
    Answer {
        head: Some(blank.head),
        head_at_ns: blank.head_at_ns,
        data,
        end_at_ns: parts.last().map_or(0, |part| part.at_ns),
        parts,
        streamed: true,
        end: End::Finish,
        split: None,
        finish: Some(rest.finish().to_owned()),
        rest: Some(Box::new(rest)),
    }
}

fn too_long(tokens: u64) -> Answer {
    let message = format!(
        "max_tokens times n is {tokens}: an answer that is not streamed, or has a fault, may have \
         {MOST_WHOLE_TOKENS} tokens"
    );
    let reply = Reply::error(400, "BadRequestError", Some("max_tokens"), &message);
    Answer::reply(reply, 0)
}

fn draft(
    ask: &Ask,
    options: &MockOptions,
    number: u64,
    cached: usize,
    rule: Option<&Rule>,
) -> Draft {
    let mut draft = blank(ask, options);
    let Some(rule) = rule else {
        let mut generator = Generator::new(ask, options, number, cached);
        draft.events = generator.next(ask, options, usize::MAX);
        return draft;
    };
    draft.head.status = rule.status;
    if let Some(content_type) = &rule.content_type {
        draft.head.content_type = content_type.clone();
    }
    draft.head.fields.extend(rule.headers.iter().cloned());
    draft.head_at_ns = rule.head_at_ns.or(draft.head_at_ns);
    draft.events = rule.events.clone();
    if ask.continuous_usage {
        // As vLLM does: the counts so far in each event that has a choice.
        for event in draft.events.iter_mut().filter(|event| event.has_choice()) {
            if event.usage == UsageNote::None {
                event.usage = UsageNote::Served;
            }
        }
    }
    draft.end = rule.end;
    draft
}

fn refusal(status: u16, retry_after_s: Option<u32>) -> Answer {
    let mut reply = Reply::error(status, "MockFault", None, "refused as configured");
    if let Some(seconds) = retry_after_s {
        reply
            .head
            .fields
            .push(("retry-after".into(), seconds.to_string()));
    }
    Answer::reply(reply, 0)
}

/// Makes an answer wrong.
fn spoil(draft: &mut Draft, fault: &FaultKind) {
    let mut cut = |tokens: u32, end: End| {
        let at_ns = cut_after(&mut draft.events, tokens);
        draft.events.push(Event::at(at_ns));
        draft.end = end;
    };
    let message = json!({ "message": "failed as configured", "type": "MockFault", "code": 500 });
    match *fault {
        FaultKind::Truncated(tokens) => cut(tokens, End::Finish),
        FaultKind::Close(tokens) => cut(tokens, End::Close),
        FaultKind::Reset(tokens) => cut(tokens, End::Reset),
        FaultKind::Stall(tokens) => cut(tokens, End::Stall),
        FaultKind::BadChunk(tokens) => cut(tokens, End::BadChunk),
        FaultKind::InBandError(tokens) | FaultKind::ErrorField(tokens) => {
            cut(tokens, End::Finish);
            if let Some(last) = draft.events.last_mut() {
                last.error = Some(message);
                last.error_field = matches!(fault, FaultKind::ErrorField(_));
                last.done = !last.error_field;
            }
        }
        FaultKind::BadJson(tokens) => {
            cut(tokens, End::Finish);
            if let Some(last) = draft.events.last_mut() {
                last.raw = Some(b"data: {\"choices\": [\n\n".to_vec());
            }
        }
        FaultKind::NoTokens => draft.events.retain(|event| event.done),
        FaultKind::SlowHead(by) => {
            draft.head_at_ns = Some(draft.head_at_ns.unwrap_or(0) + by.0);
            for event in &mut draft.events {
                event.at_ns += by.0;
            }
        }
        FaultKind::Split { bytes, gap_ns } => draft.split = Some(Split::Every(bytes, gap_ns)),
        FaultKind::CutAt { bytes, gap_ns } => draft.split = Some(Split::At(bytes, gap_ns)),
        FaultKind::ContentType => draft.head.content_type = "application/json".into(),
        FaultKind::BadHead => draft.head.broken = true,
        FaultKind::Status { .. } | FaultKind::NeverAnswers => {}
    }
}

/// Drops what comes after that many tokens, finish reasons included; when the next event would
/// have come.
fn cut_after(events: &mut Vec<Event>, tokens: u32) -> u64 {
    let mut seen = 0;
    let next = events.iter().position(|event| {
        let over = seen >= tokens && (event.tokens > 0 || !event.has_choice());
        seen += event.tokens;
        over
    });
    let at_ns = match next {
        // What comes together with the last token kept would leave no time to see it.
        Some(next) => {
            let kept = events[..next].last().map_or(0, |event| event.at_ns);
            events[next].at_ns.max(kept + AFTER_LAST_NS)
        }
        None => events.last().map_or(0, |event| event.at_ns) + AFTER_LAST_NS,
    };
    events.truncate(next.unwrap_or(events.len()));
    for event in events {
        event.finish = None;
    }
    at_ns
}

fn streamed(draft: Draft, mut renderer: Renderer<'_>) -> Answer {
    let (data, parts) = rendered(&draft.events, &mut renderer);
    let mut reasons = draft.events.iter().rev();
    Answer {
        head: Some(draft.head),
        head_at_ns: draft.head_at_ns,
        data,
        parts,
        streamed: true,
        end: draft.end,
        end_at_ns: draft.events.last().map_or(0, |event| event.at_ns),
        split: draft.split,
        finish: reasons.find_map(|event| event.finish.clone()),
        rest: None,
    }
}

/// One document when the last token is there; an error of the stream is its status.
fn whole(draft: Draft, mut renderer: Renderer<'_>) -> Answer {
    let at_ns = draft.events.last().map_or(0, |event| event.at_ns);
    let tokens = draft.events.iter().map(|event| event.tokens).sum();
    let failed = draft.events.iter().find_map(|event| event.error.as_ref());
    let mut head = draft.head;
    let body = match failed {
        Some(error) => {
            head.status = 500;
            json!({ "error": error }).to_string().into_bytes()
        }
        None => renderer.whole(&draft.events),
    };
    let mut answer = Answer::reply(Reply { head, body }, at_ns);
    answer.parts[0].tokens = if failed.is_some() { 0 } else { tokens };
    answer.finish = draft
        .events
        .iter()
        .rev()
        .find_map(|event| event.finish.clone());
    if draft.end != End::Finish {
        // Half a document.
        answer.parts[0].end /= 2;
    }
    answer.end = draft.end;
    answer.split = draft.split;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Api;
    use crate::script::Script;

    fn answer(fault: Option<FaultKind>) -> Answer {
        let options = MockOptions::default();
        let body = r#"{"prompt":"x","max_tokens":3,"stream":true,
            "stream_options":{"include_usage":true}}"#;
        let ask = Ask::parse(Api::Completions, body.as_bytes(), &options).unwrap();
        build(&ask, &options, 0, 0, None, fault.as_ref())
    }

    fn kinds(answer: &Answer) -> Vec<WriteKind> {
        answer.parts.iter().map(|part| part.kind).collect()
    }

    #[test]
    fn a_sound_answer_has_tokens_usage_and_done() {
        use WriteKind::{Done, Token, Usage};
        let answer = answer(None);
        assert_eq!(kinds(&answer), [Token, Token, Token, Usage, Done]);
        let at: Vec<u64> = answer.parts.iter().map(|p| p.at_ns / 1_000_000).collect();
        assert_eq!(at, [50, 60, 70, 70, 70]);
        assert_eq!((answer.tokens(), answer.end), (3, End::Finish));
    }

    #[test]
    fn faults_cut_after_the_tokens_they_name() {
        use WriteKind::{Done, Error, Raw, Token};
        let ms = 1_000_000;
        for (fault, expected, end, at_ns) in [
            (
                FaultKind::Truncated(2),
                vec![Token, Token],
                End::Finish,
                70 * ms,
            ),
            (
                FaultKind::Close(3),
                vec![Token, Token, Token],
                End::Close,
                71 * ms,
            ),
            (FaultKind::Reset(0), vec![], End::Reset, 50 * ms),
            (FaultKind::Stall(1), vec![Token], End::Stall, 60 * ms),
            (FaultKind::BadChunk(1), vec![Token], End::BadChunk, 60 * ms),
            (
                FaultKind::BadJson(1),
                vec![Token, Raw],
                End::Finish,
                60 * ms,
            ),
            (
                FaultKind::InBandError(2),
                vec![Token, Token, Error],
                End::Finish,
                70 * ms,
            ),
            (
                FaultKind::ErrorField(2),
                vec![Token, Token, Error],
                End::Finish,
                70 * ms,
            ),
            (FaultKind::NoTokens, vec![Done], End::Finish, 70 * ms),
            (FaultKind::NeverAnswers, vec![], End::Stall, 0),
        ] {
            let answer = answer(Some(fault.clone()));
            assert_eq!(kinds(&answer), expected, "{fault:?}");
            assert_eq!((answer.end, answer.end_at_ns), (end, at_ns), "{fault:?}");
            assert_eq!(answer.finish, None, "{fault:?}");
        }
    }

    #[test]
    fn a_rule_gives_status_body_and_headers() {
        let text = r#"{"streams":[{"status":429,"headers":{"retry-after":"7"},"body":"{}"}]}"#;
        let script = Script::parse(text).unwrap();
        let options = MockOptions::default();
        let ask = Ask::parse(Api::Completions, br#"{"prompt":"x"}"#, &options).unwrap();
        let answer = build(&ask, &options, 0, 0, Some(&script.rules[0]), None);
        let head = answer.head.unwrap();
        assert_eq!((head.status, answer.data.as_slice()), (429, &b"{}"[..]));
        assert_eq!(head.fields, [("retry-after".to_string(), "7".to_string())]);
    }
}
