//! `prefillbench engine ...`: the reference engine without a model.

mod replay;
mod simulate;
mod summary;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::{EngineArgs, EngineWhat};

/// Runs the chosen use.
pub(crate) fn run(args: &EngineArgs) -> Result<ExitCode> {
    match &args.what {
        EngineWhat::Replay(args) => replay::run(args),
        EngineWhat::Simulate(args) => simulate::run(args),
    }
}
