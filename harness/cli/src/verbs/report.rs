//! `prefillbench report RUN`: judges the rows of a run directory and renders them.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pb_judge::run::{RunNotes, RunVerdict, judge};
use pb_record::{RunReader, write_atomic, write_json_atomic};

use super::quickstart::NOTES_FILE;
use crate::args::ReportArgs;
use crate::output;

/// Name of the page.
pub(crate) const HTML_FILE: &str = "report.html";
/// Width that tables fit when the terminal does not say.
const TABLE_WIDTH: u16 = 100;

/// A judged run.
pub(crate) struct Rendered {
    /// The verdict.
    pub(crate) verdict: RunVerdict,
}

/// Judges the run in `dir` and writes `verdict.json`, `report.md`, `report.html` and the
/// histograms into it.
pub(crate) fn render(dir: &Path) -> Result<Rendered> {
    let data = RunReader::open(dir)?;
    let notes: RunNotes = data.read_json(NOTES_FILE)?.unwrap_or_default();
    let verdict = judge(&data, &notes);
    write_json_atomic(&dir.join("verdict.json"), &verdict)?;
    write_atomic(
        &dir.join("report.md"),
        pb_report::markdown(&verdict).as_bytes(),
    )?;
    let page = pb_report::html(&data, &verdict).context("rendering the page")?;
    write_atomic(&dir.join(HTML_FILE), page.as_bytes())?;
    pb_record::hlog::export(&data).context("writing the histograms")?;
    Ok(Rendered { verdict })
}

/// Prints the verdict: tables, or one JSON document.
pub(crate) fn print(rendered: &Rendered, json: bool) -> Result<()> {
    let text = if json {
        serde_json::to_string_pretty(&rendered.verdict)?
    } else {
        let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        pb_report::terminal(&rendered.verdict, TABLE_WIDTH, color)
    };
    output::line(&text)
}

/// Renders a run directory again.
pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode> {
    let rendered = render(&args.run)
        .with_context(|| format!("cannot render the run directory {}", args.run.display()))?;
    print(&rendered, args.json)?;
    eprintln!("report: {}", args.run.join(HTML_FILE).display());
    Ok(ExitCode::from(rendered.verdict.outcome.exit_code()))
}
