//! `prefillbench diagnose`: what may be wrong with a server, and the experiment that would tell.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pb_bench::files::RunFiles;
use pb_bench::tally::WARMUP_ARM;
use pb_judge::diagnose::{Case, Diagnosis, EngineFacts, Outcome, diagnose};
use pb_judge::run::{CorrectnessState, RunNotes, arm_names, judge};
use pb_record::{RecordStream, RunData, RunReader, write_atomic};
use pb_report::diagnosis_terminal;

use super::quickstart::NOTES_FILE;
use super::report::{TABLE_WIDTH, color};
use crate::args::DiagnoseArgs;
use crate::{console, output};

/// Diagnoses and prints.
pub(crate) fn run(args: &DiagnoseArgs) -> Result<ExitCode> {
    let place = || format!("cannot diagnose the run {}", args.run.display());
    let diagnosis = read(args).with_context(place)?;
    if let Some(path) = &args.suite_out {
        write_suite(path, &diagnosis)?;
    }
    match args.json {
        true => output::json(&diagnosis)?,
        false => output::painted(&diagnosis_terminal(&diagnosis, TABLE_WIDTH, color()))?,
    }
    Ok(ExitCode::from(diagnosis.exit_code))
}

fn write_suite(path: &Path, diagnosis: &Diagnosis) -> Result<()> {
    let suite = diagnosis.next_suite();
    let Some(suite) = suite.filter(|_| diagnosis.outcome != Outcome::Void) else {
        console::say("no suite is written: the run is void, or leaves nothing to test");
        return Ok(());
    };
    write_atomic(path, suite.as_bytes()).context("--suite-out")?;
    console::say(format!("suite: {}", path.display()));
    Ok(())
}

fn read(args: &DiagnoseArgs) -> Result<Diagnosis> {
    let stream = RecordStream::open(&args.run)?;
    match stream.manifest().kind.as_str() {
        "bench" => of_bench(args),
        "quickstart" => of_quickstart(args),
        kind => bail!(
            "it is of kind {kind:?}: name a run that `bench`, `merge` or `quickstart` wrote, or a \
             cell of `run`"
        ),
    }
}

fn of_bench(args: &DiagnoseArgs) -> Result<Diagnosis> {
    let RunFiles {
        conditions,
        document,
        ..
    } = pb_bench::files::read(&args.run)?;
    let data = RunReader::open(&args.run)?;
    let arm = arm(args, &data)?;
    let mut void = document.validity.reasons;
    for changed in &data.changed_tables {
        if !void.iter().any(|reason| reason.contains(changed)) {
            void.push(format!("contradiction: {changed}"));
        }
    }
    let missed = document.gates.into_iter().filter(|gate| !gate.pass);
    Ok(diagnose(&Case {
        run: args.run.display().to_string(),
        arm: &arm,
        void,
        engine: engine(&data, &arm),
        server: conditions.server,
        ideal_hit_tokens: conditions.workload.ideal_hit_tokens,
        gates_missed: missed.map(|gate| gate.name).collect(),
        base_url: Some(conditions.identity.base_url).filter(|url| !url.is_empty()),
        data: &data,
    }))
}

fn of_quickstart(args: &DiagnoseArgs) -> Result<Diagnosis> {
    let data = RunReader::open(&args.run)?;
    let notes: RunNotes = data.read_json(NOTES_FILE)?.unwrap_or_default();
    let arm = arm(args, &data)?;
    let verdict = judge(&data, &notes);
    let mut void = verdict.validity.reasons;
    if verdict.correctness.state == CorrectnessState::Failed {
        void.push("the outputs are wrong, so their times explain nothing".to_owned());
    }
    if !verdict.finished {
        void.push("the run did not reach its end".to_owned());
    }
    Ok(diagnose(&Case {
        run: args.run.display().to_string(),
        arm: &arm,
        void,
        engine: engine(&data, &arm),
        server: None,
        ideal_hit_tokens: None,
        gates_missed: Vec::new(),
        base_url: None,
        data: &data,
    }))
}

fn engine(data: &RunData, arm: &str) -> EngineFacts {
    let manifest = &data.manifest;
    let receipt = manifest.arms.iter().find(|receipt| receipt.name == arm);
    receipt.map_or_else(EngineFacts::default, |receipt| {
        // What the engine was started with can be started again; a file's own name cannot.
        let mut words = receipt.command.split_whitespace();
        let started_with = words
            .find(|word| *word == "--model")
            .and_then(|_| words.next());
        // `bench` keeps it beside what it found out itself.
        let config = receipt.config.get("engine").unwrap_or(&receipt.config);
        EngineFacts::of(config, started_with.unwrap_or(&manifest.model.name))
    })
}

/// The arm that is looked at.
fn arm(args: &DiagnoseArgs, data: &RunData) -> Result<String> {
    let mut names = arm_names(data);
    names.retain(|name| name != WARMUP_ARM);
    let listed = || pb_record::visible(&names.join(", "));
    match (&args.arm, &names[..]) {
        (Some(arm), names) if names.contains(arm) => Ok(arm.clone()),
        (Some(arm), _) => bail!("--arm {arm}: there is no such arm; there are: {}", listed()),
        (None, [only]) => Ok(only.clone()),
        (None, []) => bail!("it has no requests: there is nothing to look at"),
        (None, _) => bail!("it has several arms; name one with --arm: {}", listed()),
    }
}
