//! `prefillbench engine ...`: the reference engine without a model.

mod record;
mod recording;
mod replay;
mod served;
mod simulate;
mod summary;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::{EngineArgs, EngineWhat};

#[cfg(test)]
pub(crate) use recording::{Recording, START};
#[cfg(test)]
pub(crate) use served::EngineServer;

/// Token ids of simulated prompts and outputs are below this.
pub(crate) const VOCAB: usize = 32_000;

/// Runs the chosen use.
pub(crate) fn run(args: &EngineArgs) -> Result<ExitCode> {
    match &args.what {
        EngineWhat::Replay(args) => replay::run(args),
        EngineWhat::Simulate(args) => simulate::run(args),
    }
}
