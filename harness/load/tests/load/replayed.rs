//! Recorded responses of real servers, byte for byte through the real client.

use std::io::{Read, Write};
use std::net::TcpListener;

use pb_contract::FailKind;
use pb_load::Limits;
use pb_load::events::{CountRule, StreamOutcome, StreamReading};
use pb_load::rows::Record;
use pb_load::sse::SseParser;

use crate::driver::{open, patient};
use crate::recordings::{Recorded, body, recorded, repository};
use crate::script::ScriptServer;
use crate::wall::run;

/// Prompt, output and cached tokens; the first two together or not at all.
type Counts = (Option<u32>, Option<u32>, Option<u32>);

/// What one recorded stream holds, worked out by hand from its bytes: `data:` lines (`[DONE]`
/// included), events with text, tokens, where their number comes from, the finish reason and the
/// usage.
struct Stream {
    name: &'static str,
    events: usize,
    content: usize,
    tokens: u32,
    rule: CountRule,
    finish: Option<&'static str>,
    usage: Counts,
}

#[rustfmt::skip]
fn streams() -> Vec<Stream> {
    use CountRule::{ContinuousUsage as Usage, Logprobs, OnePerEvent as One};
    let row = |name, events, content, tokens, rule, finish, usage| {
        Stream { name, events, content, tokens, rule, finish, usage }
    };
    let (stop, length) = (Some("stop"), Some("length"));
    let some = |prompt, output, cached| (Some(prompt), Some(output), Some(cached));
    let none = (None, None, None);
    vec![
        row("vllm_chat_stream_usage", 32, 28, 28, One, stop, some(45, 29, 0)),
        row("vllm_chat_stream_plain", 14, 12, 12, One, length, none),
        row("vllm_chat_long_prompt_stream", 11, 8, 8, One, length, some(810, 8, 0)),
        row("vllm_completion_continuous_usage_stream", 10, 8, 8, Usage, length, some(5, 8, 0)),
        row("vllm_completion_stream_logprobs", 9, 7, 8, Logprobs, length, some(5, 8, 0)),
        row("vllm_max_tokens_1_stream", 3, 1, 1, One, length, some(5, 1, 0)),
        row("vllm_stop_string_stream", 16, 13, 13, One, stop, some(11, 14, 0)),
        row("vllm_cut_by_client", 16, 16, 16, One, None, none),
        row("llamacpp_chat_stream_usage", 44, 40, 40, One, length, some(45, 40, 0)),
        // No usage, but `timings` with 44 tokens from the cache.
        row("llamacpp_chat_stream_plain", 15, 12, 12, One, length, (None, None, Some(44))),
        row("llamacpp_chat_long_prompt_stream", 12, 8, 8, One, length, some(810, 8, 0)),
        row("llamacpp_completion_stream_logprobs", 10, 8, 8, Logprobs, length, some(5, 8, 0)),
        // Two choices of six tokens; the usage is that of one.
        row("llamacpp_completion_n2_stream", 15, 12, 12, One, length, some(4, 6, 0)),
        row("llamacpp_max_tokens_1_stream", 3, 1, 1, One, length, some(5, 1, 4)),
        // llama.cpp serves any model name.
        row("llamacpp_unknown_model", 4, 2, 2, One, length, some(1, 2, 0)),
        row("llamacpp_cut_by_client", 16, 16, 16, One, None, none),
    ]
}

/// Responses that are no stream: status, kind of failure, and a part of its message.
const REFUSALS: [(&str, u16, FailKind, &str); 15] = [
    (
        "vllm_bad_json_field",
        400,
        FailKind::HttpStatus,
        "max_tokens must be at least 1, got -5",
    ),
    (
        "vllm_prompt_too_long",
        400,
        FailKind::HttpStatus,
        "maximum context length is 8192 tokens",
    ),
    (
        "vllm_unknown_model",
        404,
        FailKind::HttpStatus,
        "The model `nope` does not exist",
    ),
    (
        "llamacpp_bad_json_field",
        400,
        FailKind::HttpStatus,
        "Value must be between -1",
    ),
    (
        "llamacpp_prompt_too_long",
        400,
        FailKind::HttpStatus,
        "exceeds the available context size",
    ),
    ("vllm_cache_salt", 200, FailKind::Protocol, JSON),
    ("vllm_cache_salt_again", 200, FailKind::Protocol, JSON),
    ("vllm_completion_plain", 200, FailKind::Protocol, JSON),
    (
        "vllm_completion_prompt_logprobs",
        200,
        FailKind::Protocol,
        JSON,
    ),
    ("llamacpp_completion_plain", 200, FailKind::Protocol, JSON),
    ("vllm_models", 200, FailKind::Protocol, JSON),
    ("vllm_tokenize", 200, FailKind::Protocol, JSON),
    ("vllm_reset_prefix_cache", 200, FailKind::Protocol, JSON),
    ("vllm_metrics", 200, FailKind::Protocol, "text/plain"),
    ("llamacpp_slots", 200, FailKind::Protocol, JSON),
];
const JSON: &str = "the response is application/json";

/// Recordings of the control plane whose like is in the table already.
const NOT_STREAMS: [&str; 3] = ["llamacpp_metrics", "llamacpp_models", "llamacpp_tokenize"];

/// A server that answers its first request with recorded bytes, read by read, and hangs up.
fn replay(recorded: Recorded) -> ScriptServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        let mut asked = Vec::new();
        while !asked.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            let mut part = [0; 4_096];
            let count = socket.read(&mut part).unwrap();
            asked.extend_from_slice(&part[..count]);
        }
        for (_, bytes) in recorded.reads {
            socket.write_all(&bytes).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    ScriptServer {
        port,
        seen: Default::default(),
    }
}

fn through_the_client(name: &str) -> Record {
    let server = replay(recorded(name));
    let (mut records, _) = run(
        &server,
        patient(vec![open(0, 0)], vec![]),
        Limits::default(),
    );
    records.remove(0)
}

#[test]
fn recorded_streams_give_what_their_bytes_say() {
    for stream in streams() {
        let name = stream.name;
        let Record { row, tokens } = through_the_client(name);
        assert_eq!(tokens.len(), stream.content, "{name}");
        assert_eq!(row.streamed_tokens, stream.tokens, "{name}");
        let sum: u32 = tokens.iter().map(|token| token.tokens).sum();
        assert_eq!(sum, stream.tokens, "{name}");
        assert_eq!(row.finish_reason.as_deref(), stream.finish, "{name}");
        let usage = (row.prompt_tokens, row.completion_tokens, row.cached_tokens);
        assert_eq!(usage, stream.usage, "{name}");
        let failure = stream.finish.is_none().then_some(FailKind::Truncated);
        assert_eq!((row.fail, row.http_status), (failure, Some(200)), "{name}");
    }
}

#[test]
fn recorded_refusals_keep_their_status_and_message() {
    for (name, status, kind, part) in REFUSALS {
        let row = through_the_client(name).row;
        assert_eq!(
            (row.http_status, row.fail),
            (Some(status), Some(kind)),
            "{name}"
        );
        let message = row.fail_message.unwrap();
        assert!(message.contains(part), "{name}: {message}");
        assert_eq!(
            (row.first_event_ns, row.streamed_tokens),
            (None, 0),
            "{name}"
        );
    }
}

#[test]
fn no_recording_is_left_out() {
    let mut named: Vec<&str> = streams().iter().map(|stream| stream.name).collect();
    named.extend(REFUSALS.iter().map(|refusal| refusal.0));
    named.extend(NOT_STREAMS);
    named.sort_unstable();
    let mut found: Vec<String> = std::fs::read_dir(repository("golden/streams"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
        .collect();
    found.sort_unstable();
    assert_eq!(named, found);
    for name in NOT_STREAMS {
        assert!(!recorded(name).path.contains("completions"), "{name}");
    }
}

fn outcome(parts: &[&[u8]]) -> StreamOutcome {
    let mut reading = StreamReading::new(1 << 20).keeping_text();
    for part in parts {
        reading.bytes(pb_contract::Nanos(1), part);
    }
    reading.end(None)
}

#[test]
fn every_split_of_every_recorded_stream_means_the_same() {
    for stream in streams() {
        let name = stream.name;
        let bytes: Vec<u8> = body(name)
            .into_iter()
            .flat_map(|(_, bytes)| bytes)
            .collect();
        let mut events = 0;
        let mut parser = SseParser::new(1 << 20);
        parser.feed(&bytes, &mut |_| events += 1).unwrap();
        assert_eq!(events, stream.events, "{name}");
        let whole = outcome(&[&bytes]);
        assert_eq!(whole.count_rule, Some(stream.rule), "{name}");
        assert_eq!(whole.done, stream.finish.is_some(), "{name}");
        for split in 0..=bytes.len() {
            let parts = outcome(&[&bytes[..split], &bytes[split..]]);
            assert_eq!(parts, whole, "{name} at {split}");
        }
    }
}

/// The worked answer of the conversation, as the events carry it.
#[test]
fn the_text_of_a_chat_is_kept_when_it_is_asked_for() {
    let bytes: Vec<u8> = body("vllm_chat_stream_plain")
        .into_iter()
        .flat_map(|(_, bytes)| bytes)
        .collect();
    let text = outcome(&[&bytes]).text;
    assert!(
        text.starts_with("En f") && text.ends_with(" est la"),
        "{text:?}"
    );
    let mut reading = StreamReading::new(1 << 20);
    reading.bytes(pb_contract::Nanos(1), &bytes);
    assert_eq!(reading.end(None).text, "", "and not otherwise");
}
