//! Verdicts derived again from the cells, and two suites side by side.

use pb_report::suite::{SuiteReport, suite_diff};
use serde_json::{Value, json};

use super::suite_dir::{suite, write};
use super::{open, row};

/// The committed run of a suite, with `suite.json` changed.
fn committed(name: &str, change: impl Fn(&mut Value)) -> SuiteReport {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
    let source = source.join("disaggregation").canonicalize().unwrap();
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("committed-{name}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(source.join("cells"), dir.join("cells")).unwrap();
    std::fs::copy(source.join("plan.json"), dir.join("plan.json")).unwrap();
    let text = std::fs::read_to_string(source.join("suite.json")).unwrap();
    let mut suite: Value = serde_json::from_str(&text).unwrap();
    change(&mut suite);
    std::fs::write(dir.join("suite.json"), suite.to_string()).unwrap();
    SuiteReport::open(&dir).unwrap()
}

/// What stands in the row of this check.
fn checked(report: &SuiteReport, check: &str) -> Vec<String> {
    row(&report.html().unwrap(), "What was checked", check)
}

#[test]
fn verdicts_are_derived_again_and_an_edit_of_any_is_found() {
    let check = "verdicts follow from the cells";
    let whole = committed("whole", |_| {});
    let cells = checked(&whole, check);
    assert_eq!(cells, ["held", "10 verdicts derived again, 0 differ"]);
    // Two or three long prompts a cell: nobody can tell whether they drift.
    let steady = checked(&whole, "cells have a steady state");
    assert_eq!(steady[0], "not checked");
    // Whichever word stands there, another one is found; so is what goes with it.
    let other = |word: &Value| json!(if word == "better" { "worse" } else { "better" });
    type Change<'a> = &'a dyn Fn(&mut Value);
    let verdict = |suite: &mut Value| {
        let one = &mut suite["comparisons"][3];
        one["verdict"] = other(&one["verdict"]);
    };
    let expectation = |suite: &mut Value| {
        let one = &mut suite["comparisons"][0];
        one["as_expected"] = json!(one["as_expected"] != true);
    };
    let interval = |suite: &mut Value| {
        let low = suite["comparisons"][5]["change"]["low"].as_f64().unwrap();
        suite["comparisons"][5]["change"]["low"] = json!(low * 1.001);
    };
    let margin = |suite: &mut Value| suite["comparisons"][2]["margin"] = json!(0.5);
    let removed = |suite: &mut Value| {
        suite["comparisons"].as_array_mut().unwrap().remove(4);
    };
    let changes: [(&str, Change<'_>, &str); 5] = [
        ("verdict", &verdict, "stale or changed"),
        ("expectation", &expectation, "the expectation is"),
        ("interval", &interval, "suite.json says change"),
        ("margin", &margin, "is not that of plan.json"),
        ("removed", &removed, "has 9 comparisons, plan.json 10"),
    ];
    for (name, change, words) in changes {
        let report = committed(name, change);
        assert_eq!(report.exit_code(), 3, "{name}");
        assert_eq!(checked(&report, check)[0], "BROKEN", "{name}");
        let text = report.markdown();
        assert!(
            text.contains("Contradicts itself") && text.contains(words),
            "{name}: {text}"
        );
    }
}

#[test]
fn without_a_plan_the_verdicts_are_told_to_be_unchecked() {
    let cells = checked(&open("no-plan", &suite()), "verdicts follow from the cells");
    assert_eq!(cells[0], "not checked");
    assert!(cells[1].contains("plan.json"), "{cells:?}");
}

#[test]
fn two_suites_are_set_side_by_side() {
    let first = write("diff-first", &suite());
    let mut changed = suite();
    changed["suite_sha256"] = json!("cd".repeat(32));
    changed["machine"]["cpu"] = json!("Another CPU");
    changed["comparisons"][0]["verdict"] = json!("worse");
    changed["comparisons"].as_array_mut().unwrap().pop();
    // One arm is called otherwise: nothing of it is in both.
    for cell in changed["cells"].as_array_mut().unwrap() {
        if cell["arm"] == "own,budget=256" {
            cell["arm"] = json!("own,budget=200");
        }
    }
    let second = write("diff-second", &changed);
    let found = suite_diff(&first, &second).unwrap();
    assert!(!found.same_plan);
    let differ = found.verdicts.iter();
    let differ: Vec<_> = differ.filter(|v| v.verdicts[0] != v.verdicts[1]).collect();
    assert_eq!((found.verdicts.len(), differ.len()), (8, 2));
    let words = |v: &[Option<String>; 2]| v.clone().map(|word| word.unwrap_or("-".into()));
    assert_eq!(words(&differ[0].verdicts), ["better", "worse"]);
    assert_eq!(words(&differ[1].verdicts)[1], "-");
    assert_eq!(found.conditions.len(), 1);
    assert_eq!(found.conditions[0].key, "machine.cpu");
    // Of the budgets 64 and 1024 under both loads, all of it the same; 256 is in one only.
    assert!(found.figures.iter().all(|one| one.ratio == Some(1.0)));
    let arms: std::collections::BTreeSet<&str> =
        found.figures.iter().map(|one| one.arm.as_str()).collect();
    assert_eq!(arms, ["own,budget=1024", "own,budget=64"].into());
    // 300, 310, 320, 330: worked out by hand in the fixture.
    let ttft = found.figures.iter().find(|one| {
        let own = (one.arm.as_str(), one.condition.as_str());
        own == ("own,budget=64", "rate=2") && one.metric == "classes.long.ttft_ms.p50"
    });
    assert_eq!(ttft.unwrap().values, [Some(315.0), Some(315.0)]);
    let text = found.terminal(100, false);
    assert!(text.contains("2 of 8 verdicts differ"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    // A suite and itself: nothing.
    let same = suite_diff(&first, &first).unwrap();
    assert!(same.same_plan && same.settings.is_empty() && same.conditions.is_empty());
    assert!(same.verdicts.iter().all(|v| v.verdicts[0] == v.verdicts[1]));
}
