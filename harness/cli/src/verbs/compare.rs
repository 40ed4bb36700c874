//! `prefillbench compare`: what changed between runs, and how sure that is.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use pb_judge::ab::AbRules;
use pb_judge::compare::{CompareRules, Comparison, Outcome, Run, SCHEMA_VERSION, compare};
use pb_report::versus::{comparison_markdown, comparison_terminal};
use serde::Serialize;

use super::report::{TABLE_WIDTH, color};
use super::runs;
use super::written::{self, Report};
use crate::args::CompareArgs;
use crate::output;

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    comparisons: &'a [Comparison],
}

/// Compares and prints.
pub(crate) fn run(args: &CompareArgs) -> Result<ExitCode> {
    let report = args.markdown.as_deref().map(|path| Report {
        flag: "--markdown",
        path,
        begins: "# Comparison",
    });
    let all = [&args.a, &args.b, &args.runs].into_iter().flatten();
    let inputs: Vec<&Path> = all.map(PathBuf::as_path).collect();
    written::check(report.as_slice(), &inputs)?;
    let comparisons = compared(args)?;
    let joined = |draw: &dyn Fn(&Comparison) -> String| {
        let all: Vec<String> = comparisons.iter().map(draw).collect();
        all.join("\n")
    };
    if let Some(report) = &report {
        written::write(report, &joined(&comparison_markdown))?;
    }
    let text = match args.json {
        true => serde_json::to_string_pretty(&Document {
            schema_version: SCHEMA_VERSION,
            comparisons: &comparisons,
        })?,
        false => joined(&|one| comparison_terminal(one, TABLE_WIDTH, color()))
            .trim_end()
            .to_owned(),
    };
    output::line(&text)?;
    Ok(ExitCode::from(exit_code(&comparisons)))
}

fn compared(args: &CompareArgs) -> Result<Vec<Comparison>> {
    let rules = CompareRules {
        ab: AbRules {
            alpha: args.alpha,
            // OK because the range is checked where the number is parsed.
            min_pairs: usize::try_from(args.min_blocks).unwrap_or(usize::MAX),
            seed: args.seed,
            ..AbRules::default()
        },
        metrics: args.metrics.clone(),
        primary: args.primary.clone(),
        ratio_margin: Some(args.margin),
        margins: Default::default(),
        allow: runs::aspects(&args.allow_different)?,
    };
    if args.runs.is_empty() {
        let (a, b) = (runs::read(&args.a)?, runs::read(&args.b)?);
        return Ok(vec![compare(&a, &b, &rules)?]);
    }
    let runs = runs::read(&args.runs)?;
    let (baseline, others) = runs.split_at(1);
    let one = |candidate: &Run| {
        compare(baseline, std::slice::from_ref(candidate), &rules).map_err(anyhow::Error::from)
    };
    others.iter().map(one).collect()
}

/// A void comparison is never hidden behind one that has an answer.
fn exit_code(comparisons: &[Comparison]) -> u8 {
    let void = comparisons.iter().find(|one| one.outcome == Outcome::Void);
    let codes = comparisons.iter().map(|one| one.outcome.exit_code());
    match void {
        Some(void) => void.outcome.exit_code(),
        None => codes.min().unwrap_or(0),
    }
}
