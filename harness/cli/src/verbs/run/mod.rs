//! `prefillbench run SUITE`: an experiment from its file to its verdicts.
//!
//! The file says everything before the first request is sent: servers, loads, blocks, when to
//! stop, what is claimed. In each block every arm runs the same schedule, in an order drawn from
//! the suite's seed, each in a fresh server process. A cell is a run directory of `bench`; a run
//! that was killed is gone on with, and a suite that was changed in between is refused.

mod checks;
mod document;
mod order;
mod plan;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod planted_tests;
mod runner;
mod server;
mod store;
mod verdict;
#[cfg(test)]
mod verdict_tests;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::json;

use crate::args::RunArgs;
use crate::interrupt::Interrupt;
use crate::verbs::{report, suite};
use crate::{console, output, paths};
use plan::{CellId, Load, Plan, least};
use runner::Runner;
use store::Store;

/// Runs the verb.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let place = || args.suite.display().to_string();
    let plan = suite::read(&args.suite)
        .and_then(Plan::of)
        .with_context(place)?;
    let chosen = plan.chosen(&args.only)?;
    let loads = plan.loads().with_context(place)?;
    if args.dry_run {
        let finished = match &args.out {
            Some(dir) => Store::finished(dir, &plan)?,
            None => Vec::new(),
        };
        let missing: Vec<CellId> = chosen
            .into_iter()
            .filter(|cell| !finished.contains(cell))
            .collect();
        return dry_run(args, &plan, &loads, &missing);
    }
    let dir = paths::new_run_dir(args.out.as_deref(), &plan.suite.name)?;
    let store = Store::open(&dir, &plan)?;
    let interrupt = Interrupt::install()?;
    let mut runner = Runner::new(plan, store, loads, chosen, interrupt, args.retry_void)?;
    runner
        .progress
        .note(format!("directory of the suite: {}", dir.display()));
    let document = runner.run()?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&document)?,
        false => document.text(),
    };
    output::line(&text)?;
    console::say(told(&dir));
    match report::render_suite(&dir) {
        Ok(_) => console::say(format!("report: {}", dir.join(report::HTML_FILE).display())),
        // The verdicts are there; a page that is not changes none of them.
        Err(error) => console::say(format!("no report was written: {error:#}")),
    }
    if let Some(way) = document.way_on() {
        let (suite, dir) = (args.suite.display(), dir.display());
        console::say(format!(
            "to go on: prefillbench run {suite} --out {dir}{way}"
        ));
    }
    Ok(ExitCode::from(document.exit_code))
}

fn told(dir: &Path) -> String {
    format!("verdicts: {}", dir.join(store::SUITE_FILE).display())
}

fn dry_run(args: &RunArgs, plan: &Plan, loads: &[Load], chosen: &[CellId]) -> Result<ExitCode> {
    let text = match args.json {
        false => plan.text(loads, chosen),
        true => {
            let conditions = plan
                .suite
                .conditions
                .iter()
                .zip(loads)
                .map(|(condition, load)| {
                    json!({
                        "name": condition.name,
                        "requests": load.requests,
                        "least_s": load.least.as_secs_f64(),
                        "schedule_sha256": load.sha256,
                    })
                });
            let cells = chosen.iter().map(|&cell| {
                json!({
                    "block": cell.block,
                    "condition": plan.suite.conditions[cell.condition].name,
                    "arm": plan.suite.arms[cell.arm].name,
                    "seed": plan.blocks[cell.block].seed,
                })
            });
            serde_json::to_string_pretty(&json!({
                "sha256": plan.sha256,
                "facts": plan.facts,
                "conditions": conditions.collect::<Vec<_>>(),
                "cells": cells.collect::<Vec<_>>(),
                "least_s": least(loads, chosen).as_secs_f64(),
            }))?
        }
    };
    output::line(&text)?;
    Ok(ExitCode::SUCCESS)
}
