//! The router as a program: its command line, its ready line, its simulation.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
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
            "router --decode http://127.0.0.1:1 --log-dir x",
            "--topology",
        ),
        (
            "router --topology 1P1D --log-dir /dev/null/x",
            "--log-dir /dev/null/x",
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
        Routed::with(&["--topology", topology], &[])
    }

    /// With further flags of the router, and of its workers.
    fn with(router: &[&str], workers: &[&str]) -> Routed {
        let mut child = prefillbench(&["router", "--port", "0", "--until-stdin-closes"])
            .args(router)
            .arg("--")
            .args(MODEL)
            .args(workers)
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

/// The body of the answer to a small request.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    body.to_owned()
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
    // All KV after the prefill, and blocks of every prompt while it is computed, in steps that end
    // within blocks and at their ends.
    let bulk = Routed::start("1P1D");
    as_one(&alone, &bulk);
    let chunk = [
        "--kv-granularity",
        "chunk",
        "--kv-stream-min-tokens",
        "0",
        "--kv-failure",
        "fail",
    ];
    let chunk = Routed::with(
        &["--topology", "1P1D"],
        &[&chunk[..], &["--max-batched-tokens", "24"]].concat(),
    );
    as_one(&alone, &chunk);
    let page = get(&chunk.address, "/metrics");
    let ahead = page
        .lines()
        .find_map(|line| line.strip_prefix("prefillbench_router_ahead_total "));
    assert_ne!(ahead, Some("0"), "{page}");
}

fn as_one(alone: &Server, routed: &Routed) {
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

/// Rows of a table, each by column.
fn table(dir: &Path, name: &str) -> Vec<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(dir.join(name)).expect(name);
    let mut lines = text.lines().map(|line| line.split(','));
    let columns: Vec<&str> = lines.next().expect("a header").collect();
    let row = |line: std::str::Split<'_, char>| {
        let cells = line.map(str::to_owned);
        columns.iter().map(ToString::to_string).zip(cells).collect()
    };
    lines.map(row).collect()
}

/// One row a request in `dir`, from worker 0, and what reads such tables reads these.
fn has_transfers(dir: &Path, requests: usize, tokens: &str) {
    let rows = table(dir, "transfers.csv");
    assert_eq!(rows.len(), requests, "{rows:?}");
    let told: Vec<u64> = rows
        .iter()
        .map(|row| row["told_ns"].parse().expect("an instant"))
        .collect();
    let sent = table(dir, "requests.csv");
    let first: u64 = sent
        .iter()
        .filter(|row| row["arm"] != "warmup")
        .map(|row| row["sent_ns"].parse().expect("an instant"))
        .min()
        .expect("a request");
    assert!(told.is_sorted() && told[0] > first, "{told:?} {first}");
    for row in &rows {
        assert_eq!((&*row["worker"], &*row["ended"]), ("0", "acknowledged"));
        assert_eq!((&*row["tokens"], &*row["cause"]), (tokens, ""));
        assert!(row["bytes"].parse::<u64>().expect("bytes") > 0);
    }
    let run_dir = dir.to_str().expect("UTF-8");
    let calc = json(&[
        "calc",
        "transfer",
        "--layers",
        "2",
        "--tokens",
        tokens,
        "--kv-heads",
        "2",
        "--d-head",
        "16",
        "--bytes",
        "4",
        "--json",
        "--run",
        run_dir,
    ]);
    assert_eq!(calc["measured_transfers"], requests);
    assert_eq!(calc["measured_failed"], 0);
    let report = run(&["report", run_dir]);
    let page = std::fs::read_to_string(dir.join("report.md")).expect("a report");
    let sentence = format!("{requests} transfers ({requests} acknowledged)");
    assert!(page.contains(&sentence), "{page}{}", stderr(&report));
}

#[test]
fn a_run_behind_the_router_keeps_the_transfers_of_its_window() {
    let dir = tempfile::tempdir().expect("a directory");
    let logs = dir.path().join("logs");
    let logs = [
        "--topology",
        "1P1D",
        "--log-dir",
        logs.to_str().expect("UTF-8"),
    ];
    let routed = Routed::with(&logs, &[]);
    for name in ["worker-0-prefill.log", "worker-1-decode.log"] {
        assert!(Path::new(logs[3]).join(name).exists(), "{name}");
    }
    // Transfers from before the window stay out of it.
    ask(
        &routed.address,
        r#"{"prompt":[5,6,7],"max_tokens":3,"ignore_eos":true}"#,
    );
    let out = dir.path().join("r");
    let (url, place) = (format!("http://{}", routed.address), out.to_str().unwrap());
    let output = run(&[
        "bench",
        "--base-url",
        &url,
        "--no-calibration",
        "--no-scrape",
        "--out",
        place,
        "--random-input-len",
        "40",
        "--random-range-ids",
        "10..250",
        "--random-output-len",
        "3",
        "--num-prompts",
        "5",
        "--request-rate",
        "50",
        "--ignore-eos",
    ]);
    let code = output.status.code();
    assert!(code == Some(0) || code == Some(3), "{}", stderr(&output));
    has_transfers(&out, 5, "40");
}

#[test]
fn a_cell_behind_the_router_keeps_its_transfers_and_its_workers_logs() {
    let dir = tempfile::tempdir().expect("a directory");
    let suite = dir.path().join("suite.toml");
    let text = "schema = 2\nname = \"split\"\nquestion = \"q\"\nreading = \"r\"\n\
        [run]\nblocks = 1\n[engine]\nmodel = \"synthetic-tiny\"\nnumerics = \"exact\"\n\
        [bench]\nrequest_rate = 50\nnum_prompts = 4\nrandom_input_len = 40\n\
        random_output_len = 3\nrandom_range_ids = \"10..250\"\nignore_eos = true\n\
        no_calibration = true\nno_scrape = true\nseed = 3\n[arms.split]\ntopology = \"1P1D\"\n";
    std::fs::write(&suite, text).expect("written");
    let out = dir.path().join("out");
    let output = run(&[
        "run",
        suite.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ]);
    let code = output.status.code();
    assert!(code == Some(0) || code == Some(3), "{}", stderr(&output));
    let cell = out.join("cells/block-000/split");
    has_transfers(&cell, 4, "40");
    assert!(cell.join("server.workers/worker-0-prefill.log").exists());
}
