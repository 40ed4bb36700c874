//! The router as a program: its command line, its ready line, its simulation.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use common::{json, prefillbench, run, stderr, stdout};

#[test]
fn what_cannot_work_is_refused_with_the_option() {
    for (words, part) in [
        ("router", "--decode"),
        ("router --decode 127.0.0.1:8001", "http://HOST:PORT"),
        ("router --decode https://h:1", "without TLS"),
        ("router --prefill http://127.0.0.1:1", "--decode"),
        ("router --topology 1X", "1P1D"),
        (
            "router --topology 1P1D --decode http://127.0.0.1:1",
            "--topology",
        ),
        (
            "router --decode http://127.0.0.1:1 -- --model m",
            "--topology",
        ),
        (
            "router --decode http://127.0.0.1:1 --temperature -1",
            "temperature",
        ),
        (
            "router --decode http://127.0.0.1:1 --max-prefills 0",
            "--max-prefills",
        ),
        (
            "router --decode http://127.0.0.1:1 --api-key-env NO_SUCH_VARIABLE",
            "NO_SUCH_VARIABLE",
        ),
        ("router simulate --decode 0", "must decode"),
        ("router simulate --blocks 3", "do not fit"),
    ] {
        let args: Vec<&str> = words.split(' ').collect();
        let output = run(&args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{words}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(part),
            "{words}: {}",
            stderr(&output)
        );
        assert!(stdout(&output).is_empty(), "{words}");
    }
}

#[test]
fn it_serves_says_so_and_ends_with_its_harness() {
    // Nobody listens at the worker's address: the router says that, and serves on.
    let mut child = prefillbench(&["router", "--port", "0", "--until-stdin-closes"])
        .args(["--decode", "http://127.0.0.1:9"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the router starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("a piped output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    let address = line
        .strip_prefix("listening on http://")
        .and_then(|rest| rest.split_whitespace().next())
        .expect("an address");
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream
        .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn the_simulation_compares_policies_and_repeats_itself() {
    let args = ["router", "simulate", "--json", "--questions", "6"];
    let got = json(&args);
    assert_eq!(got, json(&args));
    let of = |policy: &str, key: &str| {
        let rows = got["policies"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["policy"] == policy);
        row.expect(policy)[key].as_u64().expect(key)
    };
    // 24 groups of 6 questions of 64 tokens behind 1024 others.
    assert_eq!(of("kv-aware", "prompt_tokens"), 144 * 1088);
    assert_eq!(of("round-robin", "completed"), 144);
    // Everybody computes each question and, at least once, each system prompt.
    assert!(of("kv-aware", "computed_tokens") >= 144 * 64 + 24 * 1024);
    assert!(of("kv-aware", "computed_tokens") < of("round-robin", "computed_tokens"));
    let text = stdout(&run(&["router", "simulate", "--questions", "6"]));
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}
