//! `prefillbench`: measures chunked prefill and prefix caching in LLM serving, and says how sure
//! it is.
//!
//! A file a verb. Standard output carries the result (one JSON document with `--json`), progress
//! and messages go to standard error. Exit codes: 0 pass, 1 a gate or check failed, 2 bad usage,
//! unreadable input or unreachable target, 3 inconclusive or void.

// Both panic where the output is closed or full: `console::say` and `output` do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod console;
mod failure;
mod interrupt;
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

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let as_json = failure::asks_for_json(&words);
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error, as_json),
    };
    // These write line by line, so that a reader may stop early. In any other verb a broken pipe
    // is a server's, and a failure.
    let writes_lines = matches!(
        cli.verb,
        Verb::Model(_) | Verb::Calc(_) | Verb::Engine(_) | Verb::Trace(_) | Verb::Completions(_)
    );
    let result = match cli.verb {
        Verb::Quickstart(args) => verbs::quickstart::run(&args),
        Verb::Model(args) => verbs::model::run(&args),
        Verb::Serve(args) => verbs::serve::run(&args),
        Verb::Router(args) => verbs::router::run(&args),
        Verb::Validate(args) => verbs::validate::run(&args),
        Verb::Golden(args) => verbs::golden::run(&args),
        Verb::Calc(args) => verbs::calc::run(&args),
        Verb::Engine(args) => verbs::engine::run(&args),
        Verb::Kernels(args) => verbs::kernels::run(&args),
        Verb::Trace(args) => verbs::trace::run(&args),
        Verb::Bench(args) => verbs::bench::run(&args),
        Verb::Run(args) => verbs::run::run(&args),
        Verb::Merge(args) => verbs::merge::run(&args),
        Verb::Compare(args) => verbs::compare::run(&args),
        Verb::Gate(args) => verbs::gate::run(&args),
        Verb::Diagnose(args) => verbs::diagnose::run(&args),
        Verb::Leak(args) => verbs::leak::run(&args),
        Verb::Mock(args) => verbs::mock::run(&args),
        Verb::Report(args) => verbs::report::run(&args),
        Verb::Completions(args) => verbs::completions::run(&args),
        Verb::Guard(args) => verbs::guard::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) if writes_lines && is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => failure::told(&error, as_json),
    }
}

/// Whether the reader of standard output went away, which is no failure of ours.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .find_map(|e| e.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
