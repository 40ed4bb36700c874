//! What `bench` leaves behind contradicts nothing, whatever the load and however the requests
//! ended; what was damaged afterwards is void and stays as it is.

mod bench_common;
mod common;

use std::path::{Path, PathBuf};

use bench_common::{bench, faulty, quick, read};
use common::{run, stderr, stdout};
use pb_mock::MockOptions;
use serde_json::Value;

/// Reports a run directory; its document and its exit code.
fn report(dir: &Path) -> (Value, i32) {
    let output = run(&["report", "--json", dir.to_str().expect("UTF-8")]);
    let document = serde_json::from_str(&stdout(&output));
    let document = document.unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    (document, output.status.code().expect("an exit code"))
}

fn contradictions(document: &Value) -> Vec<&str> {
    let reasons = document["validity"]["reasons"].as_array().expect("a list");
    let all = reasons.iter().filter_map(Value::as_str);
    all.filter(|reason| reason.contains("contradiction"))
        .collect()
}

/// Runs `bench`, then reports its directory: both say the same, figure by figure, because a
/// figure of `bench.json` that the rows do not give would be a contradiction.
fn agrees(server: &str, dir: &Path, name: &str, args: &[&str]) {
    let output = bench(server, dir, name, &[args, &["--json"]].concat());
    let measured: Value = serde_json::from_str(&stdout(&output))
        .unwrap_or_else(|error| panic!("{name}: {error}: {}", stderr(&output)));
    let (reported, code) = report(&dir.join(name));
    assert_eq!(contradictions(&reported), [""; 0], "{name}");
    for key in ["counts", "failures", "validity", "state"] {
        assert_eq!(reported[key], measured[key], "{name}: {key}");
    }
    assert_eq!(output.status.code(), Some(code), "{name}");
}

/// Kinds of load, each with its arguments.
const LOADS: &[(&str, &[&str])] = &[
    ("burst", &["--num-prompts", "6", "--warmup", "2"]),
    ("open", &["--num-prompts", "6", "--request-rate", "100"]),
    (
        "capped",
        &[
            "--num-prompts=6",
            "--request-rate=200",
            "--max-concurrency=1",
        ],
    ),
    ("closed", &["--num-prompts", "9", "--max-concurrency", "3"]),
    (
        "timed",
        &[
            "--max-concurrency",
            "2",
            "--duration",
            "0.3",
            "--num-prompts",
            "900",
        ],
    ),
    ("ramp", &["--ramp", "20:0.2,20..60:0.2"]),
    ("chat", &["--num-prompts", "4", "--api", "chat"]),
    (
        "prefix",
        &[
            "--dataset-name=shared-prefix",
            "--gsp-num-groups=2",
            "--gsp-prompts-per-group=3",
            "--gsp-system-prompt-len=64",
            "--gsp-question-len=8",
            "--gsp-output-len=4",
            "--cache=warm",
        ],
    ),
    (
        "sessions",
        &[
            "--dataset-name=sessions",
            "--sessions=3",
            "--dataset-option=turns=3",
            "--dataset-option=think_s=0.01",
            "--dataset-option=output=4",
            "--request-rate=20",
        ],
    ),
    (
        "talks",
        &[
            "--dataset-name=sessions",
            "--sessions=2",
            "--dataset-option=turns=2",
            "--dataset-option=think_s=0.01",
            "--dataset-option=output=4",
            "--api=chat",
            "--max-concurrency=2",
        ],
    ),
    (
        "interference",
        &[
            "--dataset-name=interference",
            "--dataset-option=params.streams=2",
            "--dataset-option=params.background_output_len=8",
            "--dataset-option=params.horizon_ns=600000000",
            "--dataset-option=params.warm_up_ns=100000000",
            "--dataset-option=params.mean_gap_ns=100000000",
        ],
    ),
];

#[test]
fn no_kind_of_load_contradicts_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    for (name, args) in LOADS {
        agrees(&server.base_url(), dir.path(), name, args);
    }
}

#[test]
fn no_way_of_ending_contradicts_itself() {
    let dir = tempfile::tempdir().expect("a directory");
    let limits = [
        "--num-prompts=6",
        "--request-rate=100",
        "--timeout-first-token=0.5",
        "--timeout-idle=0.5",
        "--timeout-total=1",
    ];
    for (number, fault) in [
        "status:503@2",
        "truncated:2@2",
        "close:2@2",
        "reset:2@2",
        "stall:2@3",
        "never@3",
        "error:2@2",
        "error-field:2@2",
        "no-tokens@2",
        "bad-json:2@2",
        "bad-chunk:2@2",
        "content-type@2",
        "bad-head@2",
    ]
    .into_iter()
    .enumerate()
    {
        let server = faulty(fault);
        let name = format!("fault-{number}");
        agrees(&server.base_url(), dir.path(), &name, &limits);
    }
    // Turns that are never sent because the answer before them does not exist.
    let chat = [
        "--dataset-name=sessions",
        "--sessions=2",
        "--dataset-option=turns=3",
    ];
    let chat = [&chat[..], &["--dataset-option=output=4", "--api=chat"]].concat();
    let chat = [&chat[..], &["--dataset-option=think_s=0.01"]].concat();
    let server = faulty("status:500@2");
    agrees(&server.base_url(), dir.path(), "lost-turns", &chat);
}

/// Two requests of a finished run are taken out.
fn damaged(dir: &Path) -> PathBuf {
    let server = quick(MockOptions::default());
    let args = ["--num-prompts", "6", "--request-rate", "100"];
    let output = bench(&server.base_url(), dir, "r", &args);
    assert!(
        output.status.code().is_some_and(|code| code != 2),
        "{}",
        stderr(&output)
    );
    let run = dir.join("r");
    let rows = read(dir, "r", "requests.csv");
    let kept: Vec<&str> = rows.lines().take(5).collect();
    std::fs::write(run.join("requests.csv"), kept.join("\n") + "\n").expect("written");
    run
}

#[test]
fn a_damaged_run_is_void_as_often_as_it_is_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = damaged(dir.path());
    let before = read(dir.path(), "r", "bench.json");
    for _ in 0..2 {
        let (document, code) = report(&run);
        assert_eq!((code, &document["counts"]["offered"]), (3, &4.into()));
        let told = contradictions(&document).concat();
        for words in [
            "4 requests have rows, 6 were planned",
            "content events belong to no request",
            "counts.offered is 6, the rows give 4",
            "ttft.hlog has 6 values",
            "requests.csv: 4 rows",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert_eq!(read(dir.path(), "r", "bench.json"), before);
    }
    let text = stdout(&common::run(&["report", run.to_str().expect("UTF-8")]));
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert!(text.contains("Not valid"), "{text}");
    let page = read(dir.path(), "r", "report.html");
    assert!(page.contains("6 were planned"));
}
