//! The router as a program: its command line, its ready line, its simulation.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use common::{Server, json, prefillbench, run, stderr, stdout};
use serde_json::Value;

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

/// The router before workers that it starts; both end when its standard input closes.
struct Routed {
    child: std::process::Child,
    address: String,
}

impl Routed {
    fn start(topology: &str) -> Routed {
        let mut child = prefillbench(&["router", "--port", "0", "--until-stdin-closes"])
            .args(["--topology", topology, "--"])
            .args(MODEL)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the router starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("a piped output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let rest = line
            .strip_prefix("listening on http://")
            .expect("a ready line");
        let address = rest
            .split_whitespace()
            .next()
            .expect("an address")
            .to_owned();
        Routed { child, address }
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

const MODEL: [&str; 4] = ["--model", "synthetic-tiny", "--numerics", "exact"];

/// Head and body of the answer to a completion.
fn ask(address: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// What an answer says, without what differs from one to the next.
fn said(body: &str) -> Vec<Value> {
    let lines = body
        .lines()
        .map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let documents = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    documents
        .filter_map(|mut document| {
            let map = document.as_object_mut()?;
            for name in ["id", "created"] {
                map.remove(name)?;
            }
            Some(document)
        })
        .collect()
}

#[test]
fn two_workers_answer_as_one() {
    let help = stdout(&run(&["serve", "--help"]));
    assert!(help.contains("--role"), "nothing to split: {help}");
    let alone = Server::start(&MODEL);
    let routed = Routed::start("1P1D");
    // Blocks have 16 tokens.
    for length in [1, 15, 16, 17, 32, 33, 70] {
        let prompt: Vec<u32> = (0..length).map(|n| 10 + (n * 7 + length) % 200).collect();
        for more in [
            r#""max_tokens":1,"temperature":0"#,
            r#""max_tokens":2,"temperature":0"#,
            r#""max_tokens":20,"temperature":0,"ignore_eos":true"#,
            r#""max_tokens":20,"temperature":1,"seed":5"#,
        ] {
            for stream in [false, true] {
                let body = format!(
                    "\
                        {{\"prompt\":{prompt:?},\"stream\":{stream},\
                        \"stream_options\":{{\"include_usage\":true}},{more}}}"
                );
                let body = match stream {
                    true => body,
                    false => body.replace(r#""stream_options":{"include_usage":true},"#, ""),
                };
                let (head, answer) = ask(&routed.address, &body);
                assert!(head.starts_with("HTTP/1.1 200"), "{body}: {head} {answer}");
                assert!(head.contains("x-prefillbench-route: split"), "{head}");
                let expected = said(&ask(&alone.address, &body).1);
                let mut got = said(&answer);
                // Both have the same prompts behind them, but blocks of a decode are the prefill
                // worker's to find only where it has computed them.
                let usage = |all: &mut Vec<Value>| {
                    for one in all {
                        if let Some(usage) = one["usage"].as_object_mut() {
                            usage.remove("prompt_tokens_details");
                        }
                    }
                };
                let mut expected = expected;
                usage(&mut got);
                usage(&mut expected);
                assert_eq!(text(&got), text(&expected), "{body}");
                assert_eq!(got.last(), expected.last(), "{body}");
            }
        }
    }
}

/// The text and the finish of an answer, however its events are cut.
fn text(documents: &[Value]) -> (String, Option<String>) {
    let choices = documents.iter().filter_map(|one| one["choices"].get(0));
    let mut all = (String::new(), None);
    for choice in choices {
        all.0 += choice["text"].as_str().unwrap_or_default();
        let finish = choice["finish_reason"].as_str().map(str::to_owned);
        all.1 = finish.or(all.1);
    }
    all
}
