//! `prefillbench golden`: expected values that nobody changes by accident.

mod index;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::args::{GoldenArgs, GoldenWhat};
use crate::output;
use index::{Bless, Finding, bless, verify};

/// Runs the verb.
pub(crate) fn run(args: &GoldenArgs) -> Result<ExitCode> {
    match &args.what {
        GoldenWhat::Verify { dir, json } => {
            let (files, findings) = verify(dir)?;
            if *json {
                output::json(&json!({ "files": files, "findings": findings }))?;
            } else {
                let mut lines: Vec<String> = findings.iter().map(Finding::text).collect();
                lines.push(format!("{files} files listed, {} findings", findings.len()));
                output::line(&lines.join("\n"))?;
            }
            Ok(ExitCode::from(u8::from(!findings.is_empty())))
        }
        GoldenWhat::Bless {
            set,
            reason,
            generator,
            tolerance,
            dir,
        } => {
            let changed = bless(
                dir,
                &Bless {
                    set,
                    reason,
                    generator: generator.as_deref(),
                    tolerance: tolerance.as_deref(),
                },
            )?;
            output::line(&format!("{set}: {changed} files are new or changed"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
