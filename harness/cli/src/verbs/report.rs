//! `prefillbench report DIR`: makes the numbers of a run directory again from its rows and renders
//! them. A run that compares arms is judged; a load run has its document; a suite has its verdicts
//! and the maps of its cells.

mod browser;
mod diff;
mod suite;
mod trace;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pb_bench::files::RunFiles;
use pb_bench::{DOCUMENT_FILE, SERVER_FILE, ServerPoint};
use pb_judge::run::{RunNotes, RunVerdict, judge};
use pb_record::{
    RecordStream, RunReader, read_rows, read_transfers, write_atomic, write_json_atomic,
};
use pb_report::bench::{BenchReport, Pictures};

use super::quickstart::NOTES_FILE;
use crate::args::{ReportArgs, ReportWhat};
use crate::{console, output};

pub(crate) use suite::render_suite;

/// Name of the page.
pub(crate) const HTML_FILE: &str = "report.html";
/// Name of the report as Markdown.
const MARKDOWN_FILE: &str = "report.md";
/// Width that tables fit when the terminal does not say.
pub(crate) const TABLE_WIDTH: u16 = 100;
/// Kind of the runs that `bench` and `merge` write.
const BENCH: &str = "bench";

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
        &dir.join(MARKDOWN_FILE),
        pb_report::markdown(&verdict).as_bytes(),
    )?;
    let page = pb_report::html(&data, &verdict).context("rendering the page")?;
    write_atomic(&dir.join(HTML_FILE), page.as_bytes())?;
    pb_record::hlog::export(&data).context("writing the histograms")?;
    Ok(Rendered { verdict })
}

/// Prints the verdict: tables, or one JSON document.
pub(crate) fn print(rendered: &Rendered, json: bool) -> Result<()> {
    if json {
        return output::json(&rendered.verdict);
    }
    output::painted(&pb_report::terminal(
        &rendered.verdict,
        TABLE_WIDTH,
        color(),
    ))
}

/// Whether standard output takes colours.
pub(crate) fn color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Renders a directory again.
pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode> {
    if let Some(ReportWhat::Diff(args)) = &args.what {
        return diff::run(args);
    }
    let dir = args.run.as_deref().context("name a directory to report")?;
    let cannot = || format!("cannot render the run directory {}", dir.display());
    if args.open {
        browser::check()?;
    }
    let code = match suite::is_suite(dir) {
        true => suite::run(args, dir).with_context(cannot)?,
        false => run_of_rows(args, dir).with_context(cannot)?,
    };
    let page = dir.join(HTML_FILE);
    console::say(format!("report: {}", page.display()));
    if args.open {
        browser::open(&page)?;
    }
    Ok(code)
}

fn run_of_rows(args: &ReportArgs, dir: &Path) -> Result<ExitCode> {
    if args.cells {
        bail!("--cells: a run has no cells; name the directory of a suite's run");
    }
    let stream = RecordStream::open(dir)?;
    if stream.manifest().kind == BENCH {
        return run_bench(args, dir);
    }
    if let Some(file) = &args.perfetto {
        trace::of_judged(dir, file)?;
    }
    let rendered = render(dir)?;
    print(&rendered, args.json)?;
    Ok(ExitCode::from(rendered.verdict.outcome.exit_code()))
}

/// A load run with what its report is made of.
pub(crate) struct RenderedBench {
    /// The run as read from its rows.
    pub(crate) run: RunFiles,
    pictures: Pictures,
}

impl RenderedBench {
    fn report(&self) -> BenchReport<'_> {
        BenchReport {
            document: &self.run.document,
            pictures: &self.pictures,
            notes: &self.run.notes,
        }
    }
}

/// Makes the document of the load run in `dir` again and writes `report.md` and `report.html`
/// into it, and, when its files do not contradict one another, `bench.json`, `bench.csv` and the
/// histograms. Files that contradict the rows are evidence, so they stay as they are, and the same
/// is found again the next time.
pub(crate) fn render_bench(dir: &Path) -> Result<RenderedBench> {
    let run = pb_bench::files::read(dir)?;
    let server: Vec<ServerPoint> = read_rows(dir, SERVER_FILE)?.unwrap_or_default();
    let transfers = read_transfers(dir)?.unwrap_or_default();
    let transfers = transfers.into_iter().map(|one| one.line.row).collect();
    let mut pictures = Pictures::new(&run.document, &run.tally, server).with_transfers(transfers);
    // The rows once more: what pictures need of the tokens depends on the whole run.
    let mut stream = RecordStream::open(dir)?;
    while let Some(record) = stream.next_record()? {
        pictures.add(&record.row, &record.tokens);
    }
    let rendered = RenderedBench { run, pictures };
    let report = rendered.report();
    if rendered.run.findings.is_empty() {
        write_json_atomic(&dir.join(DOCUMENT_FILE), report.document)?;
        let table = pb_bench::csv::text(report.document);
        write_atomic(&dir.join(pb_bench::files::CSV_FILE), table.as_bytes())?;
        let (logs, created) = (&rendered.run.logs, &rendered.run.manifest.created);
        logs.write(dir, created).context("writing the histograms")?;
    }
    write_atomic(&dir.join(MARKDOWN_FILE), report.markdown().as_bytes())?;
    let page = report.html().context("rendering the page")?;
    write_atomic(&dir.join(HTML_FILE), page.as_bytes())?;
    Ok(rendered)
}

fn run_bench(args: &ReportArgs, dir: &Path) -> Result<ExitCode> {
    let rendered = render_bench(dir)?;
    if let Some(file) = &args.perfetto {
        trace::of_bench(dir, &rendered.run, file)?;
    }
    let document = &rendered.run.document;
    match args.json {
        true => output::json(document)?,
        false => output::painted(&rendered.report().terminal(TABLE_WIDTH, color()))?,
    }
    Ok(ExitCode::from(document.exit_code()))
}
