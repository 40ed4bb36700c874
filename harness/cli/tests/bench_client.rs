//! What the client of `bench` and `leak` refuses before anything is sent, and what it never shows.

mod bench_common;
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bench_common::{arguments, holds, measured, quick};
use common::{prefillbench, stderr, stdout};
use pb_mock::MockOptions;
use serde_json::Value;

/// Parts of the key and of the header's value, neither of which anything else has.
const KEY: &str = "sk-live-51HxYz0123";
const TENANT: &str = "tenant-Qw8Zx9Kv";

/// A server that repeats the credentials of each request in all that it says.
struct Echo {
    url: String,
    asked: Arc<AtomicUsize>,
}

impl Echo {
    fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let counter = Arc::clone(&counter);
                std::thread::spawn(move || while answer(&socket, &counter).is_some() {});
            }
        });
        Echo { url, asked }
    }
}

/// Answers a request; `None` when the client left.
fn answer(socket: &TcpStream, counter: &AtomicUsize) -> Option<()> {
    let mut reader = BufReader::new(socket);
    let (mut first, mut said, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut first).ok().filter(|&n| n > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&n| n > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "authorization" | "x-tenant" => said += &format!("{value} "),
            _ => {}
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    let number = counter.fetch_add(1, Ordering::SeqCst);
    let path = first.split(' ').nth(1)?;
    let (status, kind, body) = said_in(path, number, &said);
    let mut out = socket;
    write!(
        out,
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nx-seen: {said}\r\nserver: {said}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()
}

fn said_in(path: &str, number: usize, said: &str) -> (String, &'static str, String) {
    let json = "application/json";
    let fine = |body: String| ("200 OK".to_owned(), json, body);
    match path {
        "/v1/models" => fine(format!("{{\"data\":[{{\"id\":\"model of {said}\"}}]}}")),
        "/version" => fine(format!("{{\"version\":\"{said}\"}}")),
        "/metrics" => {
            let name = "vllm:num_requests_running";
            let page = format!("# TYPE {name} gauge\n{name}{{key=\"{said}\"}} 1\n");
            ("200 OK".to_owned(), "text/plain", page)
        }
        _ if !path.contains("completions") => ("404 Not Found".to_owned(), json, said.to_owned()),
        _ => match number % 3 {
            0 => {
                let body = format!("{{\"error\":{{\"message\":\"no: {said}\"}}}}");
                (format!("401 {said}"), json, body)
            }
            1 => {
                let event = format!("data: {{\"error\":{{\"message\":\"no: {said}\"}}}}\n\n");
                ("200 OK".to_owned(), "text/event-stream", event)
            }
            _ => {
                let token = "{\"choices\":[{\"text\":\"a\"}]}";
                let end =
                    format!("{{\"choices\":[{{\"text\":\"\",\"finish_reason\":\"{said}\"}}]}}");
                let events = format!("data: {token}\n\ndata: {end}\n\n");
                ("200 OK".to_owned(), "text/event-stream", events)
            }
        },
    }
}

fn shows_no_key(dir: &std::path::Path, text: &str) {
    for part in ["51HxYz", "Qw8Zx9"] {
        assert!(!text.contains(part), "{text}");
        assert!(!holds(dir, part), "a file holds {part:?}");
    }
}

#[test]
fn a_key_that_the_server_repeats_is_shown_nowhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Echo::start();
    let more = [
        "--api-key-env",
        "PB_TEST_KEY",
        "--header",
        &format!("x-tenant={TENANT}"),
        "--num-prompts",
        "6",
        "--max-concurrency",
        "1",
        "--scrape-interval-ms",
        "5",
        "--json",
    ];
    let output = prefillbench(&[])
        .args(arguments(&server.url, dir.path(), "r", &more))
        .env("PB_TEST_KEY", KEY)
        .output()
        .expect("it runs");
    let text = stdout(&output) + &stderr(&output);
    assert!(text.contains("(hidden)"), "{text}");
    let _: Value = serde_json::from_str(&stdout(&output)).expect("a document");
    assert!(holds(dir.path(), "(hidden)"));
    assert!(dir.path().join("r/scrapes.jsonl").exists());
    shows_no_key(dir.path(), &text);

    let out = dir.path().join("leak");
    let output = prefillbench(&[])
        .args([
            "leak",
            "--base-url",
            &server.url,
            "--model",
            "m",
            "--trials",
            "8",
        ])
        .args(["--warmup", "0", "--json", "--api-key-env", "PB_TEST_KEY"])
        .args(["--header", &format!("x-tenant={TENANT}"), "--out"])
        .arg(&out)
        .env("PB_TEST_KEY", KEY)
        .output()
        .expect("it runs");
    let text = stdout(&output) + &stderr(&output);
    assert!(text.contains("(hidden)"), "{text}");
    shows_no_key(dir.path(), &text);
}

#[test]
fn what_cannot_be_sent_is_refused_before_anything_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Echo::start();
    for (args, part) in [
        (
            &["--header", "Transfer-Encoding=chunked"][..],
            "leave it out",
        ),
        (&["--header", "Host=a"], "leave it out"),
        (&["--header", "content-length=3"], "leave it out"),
        (&["--header", "Connection=close"], "leave it out"),
        (&["--header", "Upgrade=h2c"], "leave it out"),
        (&["--header", "expect=100-continue"], "leave it out"),
        (&["--header", "TE=trailers"], "leave it out"),
        (&["--header", "keep-alive=5"], "leave it out"),
        (&["--header", "x=a\r\ny: b"], "--header"),
        (&["--endpoint", "/v1/a b"], "percent-encoded"),
        (&["--endpoint", "/v1\r\nx: y"], "percent-encoded"),
        (&["--endpoint", "/v1/a#b"], "percent-encoded"),
        (&["--endpoint", "v1"], "must begin with /"),
        (&["--api-key-env", "PB_TEST_KEY"], "its character 8"),
        (&["--timeout-total", "1e-7"], "0.001"),
        (&["--timeout-connect", "0.0005"], "0.001"),
        (&["--timeout-idle", "1e300"], "0.001"),
        (&["--timeout-first-token", "0"], "0.001"),
        (
            &["--request-rate", "2", "--burstiness", "1e308"],
            "from 0.001 to 1e6",
        ),
        (
            &["--request-rate", "2", "--burstiness", "1e-308"],
            "from 0.001 to 1e6",
        ),
        (&["--reuse-connections", "maybe"], "reuse-connections"),
    ] {
        let output = prefillbench(&[])
            .args(arguments(&server.url, dir.path(), "r", args))
            .env("PB_TEST_KEY", "secret1\nx: y")
            .output()
            .expect("it runs");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(part), "{args:?}: {text}");
        assert!(!text.contains("secret1"), "{args:?}: {text}");
        assert_eq!(stdout(&output), "", "{args:?}");
    }
    assert_eq!(server.asked.load(Ordering::SeqCst), 0, "nothing was sent");
}

#[test]
fn a_request_has_its_own_connection_where_that_is_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let args = ["--num-prompts", "6", "--max-concurrency", "2"];
    let opened = |name: &str, more: &[&str]| {
        let doc = measured(
            &server.base_url(),
            dir.path(),
            name,
            &[&args, more].concat(),
        );
        assert_eq!(doc["counts"]["ok"], 6, "{doc}");
        let asked = &doc["load"]["asked"];
        let connections = &asked["connections"];
        let count = |key: &str| connections[key].as_u64().expect("a count");
        (
            count("before_start"),
            count("opened"),
            asked["lag_limit_ms"].clone(),
        )
    };
    assert_eq!(opened("a", &[]), (2, 2, Value::Null));
    let (before, all, limit) = opened("b", &["--reuse-connections", "false"]);
    assert_eq!((before, all), (0, 6));
    assert!(limit.as_f64().expect("a limit") > 1.0);
    // llama.cpp's server closes kept connections under the next request.
    let (before, all, _) = opened("c", &["--server", "llama-cpp"]);
    assert_eq!((before, all), (0, 6));
    let args = ["--server", "llama-cpp", "--reuse-connections", "true"];
    let (before, all, _) = opened("d", &args);
    assert_eq!((before, all), (2, 2));
}
