//! Settings of this project's engine in a suite, as the flags of `serve`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::{ArgAction, CommandFactory, Parser};
use toml::{Table, Value};

use super::design::level_name;
use crate::args::Cli;

/// Keys that the runner sets itself.
const OWN: [&str; 3] = ["host", "port", "until_stdin_closes"];

/// Who gives an engine its role, which settings of KV transfers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoleBy {
    /// The table itself, or nobody.
    Table,
    /// The router that starts it.
    Router,
}

/// The flags of `serve` for a table of its settings in snake_case.
///
/// # Errors
/// A key or a value that `serve` does not know.
pub(crate) fn flags(key: &str, table: &Table, folder: &Path, role: RoleBy) -> Result<Vec<String>> {
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").context("no verb serve")?;
    let mut flags = Vec::new();
    for (name, value) in table {
        let place = format!("{key}.{name}");
        let long = name.replace('_', "-");
        let named = |arg: &&clap::Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(&long) || aliases.contains(&long.as_str())
        };
        let arg = serve.get_arguments().find(named);
        let Some(arg) = arg.filter(|_| !OWN.contains(&name.as_str())) else {
            bail!("{place}: no setting of the engine; `prefillbench serve --help` lists them");
        };
        let switch = matches!(arg.get_action(), ArgAction::SetTrue);
        match (value, switch) {
            (Value::Boolean(on), true) => flags.extend(on.then(|| format!("--{long}"))),
            (_, true) => bail!("{place} = {value}: write true or false"),
            (Value::Boolean(on), false) => {
                flags.push(format!("--{long}={}", if *on { "on" } else { "off" }));
            }
            (Value::Array(values), false) => {
                for value in values {
                    flags.push(format!(
                        "--{long}={}",
                        level_name(value).context(place.clone())?
                    ));
                }
            }
            (value, false) => {
                let text = level_name(value).context(place)?;
                flags.push(format!("--{long}={}", located(name, text, folder)));
            }
        }
    }
    let by_router = match role {
        RoleBy::Table => Vec::new(),
        RoleBy::Router => vec!["--role=both".to_owned()],
    };
    check(key, flags.iter().chain(&by_router))?;
    Ok(flags)
}

/// A model that lies beside the suite is meant there, wherever the program is run.
fn located(name: &str, text: String, folder: &Path) -> String {
    let beside = folder.join(&text);
    match name {
        "model" if beside.exists() => beside.display().to_string(),
        _ => text,
    }
}

/// Whether `serve` takes them.
fn check<'a>(key: &str, flags: impl Iterator<Item = &'a String>) -> Result<()> {
    let words = ["prefillbench", "serve"].into_iter().map(String::from);
    if let Err(error) = Cli::try_parse_from(words.chain(flags.cloned())) {
        let text = error.to_string();
        let said = text.lines().take_while(|line| !line.is_empty());
        let words: Vec<&str> = said.flat_map(str::split_whitespace).collect();
        bail!("{key}: {}", words.join(" ").trim_start_matches("error: "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<String>> {
        flags(
            "arms.x.engine",
            &toml::from_str(text).unwrap(),
            Path::new(""),
            RoleBy::Table,
        )
    }

    #[test]
    fn a_key_is_a_flag_of_serve() {
        let text = "model = \"synthetic-tiny\"\nmax_batched_tokens = 64\nchunked = false\n\
                    mixed_chunk = true\nprefix_cache = \"none\"";
        let mut found = of(text).unwrap();
        found.sort();
        let expected = [
            "--chunked=off",
            "--max-batched-tokens=64",
            "--mixed-chunk",
            "--model=synthetic-tiny",
            "--prefix-cache=none",
        ];
        assert_eq!(found, expected);
        // vLLM's name of a flag is one, too; a switch that is off is left out.
        let text = "model = \"m\"\nmax_num_batched_tokens = 9\nmixed_chunk = false";
        assert_eq!(
            of(text).unwrap(),
            ["--max-num-batched-tokens=9", "--model=m"]
        );
    }

    #[test]
    fn what_serve_does_not_take_is_told_with_its_key() {
        for (text, parts) in [
            ("budget = 1", &["arms.x.engine.budget", "serve --help"][..]),
            ("port = 1", &["arms.x.engine.port"]),
            (
                "model = \"m\"\nmixed_chunk = 3",
                &["mixed_chunk = 3", "true or false"],
            ),
            (
                "model = \"m\"\nprefix_cache = \"big\"",
                &["arms.x.engine", "big", "hash-chain"],
            ),
            (
                "model = \"m\"\nblock_size = 0",
                &["block-size", "at least 1"],
            ),
            ("threads = 1", &["--model"]),
        ] {
            let error = format!("{:#}", of(text).unwrap_err());
            for part in parts {
                assert!(error.contains(part), "{part} is missing in: {error}");
            }
        }
    }
}
