//! `--perfetto FILE`: a run as a trace.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use pb_bench::files::RunFiles;
use pb_bench::{SERVER_FILE, ServerPoint};
use pb_record::{RunReader, read_rows};
use pb_report::perfetto::{TraceRows, write};

use crate::console;

/// Writes the trace of a load run.
pub(super) fn of_bench(dir: &Path, run: &RunFiles, file: &Path) -> Result<()> {
    let server: Vec<ServerPoint> = read_rows(dir, SERVER_FILE)?.unwrap_or_default();
    to_file(
        &TraceRows {
            requests: run.tally.rows(),
            steps: &[],
            server: &server,
            title: &dir.display().to_string(),
        },
        file,
    )
}

/// Writes the trace of a run with engine steps.
pub(super) fn of_judged(dir: &Path, file: &Path) -> Result<()> {
    let data = RunReader::open(dir)?;
    to_file(
        &TraceRows {
            requests: &data.requests,
            steps: &data.steps,
            server: &[],
            title: &dir.display().to_string(),
        },
        file,
    )
}

fn to_file(rows: &TraceRows<'_>, file: &Path) -> Result<()> {
    let place = || format!("--perfetto {}", file.display());
    // A device or a link is no place for a trace: what lies behind it would be lost.
    match std::fs::symlink_metadata(file) {
        Ok(found) if !found.is_file() => bail!("{}: not a regular file", place()),
        _ => {}
    }
    let mut out = BufWriter::new(File::create(file).with_context(place)?);
    let size = write(rows, &mut out).with_context(place)?;
    out.flush().with_context(place)?;
    console::say(format!(
        "trace: {} ({} steps, {} requests, {} events)",
        file.display(),
        size.steps,
        size.requests,
        size.events
    ));
    Ok(())
}
