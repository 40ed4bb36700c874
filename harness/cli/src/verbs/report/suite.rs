//! The report of a suite's run.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pb_record::write_atomic;
use pb_report::suite::{SUITE_FILE, SuiteReport};

use super::{HTML_FILE, MARKDOWN_FILE, TABLE_WIDTH, color, render_bench};
use crate::args::ReportArgs;
use crate::output;

/// File of a suite that was begun.
const PLAN_FILE: &str = "plan.json";

/// Whether a suite was run in this directory, rather than a single load.
pub(super) fn is_suite(dir: &Path) -> bool {
    let has = |file: &str| dir.join(file).exists();
    !has("manifest.json") && (has(SUITE_FILE) || has(PLAN_FILE))
}

/// Writes `report.md` and `report.html` of the suite's run in `dir`.
///
/// # Errors
/// A directory that cannot be read or written.
pub(crate) fn render_suite(dir: &Path) -> Result<SuiteReport> {
    if !dir.join(SUITE_FILE).exists() {
        bail!(
            "{SUITE_FILE} is not there yet: it is written after the first block; go on with \
             `prefillbench run SUITE.toml --out {}`",
            dir.display()
        );
    }
    let report = SuiteReport::open(dir)?;
    write_atomic(&dir.join(MARKDOWN_FILE), report.markdown().as_bytes())?;
    let page = report.html().context("rendering the page")?;
    write_atomic(&dir.join(HTML_FILE), page.as_bytes())?;
    Ok(report)
}

/// Reports a suite.
pub(super) fn run(args: &ReportArgs, dir: &Path) -> Result<ExitCode> {
    if args.perfetto.is_some() {
        bail!("--perfetto: a trace is of one run; name a cell of the suite");
    }
    if args.cells {
        // Before the suite's own page, which leads to those that are there.
        let cells = SuiteReport::open(dir)?;
        for cell in cells.cells() {
            render_bench(&dir.join(cell)).with_context(|| cell.to_owned())?;
        }
    }
    let report = render_suite(dir)?;
    match args.json {
        true => output::json(report.document())?,
        false => output::painted(&report.terminal(TABLE_WIDTH, color()))?,
    }
    Ok(ExitCode::from(report.exit_code()))
}
