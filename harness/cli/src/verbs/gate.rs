//! `prefillbench gate`: may this version go in? And `gate init`: a policy from its own noise.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pb_judge::gate::{Evidence, GateReport, InitOptions, Policy, floors, judge_gate, policy_text};
use pb_judge::numerics::Validation;
use pb_record::write_atomic;
use pb_report::versus::{gate_markdown, gate_terminal, junit};

use super::report::{TABLE_WIDTH, color};
use super::runs;
use super::written::{self, Report};
use crate::args::{GateArgs, GateInitArgs, GateWhat};
use crate::{console, output};

/// Where a GitHub job collects its summary.
const GITHUB_SUMMARY: &str = "GITHUB_STEP_SUMMARY";
/// Where a GitHub step leaves what later ones may ask for.
const GITHUB_OUTPUT: &str = "GITHUB_OUTPUT";
/// Flag of the JUnit file.
const JUNIT: &str = "--junit";
/// How every JUnit file of a gate begins.
const JUNIT_BEGINS: &str =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"prefillbench gate\"";
/// Exit code of a proposal from a rig that favours one run of a pair or hides every slowdown.
const EXIT_UNFIT: u8 = 3;
/// Largest file that is read as a policy or as the result of a validation, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// Judges, or proposes a policy.
pub(crate) fn run(args: &GateArgs) -> Result<ExitCode> {
    match &args.what {
        Some(GateWhat::Init(init)) => propose(init),
        None => judge(args),
    }
}

fn judge(args: &GateArgs) -> Result<ExitCode> {
    let path = args.policy.as_deref().context("--policy is missing")?;
    written::check(&reports(args), &inputs(args))?;
    let policy = policy(path)?;
    let outputs = args.validation.as_deref().map(validation).transpose()?;
    let (baseline, candidate) = (runs::read(&args.baseline)?, runs::read(&args.candidate)?);
    let evidence = Evidence {
        baseline: &baseline,
        candidate: &candidate,
        outputs: outputs.as_ref(),
        allow: runs::aspects(&args.allow_different)?,
    };
    let report = judge_gate(&policy, &evidence)?;
    write_files(args, &report)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&report)?,
        false => gate_terminal(&report, TABLE_WIDTH, color())
            .trim_end()
            .to_owned(),
    };
    output::line(&text)?;
    Ok(ExitCode::from(report.exit_code))
}

/// Reads a whole file of bounded size.
fn text(path: &Path, flag: &str) -> Result<String> {
    let place = || format!("{flag} {}", path.display());
    let size = std::fs::metadata(path).with_context(place)?.len();
    if size > MOST_BYTES {
        bail!("{}: {size} bytes are more than any such file has", place());
    }
    std::fs::read_to_string(path).with_context(place)
}

fn policy(path: &Path) -> Result<Policy> {
    let text = text(path, "--policy")?;
    Policy::parse(&text).with_context(|| format!("--policy {}", path.display()))
}

fn validation(path: &Path) -> Result<Validation> {
    let text = text(path, "--validation")?;
    let reader = &mut serde_json::Deserializer::from_str(&text);
    serde_path_to_error::deserialize(reader).with_context(|| {
        format!(
            "--validation {}: not what `prefillbench validate --json` prints",
            path.display()
        )
    })
}

/// The reports that were asked for, in the order in which they are written.
fn reports(args: &GateArgs) -> Vec<Report<'_>> {
    let all = [
        (JUNIT, &args.junit, JUNIT_BEGINS),
        ("--summary", &args.summary, "# Gate"),
    ];
    let named = all.into_iter().filter_map(|(flag, path, begins)| {
        let path = path.as_deref()?;
        Some(Report { flag, path, begins })
    });
    named.collect()
}

fn inputs(args: &GateArgs) -> Vec<&Path> {
    let runs = args.baseline.iter().chain(&args.candidate);
    let files = args.policy.iter().chain(&args.validation);
    runs.chain(files).map(PathBuf::as_path).collect()
}

fn write_files(args: &GateArgs, report: &GateReport) -> Result<()> {
    for file in reports(args) {
        let text = match file.flag {
            JUNIT => junit(report),
            _ => gate_markdown(report),
        };
        written::write(&file, &text)?;
    }
    // Other steps of the job write there too.
    append(GITHUB_SUMMARY, &gate_markdown(report))?;
    let outcome = report.outcome.word().to_lowercase();
    append(GITHUB_OUTPUT, &format!("outcome={outcome}\n"))
}

/// Appends to the file that a variable of the environment names, if it does.
fn append(variable: &str, text: &str) -> Result<()> {
    let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("{variable} {}", Path::new(&path).display()))
}

fn propose(args: &GateInitArgs) -> Result<ExitCode> {
    if let Some(out) = args.out.as_deref().filter(|out| out.exists()) {
        bail!(
            "--out {}: exists; name another file or remove it",
            out.display()
        );
    }
    let blocks = args.blocks.map(usize::try_from).transpose()?;
    let options = InitOptions {
        blocks,
        alpha: args.alpha,
        ..InitOptions::default()
    };
    let proposal = floors(&runs::read(&args.baseline)?, &options)?;
    let text = policy_text(&proposal);
    match &args.out {
        Some(out) => {
            write_atomic(out, text.as_bytes()).context("--out")?;
            console::say(format!("policy: {}", out.display()));
        }
        None => output::line(text.trim_end())?,
    }
    if proposal.is_blind() {
        console::say(
            "warning: every time and rate was too noisy for a rule: the policy passes any slowdown",
        );
    }
    if !proposal.biased.is_empty() {
        console::say(format!(
            "warning: the A/A pairs differ in one direction in {}: the rig favours one run of a \
             pair",
            proposal.biased.join(", ")
        ));
    }
    Ok(match proposal.is_blind() || !proposal.biased.is_empty() {
        true => ExitCode::from(EXIT_UNFIT),
        false => ExitCode::SUCCESS,
    })
}
