//! Every fault as a client sees it.

mod common;

use std::time::Duration;

use pb_contract::Stream;
use pb_mock::{Dist, Ending, Fault, Handle, MockOptions, Script, Timing};

use common::{Seen, ask, complete, start};

const STREAM: &str = r#"{"prompt":[1,2,3],"max_tokens":5,"stream":true,
    "stream_options":{"include_usage":true}}"#;

fn options() -> MockOptions {
    MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(2e6),
            itl_ns: Dist::Fixed(1e6),
            ..Timing::default()
        },
        ..MockOptions::default()
    }
}

fn faulty(fault: &str) -> Handle {
    start(MockOptions {
        faults: vec![fault.parse::<Fault>().unwrap()],
        ..options()
    })
}

fn tokens(seen: &Seen) -> usize {
    seen.text().matches("\"text\"").count()
}

#[test]
fn rows_25_to_27_streams_that_end_wrongly() {
    for (fault, count, has, has_not, reset) in [
        (
            "error:2",
            2,
            r#"data: {"error":{"message""#,
            "length",
            false,
        ),
        ("error-field:2", 2, "error: {\"message\"", "[DONE]", false),
        ("truncated:3", 3, "\r\n0\r\n\r\n", "[DONE]", false),
        ("close:3", 3, "\"text\"", "\r\n0\r\n\r\n", false),
        ("close:0", 0, "200 OK", "data:", false),
        ("reset:2", 2, "\"text\"", "\r\n0\r\n\r\n", true),
        ("no-tokens", 0, "data: [DONE]", "usage", false),
        ("bad-chunk:1", 1, "\r\nzz\r\n", "[DONE]", false),
        ("bad-json:1", 1, "data: {\"choices\": [\n", "[DONE]", false),
        (
            "content-type",
            5,
            "content-type: application/json",
            "event-stream",
            false,
        ),
        ("bad-head", 5, "HTTQ/9", "200 OK", false),
    ] {
        let seen = complete(&faulty(fault), STREAM);
        let text = seen.text();
        assert_eq!(tokens(&seen), count, "{fault}: {text}");
        assert!(text.contains(has), "{fault}: {text}");
        assert!(!text.contains(has_not), "{fault}: {text}");
        assert_eq!(seen.reset, reset, "{fault}");
    }
}

#[test]
fn row_30_every_second_request_is_refused_with_retry_after() {
    let server = faulty("status:429:7@2");
    let answers: Vec<Seen> = (0..4).map(|_| complete(&server, STREAM)).collect();
    let statuses: Vec<u16> = answers.iter().map(Seen::status).collect();
    assert_eq!(statuses, [200, 429, 200, 429]);
    assert!(answers[1].text().contains("retry-after: 7\r\n"));
    let log = server.stop();
    assert_eq!(
        (log.requests[1].status, log.requests[1].writes.len()),
        (429, 1)
    );
}

#[test]
fn row_37_a_server_that_falls_silent_or_never_answers() {
    for (fault, bytes, count) in [("never", false, 0), ("stall:2", true, 2)] {
        // A busy machine may need longer for what comes before the silence.
        for patience in [100, 1_000, 10_000] {
            let server = faulty(fault);
            let patience = Duration::from_millis(patience);
            let seen = ask(&server, "POST", "/v1/completions", STREAM, patience);
            assert!(!seen.text().contains("[DONE]"), "{fault}");
            assert!(tokens(&seen) <= count, "{fault}");
            let log = server.stop();
            if tokens(&seen) < count || log.requests.is_empty() {
                assert!(patience < Duration::from_secs(10), "{fault}");
                continue;
            }
            assert_eq!(!seen.text().is_empty(), bytes, "{fault}");
            // The log has it once the server noticed that the client left.
            assert_eq!(log.requests[0].ending, Ending::Stalled, "{fault}");
            break;
        }
    }
}

#[test]
fn a_slow_head_delays_everything() {
    let seen = complete(&faulty("slow-head:80"), STREAM);
    let head = seen.when("200 OK").unwrap();
    let token = seen.when("\"text\"").unwrap();
    assert!(head >= 80.0 && token >= 82.0, "{head} {token}");
    assert_eq!(tokens(&seen), 5);
}

#[test]
fn row_14_pieces_of_every_size_hold_the_same_bytes() {
    let script = r#"{"streams":[{"events":[
        {"at_ms":0,"content":"é"},{"at_ms":1,"finish":"stop","usage":true,"done":true}]}]}"#;
    let split = |fault: Option<&str>| {
        let server = start(MockOptions {
            script: Some(Script::parse(script).unwrap()),
            faults: fault.iter().map(|f| f.parse().unwrap()).collect(),
            ..options()
        });
        complete(&server, STREAM)
    };
    let body = split(None).body();
    assert!(body.contains('é'), "{body}");
    // Pieces with 0.3 ms between them, or more for a machine that reads seldom.
    let apart = [300, 3_000, 30_000].into_iter().any(|gap_us| {
        let seen = split(Some(&format!("split:1:{gap_us}")));
        assert_eq!(seen.body(), body);
        seen.reads.len() > body.len() / 4
    });
    assert!(apart, "the pieces come together");
    for at in (0..body.len()).step_by(17) {
        let seen = split(Some(&format!("cut-at:{at}:3000")));
        assert_eq!(seen.body(), body, "cut at {at}");
    }
}

#[test]
fn row_28_a_rule_that_is_used_up_leaves_the_next() {
    let script = r#"{"streams":[{"times":1,"status":503,"body":"{}"},{"match":{"class":"x"},
        "events":[{"at_ms":1,"bytes":"data: x\n\n"}]}]}"#;
    let server = start(MockOptions {
        script: Some(Script::parse(script).unwrap()),
        ..options()
    });
    assert_eq!(complete(&server, STREAM).status(), 503);
    assert_eq!(tokens(&complete(&server, STREAM)), 5, "no rule fits");
    let classed = complete(&server, r#"{"prompt":"a","stream":true,"mock_class":"x"}"#);
    assert!(classed.text().contains("data: x\n\n"), "{}", classed.text());
}

#[test]
fn requests_of_any_kind_get_an_answer_or_a_close_and_the_server_lives() {
    use std::io::{Read, Write};
    let server = start(options());
    let good = "POST /v1/completions HTTP/1.1\r\ncontent-length: 14\r\n\r\n{\"prompt\":\"x\"}";
    let mut stream = Stream::new(5, "mock/tests/fuzz");
    for _ in 0..300 {
        let mut bytes = good.as_bytes().to_vec();
        for _ in 0..=stream.below(4) {
            let at = stream.below(bytes.len() as u64) as usize;
            match stream.below(3) {
                0 => bytes[at] = stream.below(256) as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, stream.below(256) as u8),
            }
        }
        let mut socket = std::net::TcpStream::connect(server.addr).unwrap();
        // The server may close at any byte.
        let _ = socket.write_all(&bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        socket.set_read_timeout(Some(common::PATIENCE)).unwrap();
        let mut answer = Vec::new();
        match socket.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => {
                assert_ne!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock,
                    "hangs on {bytes:?}"
                )
            }
        }
    }
    assert_eq!(tokens(&complete(&server, STREAM)), 5);
}
