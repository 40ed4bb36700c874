//! Faults of other load generators that `bench` must not repeat: failures, ends, load, lengths.
//! The numbers are those of the list in the measurement's definition.

mod bench_common;
mod common;

use std::process::Stdio;

use bench_common::{
    LATENCIES, arguments, bench, document, faulty, measured, quick, read, reasons, rows, sums,
    wait_for_rows,
};
use common::{prefillbench, stderr, stdout};
use pb_mock::{Dist, Mock, MockOptions, Timing};
use serde_json::{Value, json};

#[test]
fn row_31_a_server_that_refuses_does_not_look_faster() {
    let dir = tempfile::tempdir().expect("a directory");
    let (all, half) = (quick(MockOptions::default()), faulty("status:503@2"));
    let args = [
        "--request-rate",
        "100",
        "--num-prompts",
        "20",
        "--slo",
        "success:0.99",
        "--json",
    ];
    let served = bench(&all.base_url(), dir.path(), "a", &args);
    let refused = bench(&half.base_url(), dir.path(), "b", &args);
    let (a, b) = (document(&served), document(&refused));
    assert_eq!(
        (&a["counts"]["ok"], &b["counts"]["ok"]),
        (&20.into(), &10.into())
    );
    assert_eq!(a["offered"]["success_rate"], 1.0);
    assert_eq!(b["offered"]["success_rate"], 0.5);
    // Rank 10 of 20 is the last that was answered, rank 18 was refused.
    assert!(b["offered"]["ttft_ms"]["p50"].is_number());
    assert_eq!(b["offered"]["ttft_ms"]["p90"], "inf");
    assert!(a["offered"]["ttft_ms"]["p99"].is_number());
    assert_eq!(a["gates"][0]["pass"], true);
    assert_eq!(b["gates"][0]["pass"], false);
    assert_eq!(b["gates"][0]["attained"], 0.5);
    if reasons(&b).is_empty() && b["validity"]["valid"] == true {
        assert_eq!(refused.status.code(), Some(1));
    }
}

#[test]
fn row_33_and_38_a_run_in_which_everything_fails_fails_and_has_no_percentiles() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = faulty("status:500");
    let output = bench(
        &server.base_url(),
        dir.path(),
        "r",
        &["--num-prompts", "5", "--json"],
    );
    let doc = document(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("request 0: HTTP 500"),
        "{}",
        stderr(&output)
    );
    assert_eq!(doc["failures"], json!({"http_status": 5}));
    for key in LATENCIES {
        assert!(doc[key].is_null(), "{key}: {}", doc[key]);
    }
    for key in ["achieved_rps", "output_tps"] {
        assert_eq!(doc["rates"][key], 0.0, "{key}");
    }
}

#[test]
fn row_34_a_killed_run_keeps_every_request_that_had_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    // One after the other, and the sixtieth is never answered: 59 have ended then, and they are
    // rows though the run goes on.
    let server = faulty("never@60");
    let args = ["--max-concurrency", "1", "--num-prompts", "200"];
    let mut child = prefillbench(&[])
        .args(arguments(&server.base_url(), dir.path(), "r", &args))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    wait_for_rows(dir.path(), "r", 59);
    child.kill().expect("killed");
    child.wait().expect("reaped");
    let ended = rows(dir.path(), "r", "requests.csv");
    assert_eq!(ended.len(), 59);
    assert!(ended.iter().all(|row| row["status"] == "ok"));
    assert_eq!(rows(dir.path(), "r", "tokens.csv").len(), 59 * 4);
    let manifest: Value = serde_json::from_str(&read(dir.path(), "r", "manifest.json")).unwrap();
    assert_eq!(manifest["state"], "running");
    let conditions: Value =
        serde_json::from_str(&read(dir.path(), "r", "conditions.json")).unwrap();
    let frame = &conditions["frame"];
    assert_eq!(frame["seed"], manifest["seed"]);
    let hashes = manifest["schedule_sha256"].as_object().unwrap();
    assert_eq!(hashes.values().next(), Some(&frame["schedule_sha256"]));
    assert_eq!(
        frame["schedule_sha256"].as_str().map(str::len),
        Some(64),
        "{frame}"
    );
}

#[test]
fn row_32_and_35_what_was_in_flight_at_the_end_is_incomplete() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = faulty("stall:2@4");
    let args = [
        "--request-rate",
        "50",
        "--num-prompts",
        "12",
        // Far more than a request takes that is answered.
        "--timeout-total",
        "12",
    ];
    let doc = measured(&server.base_url(), dir.path(), "r", &args);
    sums(&doc);
    assert_eq!(doc["counts"]["offered"], 12);
    assert_eq!(doc["counts"]["ok"], 9);
    let lost = doc["failures"]["timeout_total"].as_u64().unwrap_or(0)
        + doc["failures"]["cancelled"].as_u64().unwrap_or(0);
    assert_eq!(lost, 3, "{}", doc["failures"]);
    // Both throughputs: of what ended well, and of all tokens that came.
    let rate = |key: &str| doc["rates"][key].as_f64().expect("a rate");
    assert!(rate("streamed_tps") > rate("output_tps"));
}

#[test]
fn row_37_a_server_that_never_answers_ends_by_the_deadline() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = faulty("never");
    let args = [
        "--num-prompts",
        "3",
        "--timeout-first-token",
        "0.5",
        "--json",
    ];
    let output = bench(&server.base_url(), dir.path(), "r", &args);
    let doc = document(&output);
    assert_eq!(doc["failures"], json!({"timeout_first_token": 3}));
    assert_eq!(output.status.code(), Some(1));
    let idle = faulty("stall:2");
    let args = ["--num-prompts", "3", "--timeout-idle", "0.5"];
    let doc = measured(&idle.base_url(), dir.path(), "i", &args);
    assert_eq!(doc["failures"], json!({"timeout_idle": 3}));
}

#[test]
fn row_42_a_burst_tells_how_far_apart_it_was_sent() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let doc = measured(
        &server.base_url(),
        dir.path(),
        "r",
        &["--num-prompts", "100"],
    );
    assert_eq!(doc["load"]["asked"]["arrival"], "burst");
    assert_eq!(doc["counts"]["ok"], 100);
    assert_eq!(doc["load"]["send_spread_ms"]["n"], 100);
    assert_eq!(doc["load"]["asked"]["connections"]["during_requests"], 0);
    let p99 = doc["load"]["send_spread_ms"]["p99"]
        .as_f64()
        .expect("a number");
    let told = doc["validity"]["reasons"]
        .to_string()
        .contains("same instant");
    assert_eq!(p99 > 5.0, told, "{p99}: {}", doc["validity"]);
    // Nobody waits for a slot: all are due at once.
    let rows = read(dir.path(), "r", "requests.csv");
    let column = rows
        .lines()
        .next()
        .unwrap()
        .split(',')
        .position(|name| name == "intended_ns");
    let due = |line: &str| line.split(',').nth(column.unwrap()).unwrap().to_owned();
    let instants: std::collections::BTreeSet<String> = rows.lines().skip(1).map(due).collect();
    assert_eq!(instants.len(), 1);
}

#[test]
fn row_43_a_closed_loop_has_exactly_its_slots_in_flight() {
    let dir = tempfile::tempdir().expect("a directory");
    // So slow that seven are sent before the first has ended, whatever else the machine does.
    let server = Mock::start(MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(2e9),
            itl_ns: Dist::Fixed(1e6),
            ..Timing::default()
        },
        ..MockOptions::default()
    })
    .expect("the server starts");
    let args = ["--max-concurrency", "7", "--num-prompts", "16"];
    let doc = measured(&server.base_url(), dir.path(), "r", &args);
    assert_eq!(doc["load"]["asked"]["arrival"], "closed");
    assert_eq!(doc["load"]["max_in_flight"], 7);
}

/// What a dry run says.
fn dry(args: &[&str]) -> Value {
    let fixed = [
        "bench",
        "--base-url",
        "http://127.0.0.1:9",
        "--dry-run",
        "--json",
    ];
    let output = common::run(&[&fixed[..], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

#[test]
fn row_45_the_schedule_and_its_hash_follow_from_the_seed() {
    let load = [
        "--num-prompts=3",
        "--random-input-len=32",
        "--random-output-len=4",
    ];
    let hash =
        |more: &[&str]| dry(&[&load[..], more].concat())["schedule"]["schedule_sha256"].clone();
    let usual = hash(&["--request-rate=50"]);
    assert_eq!(usual, hash(&["--request-rate=50", "--seed=1"]));
    assert_ne!(usual, hash(&["--request-rate=50", "--seed=2"]));
    assert_ne!(usual, hash(&["--request-rate=60"]));
    // A dry run and a real one have the same schedule.
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let args = ["--num-prompts=3", "--request-rate=50"];
    let doc = measured(&server.base_url(), dir.path(), "r", &args);
    assert_eq!(doc["schedule_sha256"], usual);
}

#[test]
fn row_45_the_hash_is_the_same_on_every_machine() {
    let args = [
        "--num-prompts=3",
        "--random-input-len=20",
        "--random-output-len=4",
        "--seed=7",
    ];
    // Printed by bench_common/schedule_hash.py, which is another program.
    let expected = "2d908d9126082a80eff0fb33403b913f39442e86d56622a6bb1bf34a763d821c";
    assert_eq!(dry(&args)["schedule"]["schedule_sha256"], expected);
}

#[test]
fn row_49_a_stage_that_is_there_twice_is_refused() {
    let fixed = [
        "bench",
        "--base-url",
        "http://127.0.0.1:9",
        "--dry-run",
        "--ramp",
    ];
    for (ramp, ok) in [
        ("1:2,2:2,4:2", true),
        ("1:2,1.00001:2", false),
        ("1:x", false),
    ] {
        let output = common::run(&[&fixed[..], &[ramp]].concat());
        assert_eq!(output.status.code(), Some(if ok { 0 } else { 2 }), "{ramp}");
        if !ok {
            assert!(stderr(&output).contains("ramp"), "{}", stderr(&output));
        }
    }
    let ramp = dry(&["--ramp", "10:2,10..30:2", "--random-input-len", "16"]);
    let stages = ramp["schedule"]["facts"]["stages"]
        .as_array()
        .expect("stages");
    assert_eq!(stages.len(), 2);
    // 20 expected, then 40: standard deviations 4.5 and 6.3, five of them.
    let counts: Vec<u64> = stages
        .iter()
        .filter_map(|stage| stage["requests"].as_u64())
        .collect();
    assert!(
        (1..43).contains(&counts[0]) && (9..72).contains(&counts[1]),
        "{counts:?}"
    );
}

#[test]
fn row_58_fewer_prompts_than_requests_are_refused_unless_they_may_repeat() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("p.jsonl");
    let lines: Vec<String> = (0..3)
        .map(|n| json!({"prompt": format!("prompt number {n}"), "output_tokens": 4}).to_string())
        .collect();
    std::fs::write(&file, lines.join("\n")).expect("written");
    let path = file.to_str().expect("UTF-8");
    let server = quick(MockOptions::default());
    let set = [
        "--dataset-name",
        "custom",
        "--dataset-path",
        path,
        "--input-unit",
        "text",
    ];
    let args = [&set[..], &["--num-prompts", "5", "--request-rate", "50"]].concat();
    let output = bench(&server.base_url(), dir.path(), "a", &args);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("allow"), "{}", stderr(&output));
    assert!(!dir.path().join("a").exists());
    let doc = measured(
        &server.base_url(),
        dir.path(),
        "b",
        &[&args[..], &["--allow-repeat"]].concat(),
    );
    assert_eq!(doc["counts"]["ok"], 5);
    assert_eq!(doc["workload"]["facts"]["unique_prompts"], 3);
    assert_eq!(doc["workload"]["facts"]["repeated_prompts"], 2);
}

#[test]
fn row_74_a_length_is_controlled_only_when_every_answer_has_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Mock::start(MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(5e6),
            itl_ns: Dist::Fixed(1e6),
            stop_tokens: Some(Dist::Fixed(3.0)),
            ..Timing::default()
        },
        ..MockOptions::default()
    })
    .expect("the server starts");
    let args = ["--request-rate", "100", "--num-prompts", "4"];
    let stopped = measured(&server.base_url(), dir.path(), "a", &args);
    assert_eq!(stopped["length_controlled"], false);
    assert_eq!(stopped["tokens"]["output"], 4 * 3);
    let ignoring = [&args[..], &["--ignore-eos"]].concat();
    let whole = measured(&server.base_url(), dir.path(), "b", &ignoring);
    assert_eq!(whole["length_controlled"], true);
    assert_eq!(whole["tokens"]["output"], 4 * 4);
}

#[test]
fn row_76_what_the_template_adds_is_told_and_can_be_made_up_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions {
        tokenizer: pb_mock::Tokenizer::Words,
        ..MockOptions::default()
    });
    let args = [
        "--api",
        "chat",
        "--request-rate",
        "100",
        "--num-prompts",
        "4",
    ];
    let plain = measured(&server.base_url(), dir.path(), "a", &args);
    let facts = &plain["workload"];
    let planned = facts["prompt_tokens_planned"].as_i64().expect("a count");
    let served = facts["prompt_tokens_served"].as_i64().expect("a count");
    assert_eq!(planned, 4 * 32);
    let over = facts["template_overhead_mean"].as_f64().expect("a number");
    assert_eq!(over, (served - planned) as f64 / 4.0);
    let adapted = [&args[..], &["--adapt-input"]].concat();
    let adapted = measured(&server.base_url(), dir.path(), "b", &adapted);
    assert_eq!(
        adapted["workload"]["prompt_tokens_served"],
        4 * 32,
        "{}",
        adapted["workload"]
    );
    assert_eq!(adapted["workload"]["prompt_tokens_planned"], 4 * 32);
}

#[test]
fn row_77_the_servers_count_is_used_and_a_disagreement_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    // Three events that the server counts as five tokens.
    let script = r#"{"streams":[{"events":[
        {"at_ms":5,"content":"a"},{"at_ms":6,"content":"b"},{"at_ms":7,"content":"c"},
        {"at_ms":8,"content":"","finish":"length"},
        {"at_ms":9,"usage":{"prompt_tokens":32,"completion_tokens":5}},
        {"at_ms":10,"done":true}]}]}"#;
    let server = Mock::start(MockOptions {
        script: Some(pb_mock::Script::parse(script).expect("a script")),
        ..MockOptions::default()
    })
    .expect("the server starts");
    let args = [
        "--api",
        "chat",
        "--request-rate",
        "50",
        "--num-prompts",
        "4",
    ];
    let doc = measured(&server.base_url(), dir.path(), "r", &args);
    assert_eq!(doc["tokens"]["output"], 4 * 5);
    assert_eq!(doc["hidden_tokens"], 4);
    let warned = doc["warnings"].as_array().expect("a list");
    assert!(
        !warned.is_empty(),
        "two counts of the output differ by 40 %"
    );
}

#[test]
fn row_39_the_wait_for_a_place_counts_from_the_intended_arrival() {
    let dir = tempfile::tempdir().expect("a directory");
    // 110 ms for each, one at a time, ten a second: each waits 10 ms longer than the one before.
    let server = Mock::start(MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(107e6),
            itl_ns: Dist::Fixed(1e6),
            ..Timing::default()
        },
        ..MockOptions::default()
    })
    .expect("the server starts");
    let args = [
        "--request-rate",
        "10",
        "--arrival",
        "constant",
        "--num-prompts",
        "20",
    ];
    let args = [&args[..], &["--max-concurrency", "1"]].concat();
    let doc = measured(&server.base_url(), dir.path(), "r", &args);
    assert_eq!(doc["counts"]["ok"], 20);
    assert_eq!(doc["load"]["max_in_flight"], 1);
    assert_eq!(doc["load"]["asked"]["capped"], true);
    let of = |key: &str, which: &str| doc[key][which].as_f64().expect("a number");
    // The last of 20 waits for 19 others: 19 times 10 ms at least.
    assert!(of("ttft_ms", "max") > 107.0 + 190.0, "{}", doc["ttft_ms"]);
    // One after the other, eleven take the median m or more and the other nine 110 ms: the last
    // ends 11 m + 990 ms after the start and is due at 1900 ms. That is 10 m - 910 ms more than m.
    let wait = of("ttft_ms", "max") - of("service_ttft_ms", "p50");
    assert!(wait > 189.0, "{}", doc["service_ttft_ms"]);
    assert!(
        doc["load"]["held_back"].as_u64() >= Some(15),
        "{}",
        doc["load"]
    );
    // The wait is the cap's, not the client's fault.
    assert_eq!(reasons(&doc), [""; 0]);
}
