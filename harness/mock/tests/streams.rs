//! Streams on the wire: their times, their bytes, and the log that says so.

mod common;

use std::time::Duration;

use pb_mock::{
    Dist, Ending, LoggedRequest, MockOptions, Recording, Script, Style, Timing, WriteKind,
};

use common::{ask, complete, start};

const CHAT: &str = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true,
    "stream_options":{"include_usage":true}}"#;
const STREAM: &str = r#"{"prompt":[1,2,3],"max_tokens":5,"stream":true}"#;

/// Longest delay that a busy test machine may add to a write, in milliseconds.
const SLACK_MS: f64 = 60.0;

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

/// No write may be early, ever; how late the latest was, in milliseconds.
fn lateness(requests: &[LoggedRequest]) -> f64 {
    let writes = requests.iter().flat_map(|r| &r.writes);
    writes
        .map(|write| {
            assert!(write.written_ns >= write.due_ns, "early: {write:?}");
            (write.written_ns - write.due_ns).as_millis_f64()
        })
        .fold(0.0, f64::max)
}

#[test]
fn the_worked_stream_leaves_at_the_times_of_the_specification() {
    let server = start(MockOptions {
        script: Some(Script::worked_stream()),
        ..MockOptions::default()
    });
    let seen = ask(
        &server,
        "POST",
        "/v1/chat/completions",
        CHAT,
        Duration::from_secs(5),
    );
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
        assert!(
            (ms..ms + SLACK_MS).contains(&at),
            "{needle} at {at} ms, due at {ms}"
        );
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
    assert!(lateness(log.requests.as_slices().0) < SLACK_MS);
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
        let seen = ask(&server, "POST", &path, "{}", Duration::from_secs(5));
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
    assert!(
        (13.0..13.0 + SLACK_MS).contains(&at),
        "{at} ms, due at 5 + 4 x 2"
    );
    let body: serde_json::Value = serde_json::from_str(&seen.body()).unwrap();
    assert_eq!(body["choices"][0]["text"], "abcde");
    assert_eq!(body["usage"]["total_tokens"], 8);
}

#[test]
fn a_client_that_leaves_is_logged_and_frees_its_place() {
    let server = start(MockOptions {
        max_concurrency: Some(1),
        ..quick()
    });
    let long = r#"{"prompt":"x","max_tokens":5000,"stream":true}"#;
    let patience = Duration::from_millis(120);
    let cut = std::thread::scope(|scope| {
        scope.spawn(|| ask(&server, "POST", "/v1/completions", long, patience));
        std::thread::sleep(Duration::from_millis(60));
        complete(&server, STREAM)
    });
    assert!(cut.text().contains("[DONE]"));
    let log = server.stop();
    assert_eq!(log.requests[0].ending, Ending::ClientGone);
    assert_eq!(log.requests[1].ending, Ending::Complete);
    let writes = &log.requests[0].writes;
    assert!(writes.iter().any(|w| w.kind == WriteKind::Token) && writes.len() < 5000);
}

#[test]
fn row_39_a_cap_queues_and_the_log_tells_waiting_from_service() {
    let server = start(MockOptions {
        max_concurrency: Some(1),
        ..quick()
    });
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| complete(&server, STREAM));
        }
    });
    let log = server.stop();
    let mut last_end = pb_contract::Nanos::ZERO;
    for request in &log.requests {
        assert!(request.start_ns >= last_end, "two at once");
        last_end = request.writes.last().unwrap().written_ns;
    }
    let last = &log.requests[3];
    let waited = (last.start_ns - last.first_byte_ns).as_millis_f64();
    // Three answers of 13 ms before it, if all four came together.
    assert!(waited > 15.0, "{waited} ms");
}

#[test]
fn a_stopped_server_ends_its_streams_and_still_has_their_log() {
    let server = start(quick());
    let long = r#"{"prompt":"x","max_tokens":2000,"stream":true}"#;
    let addr = server.addr;
    let client = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut socket = std::net::TcpStream::connect(addr).unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\ncontent-length: {}\r\n\r\n",
            long.len()
        );
        socket
            .write_all(format!("{head}{long}").as_bytes())
            .unwrap();
        let mut sink = Vec::new();
        // How it ends does not matter here, that it ends does.
        let _ = socket.read_to_end(&mut sink);
    });
    std::thread::sleep(Duration::from_millis(300));
    let log = server.stop();
    client.join().unwrap();
    assert_eq!(log.requests[0].ending, Ending::Stopped);
    assert!(log.requests[0].writes.len() > 1);
}
