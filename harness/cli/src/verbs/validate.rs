//! `prefillbench validate`: does chunking or prefix caching change the logits?

use std::process::ExitCode;

use anyhow::Result;
use pb_judge::numerics::Checked;

use crate::args::ValidateArgs;
use crate::machine;
use crate::model_source;
use crate::output;
use crate::progress::Progress;
use crate::validate::{self, ValidateSettings, table};

/// Runs the check and prints its table.
pub(crate) fn run(args: &ValidateArgs) -> Result<ExitCode> {
    let progress = Progress::new();
    let model = model_source::obtain(&args.model, &progress)?;
    let settings = ValidateSettings {
        prompts: args.prompts,
        prompt_len: args.prompt_len,
        chunks: args.chunks.clone(),
        served_only: false,
        threads: args.threads.unwrap_or_else(machine::cores),
        seed: args.seed,
    };
    let tool = machine::tool();
    let checked = Checked {
        // As `serve` offers it.
        model: args.model.clone(),
        model_sha256: model.receipt.sha256.clone(),
        tool_version: tool.version,
        tool_rev: tool.git_rev,
    };
    let outcome = validate::run(model, &settings, &progress);
    progress.clear();
    let mut outcome = outcome?;
    outcome.checked = Some(checked);
    let text = if args.json {
        serde_json::to_string_pretty(&outcome)?
    } else {
        table::text(&outcome)
    };
    output::line(&text)?;
    Ok(ExitCode::from(outcome.exit_code()))
}
