//! What a run would do, without doing it.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::dataset::counted;
use super::settings::Settings;
use super::tokenizer::TargetTokenizer;
use super::workload::{Known, Schedule, schedule};
use crate::args::Format;
use crate::output;
use crate::verbs::suite::SuiteReceipt;

/// Prints the resolved settings and the facts of the schedule.
///
/// # Errors
/// The schedule cannot be made.
pub(crate) fn run(
    settings: &Settings,
    suite: Option<&SuiteReceipt>,
    tokenizer: Option<&TargetTokenizer>,
) -> Result<ExitCode> {
    let schedule = schedule(settings, tokenizer, Known::default())?;
    match settings.format {
        Format::Json => output::json(&json!({
            "settings": settings,
            "suite": suite,
            "schedule": schedule.facts(),
        }))?,
        _ => output::table(&table(settings, suite, &schedule)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(settings: &Settings, suite: Option<&SuiteReceipt>, schedule: &Schedule) -> Result<String> {
    let mut out = String::new();
    let facts = &schedule.planned.facts;
    if let Some(suite) = suite {
        let arm = suite.arm.as_deref().unwrap_or("none");
        writeln!(out, "suite: {}, arm {arm}", suite.name)?;
        writeln!(out, "question: {}", suite.question.trim())?;
    }
    writeln!(out, "target: {}", settings.base_url)?;
    for (key, value) in serde_json::to_value(&settings.options)?
        .as_object()
        .into_iter()
        .flatten()
    {
        writeln!(out, "  {key} = {value}")?;
    }
    writeln!(
        out,
        "schedule: {} requests of {}, {} of them sent by this run, {} different prompts",
        facts.requests,
        facts.dataset,
        schedule.facts().requests_sent,
        facts.unique_prompts
    )?;
    let arrival = serde_json::to_value(facts.arrival)?;
    writeln!(
        out,
        "  arrivals: {} over {:.3} s",
        arrival.as_str().unwrap_or("?"),
        facts.span_ns.as_secs_f64()
    )?;
    if let Some(cap) = schedule.cap {
        writeln!(out, "  at most {cap} requests in flight")?;
    }
    let exact = if facts.tokens_exact {
        ""
    } else {
        " (estimated)"
    };
    writeln!(
        out,
        "  tokens: {} input, {} output{exact}",
        facts.input_tokens, facts.output_tokens
    )?;
    writeln!(
        out,
        "  planned hits: {} tokens in blocks of {}",
        facts.planned_hit_tokens, facts.block_size
    )?;
    if facts.rows_read > 0 {
        let dropped = counted(&facts.dropped);
        writeln!(out, "  rows read: {}; left out: {dropped}", facts.rows_read)?;
    }
    for evidence in &facts.evidence {
        writeln!(out, "  {evidence}")?;
    }
    write!(
        out,
        "schedule sha256 {}, seed {}",
        schedule.sha256, settings.seed
    )?;
    Ok(out)
}
