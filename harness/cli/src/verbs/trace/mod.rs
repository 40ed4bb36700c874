//! `prefillbench trace`: what a trace file holds, and the same trace in another format.

mod convert;
mod inspect;

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use pb_model::tokenizer::Tokenizer;
use pb_workloads::trace::TraceError;

use crate::args::{TraceArgs, TraceWhat, ValidateTraceArgs};
use crate::{model_source, output};

/// Exit code when a rule is broken.
const EXIT_INVALID: u8 = 1;

/// Inspects, converts or validates.
pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode> {
    let done = match &args.what {
        TraceWhat::Inspect(args) => inspect::run(args),
        TraceWhat::Convert(args) => convert::run(args),
        TraceWhat::Validate(args) => validate(args),
    };
    done.map_err(flagged)
}

/// The error with the flag of this verb that sets what it is about.
fn flagged(error: anyhow::Error) -> anyhow::Error {
    let key = error.downcast_ref::<TraceError>().and_then(TraceError::key);
    let flag = match key {
        Some("format") => "--format",
        Some("unit") => "--unit",
        Some("block_size") => "--block-size",
        Some("rate_scale") => "--rate-scale",
        Some("duration_s") => "--duration",
        Some("time_scale") => "--time-scale",
        Some("length_scale") => "--scale-length",
        Some("to") => "--to",
        _ => return error,
    };
    anyhow!("{error} ({flag})")
}

fn validate(args: &ValidateTraceArgs) -> Result<ExitCode> {
    let found = pb_workloads::trace::validate(&args.file.file, &args.file.options())?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&found)?,
        false => {
            let evidence = found.evidence.iter().map(|why| format!("{why}\n"));
            let checks = found.checks.iter().map(|check| {
                let word = if check.ok { "ok  " } else { "FAIL" };
                format!("{word} {:<14}  {}\n", check.name, check.detail)
            });
            let word = if found.valid { "valid" } else { "not valid" };
            evidence.chain(checks).collect::<String>() + word
        }
    };
    output::line(&text)?;
    Ok(match found.valid {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_INVALID),
    })
}

/// Counts the tokens of texts; a text that cannot be encoded ends the counting.
struct TextCounter {
    tokenizer: Option<Tokenizer>,
    failed: Option<anyhow::Error>,
}

impl TextCounter {
    fn new(model: Option<&str>) -> Result<Self> {
        let model = model.map(model_source::load).transpose()?;
        Ok(TextCounter {
            tokenizer: model.map(|obtained| obtained.model.tokenizer),
            failed: None,
        })
    }

    fn is_set(&self) -> bool {
        self.tokenizer.is_some()
    }

    fn count(&mut self, text: &str) -> usize {
        let Some(tokenizer) = &self.tokenizer else {
            return 0;
        };
        match tokenizer.encode(text, false) {
            Ok(ids) => ids.len(),
            Err(error) => {
                self.failed.get_or_insert(error.into());
                0
            }
        }
    }

    /// The first text that could not be encoded.
    fn finish(self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }
}
