//! What people and machines read: nothing hidden, nothing too wide, nothing that breaks markup.

use std::io::Write;
use std::process::{Command, Stdio};

use pb_judge::compare::synthetic::{Rig, arms};
use pb_judge::compare::{CompareRules, Run, compare};
use pb_judge::gate::{Evidence, GateReport, Policy, judge_gate};
use pb_stats::SplitMix64;

use super::*;

fn runs(itl_ratio: f64) -> (Vec<Run>, Vec<Run>) {
    arms(Rig::default(), 6, 1.0, itl_ratio, &mut SplitMix64::new(4))
}

/// A gate under a policy whose name is markup.
fn gate(b_ok: u64) -> GateReport {
    let (a, mut b) = runs(1.2);
    b.iter_mut().for_each(|run| run.ok = b_ok);
    let text = "schema = 1\nname = '<b>&\"\\u001b'\n[[limit]]\nmetric = \"ttft_p50\"\nmax = 1\n\
                [[limit]]\nmetric = \"hit_rate\"\nmin = 0.5\n\
                [[change]]\nmetric = \"itl_p99\"\nmargin = 0.05\n";
    let policy = Policy::parse(&text.replace("\\u001b", "x")).unwrap();
    let evidence = Evidence {
        baseline: &a,
        candidate: &b,
        ..Evidence::default()
    };
    judge_gate(&policy, &evidence).unwrap()
}

fn narrow(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn a_comparison_shows_claims_intervals_and_runs() {
    let (a, b) = runs(1.2);
    let found = compare(&a, &b, &CompareRules::default()).unwrap();
    let text = comparison_terminal(&found, 100, false);
    narrow(&text);
    for needle in [
        "VALID: ",
        "ITL p99",
        "worse",
        "a5",
        "b5",
        "100/100",
        "change [95 %]",
    ] {
        assert!(text.contains(needle), "{needle}: {text}");
    }
    assert!(!text.contains('\u{1b}'));
    let markdown = comparison_markdown(&found);
    assert!(markdown.contains("| ITL p99"), "{markdown}");
}

#[test]
fn a_single_pair_shows_its_change_without_an_interval() {
    let (a, b) = runs(1.2);
    let found = compare(&a[..1], &b[..1], &CompareRules::default()).unwrap();
    let text = comparison_terminal(&found, 100, false);
    narrow(&text);
    let row = text
        .lines()
        .find(|line| line.trim_start().starts_with("ITL p50"))
        .unwrap();
    assert!(
        row.contains("inconclusive") && row.contains('+') && !row.contains('['),
        "{row}"
    );
    assert!(text.contains("one observation"), "{text}");
}

#[test]
fn a_gate_shows_every_rule_and_why_it_is_not_met() {
    let report = gate(100);
    let text = gate_terminal(&report, 100, false);
    narrow(&text);
    assert!(text.starts_with("FAIL: "), "{text}");
    for needle in [
        "TTFT p50 at most 1 ms",
        "have no hit_rate",
        "ITL p99 not worse by 5 %",
    ] {
        assert!(text.contains(needle), "{needle}: {text}");
    }
    let markdown = gate_markdown(&report);
    assert!(markdown.starts_with("# Gate &lt;b&gt;&amp;"), "{markdown}");
}

#[test]
fn junit_has_a_case_for_each_rule_and_escapes_its_text() {
    let xml = junit(&gate(100));
    assert!(
        xml.contains("tests=\"4\" failures=\"2\" errors=\"1\" skipped=\"0\""),
        "{xml}"
    );
    assert!(xml.contains("name=\"&lt;b&gt;&amp;&quot;x\""), "{xml}");
    assert_eq!(xml.matches("<testcase ").count(), 4);
    let xml = junit(&gate(50));
    assert!(
        xml.contains("failures=\"1\" errors=\"0\" skipped=\"3\""),
        "{xml}"
    );
}

/// A parser that is not ours reads it, and counts the same.
#[test]
fn junit_is_xml_where_there_is_a_parser() {
    let script = "import sys, xml.etree.ElementTree as E\n\
                  s = E.fromstring(sys.stdin.buffer.read()).find('testsuite')\n\
                  print(len(s.findall('testcase')), len(s.findall('testcase/failure')))";
    let mut command = Command::new("python3");
    command
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped: no python3");
        return;
    };
    child
        .stdin
        .take()
        .unwrap()
        .write_all(junit(&gate(100)).as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "4 2");
}
