//! A gate as JUnit XML, which most CI systems show.
//!
//! JUnit has no word for "cannot tell". A rule that could not be decided is an `error`, as a test
//! that could not be run is; a rule that was not looked at because one before it failed is
//! `skipped`. Neither is ever a pass.

use std::fmt::Write;

use pb_judge::gate::{GateReport, State};

use crate::format::escape;

/// The gate as one test suite, a rule a test case.
pub fn junit(report: &GateReport) -> String {
    let failures = report.count(State::Fail);
    let errors = report.count(State::Inconclusive) + report.count(State::Void);
    let counts = format!(
        "tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{}\"",
        report.rules.len(),
        report.count(State::Skipped)
    );
    let name = escape(&report.policy.name);
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"prefillbench gate\" \
         {counts}>\n  <testsuite name=\"{name}\" {counts}>\n"
    );
    for rule in &report.rules {
        let (kind, title, why) = (rule.kind.word(), escape(&rule.rule), escape(&rule.why));
        let word = rule.state.word();
        let inside = match rule.state {
            State::Pass => format!("<system-out>{why}</system-out>"),
            State::Fail => format!("<failure type=\"{word}\" message=\"{why}\"/>"),
            State::Inconclusive | State::Void => {
                format!("<error type=\"{word}\" message=\"{why}\"/>")
            }
            State::Skipped => format!("<skipped message=\"{why}\"/>"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "    <testcase classname=\"gate.{kind}\" name=\"{title}\">{inside}</testcase>"
        );
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}
