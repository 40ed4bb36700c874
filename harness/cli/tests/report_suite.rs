//! Reports of suites, traces and differences from end to end, with the ground-truth server as arms.
//! Whether a cell is valid depends on how busy the machine is, so nothing here asks for that.

#![cfg(unix)]

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{prefillbench, run, stderr, stdout};
use serde_json::Value;

/// A suite of two arms under two loads, in two blocks: eight cells of a fraction of a second.
fn suite() -> String {
    let arm = |ttft_ms: u32| {
        format!(
            "start = [\"{{program}}\", \"mock\", \"--port\", \"{{port}}\", \"--ttft-ms\", \
             \"{ttft_ms}\", \"--itl-ms\", \"1\"]\n"
        )
    };
    format!(
        "schema = 2\nname = \"two\"\nquestion = \"Which is faster?\"\nreading = \"The first.\"\n\
         [run]\nblocks = 2\n\
         [bench]\nnum_prompts = 6\nrandom_input_len = 32\nrandom_output_len = 3\n\
         no_calibration = true\nno_scrape = true\nseed = 3\n\
         [arms.quick]\n{}[arms.slow]\n{}\
         [factors.rate]\nkey = \"bench.request_rate\"\nvalues = [40, 80]\n",
        arm(5),
        arm(30)
    )
}

struct Ran {
    dir: tempfile::TempDir,
    output: Output,
}

impl Ran {
    /// Runs the suite into a new directory.
    fn new() -> Ran {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("suite.toml");
        std::fs::write(&file, suite()).expect("written");
        let out = dir.path().join("out");
        let output = run(&["run", text(&file), "--out", text(&out)]);
        Ran { dir, output }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn cell(&self, name: &str) -> PathBuf {
        self.out().join("cells/block-000/rate=40").join(name)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn text_of(path: &Path) -> String {
    text(path).to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_suite_writes_its_report_and_is_reported_again() {
    let ran = Ran::new();
    let out = ran.out();
    let page = read(&out.join("report.html"));
    assert!(
        stderr(&ran.output).contains("report.html"),
        "{}",
        stderr(&ran.output)
    );
    assert!(read(&out.join("report.md")).starts_with("# Suite two"));
    // Eight cells, and the way to each; without a page of its own to its document.
    assert_eq!(page.matches("href=\"./cells/").count(), 8);
    assert_eq!(page.matches("/bench.json\"").count(), 8);
    // Reported again: the same bytes, the exit code of the run, lines that fit.
    let again = run(&["report", text(&out)]);
    assert_eq!(
        again.status.code(),
        ran.output.status.code(),
        "{}",
        stderr(&again)
    );
    assert_eq!(read(&out.join("report.html")), page);
    let wide = stdout(&again)
        .lines()
        .find(|line| line.chars().count() > 100)
        .map(str::to_owned);
    assert_eq!(wide, None);
    let json = stdout(&run(&["report", text(&out), "--json"]));
    let printed: Value = serde_json::from_str(&json).expect("JSON");
    let stored: Value = serde_json::from_str(&read(&out.join("suite.json"))).expect("JSON");
    assert_eq!(printed, stored);
    // With pages of the cells the suite leads to these.
    let cells = run(&["report", text(&out), "--cells"]);
    assert_eq!(
        cells.status.code(),
        ran.output.status.code(),
        "{}",
        stderr(&cells)
    );
    let page = read(&out.join("report.html"));
    assert_eq!(page.matches("/report.html\"").count(), 8);
    assert!(ran.cell("quick").join("report.html").exists());
    // A row that was taken away makes the cell, and with it the suite, contradict itself.
    let rows = ran.cell("slow").join("requests.csv");
    let mut lines: Vec<String> = read(&rows).lines().map(str::to_owned).collect();
    lines.remove(2);
    std::fs::write(&rows, lines.join("\n") + "\n").expect("written");
    let broken = run(&["report", text(&out)]);
    assert_eq!(broken.status.code(), Some(3), "{}", stdout(&broken));
    assert!(
        stdout(&broken).contains("Contradicts itself"),
        "{}",
        stdout(&broken)
    );
}

#[test]
fn a_trace_has_every_request_and_is_written_over_files_only() {
    let ran = Ran::new();
    let cell = ran.cell("quick");
    let file = ran.dir.path().join("trace.json");
    let output = run(&["report", text(&cell), "--perfetto", text(&file)]);
    assert!(
        stderr(&output).contains("6 requests"),
        "{}",
        stderr(&output)
    );
    let trace: Value = serde_json::from_str(&read(&file)).expect("JSON");
    let mut phases: BTreeMap<String, usize> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().expect("events") {
        *phases
            .entry(event["ph"].as_str().expect("ph").to_owned())
            .or_default() += 1;
    }
    // Of each request the whole and three parts begin and end.
    assert_eq!((phases["b"], phases["e"]), (24, 24));
    assert_eq!(phases["B"], phases["E"]);
    let link = ran.dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    for place in ["/dev/null", text(&link)] {
        let output = run(&["report", text(&cell), "--perfetto", place]);
        assert_eq!(output.status.code(), Some(2), "{place}");
        assert!(
            stderr(&output).contains("not a regular file"),
            "{}",
            stderr(&output)
        );
    }
    let output = run(&["report", text(&ran.out()), "--perfetto", text(&file)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("name a cell"),
        "{}",
        stderr(&output)
    );
    let output = run(&["report", text(&cell), "--cells"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--cells"), "{}", stderr(&output));
}

#[test]
fn the_page_is_opened_where_somebody_sits() {
    let ran = Ran::new();
    let bin = ran.dir.path().join("bin");
    std::fs::create_dir(&bin).expect("a directory");
    let name = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let opened = ran.dir.path().join("opened");
    let script = format!("#!/bin/sh\nprintf %s \"$1\" > '{}'\n", opened.display());
    std::fs::write(bin.join(name), script).expect("written");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bin.join(name), mode).expect("executable");
    let out = ran.out();
    let open = |path: &Path, ci: &str| {
        let mut command = prefillbench(&["report", text(&out), "--open"]);
        command.env("CI", ci);
        // The shell of the script is elsewhere.
        let path = format!("{}:/usr/bin:/bin", path.display());
        command.env("PATH", if ci == "none" { String::new() } else { path });
        if ci == "none" || ci.is_empty() {
            command.env_remove("CI");
        }
        command.output().expect("it runs")
    };
    let output = open(&bin, "true");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("CI is set"), "{}", stderr(&output));
    let output = open(&bin, "none");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("yourself"), "{}", stderr(&output));
    assert!(!opened.exists());
    let output = open(&bin, "");
    assert_eq!(
        output.status.code(),
        ran.output.status.code(),
        "{}",
        stderr(&output)
    );
    // It is not waited for.
    for _ in 0..300 {
        if std::fs::read_to_string(&opened).is_ok_and(|path| !path.is_empty()) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(Path::new(&read(&opened)), out.join("report.html"));
}

/// What `report diff` says of two directories: its document, if any, and all of it.
fn diff(a: &Path, b: &Path, more: &[&str]) -> (Value, std::process::Output) {
    let words = ["report", "diff", text(a), text(b)];
    let output = run(&[&words, more].concat());
    let document: Value = serde_json::from_str(&stdout(&output)).unwrap_or_default();
    (document, output)
}

#[test]
fn two_runs_differ_in_what_is_said_and_are_not_judged() {
    let ran = Ran::new();
    let (quick, slow) = (ran.cell("quick"), ran.cell("slow"));
    let other = ran.out().join("cells/block-000/rate=80/quick");
    let (found, output) = diff(&quick, &slow, &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(found["same_schedule"], true);
    // The arms differ in their name and in one word of their command.
    let settings = found["settings"].as_array().expect("settings");
    let values: Vec<String> = settings.iter().map(|s| s["values"].to_string()).collect();
    assert_eq!(
        values,
        [r#"["quick","slow"]"#, r#"["5","30"]"#],
        "{settings:?}"
    );
    assert_eq!(found["verdict"], Value::Null);
    let bench = |dir: &Path| -> Value {
        serde_json::from_str(&read(&dir.join("bench.json"))).expect("JSON")
    };
    let figures = found["figures"].as_array().expect("figures");
    let ttft = figures
        .iter()
        .find(|f| f["metric"] == "ttft_ms.p50")
        .expect("TTFT");
    for (side, dir) in [(0, &quick), (1, &slow)] {
        assert_eq!(ttft["values"][side], bench(dir)["ttft_ms"]["p50"]);
    }
    // Another rate is another schedule, and one of the settings.
    let (found, _) = diff(&quick, &other, &["--json"]);
    assert_eq!(found["same_schedule"], false);
    let settings = found["settings"].to_string();
    assert!(
        settings.contains("40") && settings.contains("80"),
        "{settings}"
    );
    let (_, output) = diff(&quick, &quick, &[]);
    let text = stdout(&output);
    assert!(
        text.contains("0 settings and 0 conditions differ"),
        "{text}"
    );
    assert!(text.contains("nothing is claimed"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    // One pair decides nothing.
    let (found, output) = diff(&quick, &slow, &["--json", "--verdict"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(!found["verdict"].is_null());
    suites_differ_as_suites(&ran, &quick);
}

/// Suites are compared as suites, and never with a run.
fn suites_differ_as_suites(ran: &Ran, quick: &Path) {
    let (found, output) = diff(&ran.out(), &ran.out(), &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        (&found["same_plan"], found["suites"][0].as_str()),
        (&true.into(), Some(text_of(&ran.out()).as_str()))
    );
    assert!(
        found["figures"]
            .as_array()
            .is_some_and(|all| !all.is_empty()),
        "{found}"
    );
    for (a, b, more, needle) in [
        (
            ran.out(),
            quick.to_owned(),
            &[][..],
            "is the run of a suite and",
        ),
        (
            ran.out(),
            ran.out(),
            &["--verdict"][..],
            "suites have their verdicts",
        ),
        (
            ran.dir.path().to_owned(),
            quick.to_owned(),
            &[][..],
            "holds no manifest.json",
        ),
        (
            ran.dir.path().join("nowhere"),
            quick.to_owned(),
            &[][..],
            "does not exist",
        ),
    ] {
        let (_, output) = diff(&a, &b, more);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(needle), "{}", stderr(&output));
    }
}
