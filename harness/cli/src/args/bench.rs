//! The command line of `bench`.

mod names;
mod options;
mod text;

use std::path::PathBuf;

use clap::Args;

pub(crate) use names::{
    Api, ArrivalArg, Backend, CacheArg, DatasetName, Format, HttpArg, InputUnit, RampStrategy,
};
pub(crate) use options::BenchOptions;
pub(crate) use text::{Above0, Secret, Text, Timeout, Warmup};

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = AFTER, allow_negative_numbers = true)]
pub(crate) struct BenchArgs {
    /// Suite file: the settings of a run, and of its arms.
    #[arg(long, value_name = "FILE")]
    pub(crate) suite: Option<PathBuf>,
    /// Arm of the suite to run; needed when it has more than one.
    #[arg(long, value_name = "NAME", requires = "suite")]
    pub(crate) arm: Option<String>,
    /// Print the resolved settings, the facts of the schedule and its hash; send nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON document; the same as --format json.
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,
    /// Settings.
    #[command(flatten)]
    pub(crate) options: BenchOptions,
}

const AFTER: &str = "Examples:
  prefillbench bench --base-url http://127.0.0.1:8000 --request-rate 4 --num-prompts 200
  prefillbench bench --base-url http://127.0.0.1:8000 --max-concurrency 8 --duration 60
  prefillbench bench --base-url http://127.0.0.1:8000 --request-rate 2 --cache cold \\
      --goodput ttft:500,tpot:50 --slo success:0.99 --json
  prefillbench bench --base-url http://127.0.0.1:8000 --dataset-name shared-prefix \\
      --gsp-num-groups 8 --cache warm --request-rate 2
  prefillbench bench --base-url http://127.0.0.1:8000 --dataset-name trace \\
      --dataset-path conversation_trace.jsonl --scale-length 0.1 --num-prompts 500
  prefillbench bench --suite workloads/suites/chunk_budget.toml --arm budget-256 --dry-run

Flags that `vllm bench serve` has too mean the same. Without --request-rate all requests are due
at once; --max-concurrency alone makes a closed loop. A suite file has the same settings as keys
in snake_case; the command line goes over an arm's, and that over the suite's.

Latencies count from the intended arrival. The run directory has a row for every request and
every token event, the manifest with the settings, and bench.json. Ctrl-C ends a run early and
keeps what was measured; twice ends it at once.

Exit codes: 0 valid; 1 every request failed or a gate of --slo failed; 2 bad usage or a server
that cannot be reached; 3 interrupted or not valid, and the document says why.";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Verb};

    /// The options of a command line.
    fn options(args: &[&str]) -> BenchOptions {
        let cli = Cli::parse_from(["prefillbench", "bench"].iter().chain(args));
        match cli.verb {
            Verb::Bench(args) => args.options,
            _ => unreachable!(),
        }
    }

    #[test]
    fn a_flag_and_its_key_are_the_same_setting() {
        let flags = options(&[
            "--request-rate=inf",
            "--num-prompts=7",
            "--dataset-name=prefix_repetition",
            "--http=2",
            "--server=llama-cpp",
            "--ignore-eos",
            "--goodput=ttft:5,itl:2",
            "--slo=success:0.9",
            "--random-range-ids=100..200",
            "--metadata=a=b",
            "--warmup=2s",
            "--extra-body={\"top_k\":1}",
            "--shard=1/2",
        ]);
        let keys = toml::from_str::<BenchOptions>(
            "request_rate = \"inf\"\nnum_prompts = 7\ndataset_name = \"prefix-repetition\"\n\
             http = \"2\"\nserver = \"llama-cpp\"\nignore_eos = true\n\
             goodput = [\"ttft:5\", \"itl:2\"]\nslo = [\"success:0.9\"]\n\
             random_range_ids = \"100..200\"\nmetadata = [\"a=b\"]\nwarmup = \"2s\"\n\
             extra_body = '{\"top_k\":1}'\nshard = \"1/2\"",
        )
        .unwrap();
        let value = |options: &BenchOptions| serde_json::to_value(options).unwrap();
        assert_eq!(value(&flags), value(&keys));
        assert_eq!(value(&flags).as_object().unwrap().len(), 13);
    }

    #[test]
    fn every_flag_has_its_key() {
        use clap::CommandFactory;
        let cli = Cli::command();
        let bench = cli.find_subcommand("bench").unwrap();
        let alone = ["suite", "arm", "dry-run", "json", "help", "version"];
        let mut seen = 0;
        for flag in bench.get_arguments().filter_map(|arg| arg.get_long()) {
            if alone.contains(&flag) {
                continue;
            }
            seen += 1;
            // A key that exists is refused for its value, one that does not for its name.
            let line = format!("{} = {{}}", flag.replace('-', "_"));
            let error = toml::from_str::<BenchOptions>(&line).unwrap_err();
            assert!(!error.to_string().contains("unknown field"), "{flag}");
        }
        assert!(seen > 70, "{seen}");
    }

    #[test]
    fn the_help_fits_a_hundred_columns() {
        use clap::CommandFactory;
        let mut cli = Cli::command();
        let bench = cli.find_subcommand_mut("bench").unwrap();
        let help = bench.render_long_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }

    #[test]
    fn what_is_said_goes_over_what_was_said_before() {
        let base = options(&["--seed=1", "--num-prompts=5", "--ignore-eos"]);
        let over = options(&["--seed=2", "--ignore-eos=false"]).over(base);
        assert_eq!((over.seed, over.ignore_eos), (Some(2), Some(false)));
        assert_eq!(over.num_prompts.unwrap().value.0, 5);
        assert!(over.burstiness.is_none());
    }
}
