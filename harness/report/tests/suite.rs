//! Reports of a suite: what they say, that void cells enter no number, that files which contradict
//! one another are found, and that nothing in a suite can act on the page.

mod suite_again;
mod suite_dir;
mod suite_page;

use pb_report::suite::{SuiteError, SuiteReport};
use serde_json::{Value, json};
use suite_dir::{suite, write};

fn open(name: &str, suite: &Value) -> SuiteReport {
    SuiteReport::open(&write(name, suite)).unwrap()
}

/// A page may lead to its own sections and to cells below it, and to nothing else.
fn assert_self_contained(page: &str) {
    let lower = page.to_lowercase();
    for banned in [
        "http://", "https://", "src=", "@import", "url(", "<script", "<link",
    ] {
        assert!(!lower.contains(banned), "the page holds {banned}");
    }
    for address in page.split("href=\"").skip(1) {
        let address = address.split('"').next().unwrap();
        let inside = address.starts_with("#s") || address.starts_with("./cells/");
        assert!(inside, "{address}");
    }
}

/// The row of the table with this caption that begins with `row`, as the texts of its cells.
fn row(page: &str, caption: &str, row: &str) -> Vec<String> {
    let caption = format!("<figcaption class=\"caption\">{caption}");
    let table = page
        .split(&caption)
        .nth(1)
        .unwrap_or_else(|| panic!("no table {caption}"));
    let table = table.split("</table>").next().unwrap();
    let begin = format!(">{row}<");
    let found = table.split("<tr>").find(|line| line.contains(&begin));
    let found = found.unwrap_or_else(|| panic!("no row {row} in {table}"));
    let cells = found.split("</td>").filter(|cell| cell.contains("<td"));
    cells
        .map(|cell| cell.rsplit('>').next().unwrap().replace('\u{a0}', " "))
        .collect()
}

#[test]
fn a_whole_suite_reads_from_validity_down() {
    let report = open("whole", &suite());
    assert_eq!(report.exit_code(), 0);
    let page = report.html().unwrap();
    assert_self_contained(&page);
    let order = [
        "Every comparison is answered",
        ">May these numbers be used?</h2>",
        ">Question</h2>",
        ">What was run</h2>",
        ">Where it wins, where it loses</h2>",
        ">Verdicts</h2>",
        ">Maps of the sweep</h2>",
        ">What is bought with what</h2>",
        ">Distributions by arm</h2>",
        ">Cells</h2>",
        ">Words</h2>",
    ];
    let place = |text: &str| {
        page.find(text)
            .unwrap_or_else(|| panic!("the page lacks {text}"))
    };
    let places: Vec<usize> = order.into_iter().map(place).collect();
    assert!(places.is_sorted(), "{places:?}");
    // Two forests, two fronts and two kinds of quantiles under two loads.
    for part in ["<svg ", "<title id=", "<desc id=", "<figcaption>"] {
        assert_eq!(page.matches(part).count(), 10, "{part}");
    }
    let ids: Vec<&str> = page.split("<title id=\"").skip(1).collect();
    let ids: std::collections::BTreeSet<&str> = ids
        .iter()
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    assert_eq!(ids.len(), 10, "{ids:?}");
    assert_eq!(
        page.matches("<figcaption class=\"caption\">").count(),
        page.matches("<table").count()
    );
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("sample-suite.html");
    std::fs::write(file, page).unwrap();
}

#[test]
fn maps_show_medians_and_ranges_worked_out_by_hand() {
    let page = open("maps", &suite()).html().unwrap();
    // Load 8 (l = 1), budget 64 (n = 0): 350, 360, 370, 380; budget 256: 250 to 280; 1024: 150 to
    // 180. The best of a load is starred.
    let cells = row(&page, "TTFT p50 of long, ms", "rate=8");
    assert_eq!(
        cells,
        ["365 [350, 380]", "265 [250, 280]", "★ 165 [150, 180]"]
    );
    // Gaps of budget 64 at load 2: 20, 21, 22, 23; of 256: 80 to 83; of 1024: 320 to 323.
    let cells = row(&page, "longest event gap of back, ms", "rate=2");
    let expected = ["★ 21.5 [20.0, 23.0]", "81.5 [80.0, 83.0]", "322 [320, 323]"];
    assert_eq!(cells, expected);
    // More tokens a second are better.
    let cells = row(&page, "output tokens/s", "rate=2");
    assert_eq!(cells[2], "★ 1202 [1200, 1203]");
    // What was not measured has no map.
    assert!(!page.contains("caption\">goodput"), "a map of nothing");
    // ITL and event gap have the same p99 here: one map, and a word of the other.
    assert!(
        !page.contains("caption\">event gap p99"),
        "a map that stands twice"
    );
    assert!(page.contains("event gap p99 of back is the same in every cell."));
    // The longest gap decides, so its map comes first.
    let maps = page.split(">Maps of the sweep</h2>").nth(1).unwrap();
    let first = maps.split("caption\">").nth(1).unwrap();
    assert!(
        first.starts_with("longest event gap of back, ms"),
        "{first}"
    );
}

#[test]
fn where_it_wins_and_loses_is_said_in_words_and_in_a_table() {
    let report = open("gains", &suite());
    let page = report.html().unwrap();
    let cells = row(&page, "longest event gap of back: what", "rate=8");
    assert_eq!(cells, ["▲ better -70.0 % [-80.0, -60.0]"; 2]);
    let cells = row(&page, "TTFT p50 of long: what", "rate=2");
    let expected = [
        "▼ worse +100 % [+50.0, +150]",
        "? inconclusive +100 % [+50.0, +150]",
    ];
    assert_eq!(cells, expected);
    assert!(
        page.contains("<td class=\"unsettled\">?"),
        "grey, not amber"
    );
    let text = report.terminal(100, false).replace('\n', " ");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "- What classes.long.ttft_ms.p50 says: worse in 2 of 4: budget 64, at both loads; \
                inconclusive in 2 of 4.";
    assert!(text.contains(said), "{text}");
    assert!(text.contains("What classes.back.event_gap_ms.max says: better in 4 of 4."));
    assert!(
        text.contains("8 comparisons: 4 ▲ better, 2 ▼ worse, 2 ? inconclusive"),
        "{text}"
    );
}

#[test]
fn what_a_candidate_wins_and_pays_stands_side_by_side() {
    let page = open("glance", &suite()).html().unwrap();
    let cells = row(&page, "Each candidate by every figure", "rate=2, budget=64");
    assert_eq!(cells, ["▲ better -70.0 %", "▼ worse +100 %", "trades"]);
    let cells = row(
        &page,
        "Each candidate by every figure",
        "rate=8, budget=256",
    );
    let expected = ["? inconclusive +100 %", "wins, 1 not settled"];
    assert_eq!(cells[1..], expected);
}

#[test]
fn the_front_is_that_of_the_medians() {
    let page = open("front", &suite()).html().unwrap();
    // Smaller budgets have shorter gaps and later first tokens: nothing beats anything.
    let cells = row(
        &page,
        "TTFT p50 of long against ITL p99 of back at rate=2",
        "1",
    );
    assert_eq!(cells[0], "own,budget=64");
    assert_eq!(cells[1], "on the front");
    assert_eq!(cells[4], "4 of 4");
    // ITL p99 is half of the largest gap: 10.0 to 11.5. The fixture's cells have 50 samples, too
    // few for a p99 of first tokens, so their median is used: 300 to 330.
    assert_eq!(cells[2..4], ["10.8 [10.0, 11.5]", "315 [300, 330]"]);
    let few = "TTFT p99 of long, ms: the largest of 50 in a cell, since a percentile needs 100<";
    assert!(page.contains(few), "{page}");
    assert!(
        !page.contains("TTFT p50 of long, ms:"),
        "a median of 50 is one"
    );
    let first = page.find("TTFT p50 of long against longest event gap of back at rate=2<");
    let then = page.find("TTFT p50 of long against ITL p99 of back at rate=2<");
    assert!(
        first.unwrap() < then.unwrap(),
        "the longest gap comes first"
    );
}

/// The suite with the cell of block 1, load 8, budget 64 changed.
fn with_cell(change: impl Fn(&mut Value)) -> Value {
    let mut suite = suite();
    let cells = suite["cells"].as_array_mut().unwrap();
    let own = cells.iter_mut().find(|cell| cell["dir"] == VOID);
    change(own.unwrap());
    suite
}

const VOID: &str = "cells/block-001/rate=8/own,budget=64";

#[test]
fn a_void_cell_is_told_and_enters_no_number() {
    let mut suite = with_cell(|cell| {
        cell["valid"] = json!(false);
        cell["reasons"] = json!(["the client itself was late: driver lag p99 4.5 ms"]);
    });
    // Its pairs are left out, as `run` does.
    for one in suite["comparisons"].as_array_mut().unwrap() {
        if one["condition"] == "rate=8" && one["candidate"] == "own,budget=64" {
            for list in ["blocks", "baseline_values", "candidate_values"] {
                one[list].as_array_mut().unwrap().remove(1);
            }
            one["pairs"] = json!(3);
            one["left_out"] = json!(["block 1: the candidate is not valid: the client was late"]);
        }
    }
    let page = open("void", &suite).html().unwrap();
    // Without 360: the median of 350, 370, 380.
    let cells = row(&page, "TTFT p50 of long, ms", "rate=8");
    assert_eq!(cells[0], "370 [350, 380] (3 of 4)");
    let cells = row(&page, "What was checked", "finished cells are valid");
    assert_eq!(cells[0], "1 cell out");
    assert!(cells[1].starts_with("23 of 24"), "{cells:?}");
    let cells = row(&page, "What was checked", "every pair could be used");
    assert!(
        cells[1].starts_with("30 pairs used, 2 left out"),
        "{cells:?}"
    );
    let cells = row(&page, "Every cell", "block-001/rate=8/own,budget=64");
    assert_eq!(cells[..3], ["void", "100.0", "–"]);
    // One arm lost a cell and the others none: whose numbers that may flatter, also in the head.
    let said = "1 of 8 cells of own,budget=64 and none of the 2 others were left out, because the \
                client itself was late: driver lag p99 4.5 ms: its numbers are of the other \
                blocks, which may have been easier.";
    let head = page.split("</section>").next().unwrap();
    assert!(head.contains(said), "{head}");
    // Why a pair is left out stands once below its table, not in every row.
    let note = "Left out, block 1 at rate=8: own,budget=64 is not valid: the client was late.";
    assert_eq!(page.matches(note).count(), 2, "a hypothesis each");
}

#[test]
fn a_percentile_below_all_stalls_is_not_judged() {
    // The widest budget has the longest gaps, 320 to 323 ms at load 2, and by a p99 of 4 ms it
    // would be the best.
    let dir = write("blind", &suite());
    for block in 0..4 {
        let cell = format!("cells/block-{block:03}/rate=2/own,budget=1024/bench.json");
        let file = dir.join(cell);
        let mut document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        document["classes"]["back"]["itl_ms"]["p99"] = json!(4.0);
        std::fs::write(&file, document.to_string()).unwrap();
    }
    let page = SuiteReport::open(&dir).unwrap().html().unwrap();
    let cells = row(&page, "ITL p99 of back, ms", "rate=2");
    assert_eq!(cells[0], "★ 10.8 [10.0, 11.5]");
    assert_eq!(cells[2], "4.00 [4.00, 4.00]");
    let said = "ITL p99 of back misses the stalls of 1 setting (hatched): they are rarer than 1 \
                gap in 100. The longest gap is up to 80 times as long there (322 ms); choose by \
                that.";
    // Below the map and below the front.
    let plain = page.replace('\u{a0}', " ");
    assert_eq!(plain.matches(said).count(), 2);
    let cells = row(
        &page,
        "TTFT p50 of long against ITL p99 of back at rate=2",
        "own,budget=1024",
    );
    assert_eq!(cells[1], "misses the stalls: not judged");
}

#[test]
fn a_setting_without_a_valid_cell_is_marked_and_not_drawn() {
    let mut suite = suite();
    for cell in suite["cells"].as_array_mut().unwrap() {
        if cell["arm"] == "own,budget=64" {
            cell["valid"] = json!(false);
            cell["reasons"] = json!(["calibration: the client is too slow"]);
        }
    }
    suite["comparisons"] = json!([]);
    suite["exit_code"] = json!(3);
    let report = open("all-void", &suite);
    let page = report.html().unwrap();
    let cells = row(&page, "TTFT p50, ms", "rate=2");
    assert_eq!(cells[0], "none of 4");
    assert!(page.contains("<td class=\"void\">none of 4</td>"));
    let cells = row(&page, "TTFT p50 against ITL p99 at rate=2", "1");
    assert_eq!(cells[1..], ["no value", "none of 4", "none of 4", "–"]);
    assert!(page.contains("Measured, nothing compared"));
    let told = "8 times, first cells/block-000/rate=2/own,budget=64: calibration";
    assert!(report.markdown().contains(told));
    let text = report.terminal(100, false);
    assert!(text.contains("In part: 16 of 24 cells are valid"), "{text}");
}

#[test]
fn a_cell_of_which_requests_failed_has_no_latency() {
    let suite = with_cell(|cell| cell["success_rate"] = json!(0.9));
    let page = open("failing", &suite).html().unwrap();
    let cells = row(&page, "TTFT p50 of long, ms", "rate=8");
    assert_eq!(cells[0], "370 [350, 380] (3 of 4)");
    // Its tokens were made, though: 1000, 1001, 1002, 1003.
    let cells = row(&page, "output tokens/s", "rate=8");
    assert_eq!(cells[0], "1002 [1000, 1003]");
}

#[test]
fn values_that_are_not_those_of_the_cells_take_every_claim_away() {
    let mut changed = suite();
    changed["comparisons"][0]["candidate_values"][2] = json!(21.0);
    let report = open("forged", &changed);
    assert_eq!(report.exit_code(), 3);
    let text = report.terminal(100, false);
    assert!(text.starts_with("Suite budgets"), "{text}");
    assert!(text.contains("Contradicts itself"), "{text}");
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "contradiction: classes.back.event_gap_ms.max of own,budget=64 in block 2 is 21 \
                    in suite.json and 22 in its cell";
    assert!(said.contains(expected), "{said}");
    // A cell that the suite calls valid and its own document does not.
    let dir = write("forged-cell", &suite());
    let place = dir.join(VOID).join("bench.json");
    let text = std::fs::read_to_string(&place).unwrap();
    std::fs::write(&place, text.replace("\"valid\":true", "\"valid\":false")).unwrap();
    let report = SuiteReport::open(&dir).unwrap();
    assert_eq!(report.exit_code(), 3);
    assert!(
        report
            .markdown()
            .contains("suite.json calls it valid, and its document does not")
    );
}

#[test]
fn arms_of_a_block_with_different_schedules_are_found() {
    let suite = with_cell(|cell| cell["schedule_sha256"] = json!("other"));
    let report = open("schedules", &suite);
    assert_eq!(report.exit_code(), 3);
    let text = report.markdown();
    assert!(
        text.contains("in block 1 at rate=8 the arms had different schedules"),
        "{text}"
    );
}

#[test]
fn suites_with_little_in_them_have_a_page() {
    // One arm, one condition, one block, nothing compared.
    let mut small = suite();
    let mut cell = small["cells"][0].clone();
    cell["condition"] = json!("");
    cell["arm"] = json!("own");
    cell["dir"] = json!("cells/block-000/own");
    cell["schedule_sha256"] = json!("00");
    small["cells"] = json!([cell]);
    small["comparisons"] = json!([]);
    let page = open("small", &small).html().unwrap();
    assert_self_contained(&page);
    assert_eq!(row(&page, "TTFT p50, ms", "median [range]"), ["300"]);
    assert!(
        !page.contains("What is bought with what"),
        "a front of one point"
    );
    // Nothing was run.
    let mut none = small.clone();
    none["cells"] = json!([]);
    none["state"] = json!("incomplete");
    let report = open("none", &none);
    assert!(report.html().unwrap().contains("Incomplete"));
    assert!(
        report
            .markdown()
            .contains("There is no cell that may be used.")
    );
    // Cells that failed or are missing.
    let mut failed = suite();
    for (number, cell) in failed["cells"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .enumerate()
    {
        cell["state"] = json!(["failed", "missing", "running", "interrupted"][number % 4]);
        cell["valid"] = Value::Null;
        cell["reasons"] = json!(["the server ended: exit status: 2\nmore"]);
        cell["success_rate"] = Value::Null;
        cell["schedule_sha256"] = Value::Null;
        cell["wall_s"] = Value::Null;
    }
    failed["state"] = json!("incomplete");
    failed["comparisons"] = json!([]);
    failed["exit_code"] = json!(3);
    let report = open("failed", &failed);
    assert!(report.html().unwrap().contains("No: there is no valid "));
    assert_eq!(report.exit_code(), 3);
}

#[test]
fn hostile_names_are_harmless_everywhere() {
    let hostile = "<script>alert(1)</script>\u{1b}[2J|\u{202e}";
    let mut named = suite();
    named["question"] = json!(hostile);
    for one in named["comparisons"].as_array_mut().unwrap() {
        one["hypothesis"] = json!(hostile);
        one["why"] = json!(hostile);
    }
    named["name"] = json!(hostile);
    named["machine"]["cpu"] = json!(hostile);
    for cell in named["cells"].as_array_mut().unwrap() {
        cell["gates_failed"] = json!([hostile]);
    }
    let report = open("hostile", &named);
    let page = report.html().unwrap();
    assert_self_contained(&page);
    for text in [page, report.markdown(), report.terminal(100, false)] {
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'));
    }
    assert!(!report.markdown().contains("<script"));
}

#[test]
fn a_terminal_line_is_never_too_wide() {
    for width in [40, 80, 100] {
        let text = open("width", &suite()).terminal(width, false);
        for line in text.lines() {
            assert!(
                line.chars().count() <= usize::from(width),
                "{width}: {line}"
            );
        }
    }
}

#[test]
fn what_is_no_suite_is_refused_with_its_place() {
    let refused = |name: &str, suite: &Value| {
        let error = SuiteReport::open(&write(name, suite)).unwrap_err();
        (error.to_string(), error)
    };
    let mut newer = suite();
    newer["schema_version"] = json!(2);
    let (text, error) = refused("newer", &newer);
    assert!(
        matches!(error, SuiteError::Schema { found: 2, .. }),
        "{text}"
    );
    assert!(
        text.contains("suite.json") && text.contains("schema_version is 2"),
        "{text}"
    );
    let dir = write("outside", &suite());
    let text = suite().to_string().replace(VOID, "../../etc");
    std::fs::write(dir.join("suite.json"), text).unwrap();
    let error = SuiteReport::open(&dir).unwrap_err();
    assert!(matches!(error, SuiteError::Outside { .. }), "{error}");
    let mut lacking = suite();
    lacking.as_object_mut().unwrap().remove("question");
    let (text, _) = refused("lacking", &lacking);
    assert!(text.contains("question"), "{text}");
    std::fs::write(dir.join("suite.json"), "{").unwrap();
    let text = SuiteReport::open(&dir).unwrap_err().to_string();
    assert!(text.contains("line 1"), "{text}");
    std::fs::remove_file(dir.join("suite.json")).unwrap();
    std::fs::create_dir(dir.join("suite.json")).unwrap();
    let text = SuiteReport::open(&dir).unwrap_err().to_string();
    assert!(text.contains("no regular file"), "{text}");
}
