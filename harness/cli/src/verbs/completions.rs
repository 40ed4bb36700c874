//! `prefillbench completions SHELL`.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};

/// Writes the completion script of a shell to standard output.
pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "prefillbench", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}
