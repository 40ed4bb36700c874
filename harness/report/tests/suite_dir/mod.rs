//! A suite's directory with numbers made by a formula, so that every expected value of a report
//! can be worked out by hand.
//!
//! Budgets 64, 256 and 1024 under the loads 2 and 8, in four blocks. With `n` the number of the
//! budget (0, 1, 2), `l` that of the load (0, 1) and `b` the block, in ms:
//!
//! - TTFT p50 of the class `long` is `100 * (3 - n) + 10 * b + 50 * l`, p99 the double;
//! - the largest event gap of the class `back` is `20 * 4^n + b + 5 * l`, ITL p99 a half of it;
//! - output tokens a second are `1000 + 100 * n + b`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub(crate) const BUDGETS: [u32; 3] = [64, 256, 1024];
pub(crate) const LOADS: [u32; 2] = [2, 8];
pub(crate) const BLOCKS: usize = 4;

pub(crate) fn ttft_p50(n: usize, l: usize, b: usize) -> f64 {
    (100 * (3 - n) + 10 * b + 50 * l) as f64
}

pub(crate) fn gap_max(n: usize, l: usize, b: usize) -> f64 {
    (20 * 4_usize.pow(n as u32) + b + 5 * l) as f64
}

fn spread(p50: f64, p99: f64, max: f64) -> Value {
    json!({"n": 50, "mean": p50, "p50": p50, "p90": (p50 + p99) / 2.0, "p95": p99, "p99": p99,
           "p999": max, "max": max})
}

/// The document of a cell.
pub(crate) fn document(n: usize, l: usize, b: usize) -> Value {
    let (ttft, gap) = (ttft_p50(n, l, b), gap_max(n, l, b));
    let ttft = spread(ttft, 2.0 * ttft, 2.5 * ttft);
    let gaps = spread(5.0, gap / 2.0, gap);
    let class = json!({
        "ttft_ms": ttft, "itl_ms": gaps, "event_gap_ms": gaps,
        "counts": {"offered": 50}, "tokens": {"input_planned": 50_000, "output": 400},
    });
    json!({
        "schema_version": 1,
        "identity": {"model": "synthetic-tiny-seed1", "server": "own-engine",
                     "route": "/v1/completions", "created": format!("2026-01-01T00:{b:02}:00Z")},
        "slo": {"ttft:500": {"limit_ms": 500.0, "met": 50, "share": 1.0}},
        "cache": {"state": "asis"},
        "ttft_ms": ttft, "itl_ms": gaps, "event_gap_ms": gaps,
        "driver_lag_ms": spread(0.05, 0.2, 0.3),
        "rates": {"output_tps": (1000 + 100 * n + b) as f64, "goodput_rps": null},
        "offered": {"success_rate": 1.0},
        "stalls": {"share": 0.0, "count": n},
        "classes": {"long": class, "back": class},
        "validity": {"valid": true, "reasons": []},
        "gates": [],
        "calibration": null,
        "schedule_sha256": format!("{l}{b}"),
    })
}

fn arm(n: usize) -> String {
    format!("own,budget={}", BUDGETS[n])
}

fn condition(l: usize) -> String {
    format!("rate={}", LOADS[l])
}

/// A comparison of a budget with the largest one.
fn comparison(metric: &str, n: usize, l: usize, verdict: &str, change: [f64; 3]) -> Value {
    let value = |n, b| match metric {
        "classes.long.ttft_ms.p50" => ttft_p50(n, l, b),
        _ => gap_max(n, l, b),
    };
    let values = |n| (0..BLOCKS).map(|b| value(n, b)).collect::<Vec<f64>>();
    let middle = |n| (value(n, 1) + value(n, 2)) / 2.0;
    json!({
        "hypothesis": format!("what {metric} says"), "metric": metric,
        "baseline": arm(2), "candidate": arm(n), "condition": condition(l),
        "expect": null, "margin": 0.1, "scale": "ratio", "pairs": BLOCKS, "blocks": [0, 1, 2, 3],
        "left_out": [], "baseline_values": values(2), "candidate_values": values(n),
        "baseline_median": middle(2), "candidate_median": middle(n),
        "change": {"point": change[0], "low": change[1], "high": change[2], "confidence": 0.95},
        "p": 0.001, "holm_p": 0.004, "verdict": verdict,
        "why": "the interval excludes no change, the point is beyond the margin",
        "as_expected": true,
    })
}

/// The suite's document before anything is changed in it.
pub(crate) fn suite() -> Value {
    let mut cells = Vec::new();
    let mut comparisons = Vec::new();
    for b in 0..BLOCKS {
        for l in 0..LOADS.len() {
            for n in 0..BUDGETS.len() {
                cells.push(json!({
                    "block": b, "condition": condition(l), "arm": arm(n), "seed": b,
                    "dir": format!("cells/block-{b:03}/{}/{}", condition(l), arm(n)),
                    "state": "complete", "valid": true, "reasons": [],
                    "schedule_sha256": format!("{l}{b}"), "success_rate": 1.0,
                    "gates_failed": [], "wall_s": 2.5,
                }));
            }
        }
    }
    for l in 0..LOADS.len() {
        for n in 0..2 {
            let gap = "classes.back.event_gap_ms.max";
            comparisons.push(comparison(gap, n, l, "better", [0.3, 0.2, 0.4]));
            let verdict = ["worse", "inconclusive"][n];
            let ttft = "classes.long.ttft_ms.p50";
            comparisons.push(comparison(ttft, n, l, verdict, [2.0, 1.5, 2.5]));
        }
    }
    json!({
        "schema_version": 1, "name": "budgets", "question": "What does a smaller budget buy?",
        "reading": "The gaps decide.\nThe first token is the price.",
        "suite_sha256": "ab".repeat(32), "seed": 7,
        "tool": {"version": "0.1.0", "git_rev": "0123456789abcdef", "git_dirty": false},
        "machine": {"cpu": "Example CPU", "cores": 2, "isa": "avx512", "os": "linux"},
        "state": "complete", "stop": "fixed", "alpha": 0.05, "blocks_planned": BLOCKS,
        "blocks_run": BLOCKS, "cells": cells, "comparisons": comparisons, "exit_code": 0,
    })
}

/// Writes a suite and the documents of its cells into a new directory of this name.
pub(crate) fn write(name: &str, suite: &Value) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("suite-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    for cell in suite["cells"].as_array().expect("cells") {
        let text = |key: &str| cell[key].as_str().expect("text").to_owned();
        let place = dir.join(text("dir"));
        std::fs::create_dir_all(&place).expect("a directory");
        if text("state") != "complete" {
            continue;
        }
        let l = usize::from(text("condition") == condition(1));
        let n = (0..3).find(|n| text("arm") == arm(*n)).unwrap_or(0);
        let block = cell["block"].as_u64().expect("a block") as usize;
        let mut document = document(n, l, block);
        if cell["valid"] == false {
            document["validity"] = json!({"valid": false, "reasons": cell["reasons"]});
        }
        std::fs::write(place.join("bench.json"), document.to_string()).expect("written");
    }
    std::fs::create_dir_all(&dir).expect("a directory");
    std::fs::write(dir.join("suite.json"), suite.to_string()).expect("written");
    dir
}
