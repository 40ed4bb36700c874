//! The event-stream parser: the specification's examples, every split, bounds.

use pb_load::sse::{SseError, SseEvent, SseParser};

use crate::recordings::{repository, whole};

fn parse(parts: &[&[u8]]) -> Vec<SseEvent> {
    let mut parser = SseParser::new(1 << 20);
    let mut events = Vec::new();
    for part in parts {
        parser.feed(part, &mut |event| events.push(event)).unwrap();
    }
    events
}

fn data_of(text: &str) -> Vec<String> {
    parse(&[text.as_bytes()])
        .into_iter()
        .map(|event| event.data)
        .collect()
}

/// The examples of the specification's section on interpreting an event stream, and the ways in
/// which real servers differ.
#[test]
fn examples_with_their_events() {
    let cases: &[(&str, &[&str])] = &[
        ("data: YHOO\ndata: +2\ndata: 10\n\n", &["YHOO\n+2\n10"]),
        (
            ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\n\
             data:  third\n\n",
            &["first event", "second event", " third"],
        ),
        // The second of the two data lines makes the buffer a single line feed.
        ("data\n\ndata\ndata\n\ndata:\n", &["\n"]),
        ("data:test\n\ndata: test\n\n", &["test", "test"]),
        (
            "data:{\"a\":1}\r\n\r\ndata: {}\r\n\r\n",
            &["{\"a\":1}", "{}"],
        ),
        ("data: x\r\rdata: y\r\r", &["x", "y"]),
        ("data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", &["a", "b", "c"]),
        ("\u{FEFF}data: x\n\n", &["x"]),
        ("\u{FEFF}\u{FEFF}data: x\n\ndata: y\n\n", &["y"]),
        ("event: message\nid: 3\nretry: 10\ndata: {}\n\n", &["{}"]),
        (": ping\n\n:\n\ndata: x\n\n", &["x"]),
        ("data: a\n\ndata: lost\n", &["a"]),
        ("dataset: x\n\ndata : x\n\n data: x\n\n", &[]),
        ("", &[]),
    ];
    for (text, expected) in cases {
        assert_eq!(data_of(text), *expected, "{text:?}");
    }
}

#[test]
fn types_ids_and_retry_follow_the_specification() {
    let mut parser = SseParser::new(1 << 20);
    let mut events = Vec::new();
    let text = b"event: error\nid: 7\ndata: x\n\ndata: y\n\nid: a\0b\nretry: 12\nretry: 1s\n\
        data: z\n\nid\ndata: w\n\n";
    parser.feed(text, &mut |event| events.push(event)).unwrap();
    let seen: Vec<(&str, &str, &str)> = events
        .iter()
        .map(|event| {
            (
                event.event.as_str(),
                event.data.as_str(),
                event.last_event_id.as_str(),
            )
        })
        .collect();
    let expected = [
        ("error", "x", "7"),
        ("", "y", "7"),
        ("", "z", "7"),
        ("", "w", ""),
    ];
    assert_eq!(seen, expected);
    assert_eq!(parser.retry_ms(), Some(12));
}

#[test]
fn an_error_field_is_an_event_of_its_own() {
    let events = parse(&[b"error: {\"message\":\"too long\"}\n\n"]);
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0].error.as_deref(),
        Some("{\"message\":\"too long\"}")
    );
}

#[test]
fn a_character_split_between_reads_is_whole() {
    let events = parse(&[b"data: \xC3", b"\xA9\n", b"\n"]);
    assert_eq!(events[0].data, "é");
}

/// Counts from `golden/streams/README.md`.
#[test]
fn every_split_of_a_recorded_stream_gives_the_same_events() {
    for (name, count) in [
        ("vllm_chat_stream_usage", 32),
        ("vllm_completion_stream_logprobs", 9),
        ("vllm_completion_continuous_usage_stream", 10),
        ("vllm_max_tokens_1_stream", 3),
        ("llamacpp_completion_stream_logprobs", 10),
        ("llamacpp_cut_by_client", 16),
    ] {
        let bytes = whole(name);
        let events = parse(&[&bytes]);
        assert_eq!(events.len(), count, "{name}");
        for split in 0..=bytes.len() {
            assert_eq!(
                parse(&[&bytes[..split], &bytes[split..]]),
                events,
                "{name} at {split}"
            );
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(parse(&single), events, "{name}, byte by byte");
        let crlf = String::from_utf8(bytes).unwrap().replace('\n', "\r\n");
        assert_eq!(parse(&[crlf.as_bytes()]), events, "{name}, with CRLF");
    }
}

#[test]
fn a_large_event_is_parsed_and_a_larger_one_refused() {
    let text = format!("data: {}\n\n", "x".repeat(1_000_000));
    let mut parser = SseParser::new(1_000_010);
    let mut lengths = Vec::new();
    for part in text.as_bytes().chunks(4_096) {
        parser
            .feed(part, &mut |event| lengths.push(event.data.len()))
            .unwrap();
    }
    assert_eq!(lengths, [1_000_000]);

    let mut parser = SseParser::new(100);
    let mut none = |event: SseEvent| panic!("no event fits: {event:?}");
    let error = SseError::TooLarge { limit_bytes: 100 };
    for _ in 0..3 {
        let _ = parser.feed(b"data: 01234567890123456789\n", &mut none);
    }
    assert_eq!(parser.feed(&[b'x'; 200], &mut none), Err(error.clone()));
    assert_eq!(
        parser.feed(b"\n\n", &mut none),
        Err(error),
        "it stays refused"
    );
}

#[test]
fn the_fuzz_corpus_agrees_with_the_oracle() {
    let dir = repository("tests/fuzz/corpus/sse");
    let mut seeds = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        pb_load::fuzz_sse(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 18, "only {seeds} seeds");
}

/// Random streams made of the pieces that matter, and the corpus with single bytes changed.
#[test]
fn random_streams_agree_with_the_oracle() {
    let pieces: [&[u8]; 14] = [
        b"data",
        b":",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"id",
        b"event",
        b"error",
        b"\xEF\xBB\xBF",
        b"\xC3",
        b"\xA9",
        b"x",
        b"\0",
    ];
    let mut random = pb_contract::Stream::new(1, "sse fuzz");
    for _ in 0..20_000 {
        let count = random.below(24);
        let stream: Vec<u8> = (0..count)
            .flat_map(|_| pieces[random.below(pieces.len() as u64) as usize].to_vec())
            .collect();
        pb_load::fuzz_sse(&stream);
    }
}
