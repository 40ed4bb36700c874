//! The ground-truth server as a process: ready line, a script, the log at the end, bad usage.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use common::{prefillbench, run, stderr};

const SCRIPT: &str = r#"{"streams":[{"events":[
    {"at_ms":1,"content":"A"},
    {"at_ms":2,"content":"BC","tokens":2,"finish":"stop","done":true}]}]}"#;

/// Sends one streamed completion; the response as text.
fn complete(address: &str) -> String {
    let body = r#"{"prompt":"x","stream":true}"#;
    let mut socket = TcpStream::connect(address).expect("a connection");
    write!(
        socket,
        "POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("the request goes out");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("a response");
    text
}

#[test]
fn it_serves_a_script_and_writes_what_it_sent() {
    let directory = tempfile::tempdir().expect("a directory");
    let (script, log) = (
        directory.path().join("s.json"),
        directory.path().join("l.csv"),
    );
    std::fs::write(&script, SCRIPT).expect("a script");
    let mut server = prefillbench(&["mock", "--port", "0", "--until-stdin-closes"])
        .arg("--script")
        .arg(&script)
        .arg("--log")
        .arg(&log)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let mut line = String::new();
    let out = server.stdout.take().expect("a piped standard output");
    BufReader::new(out)
        .read_line(&mut line)
        .expect("a ready line");
    let address = line
        .split_once("http://")
        .and_then(|(_, rest)| rest.split(' ').next())
        .expect("an address in the ready line");
    let text = complete(address);
    assert!(
        text.contains(r#""text":"BC""#) && text.contains("[DONE]"),
        "{text}"
    );
    drop(server.stdin.take());
    assert!(server.wait().expect("an end").success());
    let csv = std::fs::read_to_string(&log).expect("a log");
    let tokens = csv.lines().filter(|line| line.contains(",token,"));
    assert_eq!(tokens.count(), 2, "{csv}");
}

#[test]
fn bad_usage_says_what_is_wrong() {
    for (args, expected) in [
        (["--ttft-ms", "fast"], "lognormal:50,0.5"),
        (["--fault", "status:200"], "status:503:1@2"),
        (["--reset", "maybe"], "when-idle"),
        (["--script", "/nonexistent"], "--script /nonexistent"),
        (["--block-size", "0"], "at least 1"),
    ] {
        let output = run(&[&["mock", "--port", "0"][..], &args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            stderr(&output).contains(expected),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}
