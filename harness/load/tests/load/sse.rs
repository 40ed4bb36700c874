//! The event-stream parser: the specification's examples, every split, bounds.

use pb_contract::{Clock, Nanos, Stream, WallClock};
use pb_load::sse::{SseError, SseEvent, SseParser};

use crate::recordings::{repository, whole};

fn parse(parts: &[&[u8]]) -> Vec<SseEvent> {
    let mut parser = SseParser::new(1 << 20);
    let mut events = Vec::new();
    for part in parts {
        parser
            .feed(part, &mut |event| events.push(event.clone()))
            .unwrap();
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
    parser
        .feed(text, &mut |event| events.push(event.clone()))
        .unwrap();
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
    let mut none = |event: &SseEvent| panic!("no event fits: {event:?}");
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

/// Name and bytes of every seed, in the order of their names.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = repository("tests/fuzz/corpus/sse");
    let mut seeds: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    seeds.sort();
    seeds
}

#[test]
fn the_fuzz_corpus_agrees_with_the_oracle() {
    let seeds = corpus();
    assert!(seeds.len() >= 30, "only {} seeds", seeds.len());
    for (_, bytes) in seeds {
        pb_load::fuzz_sse(&bytes);
    }
}

/// Pieces of streams and of events that change what a stream means.
const PIECES: [&[u8]; 40] = [
    b"data",
    b":",
    b" ",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"id",
    b"event",
    b"error",
    b"retry",
    b"\xEF\xBB\xBF",
    b"\xC3",
    b"\xA9",
    b"x",
    b"\0",
    b"data: ",
    b"[DONE]",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\"",
    b"null",
    b"1",
    b"\"choices\":",
    b"\"text\":\"a\"",
    b"\"delta\":{\"content\":\"b\"}",
    b"\"token_ids\":[1,2]",
    b"\"logprobs\":{\"tokens\":[\"a\"]}",
    b"\"finish_reason\":\"stop\"",
    b"\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":9}",
    b"\"error\":",
    b"\\u00e9",
    b"\\",
    b"{\"choices\":[{",
    b"}]}\n\n",
    b"\"reasoning\":\"r\"",
    b"\"delta\":{\"tool_calls\":[{",
];

/// One step away from a seed: bytes changed, cut, doubled, spliced with another seed's, or a piece
/// put in.
fn mutate(random: &mut Stream, seeds: &[(String, Vec<u8>)], bytes: &mut Vec<u8>) {
    let mut at = |length: usize| random.below(length as u64 + 1) as usize;
    let (from, to) = (at(bytes.len()), at(bytes.len()));
    let (from, to) = (from.min(to), from.max(to));
    match at(5) {
        0 if from < bytes.len() => bytes[from] ^= 1 << at(7),
        1 => drop(bytes.drain(from..to)),
        2 if to - from < 512 => {
            let part = bytes[from..to].to_vec();
            bytes.splice(to..to, part);
        }
        3 => {
            let other = &seeds[at(seeds.len() - 1)].1;
            let cut = at(other.len());
            bytes.truncate(from);
            bytes.extend_from_slice(&other[cut..]);
        }
        _ => {
            let piece = PIECES[at(PIECES.len() - 1)];
            bytes.splice(from..from, piece.iter().copied());
        }
    }
    bytes.truncate(4_096);
}

/// Mutated seeds against the oracle: a few thousand, or for as many minutes as `PB_FUZZ_MINUTES`
/// says. An input that fails is printed, so that it can become a seed.
#[test]
fn mutated_seeds_agree_with_the_oracle() {
    let minutes = std::env::var("PB_FUZZ_MINUTES").ok();
    let minutes: Option<u64> = minutes.map(|text| text.parse().expect("PB_FUZZ_MINUTES: a number"));
    let end = minutes.map(|minutes| WallClock.now() + Nanos::from_secs(60 * minutes));
    let seeds = corpus();
    let mut random = Stream::new(
        WallClock.now().0 * u64::from(end.is_some()),
        "sse mutations",
    );
    let mut done = 0_u64;
    while end.map_or(done < 5_000, |end| WallClock.now() < end) {
        let mut bytes = seeds[random.below(seeds.len() as u64) as usize].1.clone();
        for _ in 0..1 + random.below(6) {
            mutate(&mut random, &seeds, &mut bytes);
        }
        let checked = std::panic::catch_unwind(|| pb_load::fuzz_sse(&bytes));
        assert!(checked.is_ok(), "input {done}: {}", bytes.escape_ascii());
        done += 1;
    }
    println!("{done} inputs agree with the oracle");
}

/// Random streams made of the pieces that matter.
#[test]
fn random_streams_agree_with_the_oracle() {
    let mut random = Stream::new(1, "sse fuzz");
    for _ in 0..20_000 {
        let count = random.below(24);
        let stream: Vec<u8> = (0..count)
            .flat_map(|_| PIECES[random.below(PIECES.len() as u64) as usize].to_vec())
            .collect();
        pb_load::fuzz_sse(&stream);
    }
}
