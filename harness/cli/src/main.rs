//! `prefillbench`: measures chunked prefill and prefix caching in LLM serving, and says how sure
//! it is.
//!
//! A file a verb. Standard output carries the result (one JSON document with `--json`), progress
//! and messages go to standard error. Exit codes: 0 pass, 1 a gate or check failed, 2 bad usage,
//! unreadable input or unreachable target, 3 inconclusive or void.

mod args;
mod machine;
mod model_source;
mod output;
mod paths;
mod progress;
mod size;
mod validate;
mod verbs;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Verb};

/// Exit code for bad usage, unreadable input and unreachable targets.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.verb {
        Verb::Quickstart(args) => verbs::quickstart::run(&args),
        Verb::Model(args) => verbs::model::run(&args),
        Verb::Serve(args) => verbs::serve::run(&args),
        Verb::Validate(args) => verbs::validate::run(&args),
        Verb::Calc(args) => verbs::calc::run(&args),
        Verb::Engine(args) => verbs::engine::run(&args),
        Verb::Trace(args) => verbs::trace::run(&args),
        Verb::Bench(args) => verbs::bench::run(&args),
        Verb::Merge(args) => verbs::merge::run(&args),
        Verb::Compare(args) => verbs::compare::run(&args),
        Verb::Gate(args) => verbs::gate::run(&args),
        Verb::Leak(args) => verbs::leak::run(&args),
        Verb::Mock(args) => verbs::mock::run(&args),
        Verb::Report(args) => verbs::report::run(&args),
        Verb::Completions(args) => verbs::completions::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// The messages from the outermost to the cause; one that the message before it already ends with
/// is not said twice.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.ends_with(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

/// Whether the reader of standard output went away, which is no failure of ours.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .find_map(|e| e.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow!("disk full")
            .context("cannot write x: disk full")
            .context("saving");
        assert_eq!(super::chain(&error), "saving: cannot write x: disk full");
        let error = anyhow!("disk full").context("cannot write x");
        assert_eq!(super::chain(&error), "cannot write x: disk full");
    }
}
