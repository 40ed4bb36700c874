//! Running the binary.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

/// A command for the binary.
pub(crate) fn prefillbench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prefillbench"));
    command.args(args);
    command
}

/// Runs the binary to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    prefillbench(args).output().expect("the binary runs")
}

/// Standard output as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Runs the binary, expects success and parses its standard output.
pub(crate) fn json(args: &[&str]) -> serde_json::Value {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("one JSON document on standard output")
}

/// A server child that is killed when dropped.
pub(crate) struct Server {
    child: Child,
    /// `host:port`.
    pub(crate) address: String,
    /// Closing it stops the server.
    pub(crate) stdin: Option<std::process::ChildStdin>,
}

impl Server {
    /// Starts `serve` on a free port and waits for its ready line.
    pub(crate) fn start(args: &[&str]) -> Server {
        let mut command = prefillbench(&["serve", "--port", "0", "--until-stdin-closes"]);
        let mut child = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("a piped standard output");
        BufReader::new(out)
            .read_line(&mut line)
            .expect("a ready line");
        let url = line
            .strip_prefix("listening on http://")
            .expect("the ready line");
        let address = url
            .split_whitespace()
            .next()
            .expect("an address")
            .to_string();
        let stdin = child.stdin.take();
        Server {
            child,
            address,
            stdin,
        }
    }

    /// Sends one request and returns status and body.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("written");
        stream.write_all(body.as_bytes()).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer
            .split_whitespace()
            .nth(1)
            .expect("a status")
            .parse()
            .expect("a number");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, body.to_string())
    }

    /// Waits for the server to end by itself.
    pub(crate) fn wait(mut self) -> std::process::ExitStatus {
        drop(self.stdin.take());
        self.child.wait().expect("the server ends")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
