//! The state of the prefix cache, as asked for, proved and found. The numbers in the names are
//! those of the list in the measurement's definition.

mod bench_common;
mod common;

use bench_common::{bench, cached, measured, number, quick, read, reasons, rows};
use common::stderr;
use pb_mock::{CacheModel, MockOptions, ResetStyle, Style, UsageStyle};
use serde_json::{Value, json};

/// Six requests of 32 tokens.
const SIX: [&str; 4] = ["--request-rate", "100", "--num-prompts", "6"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SIX[..], more].concat()
}

#[test]
fn row_54_and_72_a_cold_run_is_cold_where_an_earlier_one_left_its_prompts() {
    let dir = tempfile::tempdir().expect("a directory");
    for reset in [ResetStyle::WhenIdle, ResetStyle::Absent] {
        let server = cached(CacheModel {
            reset,
            ..CacheModel::default()
        });
        let run = |name: &str, cache: &str| {
            let name = format!("{reset:?}-{name}");
            measured(
                &server.base_url(),
                dir.path(),
                &name,
                &with(&["--cache", cache]),
            )
        };
        let (first, again) = (run("first", "asis"), run("again", "asis"));
        assert_eq!(first["cache"]["measured_hit_tokens"], 0);
        // Of 32 tokens the last block is computed again, so one block of 16 is found.
        assert_eq!(again["cache"]["measured_hit_tokens"], 6 * 16);
        assert_eq!(again["cache"]["state"], "asis");
        assert!(again["cache"]["planned_hit_tokens"].is_null());
        let cold = run("cold", "cold");
        assert_eq!(cold["cache"]["state"], "cold", "{reset:?}");
        assert_eq!(cold["cache"]["planned_hit_tokens"], 0);
        assert_eq!(cold["cache"]["measured_hit_tokens"], 0);
        assert_eq!(cold["cache"]["known_rows"], 6);
        assert_eq!(reasons(&cold), [""; 0]);
        // What was sent before does not change what is sent.
        assert_eq!(cold["schedule_sha256"], again["schedule_sha256"]);
        // The manifest says how it was made cold.
        let manifest = read(dir.path(), &format!("{reset:?}-cold"), "manifest.json");
        let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
        assert!(
            manifest["arms"][0]["config"]["cache"].is_object(),
            "{manifest}"
        );
    }
}

#[test]
fn a_nonce_makes_other_prompts_of_the_same_lengths_at_the_same_times() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = cached(CacheModel::default());
    let run = |name: &str, nonce: &[&str]| {
        let args = with(&[&["--random-range-ratio", "0.5"], nonce].concat());
        measured(&server.base_url(), dir.path(), name, &args)
    };
    let found = |doc: &Value| doc["cache"]["measured_hit_tokens"].clone();
    let (first, again) = (run("first", &[]), run("again", &[]));
    assert_eq!(found(&first), 0);
    assert_ne!(found(&again), 0, "the same prompts are found");
    let other = run("other", &["--nonce", "b"]);
    assert_eq!(found(&other), 0, "other prompts are not");
    assert_ne!(other["schedule_sha256"], first["schedule_sha256"]);
    let once_more = run("once_more", &["--nonce=b"]);
    assert_eq!(once_more["schedule_sha256"], other["schedule_sha256"]);
    assert_ne!(found(&once_more), 0);
    // Lengths and arrivals are those of the seed.
    let planned = |name: &str| -> Vec<(String, u64, u64, u64)> {
        let rows = rows(dir.path(), name, "requests.csv");
        let first = rows.iter().map(|row| number(row, "intended_ns")).min();
        let mut planned: Vec<_> = rows
            .iter()
            .map(|row| {
                let after = number(row, "intended_ns") - first.expect("rows");
                let tokens = number(row, "prompt_tokens_planned");
                (
                    row["request"].clone(),
                    after,
                    tokens,
                    number(row, "max_tokens"),
                )
            })
            .collect();
        planned.sort();
        planned
    };
    assert_eq!(planned("first"), planned("other"));
    let lengths: std::collections::BTreeSet<u64> =
        planned("first").iter().map(|row| row.2).collect();
    assert!(lengths.len() > 1, "{lengths:?}");
    // The manifest has it as it was given, a suite's key is the same setting.
    let manifest = read(dir.path(), "other", "manifest.json");
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    assert_eq!(manifest["workload"]["settings"]["options"]["nonce"], "b");
}

#[test]
fn row_55_the_order_of_a_sweep_does_not_change_its_hits() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = cached(CacheModel::default());
    let run = |name: &str, rate: &str| {
        let args = [
            "--request-rate",
            rate,
            "--num-prompts",
            "6",
            "--cache",
            "cold",
        ];
        let doc = measured(&server.base_url(), dir.path(), name, &args);
        doc["cache"]["measured_hit_tokens"].clone()
    };
    let forth = [run("a1", "60"), run("b1", "120")];
    let back = [run("b2", "120"), run("a2", "60")];
    assert_eq!(forth, [json!(0), json!(0)]);
    assert_eq!(back, [json!(0), json!(0)]);
}

#[test]
fn row_59_a_warm_up_seeds_nothing_and_enters_no_number() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = cached(CacheModel::default());
    let doc = measured(
        &server.base_url(),
        dir.path(),
        "r",
        &with(&["--warmup", "5"]),
    );
    assert_eq!(doc["cache"]["measured_hit_tokens"], 0);
    assert_eq!(doc["counts"]["offered"], 6);
    assert_eq!(doc["ttft_ms"]["n"], 6);
    assert_eq!(doc["load"]["asked"]["warmup_requests"], 5);
    let rows = read(dir.path(), "r", "requests.csv");
    let of = |arm: &str| rows.lines().filter(|line| line.starts_with(arm)).count();
    assert_eq!((of("warmup,"), of("target,")), (5, 6));
    // By time it ends by itself.
    let doc = measured(
        &server.base_url(),
        dir.path(),
        "s",
        &with(&["--warmup", "0.3s"]),
    );
    let count = doc["load"]["asked"]["warmup_requests"].as_u64();
    assert!(count > Some(0), "{}", doc["load"]);
    let rows = read(dir.path(), "s", "requests.csv");
    assert_eq!(rows.matches("\nwarmup,").count() as u64, count.unwrap());
    assert_eq!(doc["counts"]["offered"], 6);
}

#[test]
fn row_60_and_62_a_reset_that_is_refused_is_tried_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = cached(CacheModel {
        reset: ResetStyle::Refuse(3),
        ..CacheModel::default()
    });
    let url = server.base_url();
    measured(&url, dir.path(), "a", &SIX);
    let cold = measured(&url, dir.path(), "b", &with(&["--cache", "cold"]));
    assert_eq!(cold["cache"]["state"], "cold");
    assert_eq!(cold["cache"]["measured_hit_tokens"], 0);
}

#[test]
fn row_60_a_reset_that_lies_is_not_believed() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = cached(CacheModel {
        reset: ResetStyle::Lie,
        ..CacheModel::default()
    });
    let url = server.base_url();
    measured(&url, dir.path(), "a", &SIX);
    let cold = measured(&url, dir.path(), "b", &with(&["--cache", "cold"]));
    // The probe is found again, so another way is taken: nothing of the first run is found.
    assert_eq!(cold["cache"]["measured_hit_tokens"], 0, "{}", cold["cache"]);
}

#[test]
fn row_64_what_the_server_does_not_say_is_not_zero() {
    let dir = tempfile::tempdir().expect("a directory");
    let styled = |usage| {
        quick(MockOptions {
            style: Style {
                usage,
                ..Style::default()
            },
            ..MockOptions::default()
        })
    };
    let args = with(&["--no-scrape"]);
    let silent = styled(UsageStyle::NoCached);
    let doc = measured(&silent.base_url(), dir.path(), "a", &args);
    assert!(
        doc["cache"]["measured_hit_tokens"].is_null(),
        "{}",
        doc["cache"]
    );
    assert!(doc["cache"]["hit_rate"].is_null());
    assert_eq!(doc["cache"]["known_rows"], 0);
    // Zero is left out, a hit is not: the first run knows nothing, the second one everything.
    let omitting = styled(UsageStyle::OmitZeroCached);
    let first = measured(&omitting.base_url(), dir.path(), "b", &args);
    assert_eq!(first["cache"]["known_rows"], 0);
    let second = measured(&omitting.base_url(), dir.path(), "c", &args);
    assert_eq!(second["cache"]["known_rows"], 6);
    assert_eq!(second["cache"]["measured_hit_tokens"], 6 * 16);
}

#[test]
fn row_68_a_warm_run_is_primed_proved_and_finds_what_was_planned() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = cached(CacheModel::default());
    let args = [
        "--dataset-name=shared-prefix",
        "--gsp-num-groups=3",
        "--gsp-prompts-per-group=4",
        "--gsp-system-prompt-len=64",
        "--gsp-question-len=16",
        "--gsp-output-len=4",
        "--request-rate=50",
        "--cache=warm",
    ];
    let doc = measured(&server.base_url(), dir.path(), "r", &args);
    assert_eq!(doc["counts"]["ok"], 12);
    assert_eq!(doc["cache"]["state"], "warm", "{}", doc["validity"]);
    // 64 tokens of system prompt are four whole blocks, and every request finds them.
    assert_eq!(doc["cache"]["planned_hit_tokens"], 12 * 64);
    assert_eq!(doc["cache"]["measured_hit_tokens"], 12 * 64);
    assert_eq!(reasons(&doc), [""; 0]);
}

#[test]
fn a_cache_that_does_not_do_as_planned_voids_the_run() {
    let dir = tempfile::tempdir().expect("a directory");
    // So small that a group's prefix is gone when its next prompt comes.
    let server = cached(CacheModel {
        blocks: Some(6),
        ..CacheModel::default()
    });
    let args = [
        "--dataset-name=shared-prefix",
        "--gsp-num-groups=6",
        "--gsp-prompts-per-group=2",
        "--gsp-system-prompt-len=64",
        "--gsp-question-len=16",
        "--gsp-output-len=4",
        "--request-rate=20",
        "--cache=warm",
        "--json",
    ];
    let output = bench(&server.base_url(), dir.path(), "r", &args);
    assert_ne!(output.status.code(), Some(0), "{}", stderr(&output));
    if output.status.code() == Some(3) {
        let doc = bench_common::document(&output);
        assert!(!reasons(&doc).is_empty(), "{}", doc["validity"]);
    }
}
