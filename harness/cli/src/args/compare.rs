//! The command lines of `compare` and `gate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Parses the level of claims.
fn level(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(alpha) if alpha > 0.0 && alpha < 0.5 => Ok(alpha),
        _ => Err("must be above 0 and below 0.5, as in 0.05".into()),
    }
}

/// Parses a relative margin.
fn margin(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(margin) if (0.0..=1.0).contains(&margin) => Ok(margin),
        _ => Err("must be a share from 0 to 1, as in 0.03 for 3 %".into()),
    }
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench compare results/before results/after       one pair: numbers, no verdict
  prefillbench compare --a old1 old2 old3 --b new1 new2 new3
  prefillbench compare --a old* --b new* --primary itl_p99,ttft_p99 --margin 0.05
  prefillbench compare --a v9-* --b v10-* --allow-different server --markdown out.md

Runs are directories that `bench` or `merge` wrote. A block is one run of each arm on one schedule,
and one observation, however many requests it holds. Runs must be alike but for what is compared;
a difference that is wanted is named with --allow-different.
Exit codes: 0 a primary metric has an answer, whichever, 2 bad input, 3 inconclusive or void.")]
pub(crate) struct CompareArgs {
    /// Runs: the first is the baseline, each of the others is compared with it by itself.
    #[arg(
        value_name = "RUN",
        num_args = 2..,
        required_unless_present = "a",
        conflicts_with_all = ["a", "b"]
    )]
    pub(crate) runs: Vec<PathBuf>,
    /// Runs of the baseline, one for each block.
    #[arg(long, value_name = "RUN", num_args = 1.., requires = "b")]
    pub(crate) a: Vec<PathBuf>,
    /// Runs of the candidate, as many; paired by schedule, else in the order given.
    #[arg(long, value_name = "RUN", num_args = 1.., requires = "a")]
    pub(crate) b: Vec<PathBuf>,
    /// Metrics to compare; default: all that were recorded.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) metrics: Vec<String>,
    /// The primary family, over which claims are adjusted; default: success_rate, ttft_p50,
    /// ttft_p99, itl_p99, output_tps.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) primary: Vec<String>,
    /// Change of a time or rate that does not matter, as a share; of shares it is one point.
    #[arg(long, default_value = "0.03", value_parser = margin, allow_negative_numbers = true)]
    pub(crate) margin: f64,
    /// Level of claims: 0.05 stands for intervals of 95 %.
    #[arg(long, default_value = "0.05", value_parser = level, allow_negative_numbers = true)]
    pub(crate) alpha: f64,
    /// Fewest blocks for a claim.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=10_000))]
    pub(crate) min_blocks: u64,
    /// Differences between the arms that are wanted: schedule, prompts, requests, connection, load,
    /// cache, model, machine, tool, server, rules; `version` is tool and server.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) allow_different: Vec<String>,
    /// Seed of the bootstrap that is shown in the document beside the intervals.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write the tables as Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `gate`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  prefillbench gate init --baseline aa1 aa2 aa3 aa4 aa5 aa6 --out gate.toml
  prefillbench gate --policy gate.toml --baseline old1 old2 old3 --candidate new1 new2 new3
  prefillbench gate --policy slo.toml --candidate new1 new2 new3 --junit gate.xml
  prefillbench validate --model M --json > outputs.json
  prefillbench gate --policy gate.toml --candidate new* --baseline old* --validation outputs.json

In a GitHub job the result is appended to the job's summary ($GITHUB_STEP_SUMMARY), and its word as
outcome= to the outputs of the step ($GITHUB_OUTPUT). docs/CI.md has the policy's keys and whole
workflows for GitHub and GitLab.
Exit codes: 0 pass, 1 fail, 2 bad input, 3 inconclusive or void."
)]
pub(crate) struct GateArgs {
    /// What else to do.
    #[command(subcommand)]
    pub(crate) what: Option<GateWhat>,
    /// Policy: what the candidate has to meet.
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) policy: Option<PathBuf>,
    /// Runs of the version before, one for each block.
    #[arg(long, value_name = "RUN", num_args = 1..)]
    pub(crate) baseline: Vec<PathBuf>,
    /// Runs of the version to be judged, as many.
    #[arg(long, value_name = "RUN", num_args = 1.., required = true)]
    pub(crate) candidate: Vec<PathBuf>,
    /// What `prefillbench validate --json` printed for the candidate.
    #[arg(long, value_name = "FILE")]
    pub(crate) validation: Option<PathBuf>,
    /// Differences between the arms that are wanted, as of `compare`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) allow_different: Vec<String>,
    /// Write the rules as JUnit XML.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// Write the result as Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Further actions of `gate`.
#[derive(Debug, Subcommand)]
pub(crate) enum GateWhat {
    /// Propose a policy from repeated runs of one version.
    Init(GateInitArgs),
}

/// Arguments of `gate init`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench gate init --baseline aa* --out gate.toml
  prefillbench gate init --baseline aa* --blocks 8

Each schedule must have been run at least twice; neighbouring repeats form an A/A pair, and three
pairs are the least. Exit code 3 when the pairs differ in one direction: then the rig favours one
place in a pair, and the proposal carries a warning.")]
pub(crate) struct GateInitArgs {
    /// Runs of one version, unchanged.
    #[arg(long, value_name = "RUN", num_args = 1.., required = true)]
    pub(crate) baseline: Vec<PathBuf>,
    /// File to create; default: standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Blocks of the gate to come; default: as many as there are A/A pairs.
    #[arg(long, value_parser = clap::value_parser!(u64).range(3..=10_000))]
    pub(crate) blocks: Option<u64>,
    /// Level of its claims.
    #[arg(long, default_value = "0.05", value_parser = level, allow_negative_numbers = true)]
    pub(crate) alpha: f64,
}
