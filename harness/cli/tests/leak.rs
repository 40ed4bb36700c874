//! `leak` against the ground-truth server, whose cache and times are known.

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{prefillbench, run, stderr, stdout};
use pb_mock::{CacheModel, Dist, Handle, Mock, MockOptions, Style, Timing, UsageStyle};
use serde_json::Value;

/// A server whose prompts cost 20 us a token: 5.1 ms for 256 tokens that are not cached.
fn server(cache: CacheModel, usage: UsageStyle) -> Handle {
    let timing = Timing {
        ttft_ns: Dist::Fixed(5e5),
        prefill_ns_per_token: 20_000.0,
        itl_ns: Dist::Fixed(1e5),
        ..Timing::default()
    };
    let style = Style {
        usage,
        ..Style::default()
    };
    Mock::start(MockOptions {
        timing,
        style,
        cache,
        ..MockOptions::default()
    })
    .expect("the server starts")
}

fn leak(url: &str, dir: &Path, args: &[&str]) -> Output {
    let out = dir.join("run");
    let out = out.to_str().expect("UTF-8");
    let target = ["leak", "--base-url", url, "--model", "mock"];
    let length = ["--prompt-len", "256"];
    let length = if args.contains(&"--prompt-len") {
        &[]
    } else {
        &length[..]
    };
    run(&[&target[..], length, &["--out", out, "--json"], args].concat())
}

/// The document of a probe of `server`, whose exit code fits its verdict.
fn probe(server: &Handle, args: &[&str]) -> Value {
    let dir = tempfile::tempdir().expect("a directory");
    document(&leak(&server.base_url(), dir.path(), args))
}

fn document(output: &Output) -> Value {
    let text = stdout(output);
    let doc: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(output)));
    let expected = match doc["verdict"].as_str().expect("a verdict") {
        "isolated" => 0,
        "leaks" => 1,
        _ => 3,
    };
    assert_eq!(output.status.code(), Some(expected), "{text}");
    doc
}

fn salted(salted: bool) -> CacheModel {
    CacheModel {
        salted,
        ..CacheModel::default()
    }
}

/// A verdict that the times of the requests decide: `expected`, and on a machine whose own noise
/// is larger than what a hit saves, `inconclusive` after three probes. Never another one.
fn by_time(server: &Handle, args: &[&str], expected: &str) -> Value {
    let mut doc = Value::Null;
    for _ in 0..3 {
        doc = probe(server, args);
        if doc["verdict"] == expected {
            break;
        }
        assert_eq!(doc["verdict"], "inconclusive", "{doc}");
        let reasons = doc["reasons"].to_string();
        let noise = ["times do not decide", "own hit is not shown"];
        assert!(noise.iter().any(|part| reasons.contains(part)), "{doc}");
    }
    doc
}

/// CVE-2025-46570; vllm #16016, #17045: with and without isolation, by usage and by timing.
#[test]
fn row_92_isolation_and_its_absence_are_told_by_usage_and_by_timing() {
    for usage in [UsageStyle::Full, UsageStyle::NoCached] {
        let told = usage == UsageStyle::Full;
        let isolating = server(salted(true), usage);
        // With 400 trials silence is shown by timing 998 times in 1000.
        let doc = by_time(&isolating, &["--trials", "400"], "isolated");
        let hits = if told { 400 } else { 0 };
        assert_eq!(doc["arms"][0]["usage_hits"], hits);
        assert_eq!(doc["arms"][1]["usage_hits"], 0);
        let leaking = server(salted(false), usage);
        // Without a salt everybody shares, on an isolating server too.
        for (server, args) in [
            (&leaking, &["--trials", "40"][..]),
            (&isolating, &["--trials", "40", "--no-salt"]),
        ] {
            let doc = by_time(server, args, "leaks");
            // A usage that admits a hit needs no clock.
            assert!(!told || doc["verdict"] == "leaks", "{doc}");
        }
    }
}

/// vllm #53347: a test that only checks "different salt, no reuse" passes when caching is off.
#[test]
fn row_92_a_cache_that_is_off_is_no_pass() {
    let off = CacheModel {
        enabled: false,
        ..CacheModel::default()
    };
    let off = server(off, UsageStyle::Full);
    by_time(&off, &["--trials", "400"], "cache_off");
    // Prompts shorter than a block show nothing either, though the cache is on.
    let on = server(salted(true), UsageStyle::NoCached);
    by_time(&on, &["--trials", "400", "--prompt-len", "16"], "cache_off");
}

/// Times so noisy that they decide nothing: exponential around 8 ms where a hit saves 1 ms.
#[test]
fn row_92_noise_is_inconclusive_and_never_a_pass() {
    let timing = Timing {
        ttft_ns: Dist::Exponential(8e6),
        prefill_ns_per_token: 4_000.0,
        ..Timing::default()
    };
    let style = Style {
        usage: UsageStyle::NoCached,
        ..Style::default()
    };
    let noisy = Mock::start(MockOptions {
        timing,
        style,
        ..MockOptions::default()
    })
    .expect("the server starts");
    for tries in 1.. {
        let doc = probe(&noisy, &["--trials", "60"]);
        assert!(doc["design"]["power"].as_f64().expect("a number") < 0.6);
        if doc["verdict"] == "inconclusive" {
            break;
        }
        // The noise of a busy machine on top of this one can hide the hits altogether.
        assert_eq!(doc["verdict"], "cache_off", "{doc}");
        assert!(tries < 4, "{doc}");
    }
}

/// One command, prompts of its own making only, every request a row.
#[test]
fn row_93_one_command_with_its_own_prompts_leaves_every_row() {
    let mock = server(salted(true), UsageStyle::Full);
    let dir = tempfile::tempdir().expect("a directory");
    let args = [
        "--trials", "12", "--warmup", "3", "--seed", "7", "--nonce", "9",
    ];
    let doc = document(&leak(&mock.base_url(), dir.path(), &args));
    assert_eq!(doc["design"]["requests"], 12 * 4 + 3);
    let rows = std::fs::read_to_string(dir.path().join("run/requests.csv")).expect("rows");
    let arm = |name: &str| rows.lines().filter(|row| row.starts_with(name)).count();
    let arms = ["warmup,", "prime,", "same,", "other,", "unprimed,"].map(arm);
    assert_eq!(arms, [3, 12, 12, 12, 12]);
    // Only the same tenant's requests found anything: 15 blocks of 16, the last token is computed.
    let log = mock.log();
    let found = |cached| {
        log.requests
            .iter()
            .filter(|r| r.cached_tokens == cached)
            .count()
    };
    assert_eq!((found(240), found(0)), (12, 39));
    // The same seed and nonce on the same cache: what must be new is found, and nothing is said.
    let again = tempfile::tempdir().expect("a directory");
    let doc = document(&leak(&mock.base_url(), again.path(), &args));
    assert_eq!(doc["verdict"], "inconclusive", "{doc}");
    assert!(
        doc["reasons"][0]
            .as_str()
            .expect("a text")
            .contains("nobody had sent")
    );
}

#[test]
fn texts_and_chats_are_probed_too() {
    let mock = server(salted(false), UsageStyle::Full);
    for args in [
        ["--input-unit", "text", "--trials", "10"],
        ["--api", "chat", "--trials", "10"],
    ] {
        let doc = probe(&mock, &args);
        assert_eq!(doc["verdict"], "leaks", "{args:?}: {doc}");
    }
}

#[test]
fn tenants_by_header_and_by_key_are_not_told_apart_by_a_server_that_ignores_them() {
    let mock = server(salted(true), UsageStyle::Full);
    let by_header = ["--tenant-header", "x-tenant", "--trials", "5"];
    let doc = probe(&mock, &by_header);
    assert_eq!(
        (&doc["verdict"], &doc["tenants"]["name"]),
        (&"leaks".into(), &"x-tenant".into())
    );
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("keys");
    let mut command = prefillbench(&["leak", "--base-url", &mock.base_url(), "--model", "mock"]);
    command.args(["--prompt-len", "256", "--trials", "5", "--json", "--out"]);
    command.arg(&out).args([
        "--api-key-env",
        "LEAK_TEST_A",
        "--other-key-env",
        "LEAK_TEST_B",
    ]);
    command
        .env("LEAK_TEST_A", "s3cret-a")
        .env("LEAK_TEST_B", "s3cret-b");
    let output = command.output().expect("the binary runs");
    assert_eq!(document(&output)["verdict"], "leaks");
    for file in std::fs::read_dir(&out).expect("a directory") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a text");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn bad_usage_and_dead_servers_end_with_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let dead = leak("http://127.0.0.1:9", dir.path(), &[]);
    assert_eq!(dead.status.code(), Some(2), "{}", stderr(&dead));
    assert!(!dir.path().join("run").exists(), "nothing is written");
    let mock = server(salted(true), UsageStyle::Full);
    for (args, part) in [
        (
            &["--no-salt", "--tenant-header", "x"][..],
            "cannot be used with",
        ),
        (
            &["--tenant-header", "x", "--tenant-values", "a,a"],
            "two different",
        ),
        (
            &["--api", "chat", "--input-unit", "ids"],
            "a chat message is a text",
        ),
        (&["--power", "1"], "between 0 and 1"),
        (&["--api-key-env", "LEAK_NO_SUCH_VARIABLE"], "not set"),
        (&["--endpoint", "/nowhere"], "every request failed"),
        (
            &["--trials", "18446744073709551615"],
            "must be at most 100000",
        ),
        (
            &["--prompt-len", "18446744073709551615"],
            "must be at most 4194304",
        ),
        (&["--warmup", "99999999999"], "must be at most 10000"),
        (&["--pause-ms", "99999999999"], "must be at most 3600000"),
        (
            &["--trials", "-1"],
            "'-1' for '--trials <N>': must be a whole number, at least 1",
        ),
        (&["--seed", "-1"], "must be a whole number from 0"),
        (
            &["--timeout-first-token", "-0.5"],
            "must be a number above 0, in seconds",
        ),
    ] {
        let output = leak(&mock.base_url(), dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        // However its lines are cut.
        let told = stderr(&output);
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains(part), "{args:?}: {told}");
        let doc: Value = serde_json::from_str(&stdout(&output)).expect("one document");
        assert_eq!(doc["error"]["exit_code"], 2, "{doc}");
        let message = doc["error"]["message"].as_str().expect("a text");
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_limit_may_be_a_fraction_of_a_second() {
    let timing = Timing {
        ttft_ns: Dist::Fixed(600e9),
        ..Timing::default()
    };
    let slow = Mock::start(MockOptions {
        timing,
        ..MockOptions::default()
    })
    .expect("the server starts");
    let dir = tempfile::tempdir().expect("a directory");
    for flag in ["--timeout-first-token", "--timeout-total"] {
        let args = [flag, "0.05", "--warmup", "0"];
        let output = leak(&slow.base_url(), &dir.path().join(flag), &args);
        assert_eq!(output.status.code(), Some(2), "{flag}");
        let message = stderr(&output);
        assert!(
            message.contains("every request failed"),
            "{flag}: {message}"
        );
    }
}

/// The rows that were there are kept, and nothing is concluded from a part of the design.
#[cfg(unix)]
#[test]
fn an_interrupted_probe_keeps_its_rows_and_concludes_nothing() {
    let mock = server(salted(false), UsageStyle::Full);
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("run");
    let url = mock.base_url();
    let mut command = prefillbench(&["leak", "--base-url", &url, "--model", "mock", "--json"]);
    command.args(["--prompt-len", "256", "--trials", "100000", "--out"]);
    let child = command
        .arg(&out)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = child.spawn().expect("the binary runs");
    let rows = || std::fs::read_to_string(out.join("requests.csv")).unwrap_or_default();
    let mut waited = 0;
    while rows().matches("\nunprimed,").count() < 5 {
        waited += 1;
        assert!(waited < 2400, "no five trials within two minutes");
        std::thread::sleep(Duration::from_millis(50));
    }
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
    let output = child.wait_with_output().expect("it ends");
    let doc = document(&output);
    // The server leaks, and its usage admits it, but whoever stops chooses the moment.
    assert_eq!(doc["verdict"], "inconclusive", "{doc}");
    let trials = doc["trials"].as_u64().expect("a count");
    assert!((4..100_000).contains(&trials), "{doc}");
    let reason = doc["reasons"][0].as_str().expect("a text");
    let expected = format!("stopped after {trials} of 100000 trials");
    assert!(reason.contains(&expected), "{reason}");
    assert!(rows().matches("\nunprimed,").count() as u64 >= trials);
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    let manifest: Value = serde_json::from_str(&read("manifest.json")).expect("JSON");
    assert_eq!(manifest["state"], "interrupted");
    let stored: Value = serde_json::from_str(&read("leak.json")).expect("JSON");
    assert_eq!(stored, doc);
}
