//! Streams on the wire: their times, their bytes, and the log that says so.

mod common;

use pb_contract::{Clock, Nanos, WallClock};
use pb_mock::{
    Dist, Ending, Handle, LoggedRequest, MockOptions, Recording, Script, Style, Timing, WriteKind,
};

use common::{PATIENCE, ask, complete, eventually, start, streaming};

const CHAT: &str = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true,
    "stream_options":{"include_usage":true}}"#;
const STREAM: &str = r#"{"prompt":[1,2,3],"max_tokens":5,"stream":true}"#;

fn quick() -> MockOptions {
    MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(5e6),
            itl_ns: Dist::Fixed(2e6),
            ..Timing::default()
        },
        ..MockOptions::default()
    }
}

/// No write may be early, ever; how late one is belongs to the machine.
fn none_is_early(request: &LoggedRequest) {
    for write in &request.writes {
        assert!(write.written_ns >= write.due_ns, "early: {write:?}");
    }
}

#[test]
fn the_worked_stream_leaves_at_the_times_of_the_specification() {
    let server = start(MockOptions {
        script: Some(Script::worked_stream()),
        ..MockOptions::default()
    });
    let seen = ask(&server, "POST", "/v1/chat/completions", CHAT, PATIENCE);
    for (needle, ms) in [
        (r#""role":"assistant""#, 50.0),
        (r#""content":"A""#, 200.0),
        (r#""content":"BCD""#, 300.0),
        (r#""content":"E""#, 400.0),
        (r#""finish_reason":"stop""#, 410.0),
        (r#""completion_tokens":5"#, 415.0),
        ("[DONE]", 416.0),
    ] {
        let at = seen
            .when(needle)
            .unwrap_or_else(|| panic!("{needle} never came"));
        assert!(at >= ms, "{needle} at {at} ms, due at {ms}");
    }
    let log = server.stop();
    let request = &log.requests[0];
    let due: Vec<u64> = request
        .writes
        .iter()
        .map(|w| (w.due_ns - request.first_byte_ns).0 / 1_000_000)
        .collect();
    assert_eq!(due, [0, 50, 200, 300, 400, 410, 415, 416, 416]);
    let tokens: Vec<u32> = request.writes.iter().map(|w| w.tokens).collect();
    assert_eq!(tokens, [0, 0, 1, 3, 1, 0, 0, 0, 0]);
    assert_eq!(request.ending, Ending::Complete);
    none_is_early(request);
}

#[test]
fn a_connection_is_kept_and_requests_sent_ahead_wait_their_turn() {
    use std::io::{Read, Write};
    let server = start(quick());
    let mut socket = std::net::TcpStream::connect(server.addr).unwrap();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nx-request-id: q\r\ncontent-length: {}\r\n\r\n{STREAM}",
        STREAM.len()
    );
    let last = "GET /health HTTP/1.1\r\nconnection: close\r\n\r\n";
    socket
        .write_all(format!("{request}{request}{last}").as_bytes())
        .unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{text}");
    assert_eq!(text.matches("data: [DONE]").count(), 2);
    let log = server.stop();
    assert_eq!(log.requests[1].x_request_id.as_deref(), Some("q"));
}

#[test]
fn a_recording_is_replayed_byte_for_byte_with_its_times() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/streams");
    let mut count = 0;
    for entry in std::fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let mut recording = Recording::read(&path).unwrap();
        // As recorded, but at most 60 ms long: the order and the bytes are what matters.
        let longest = recording.reads.last().map_or(1, |r| r.0).max(1);
        for read in &mut recording.reads {
            read.0 = read.0 * 60_000_000 / longest.max(60_000_000);
        }
        let expected: Vec<u8> = recording.reads.iter().flat_map(|r| r.1.clone()).collect();
        let (name, last_ms) = (
            recording.name.clone(),
            recording.reads.last().unwrap().0 / 1_000_000,
        );
        let path = recording.path.clone();
        let server = start(MockOptions {
            recordings: vec![recording],
            ..MockOptions::default()
        });
        let seen = ask(&server, "POST", &path, "{}", PATIENCE);
        let bytes: Vec<u8> = seen.reads.iter().flat_map(|r| r.1.clone()).collect();
        assert_eq!(bytes, expected, "{name}");
        let took = (seen.reads.last().unwrap().0 - seen.sent).as_millis_f64();
        assert!(
            took >= last_ms as f64,
            "{name}: {took} ms, recorded {last_ms}"
        );
        count += 1;
    }
    assert!(count > 10, "found only {count} recordings");
}

#[test]
fn lines_may_end_and_begin_in_every_way() {
    let style = Style {
        crlf: true,
        no_space: true,
        comments: true,
        named_events: true,
        ..Style::default()
    };
    let server = start(MockOptions { style, ..quick() });
    let text = complete(&server, STREAM).text();
    assert_eq!(text.matches("\r\ndata:{").count(), 5, "{text}");
    assert!(text.contains(":keep-alive\r\nevent:message\r\n"));
    assert!(text.contains("data:[DONE]\r\n\r\n"));
}

#[test]
fn a_whole_answer_comes_when_its_last_token_is_due() {
    let server = start(quick());
    let seen = complete(&server, r#"{"prompt":"abc","max_tokens":5}"#);
    let at = seen.when("finish_reason").unwrap();
    assert!(at >= 13.0, "{at} ms, due at 5 + 4 x 2");
    let body: serde_json::Value = serde_json::from_str(&seen.body()).unwrap();
    assert_eq!(body["choices"][0]["text"], "abcde");
    assert_eq!(body["usage"]["total_tokens"], 8);
}

/// Requests that wait for a place, as the metrics page says.
fn waiting(server: &Handle) -> usize {
    let page = ask(server, "GET", "/metrics", "", PATIENCE).body();
    let line = page
        .lines()
        .find(|line| line.starts_with("vllm:num_requests_waiting{"));
    let value: f64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    value as usize
}

const LONG: &str = r#"{"prompt":"x","max_tokens":100000,"stream":true}"#;

#[test]
fn a_client_that_leaves_is_logged_and_frees_its_place() {
    let server = start(MockOptions {
        max_concurrency: Some(1),
        ..quick()
    });
    let long = streaming(&server, LONG);
    let next = std::thread::scope(|scope| {
        let next = scope.spawn(|| complete(&server, STREAM));
        eventually("the next one waits", || waiting(&server) == 1);
        drop(long);
        next.join().unwrap()
    });
    assert!(next.text().contains("[DONE]"));
    let log = server.stop();
    assert_eq!(log.requests[0].ending, Ending::ClientGone);
    assert_eq!(log.requests[1].ending, Ending::Complete);
    let writes = &log.requests[0].writes;
    assert!(writes.iter().any(|w| w.kind == WriteKind::Token) && writes.len() < 100_000);
}

#[test]
fn row_39_a_cap_queues_and_the_log_tells_waiting_from_service() {
    let server = start(MockOptions {
        max_concurrency: Some(1),
        ..quick()
    });
    let long = streaming(&server, LONG);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| complete(&server, STREAM));
        }
        eventually("all four wait", || waiting(&server) == 4);
        drop(long);
    });
    let log = server.stop();
    let mut last_end = Nanos::ZERO;
    for request in &log.requests {
        assert!(request.start_ns >= last_end, "two at once");
        last_end = request.writes.last().unwrap().written_ns;
    }
    let last = &log.requests[4];
    let waited = (last.start_ns - last.first_byte_ns).as_millis_f64();
    // Three answers of 13 ms before it.
    assert!(waited >= 39.0, "{waited} ms");
}

#[test]
fn a_stopped_server_ends_its_streams_and_still_has_their_log() {
    use std::io::Read;
    let server = start(quick());
    let mut client = streaming(&server, LONG);
    let log = server.stop();
    // How it ends does not matter here, that it ends does.
    let _ = client.read_to_end(&mut Vec::new());
    assert_eq!(log.requests[0].ending, Ending::Stopped);
    assert!(log.requests[0].writes.len() > 1);
}

/// Kilobytes that this process has in memory.
#[cfg(target_os = "linux")]
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_stream_without_end_is_made_as_it_is_sent_and_ends_with_the_server() {
    let server = start(MockOptions {
        max_model_len: 2_000_000_000,
        timing: Timing {
            ttft_ns: Dist::Fixed(1e6),
            itl_ns: Dist::Fixed(1e6),
            ..Timing::default()
        },
        ..MockOptions::default()
    });
    let before = resident_kib();
    // 64 milliards of events, were they made beforehand.
    let body = r#"{"prompt":"x","max_tokens":1000000000,"n":64,"stream":true}"#;
    let clients: Vec<_> = (0..4).map(|_| streaming(&server, body)).collect();
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 512 << 10, "{grown} KiB");
    let start = WallClock.now();
    let log = server.stop();
    let took = WallClock.now() - start;
    assert!(took < Nanos::from_secs(30), "{took}");
    drop(clients);
    assert_eq!(log.requests.len(), 4);
    for request in &log.requests {
        assert_eq!(request.ending, Ending::Stopped);
    }
}

#[test]
fn a_stream_that_is_made_by_and_by_is_whole() {
    let server = start(MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(1e6),
            itl_ns: Dist::Fixed(1e3),
            ..Timing::default()
        },
        ..MockOptions::default()
    });
    // More than is made beforehand; 1 us a token.
    let body = r#"{"prompt":"x","max_tokens":20001,"stream":true,
        "stream_options":{"include_usage":true}}"#;
    let seen = complete(&server, body);
    let text = seen.text();
    assert_eq!(text.matches("\"text\":").count(), 20_001);
    assert_eq!(text.matches("\"finish_reason\":\"length\"").count(), 1);
    assert!(
        text.contains("\"completion_tokens\":20001"),
        "the usage counts all"
    );
    assert!(text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
    // The second time the answer's own tokens are in the cache: 1 of the prompt and 20,001 are
    // 1250 blocks of 16.
    let mut tokens = vec![120];
    tokens.extend((0..20_001_u32).map(|n| 97 + n % 26));
    let body = format!("{{\"prompt\":{tokens:?},\"max_tokens\":1}}");
    let seen = complete(&server, &body);
    assert!(
        seen.text().contains("\"cached_tokens\":20000"),
        "{}",
        seen.text()
    );
    let log = server.stop();
    let request = &log.requests[0];
    assert_eq!(request.ending, Ending::Complete);
    let total: u32 = request.writes.iter().map(|write| write.tokens).sum();
    assert_eq!(total, 20_001);
    // The head, the tokens, the usage, `[DONE]` and the end.
    assert_eq!(request.writes.len(), 20_005);
    none_is_early(request);
    // Not streamed, it would have to be made at once.
    let server = start(quick());
    let seen = complete(&server, r#"{"prompt":"x","max_tokens":300000}"#);
    assert_eq!(seen.status(), 400, "{}", seen.text());
}
