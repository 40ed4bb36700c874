//! `kill -9` of the writer loses nothing that was acknowledged.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::common::{manifest, row, tokens};
use pb_record::{RunReader, RunWriter};

const DIR_VARIABLE: &str = "PB_RECORD_KILL_TEST_DIR";

/// The child: writes requests for ever and says which are done. Without the variable it is a
/// test that has nothing to do.
#[test]
fn child_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else {
        return;
    };
    let mut writer = RunWriter::create(dir.as_ref(), manifest()).unwrap();
    let mut out = std::io::stderr();
    for id in 0.. {
        writer
            .request(&row(id), &tokens(id, &[(200, 1), (300, 3), (400, 1)]))
            .unwrap();
        writeln!(out, "ack {id}").unwrap();
    }
}

#[test]
fn every_acknowledged_request_survives() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "kill::child_writes_until_it_is_killed",
            "--nocapture",
        ])
        .env(DIR_VARIABLE, &run)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut acknowledged = 0u64;
    let mut count = |line: String| {
        if line.starts_with("ack ") {
            acknowledged += 1;
        }
        acknowledged
    };
    while count(lines.next().unwrap().unwrap()) < 300 {}
    child.kill().unwrap();
    let mut total = 300;
    for line in lines {
        total = count(line.unwrap());
    }
    child.wait().unwrap();

    let data = RunReader::open(&run).unwrap();
    assert!(!data.complete());
    let read = data.requests.len() as u64;
    assert!(
        read == total || read == total + 1,
        "{read} rows, {total} acknowledged"
    );
    for (id, request) in data.requests.iter().enumerate() {
        assert_eq!(*request, row(id as u64));
        assert_eq!(data.tokens_of(request).len(), 3);
    }
}
