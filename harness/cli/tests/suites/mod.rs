//! Suites in a directory of their own, for tests that run them.

#![allow(dead_code, reason = "each test file uses its own part")]

#[path = "../../../bench/src/schema/check.rs"]
pub(crate) mod schema;

use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use crate::common::{prefillbench, run, stderr, stdout};
use serde_json::Value;

/// A suite of two arms that are the ground-truth server. `marker` is the name of its model, by
/// which its processes are found; `more` stands at the end.
pub(crate) fn suite(marker: &str, blocks: usize, slow_ms: u32, more: &str) -> String {
    let start = |ttft_ms: u32| {
        format!(
            "[\"{{program}}\", \"mock\", \"--port\", \"{{port}}\", \"--model\", \"{marker}\", \
             \"--ttft-ms\", \"{ttft_ms}\", \"--itl-ms\", \"1\"]"
        )
    };
    format!(
        "schema = 2\nname = \"two\"\nquestion = \"Which is faster?\"\nreading = \"The first.\"\n\
         [run]\nblocks = {blocks}\n\
         [bench]\nrequest_rate = 40\nnum_prompts = 6\nrandom_input_len = 32\n\
         random_output_len = 3\nno_calibration = true\nno_scrape = true\nseed = 3\n\
         [arms.quick]\nstart = {}\n[arms.slow]\nstart = {}\n{more}",
        start(5),
        start(slow_ms)
    )
}

/// A hypothesis that the slow arm is slow.
pub(crate) const WORSE: &str = "[[hypothesis]]\nname = \"slow is slow\"\n\
    metric = \"service_ttft_ms.p50\"\nbaseline = \"quick\"\ncandidate = \"slow\"\n\
    expect = \"higher\"\n";

/// The committed schema of the result.
pub(crate) fn committed() -> Value {
    let text = include_str!("../../../../docs/schema/suite-1.schema.json");
    serde_json::from_str(text).expect("JSON")
}

/// A directory with the suite in it.
pub(crate) struct Scratch {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) out: PathBuf,
}

impl Scratch {
    pub(crate) fn new(text: &str) -> Scratch {
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("out");
        let scratch = Scratch { dir, out };
        scratch.write(text);
        scratch
    }

    pub(crate) fn write(&self, text: &str) {
        std::fs::write(self.file(), text).expect("written");
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("suite.toml")
    }

    pub(crate) fn args(&self, more: &[&str]) -> Vec<String> {
        let file = self.file();
        let words = [
            "run",
            file.to_str().unwrap(),
            "--out",
            self.out.to_str().unwrap(),
        ];
        words.iter().chain(more).map(ToString::to_string).collect()
    }

    pub(crate) fn run(&self, more: &[&str]) -> Output {
        let args = self.args(more);
        run(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub(crate) fn start(&self) -> Child {
        let args = self.args(&[]);
        prefillbench(&[])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs")
    }

    pub(crate) fn json(&self, more: &[&str]) -> (Value, Option<i32>) {
        let output = self.run(&[more, &["--json"]].concat());
        let text = stdout(&output);
        let document = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(&output)));
        // A plan is another document.
        if !more.contains(&"--dry-run") {
            let found = schema::check(&committed(), &document);
            assert_eq!(found, Vec::<String>::new());
        }
        (document, output.status.code())
    }

    /// Cells whose file says that they are complete.
    pub(crate) fn complete(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let block = |n: usize| self.out.join(format!("cells/block-{n:03}"));
        for arm in (0..40).flat_map(|n| [block(n).join("quick"), block(n).join("slow")]) {
            let text = std::fs::read_to_string(arm.join("cell.json")).unwrap_or_default();
            if text.contains("\"complete\"") {
                found.push(arm);
            }
        }
        found
    }
}

/// Processes whose command line mentions `needle`.
pub(crate) fn processes(needle: &str) -> usize {
    let entries = std::fs::read_dir("/proc").expect("a process list");
    let line = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    let lines = entries.filter_map(|entry| line(entry.ok()?));
    let shown = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    shown.filter(|line| line.contains(needle)).count()
}

/// Waits for `true`, for two minutes at most.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2400 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what} did not come within two minutes");
}

/// The cells of a result.
pub(crate) fn cells(document: &Value) -> &Vec<Value> {
    document["cells"].as_array().expect("a list")
}
