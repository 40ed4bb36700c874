//! Suites from end to end, with the ground-truth server as arms.

#![cfg(unix)]

mod common;
mod suites;

use std::path::PathBuf;
use std::process::Command;

use common::{run, stderr, stdout};
use serde_json::Value;
use suites::{Scratch, WORSE, cells, committed, processes, schema, suite, wait_for};

#[test]
fn a_planted_slowdown_is_found_in_matched_blocks() {
    let scratch = Scratch::new(&suite("slowdown-suite", 4, 400, WORSE));
    let (document, code) = scratch.json(&[]);
    assert_eq!(document["state"], "complete");
    assert_eq!(cells(&document).len(), 8);
    for block in 0..4 {
        let own: Vec<&Value> = cells(&document)
            .iter()
            .filter(|c| c["block"] == block)
            .collect();
        let [a, b] = own[..] else { panic!("{own:?}") };
        assert_ne!(a["arm"], b["arm"]);
        assert_eq!(
            (&a["schedule_sha256"], &a["seed"]),
            (&b["schedule_sha256"], &b["seed"])
        );
        assert!(
            a["schedule_sha256"]
                .as_str()
                .is_some_and(|hash| hash.len() == 64)
        );
    }
    // The order within a pair of blocks is mirrored, and blocks have schedules of their own.
    let arms: Vec<&Value> = cells(&document).iter().map(|cell| &cell["arm"]).collect();
    assert_eq!(
        (arms[0], arms[1], arms[4], arms[5]),
        (arms[3], arms[2], arms[7], arms[6])
    );
    assert_ne!(
        cells(&document)[0]["schedule_sha256"],
        cells(&document)[2]["schedule_sha256"]
    );
    let one = &document["comparisons"][0];
    let valid = cells(&document).iter().all(|cell| cell["valid"] == true);
    match one["verdict"].as_str() {
        Some("worse") => assert_eq!((&one["as_expected"], code), (&Value::Bool(true), Some(0))),
        // On a busy machine the client is late and cells are void; that is no other answer.
        Some("inconclusive" | "void") => assert!(!valid && code == Some(3), "{one}"),
        other => panic!("{other:?}: {one}"),
    }
    is_a_run_directory(&scratch, &cells(&document)[0]);
    assert_eq!(processes("--model slowdown-suite"), 0, "a server is left");
    says_the_same_again(&scratch, code);
}

/// A cell is a run directory of bench, with the words of its server.
fn is_a_run_directory(scratch: &Scratch, told: &Value) {
    let cell = scratch.out.join(told["dir"].as_str().unwrap());
    for file in [
        "manifest.json",
        "requests.csv",
        "tokens.csv",
        "bench.json",
        "server.log",
    ] {
        assert!(cell.join(file).exists(), "{file}");
    }
    let manifest = std::fs::read_to_string(cell.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["workload"]["suite"]["name"], "two");
    assert_eq!(manifest["seed"], told["seed"]);
}

/// On a finished directory nothing is run and the same is said, now for people.
fn says_the_same_again(scratch: &Scratch, code: Option<i32>) {
    let stored = std::fs::read_to_string(scratch.out.join("suite.json")).unwrap();
    let again = scratch.run(&[]);
    assert_eq!(again.status.code(), code);
    assert!(
        stderr(&again).contains("8 finished cells of an earlier run"),
        "{}",
        stderr(&again)
    );
    assert_eq!(
        std::fs::read_to_string(scratch.out.join("suite.json")).unwrap(),
        stored
    );
    let text = stdout(&again);
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert!(
        text.contains("slow is slow") && text.contains("complete: 4 of 4 blocks"),
        "{text}"
    );
}

#[test]
fn equal_arms_are_not_called_different() {
    // A margin of a factor of two: what a busy machine does to one arm stays within it.
    let more = WORSE.replace("\"higher\"", "\"no-claim\"\nmargin = 1.0");
    let scratch = Scratch::new(&suite("equal-arms", 4, 5, &more));
    let (document, code) = scratch.json(&[]);
    let one = &document["comparisons"][0];
    assert!(
        one["verdict"] != "better" && one["verdict"] != "worse",
        "{one}"
    );
    assert_ne!(code, Some(1));
    let usable = one["pairs"].as_u64() >= Some(3);
    assert_eq!(code, Some(if usable { 0 } else { 3 }), "{one}");
}

#[test]
fn a_killed_run_leaves_no_server_and_is_gone_on_with() {
    let scratch = Scratch::new(&suite("killed-run", 5, 60, WORSE));
    let mut child = scratch.start();
    wait_for("three finished cells", || scratch.complete().len() >= 3);
    child.kill().expect("killed");
    child.wait().expect("reaped");
    wait_for("the end of the server", || {
        processes("--model killed-run") == 0
    });
    let before = scratch.complete();
    assert!(before.len() < 10, "it was killed too late to show anything");
    let rows = |cell: &PathBuf| std::fs::read(cell.join("requests.csv")).expect("rows");
    let kept: Vec<Vec<u8>> = before.iter().map(rows).collect();
    let (document, code) = scratch.json(&[]);
    assert_eq!(
        (&document["state"], cells(&document).len()),
        (&"complete".into(), 10)
    );
    assert_ne!(code, Some(2));
    assert_eq!(scratch.complete().len(), 10);
    assert_eq!(
        before.iter().map(rows).collect::<Vec<_>>(),
        kept,
        "a finished cell was repeated"
    );
}

#[test]
fn a_signal_ends_a_run_in_order() {
    let scratch = Scratch::new(&suite("signalled", 20, 60, WORSE));
    let mut child = scratch.start();
    wait_for("a finished cell", || !scratch.complete().is_empty());
    let sent = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
    wait_for("the end of the run", || {
        child.try_wait().expect("a child").is_some()
    });
    let status = child.wait().expect("a status");
    assert_eq!(status.code(), Some(3));
    assert_eq!(processes("--model signalled"), 0, "a server is left");
    let text = std::fs::read_to_string(scratch.out.join("suite.json")).expect("a document");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(document["state"], "interrupted");
}

#[test]
fn a_suite_that_was_changed_is_refused_with_what_differs() {
    let text = suite("changed", 3, 5, WORSE);
    let scratch = Scratch::new(&text);
    assert_ne!(scratch.run(&["--only", "0/quick"]).status.code(), Some(2));
    for (from, to, parts) in [
        (
            "num_prompts = 6",
            "num_prompts = 7",
            &["bench.num_prompts", "\\\"6\\\" then", "7"][..],
        ),
        ("blocks = 3", "blocks = 4", &["run.blocks: 3 then, 4 now"]),
        (
            "expect = \"higher\"",
            "expect = \"lower\"",
            &["comparisons.0.expect", "higher", "lower"],
        ),
    ] {
        scratch.write(&text.replace(from, to));
        let output = scratch.run(&[]);
        assert_eq!(output.status.code(), Some(2), "{to}");
        let told = stderr(&output);
        for part in parts {
            let part = part.replace("\\\"", "\"");
            assert!(told.contains(&part), "{part} is missing in: {told}");
        }
    }
    // A comment is no change.
    scratch.write(&format!("# The same.\n{text}"));
    let output = scratch.run(&["--only", "0/quick"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    // Nor may two work in one directory, or in one that holds something else, by whatever name.
    let other = scratch.dir.path().to_str().unwrap();
    for other in [other.to_owned(), format!("{other}/new/..")] {
        let output = run(&["run", scratch.file().to_str().unwrap(), "--out", &other]);
        assert_eq!(output.status.code(), Some(2), "{other}");
        assert!(
            stderr(&output).contains("something else"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_server_that_does_not_start_is_a_failed_cell_with_its_words() {
    let text = suite("no-start", 3, 5, WORSE);
    let slow = text.find("[arms.slow]").unwrap();
    let end = text.find("[[hypothesis]]").unwrap();
    let broken = "[arms.slow]\nstart = [\"sh\", \"-c\", \"echo no GPU here >&2; exit 7\", \
                  \"{port}\"]\n";
    let scratch = Scratch::new(&format!("{}{broken}{}", &text[..slow], &text[end..]));
    let (document, code) = scratch.json(&[]);
    assert_eq!((&document["state"], code), (&"incomplete".into(), Some(3)));
    let state = |arm: &str, block: usize| {
        let of = |c: &&Value| c["arm"] == arm && c["block"] == block;
        cells(&document).iter().find(of).expect("a cell").clone()
    };
    for block in 0..3 {
        assert_eq!(state("quick", block)["state"], "complete");
    }
    let failed = state("slow", 0);
    assert_eq!(failed["state"], "failed");
    let told = failed["reasons"].to_string();
    assert!(
        told.contains("no GPU here") && told.contains("exit status: 7"),
        "{told}"
    );
    // After two starts that failed it is left alone.
    assert_eq!(state("slow", 1)["state"], "failed");
    let missing = state("slow", 2);
    assert_eq!(missing["state"], "missing");
    let told = missing["reasons"].to_string();
    assert!(told.contains("left alone"), "{told}");
    // What does not fit the schema must be noticed, or that it fits says nothing.
    for (place, value) in [
        ("/cells/0/state", Value::from("done")),
        ("/comparisons/0/verdict", Value::from("slower")),
        ("/exit_code", Value::from(2)),
    ] {
        let mut changed = document.clone();
        *changed.pointer_mut(place).expect(place) = value;
        assert!(!schema::check(&committed(), &changed).is_empty(), "{place}");
    }
    if let Some(found) = schema::jsonschema(&committed(), std::slice::from_ref(&document)) {
        assert_eq!(found, [Vec::<String>::new()]);
    }
    assert_eq!(document["comparisons"][0]["verdict"], "inconclusive");
}

#[test]
fn a_dry_run_starts_nothing_and_tells_the_plan() {
    let scratch = Scratch::new(&suite("dry", 3, 5, WORSE));
    let output = scratch.run(&["--dry-run", "--only", "1/*", "--only", "*/slow"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for part in [
        "2 arms, 1 condition, 3 blocks: 6 cells, 4 of them",
        "at least",
        "suite sha256",
    ] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert!(!scratch.out.exists());
    let (plan, _) = scratch.json(&["--dry-run"]);
    assert_eq!(plan["cells"].as_array().expect("a list").len(), 6);
    for (only, part) in [
        ("7/*", "0 to 2"),
        ("*/none", "quick"),
        ("quick", "BLOCK/ARM"),
    ] {
        let output = scratch.run(&["--dry-run", "--only", only]);
        assert_eq!(output.status.code(), Some(2), "{only}");
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

/// Runs a suite of at most twelve blocks with an eighty-fold change under a stopping rule; after
/// how many blocks it ended.
fn stopped_early(stop: &str) -> Option<u64> {
    let text = suite(stop, 12, 400, WORSE);
    let text = text.replace("blocks = 12", &format!("blocks = 12\nstop = \"{stop}\""));
    let scratch = Scratch::new(&text);
    let (document, code) = scratch.json(&[]);
    assert_eq!(document["state"], "complete");
    assert_eq!(document["stop"], stop);
    let one = &document["comparisons"][0];
    let all_used = one["left_out"] == Value::Array(vec![]);
    match one["verdict"].as_str() {
        Some("worse") => {
            assert_eq!(code, Some(0));
            let run = document["blocks_run"].as_u64().expect("a number");
            assert_eq!(cells(&document).len() as u64, 2 * run);
            all_used.then_some(run)
        }
        // A busy machine makes cells invalid, and their pairs are left out.
        Some("inconclusive" | "void") => {
            assert!(!all_used, "{one}");
            None
        }
        other => panic!("{other:?}: {one}"),
    }
}

#[test]
fn a_sequential_run_stops_when_its_hypotheses_are_settled() {
    // An eighty-fold change needs no twelve blocks, and no rule ends before the fourth.
    if let Some(run) = stopped_early("sequential") {
        assert!((4..12).contains(&run), "{run}");
    }
}

#[test]
fn a_spending_run_stops_at_a_planned_look() {
    if let Some(run) = stopped_early("spending") {
        assert!([3, 6, 9].contains(&run), "{run}");
    }
}

#[test]
fn the_server_may_live_for_a_block_of_several_loads() {
    let more = "[factors.rate]\nkey = \"bench.num_prompts\"\nvalues = [3, 4]\n";
    let text = suite("block-long", 2, 5, more).replace("num_prompts = 6\n", "");
    let text = text.replace("blocks = 2", "blocks = 2\nfresh = \"block\"");
    let scratch = Scratch::new(&text);
    let (document, code) = scratch.json(&[]);
    assert_eq!(document["state"], "complete");
    assert_eq!(cells(&document).len(), 8);
    assert!(matches!(code, Some(0 | 3)));
    for name in ["quick", "slow"] {
        let log = scratch
            .out
            .join(format!("cells/block-001/server-{name}.log"));
        assert!(log.exists(), "{log:?}");
    }
    for cell in cells(&document) {
        let document = scratch
            .out
            .join(cell["dir"].as_str().unwrap())
            .join("bench.json");
        let document: Value =
            serde_json::from_str(&std::fs::read_to_string(document).unwrap()).unwrap();
        let asked = cell["condition"]
            .as_str()
            .unwrap()
            .trim_start_matches("rate=")
            .parse::<u64>();
        assert_eq!(document["counts"]["offered"].as_u64(), asked.ok());
    }
}

#[test]
fn a_block_with_a_void_cell_is_run_again_as_a_whole() {
    let scratch = Scratch::new(&suite("retried", 2, 10, ""));
    let (before, _) = scratch.json(&[]);
    assert_eq!(before["state"], "complete");
    // A row of the second block is lost: its cell is void.
    let rows = scratch.out.join("cells/block-001/quick/requests.csv");
    let text = std::fs::read_to_string(&rows).expect("rows");
    let some: Vec<&str> = text.lines().take(4).collect();
    std::fs::write(&rows, some.join("\n") + "\n").expect("written");
    let output = scratch.run(&[]);
    assert!(
        stderr(&output).contains("--retry-void"),
        "{}",
        stderr(&output)
    );
    let kept = |block: usize, arm: &str| {
        let dir = scratch.out.join(format!("cells/block-{block:03}"));
        dir.join(format!("{arm}~1")).exists()
    };
    assert!(!kept(1, "quick"), "void cells are kept unless asked for");
    scratch.run(&["--retry-void"]);
    // The first block too, if the machine made one of its cells void.
    let void = |cell: &Value| cell["block"] == 0 && cell["valid"] != true;
    let first = cells(&before).iter().any(void);
    let again = [(0, "quick"), (0, "slow"), (1, "quick"), (1, "slow")].map(|(b, a)| kept(b, a));
    assert_eq!(again, [first, first, true, true]);
    assert_eq!(scratch.complete().len(), 4);
}
