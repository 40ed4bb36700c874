//! `prefillbench report diff A B`: what differs between two runs, or two suites.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pb_bench::files::RunFiles;
use pb_judge::compare::{CompareRules, Comparison, compare};
use pb_report::diff::{Diff, Side, diff};
use pb_report::suite::suite_diff;
use pb_report::versus::comparison_terminal;
use serde::Serialize;

use super::suite::is_suite;
use super::{TABLE_WIDTH, color};
use crate::args::DiffArgs;
use crate::output;
use crate::verbs::runs;

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    diff: &'a Diff,
    /// Null unless it was asked for.
    verdict: Option<&'a Comparison>,
}

/// Shows the differences, and judges the pair when asked.
pub(super) fn run(args: &DiffArgs) -> Result<ExitCode> {
    let [first, second] = [&args.first, &args.second].map(|dir| is_suite(dir));
    match (first, second) {
        (true, true) => return suites(args),
        (false, false) => {}
        (true, false) => bail!(mixed(&args.first, &args.second)),
        (false, true) => bail!(mixed(&args.second, &args.first)),
    }
    let read = |dir: &Path| -> Result<RunFiles> {
        let cannot = || format!("cannot read the run {}", dir.display());
        pb_bench::files::read(dir).with_context(cannot)
    };
    let files = [read(&args.first)?, read(&args.second)?];
    let names = [&args.first, &args.second].map(|dir| dir.display().to_string());
    let side = |i: usize| Side {
        name: &names[i],
        manifest: &files[i].manifest,
        document: &files[i].document,
    };
    let diff = diff(side(0), side(1))?;
    let verdict = args.verdict.then(|| judged(args)).transpose()?;
    if args.json {
        output::json(&Document {
            diff: &diff,
            verdict: verdict.as_ref(),
        })?;
    } else {
        let mut text = diff.terminal(TABLE_WIDTH, color());
        if let Some(verdict) = &verdict {
            text.push('\n');
            text.push_str(&comparison_terminal(verdict, TABLE_WIDTH, color()));
        }
        output::painted(text.trim_end())?;
    }
    let code = verdict.map_or(0, |verdict| verdict.outcome.exit_code());
    Ok(ExitCode::from(code))
}

/// Two runs of suites.
fn suites(args: &DiffArgs) -> Result<ExitCode> {
    if args.verdict {
        bail!(
            "--verdict: suites have their verdicts, and nothing pairs the blocks of two; leave it \
             out, or name a cell of each"
        );
    }
    let diff = suite_diff(&args.first, &args.second)?;
    match args.json {
        true => output::json(&diff)?,
        false => output::painted(diff.terminal(TABLE_WIDTH, color()).trim_end())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn mixed(suite: &Path, run: &Path) -> String {
    format!(
        "{} is the run of a suite and {} is not: name two suites, or a cell of the suite",
        suite.display(),
        run.display()
    )
}

/// The pair by the rules of `compare`.
fn judged(args: &DiffArgs) -> Result<Comparison> {
    let read = |dir: &Path| runs::read(&[dir.to_owned()]);
    let rules = CompareRules::default();
    Ok(compare(&read(&args.first)?, &read(&args.second)?, &rules)?)
}
