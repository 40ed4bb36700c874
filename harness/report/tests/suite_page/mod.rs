//! What decides a reader's choice on a suite's page: the answer in the head, what is seen and not
//! claimed, what must not be chosen by, and what was run.

use pb_report::suite::SuiteReport;
use serde_json::{Value, json};

use super::suite_dir::{suite, write};
use super::{open, row};

#[test]
fn the_head_says_what_was_found_and_at_what_price() {
    // By hand: both budgets shorten the gap by 70 % under both loads; of the four first tokens two
    // are worse and two not settled, all by +100 %. Medians of the largest budget are 321.5 and
    // 326.5 ms, of the others 21.5 to 86.5 ms.
    let report = open("answer", &suite());
    let said = "Budget 64, 256, at both loads, lowers longest event gap of back by 70 % \
                (322–326 ms to 21.5–86.5 ms) against budget 1024; TTFT p50 of long is worse in 2, \
                not settled in 2 of 4 (+100 %).";
    let page = report.html().unwrap().replace('\u{a0}', " ");
    let head = page.split("<p class=\"answer\">").nth(1).unwrap();
    assert!(head.starts_with(&format!("{said}</p>")), "{head}");
    assert!(report.markdown().replace('\u{a0}', " ").contains(said));
    let text = report.terminal(200, false).replace('\u{a0}', " ");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(said), "{text}");
    // Nothing better or worse, nothing claimed.
    let mut open_suite = suite();
    for one in open_suite["comparisons"].as_array_mut().unwrap() {
        one["verdict"] = json!("inconclusive");
        one["as_expected"] = Value::Null;
    }
    let page = open("answer-open", &open_suite).html().unwrap();
    assert!(page.contains("No change is claimed: none of 8 comparisons is better or worse."));
    assert!(
        page.contains("<section class=\"verdict plain\""),
        "open is no alarm"
    );
    // And where the files contradict one another there is no answer at all.
    let mut forged = suite();
    forged["comparisons"][0]["candidate_values"][2] = json!(21.0);
    assert!(
        !open("answer-forged", &forged)
            .html()
            .unwrap()
            .contains("class=\"answer\"")
    );
}

#[test]
fn a_change_that_holm_does_not_confirm_is_seen_and_not_claimed() {
    let mut seen = suite();
    let one = &mut seen["comparisons"][1];
    assert_eq!(one["metric"], "classes.long.ttft_ms.p50");
    one["verdict"] = json!("inconclusive");
    one["as_expected"] = Value::Null;
    one["holm_p"] = json!(0.07);
    // The other one has an interval with no change in it: nothing is seen.
    let other = &mut seen["comparisons"][3];
    other["change"]["low"] = json!(0.9);
    other["holm_p"] = json!(0.6);
    let report = open("seen", &seen);
    let page = report.html().unwrap();
    let cells = row(&page, "TTFT p50 of long: what", "rate=2");
    assert_eq!(
        cells[0],
        "? seen, not claimed +100 % [+50.0, +150] (Holm p 0.0700)"
    );
    assert_eq!(cells[1], "? inconclusive +100 % [-10.0, +150]");
    assert!(
        page.contains("Better and worse need a Holm p below 0.05"),
        "{page}"
    );
    assert!(!page.contains("the data do not say"));
    let why = "the Holm p over all comparisons of the suite does not confirm it";
    assert!(page.contains(why) && report.markdown().contains(why));
}

/// The suite where ITL p99 of budget 64 is of two kinds of blocks.
fn jumping(name: &str) -> SuiteReport {
    let dir = write(name, &suite());
    for block in 0..2 {
        for load in ["rate=2", "rate=8"] {
            let cell = format!("cells/block-{block:03}/{load}/own,budget=64/bench.json");
            let text = std::fs::read_to_string(dir.join(&cell)).unwrap();
            let mut document: Value = serde_json::from_str(&text).unwrap();
            document["classes"]["back"]["itl_ms"]["p99"] = json!(0.5);
            std::fs::write(dir.join(&cell), document.to_string()).unwrap();
        }
    }
    SuiteReport::open(&dir).unwrap()
}

#[test]
fn what_is_of_two_kinds_of_blocks_gets_no_star_and_no_place_on_the_front() {
    // Without the jump budget 64 has the shortest ITL p99 and is on the front.
    let page = open("steady", &suite()).html().unwrap();
    assert_eq!(
        row(&page, "ITL p99 of back, ms", "rate=2")[0],
        "★ 10.8 [10.0, 11.5]"
    );
    // With it: 0.5, 0.5, 11.0, 11.5 has the smallest median still, 5.75.
    let page = jumping("jumping").html().unwrap();
    let cells = row(&page, "ITL p99 of back, ms", "rate=2");
    assert_eq!(cells[0], "5.75 [0.500, 11.5]");
    assert_eq!(cells[1], "★ 40.8 [40.0, 41.5]");
    assert!(page.contains("<td class=\"jumps\">5.75"));
    let warning = "so ITL p99 of back jumps between 0.500 ms and 11.5 ms in 1 setting (hatched): \
                   do not choose by it.";
    let shown = page.replace('\u{a0}', " ");
    assert!(shown.contains(&warning.replace("11.5 ms in 1 setting", "14.0 ms in 2 settings")));
    assert!(shown.contains(warning), "in the table of one load");
    let cells = row(
        &page,
        "TTFT p50 of long against ITL p99 of back at rate=2",
        "1",
    );
    assert_eq!(
        (cells[1].as_str(), cells[4].as_str()),
        ("jumps: not judged", "–")
    );
    // By the longest gap, which does not jump, it has its place.
    let cells = row(
        &page,
        "TTFT p50 of long against longest event gap of back at rate=2",
        "1",
    );
    assert_eq!(cells[1], "on the front");
}

#[test]
fn what_was_run_is_told_from_the_plan_and_the_cells() {
    let dir = write("setup", &suite());
    let start = |budget: u32| {
        json!({"start": ["prefillbench", "serve", "--model=synthetic-tiny",
                         format!("--budget={budget}")], "bench": {}})
    };
    let plan = json!({"facts": {"suite": {
        "arms": {"own,budget=64": start(64), "own,budget=1024": start(1024)},
        "conditions": {
            "rate=2": {"request_rate": 2, "num_prompts": 50},
            "rate=8": {"request_rate": 8, "num_prompts": 50},
        },
        "bench": {"dataset_name": "random"},
        "run": {"fresh": "cell", "least_success": 1.0},
    }}});
    std::fs::write(dir.join("plan.json"), plan.to_string()).unwrap();
    let page = SuiteReport::open(&dir).unwrap().html().unwrap();
    let fact = |name: &str| row(&page, "Model, load and conditions", name)[0].clone();
    assert_eq!(
        fact("model"),
        "synthetic-tiny-seed1: generated weights, so sizes of effects are of no real model"
    );
    assert_eq!(
        fact("server"),
        "own-engine at /v1/completions; a new server for each cell"
    );
    let load = "dataset_name random; num_prompts 50; at rate=2: request_rate 2; at rate=8: \
                request_rate 8";
    assert_eq!(fact("load"), load);
    assert_eq!(fact("limits (goodput)"), "TTFT at most 500 ms");
    assert_eq!(
        fact("when"),
        "cells begun from 2026-01-01T00:00:00Z to 2026-01-01T00:03:00Z; 60 s in all, servers \
         included"
    );
    let cells = row(&page, "Servers of the arms", "own,budget=64");
    assert_eq!(
        cells,
        ["prefillbench serve --model=synthetic-tiny --budget=64"]
    );
    // 50 requests with 50000 prompt tokens and 400 made.
    let table = page.split("Requests of a cell").nth(2).unwrap();
    let long = table
        .split("<tr>")
        .find(|row| row.contains(">long<"))
        .unwrap();
    for number in ["50", "1000", "8"] {
        assert!(long.contains(&format!(">{number}<")), "{long}");
    }
}

#[test]
fn hypotheses_of_one_comparison_share_a_table_and_a_picture() {
    let mut small = suite();
    let comparisons = small["comparisons"].as_array_mut().unwrap();
    comparisons.truncate(2);
    let page = open("single", &small).html().unwrap();
    assert!(
        !page.contains("caption\">longest event gap of back: what"),
        "a table of one cell"
    );
    assert_eq!(
        page.matches("<svg ").count(),
        1 + 4 + 4,
        "one forest of two rows"
    );
    let label = "What classes.back.event_gap_ms.max says: longest event gap of back \
                 (budget=64 against budget=1024; at rate=2; margin 10 %)";
    let cells = row(&page, "Hypotheses with one comparison each", label);
    assert_eq!(cells[0], "better");
    assert!(!page.contains("candidate candidate"));
    let cells = row(
        &page,
        "Each candidate by every figure",
        "own,budget=64 against own,budget=1024",
    );
    assert_eq!(cells[2], "trades");
}
