//! Prefill and decode as two processes.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use common::{Server, prefillbench, stderr};
use serde_json::{Value, json};

const MODEL: [&str; 6] = [
    "--model",
    "synthetic-tiny",
    "--numerics",
    "exact",
    "--threads",
    "1",
];
/// Looks, a few milliseconds apart, before a hang is called a hang.
const LOOKS: usize = 6_000;

fn start(args: &[&str]) -> Server {
    Server::start(&[&MODEL[..], args].concat())
}

fn complete(server: &Server, body: &Value) -> Value {
    let (status, text) = server.request("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn body(n: u32, seed: Option<u64>) -> Value {
    let prompt: Vec<u32> = (0..n).map(|i| (i * 37 + 11 + n) % 250).collect();
    json!({
        "prompt": prompt, "max_tokens": 10, "ignore_eos": true, "return_token_ids": true,
        "temperature": if seed.is_some() { 1.0 } else { 0.0 }, "seed": seed,
    })
}

fn tokens(answer: &Value) -> Vec<Value> {
    answer["choices"][0]["token_ids"]
        .as_array()
        .expect("token ids")
        .clone()
}

/// The prefill leg.
fn prefill(server: &Server, body: &Value) -> Value {
    let mut body = body.clone();
    body["kv_transfer_params"] = json!({ "do_remote_decode": true });
    complete(server, &body)
}

/// The decode leg's body.
fn go_on(body: &Value, first: &Value) -> Value {
    let mut body = body.clone();
    body["kv_transfer_params"] = first["kv_transfer_params"].clone();
    body
}

fn worker(server: &Server) -> Value {
    let (status, text) = server.request("GET", "/worker", "");
    assert_eq!(status, 200);
    serde_json::from_str(&text).expect("JSON")
}

/// Waits until no block of a server is held or filled for a transfer.
fn until_released(server: &Server) {
    for _ in 0..LOOKS {
        let worker = worker(server);
        if worker["blocks_in_transfer"] == 0 && worker["running"] == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("blocks are still held: {}", worker(server));
}

fn metric(server: &Server, start: &str) -> f64 {
    let (_, page) = server.request("GET", "/metrics", "");
    let line = page.lines().find(|line| line.starts_with(start));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.map_or(0.0, |value| value.parse().expect("a number"))
}

/// A Python that has Mooncake, or else a stand-in of it.
fn mooncake_python() -> String {
    let stand_in = || {
        let tests = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../engine-under-test/transfer/tests"
        );
        format!("{tests}/transfer/stand_in/python")
    };
    std::env::var("PB_MOONCAKE_PYTHON").unwrap_or_else(|_| stand_in())
}

#[test]
fn two_processes_answer_as_one_over_each_transport() {
    let alone = start(&[]);
    let sizes = [1, 15, 16, 17, 48, 49];
    let bodies: Vec<Value> = sizes
        .into_iter()
        .flat_map(|n| [body(n, None), body(n, Some(u64::from(n)))])
        .collect();
    let expected: Vec<Vec<Value>> = bodies
        .iter()
        .map(|b| tokens(&complete(&alone, b)))
        .collect();
    let mut ways = vec![
        ("tcp", "pull", "bulk"),
        ("tcp", "push", "layer"),
        ("shm", "pull", "chunk"),
        ("shm", "push", "bulk"),
    ];
    ways.push(("mooncake", "push", "layer"));
    match std::env::var_os("PB_NIXL_LIBRARY") {
        Some(_) => ways.extend([("nixl", "pull", "bulk"), ("nixl", "push", "layer")]),
        None => println!("without NIXL: PB_NIXL_LIBRARY is not set"),
    }
    let python = mooncake_python();
    for (transport, mode, granularity) in ways {
        let sends = ["--kv-mode", mode, "--kv-granularity", granularity];
        let mut common = vec!["--kv-transport", transport, "--kv-failure", "fail"];
        common.extend(["--kv-mooncake-python", &python]);
        let prefiller = start(&[&["--role", "prefill"], &sends[..], &common[..]].concat());
        let decoder = start(&[&["--role", "decode"], &common[..]].concat());
        // Twice: the second time with the prefix on both sides.
        for _ in 0..2 {
            for (body, expected) in bodies.iter().zip(&expected) {
                let first = prefill(&prefiller, body);
                let second = complete(&decoder, &go_on(body, &first));
                let both = [tokens(&first), tokens(&second)].concat();
                assert_eq!(&both, expected, "{transport} {mode} {granularity}");
            }
        }
        let received = metric(&decoder, "prefillbench_kv_transfers_received_total");
        assert_eq!(received, 24.0);
        until_released(&prefiller);
        until_released(&decoder);
        assert!(decoder.wait().success());
        assert!(prefiller.wait().success());
    }
}

#[test]
fn a_killed_worker_costs_no_request_and_no_block() {
    let alone = start(&[]);
    let body = body(40, Some(7));
    let expected = tokens(&complete(&alone, &body));
    for failure in ["recompute", "fail"] {
        let prefiller = start(&["--role", "prefill"]);
        let decoder = start(&["--role", "decode", "--kv-failure", failure]);
        let first = prefill(&prefiller, &body);
        // Killed between the legs.
        drop(prefiller);
        let second = go_on(&body, &first).to_string();
        let (status, text) = decoder.request("POST", "/v1/completions", &second);
        if failure == "recompute" {
            assert_eq!(status, 200, "{text}");
            let second: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!([tokens(&first), tokens(&second)].concat(), expected);
        } else {
            assert_eq!(status, 503, "{text}");
            assert!(text.contains("kv_transfer_failed"), "{text}");
        }
        until_released(&decoder);
    }
    // The decode worker is killed while its one place is taken and a claim waits for it. Should the
    // claim not be there yet, the lease gives the blocks back.
    let prefiller = start(&["--role", "prefill", "--kv-lease-ms", "3000"]);
    let decoder = start(&["--role", "decode", "--max-num-seqs", "1"]);
    let mut long = body.clone();
    long["max_tokens"] = json!(150);
    let first = prefill(&prefiller, &body);
    let bodies = [long, go_on(&body, &first)];
    let clients = bodies.map(|body| {
        let address = decoder.address.clone();
        std::thread::spawn(move || quiet(&address, &body))
    });
    for _ in 0..300 {
        if worker(&decoder)["waiting"] == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(decoder);
    for client in clients {
        client.join().expect("a client that does not panic");
    }
    until_released(&prefiller);
}

/// Sends a request whose answer does not matter.
fn quiet(address: &str, body: &Value) {
    let text = body.to_string();
    let Ok(mut stream) = TcpStream::connect(address) else {
        return;
    };
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for (args, word) in [
        (&["--kv-mode", "push"][..], "--role"),
        (
            &["--role", "prefill", "--kv-listen", "0.0.0.0:0"],
            "other workers are told",
        ),
        (
            &["--role", "prefill", "--kv-listen", "nonsense"],
            "HOST:PORT",
        ),
        (
            &["--role", "prefill", "--kv-transport", "local"],
            "--role both",
        ),
        (
            &[
                "--role",
                "both",
                "--kv-transport",
                "local",
                "--kv-listen",
                "x",
            ],
            "no effect",
        ),
        (
            &["--role", "prefill", "--kv-lease-ms", "0"],
            "--kv-lease-ms",
        ),
        (
            &["--role", "prefill", "--kv-stream-min-tokens", "256"],
            "--kv-granularity chunk or layer",
        ),
        (
            &["--role", "prefill", "--kv-stream-min-tokens", "never"],
            "or off",
        ),
    ] {
        let all = [&["serve", "--port", "0"], &MODEL[..], args].concat();
        let output = prefillbench(&all).stdin(Stdio::null()).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(word),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

/// What carries KV is looked for first: weights take their time.
#[test]
fn a_transport_that_is_not_installed_is_an_error_before_the_model_is_looked_at() {
    for (transport, option, install) in [
        (
            "nixl",
            "--kv-nixl-library",
            "pip install --no-deps nixl-cu13",
        ),
        (
            "mooncake",
            "--kv-mooncake-python",
            "pip install --no-deps mooncake-transfer-engine-non-cuda",
        ),
    ] {
        let output = prefillbench(&["serve", "--model", "/nonexistent/model", "--role", "both"])
            .args(["--kv-transport", transport, option, "/nonexistent/thing"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        for word in [option, "/nonexistent/thing cannot be used", install] {
            assert!(text.contains(word), "{word} in {text}");
        }
        assert!(!text.contains("/nonexistent/model"), "{text}");
    }
    let v6 = [
        "--kv-transport",
        "mooncake",
        "--kv-listen",
        "[::1]:0",
        "--role",
        "both",
    ];
    let output = prefillbench(&[&["serve", "--port", "0"], &MODEL[..], &v6[..]].concat())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("IPv4 only"), "{text}");
}

#[test]
fn an_address_that_cannot_be_had_is_told_before_weights_are_loaded() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let args = [
        "serve",
        "--port",
        "0",
        "--model",
        "/nonexistent/weights",
        "--role",
        "prefill",
        "--kv-listen",
        &address,
    ];
    let output = prefillbench(&args).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = stderr(&output);
    assert!(
        told.contains("--kv-listen") && !told.contains("/nonexistent"),
        "{told}"
    );
}

#[test]
fn one_process_may_do_both_and_takes_its_socket_away() {
    let both = start(&["--role", "both", "--kv-transport", "local"]);
    let body = body(40, None);
    let first = prefill(&both, &body);
    let second = complete(&both, &go_on(&body, &first));
    let whole = complete(&both, &body);
    assert_eq!([tokens(&first), tokens(&second)].concat(), tokens(&whole));
    assert!(both.wait().success());
    let shm = start(&["--role", "both", "--kv-transport", "shm"]);
    let first = prefill(&shm, &body);
    let path = first["kv_transfer_params"]["remote_host"]
        .as_str()
        .expect("a path")
        .to_owned();
    assert!(Path::new(&path).exists());
    let second = complete(&shm, &go_on(&body, &first));
    assert_eq!([tokens(&first), tokens(&second)].concat(), tokens(&whole));
    assert!(shm.wait().success());
    assert!(!Path::new(&path).exists(), "{path}");
}
