//! `leak` against the ground-truth server, whose cache and times are known.

mod common;

use std::path::Path;
use std::process::Output;

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

/// CVE-2025-46570; vllm #16016, #17045: with and without isolation, by usage and by timing.
#[test]
fn row_92_isolation_and_its_absence_are_told_by_usage_and_by_timing() {
    for usage in [UsageStyle::Full, UsageStyle::NoCached] {
        let isolating = server(salted(true), usage);
        // With 400 trials silence is shown by timing 998 times in 1000.
        let doc = probe(&isolating, &["--trials", "400"]);
        assert_eq!(doc["verdict"], "isolated", "{doc}");
        let hits = if usage == UsageStyle::Full { 400 } else { 0 };
        assert_eq!(doc["arms"][0]["usage_hits"], hits);
        assert_eq!(doc["arms"][1]["usage_hits"], 0);
        let leaking = server(salted(false), usage);
        let doc = probe(&leaking, &["--trials", "40"]);
        assert_eq!(doc["verdict"], "leaks", "{doc}");
        // Without a salt everybody shares, on an isolating server too.
        let doc = probe(&isolating, &["--trials", "40", "--no-salt"]);
        assert_eq!(doc["verdict"], "leaks", "{doc}");
    }
}

/// vllm #53347: a test that only checks "different salt, no reuse" passes when caching is off.
#[test]
fn row_92_a_cache_that_is_off_is_no_pass() {
    let off = CacheModel {
        enabled: false,
        ..CacheModel::default()
    };
    let doc = probe(&server(off, UsageStyle::Full), &["--trials", "400"]);
    assert_eq!(doc["verdict"], "cache_off", "{doc}");
    // Prompts shorter than a block show nothing either, though the cache is on.
    let on = server(salted(true), UsageStyle::NoCached);
    let doc = probe(&on, &["--trials", "400", "--prompt-len", "16"]);
    assert_eq!(doc["verdict"], "cache_off", "{doc}");
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
    let doc = probe(&noisy, &["--trials", "60"]);
    assert_eq!(doc["verdict"], "inconclusive", "{doc}");
    assert!(doc["design"]["power"].as_f64().expect("a number") < 0.6);
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
    ] {
        let output = leak(&mock.base_url(), dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            stderr(&output).contains(part),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}
