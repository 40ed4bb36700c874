//! A suite file: the settings of a run and of its arms, with the question that they answer.
//!
//! An arm's settings go over those of the suite, and the command line goes over both. Paths in
//! the file are relative to it, so that a suite and its data can be moved together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::args::BenchOptions;

/// Version of the format.
const SCHEMA: u32 = 1;

/// A suite file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suite {
    schema: Spanned<u32>,
    /// Name.
    pub(crate) name: String,
    /// What the suite is to find out.
    pub(crate) question: String,
    /// How its numbers are to be read.
    pub(crate) reading: String,
    #[serde(default)]
    bench: BenchOptions,
    #[serde(default, rename = "arm")]
    arms: Vec<Arm>,
}

/// One configuration of the server under test.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arm {
    name: Spanned<String>,
    /// Address of its server; the same as `base_url` in its `bench` table.
    base_url: Option<String>,
    /// How its server is started: kept in the manifest, not run by `bench`.
    #[serde(default)]
    command: Vec<String>,
    /// Environment of that command.
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    bench: BenchOptions,
}

/// What the manifest says of the suite and the arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SuiteReceipt {
    /// Name of the suite.
    pub(crate) name: String,
    /// What it is to find out.
    pub(crate) question: String,
    /// How its numbers are to be read.
    pub(crate) reading: String,
    /// Name of the arm.
    pub(crate) arm: Option<String>,
    /// How its server is started.
    pub(crate) command: Vec<String>,
    /// Names of the environment variables that it is started with; the values may be keys.
    pub(crate) env: Vec<String>,
}

/// The settings of one arm of the suite in `path`.
///
/// # Errors
/// A file that cannot be read or is no suite, an arm that it does not have, or no arm named when
/// it has several.
pub(crate) fn read(path: &Path, arm: Option<&str>) -> Result<(BenchOptions, SuiteReceipt)> {
    let place = || format!("--suite {}", path.display());
    let text = std::fs::read_to_string(path).with_context(place)?;
    let suite = parse(&text).with_context(place)?;
    let (options, receipt) = suite.chosen(arm).with_context(place)?;
    Ok((beside(options, path), receipt))
}

/// Reads a suite.
///
/// # Errors
/// Anything that is not a suite; the message has the line.
pub(crate) fn parse(text: &str) -> Result<Suite> {
    let suite: Suite = toml::Deserializer::parse(text)
        .map_err(|error| anyhow!("{}", told(text, "", &error)))
        .and_then(|table| {
            serde_path_to_error::deserialize(table).map_err(|error| {
                anyhow!("{}", told(text, &error.path().to_string(), error.inner()))
            })
        })?;
    if *suite.schema.get_ref() != SCHEMA {
        bail!(
            "line {}: schema = {}: this program reads schema {SCHEMA}",
            line_of(text, suite.schema.span().start),
            suite.schema.get_ref()
        );
    }
    let mut names = BTreeSet::new();
    for arm in &suite.arms {
        let name = arm.name.get_ref();
        if !names.insert(name) {
            bail!(
                "line {}: arm.name = \"{name}\": there is an arm of that name above; give each \
                 its own",
                line_of(text, arm.name.span().start)
            );
        }
        if arm.base_url.is_some() && arm.bench.base_url.is_some() {
            bail!(
                "line {}: arm \"{name}\" has base_url twice: keep the one beside its name",
                line_of(text, arm.name.span().start)
            );
        }
    }
    Ok(suite)
}

/// The line of a byte, from 1.
fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

/// A mistake in a suite with its line, the key, what stands there and what to write.
fn told(text: &str, path: &str, error: &toml::de::Error) -> String {
    let why = pb_workloads::plain(error.message());
    // The root has no name.
    let path = path.trim_matches('.');
    let mut parts = Vec::new();
    let span = error.span().filter(|span| span.start < text.len());
    if let Some(span) = span {
        parts.push(format!("line {}", line_of(text, span.start)));
        let start = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
        let there = text[start..].lines().next().unwrap_or_default().trim();
        // A header's value may be a key, and what is missing stands nowhere.
        let shows = !path.contains("header") && !there.contains("header");
        if shows && !error.message().starts_with("missing field") {
            parts.push(there.to_owned());
        } else if !path.is_empty() {
            parts.push(path.to_owned());
        }
    } else if !path.is_empty() {
        parts.push(path.to_owned());
    }
    parts.push(why);
    parts.join(": ")
}

impl Suite {
    /// The settings of an arm, laid over those of the suite.
    ///
    /// # Errors
    /// No such arm; none named when there are several.
    pub(crate) fn chosen(self, name: Option<&str>) -> Result<(BenchOptions, SuiteReceipt)> {
        let names: Vec<&str> = self
            .arms
            .iter()
            .map(|arm| arm.name.get_ref().as_str())
            .collect();
        let listed = names.join(", ");
        let arm = match (name, &self.arms[..]) {
            (None, []) => None,
            (None, [only]) => Some(only),
            (None, _) => bail!("--arm: the suite has several arms; name one of {listed}"),
            (Some(name), arms) => {
                let found = arms.iter().find(|arm| arm.name.get_ref() == name);
                let known = if arms.is_empty() { "none" } else { &listed };
                Some(found.with_context(|| format!("--arm {name}: the arms are: {known}"))?)
            }
        };
        let mut receipt = SuiteReceipt {
            name: self.name,
            question: self.question,
            reading: self.reading,
            arm: None,
            command: Vec::new(),
            env: Vec::new(),
        };
        let Some(arm) = arm.cloned() else {
            return Ok((self.bench, receipt));
        };
        receipt.arm = Some(arm.name.into_inner());
        receipt.command = arm.command;
        receipt.env = arm.env.into_keys().collect();
        let mut own = arm.bench;
        own.base_url = own.base_url.or(arm.base_url);
        Ok((own.over(self.bench), receipt))
    }
}

/// The options with their input files beside the suite.
fn beside(mut options: BenchOptions, suite: &Path) -> BenchOptions {
    let folder = suite.parent().unwrap_or(Path::new(""));
    let files: [&mut Option<PathBuf>; 4] = [
        &mut options.dataset_path,
        &mut options.tokenizer,
        &mut options.ca_file,
        &mut options.api_key_file,
    ];
    for file in files.into_iter().flatten() {
        // An absolute path stays as it is.
        *file = folder.join(&*file);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"schema = 1
name = "budget"
question = "Does a smaller budget shorten stalls?"
reading = "Compare itl_ms p99."
[bench]
request_rate = 2.5
num_prompts = 20
tokenizer = "t.json"
[[arm]]
name = "small"
base_url = "http://127.0.0.1:1"
command = ["serve", "--budget", "256"]
env = { KEY = "hunter2" }
bench = { num_prompts = 7 }
[[arm]]
name = "large"
bench = { base_url = "http://127.0.0.1:2", dataset_path = "/abs/d" }
"#;

    fn chosen(arm: &str) -> (BenchOptions, SuiteReceipt) {
        parse(TEXT).unwrap().chosen(Some(arm)).unwrap()
    }

    #[test]
    fn an_arm_goes_over_its_suite() {
        let (options, receipt) = chosen("small");
        assert_eq!(options.base_url.as_deref(), Some("http://127.0.0.1:1"));
        assert_eq!(options.num_prompts.unwrap().value.0, 7);
        assert_eq!(options.request_rate.unwrap().value.0, 2.5);
        assert_eq!(receipt.command, ["serve", "--budget", "256"]);
        assert_eq!(
            (receipt.arm.as_deref(), &*receipt.env),
            (Some("small"), &["KEY".into()][..])
        );
        assert!(!serde_json::to_string(&receipt).unwrap().contains("hunter2"));
        let (options, _) = chosen("large");
        assert_eq!(options.num_prompts.unwrap().value.0, 20);
    }

    #[test]
    fn files_lie_beside_the_suite() {
        let options = beside(chosen("large").0, Path::new("a/b.toml"));
        assert_eq!(options.tokenizer, Some("a/t.json".into()));
        assert_eq!(options.dataset_path, Some("/abs/d".into()));
    }

    #[test]
    fn an_arm_must_be_named_when_there_are_several() {
        let error = parse(TEXT).unwrap().chosen(None).unwrap_err().to_string();
        assert!(error.contains("small, large"), "{error}");
        let error = parse(TEXT)
            .unwrap()
            .chosen(Some("x"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("--arm x") && error.contains("small, large"),
            "{error}"
        );
        let one = &TEXT[..TEXT.rfind("[[arm]]").unwrap()];
        assert_eq!(
            parse(one).unwrap().chosen(None).unwrap().1.arm.as_deref(),
            Some("small")
        );
    }

    #[test]
    fn a_mistake_in_a_header_does_not_show_its_value() {
        for header in ["header = [\"hunter2\"]", "header = [\n  \"hunter2\",\n]"] {
            let text = TEXT.replacen("num_prompts = 20", header, 1);
            let error = parse(&text).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
            assert!(
                error.contains("NAME=VALUE") && error.contains("header"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_line_key_value_and_what_to_write() {
        for (from, to, parts) in [
            (
                "schema = 1",
                "schema = 2",
                &["line 1", "schema = 2", "reads schema 1"][..],
            ),
            (
                "2.5",
                "0",
                &["line 6", "request_rate = 0", "above 0, or inf"],
            ),
            (
                "num_prompts = 20",
                "num_prompt = 2",
                &["line 7", "num_prompt", "num_prompts"],
            ),
            (
                "\"large\"",
                "\"small\"",
                &["line 16", "arm.name = \"small\"", "its own"],
            ),
            (
                "num_prompts = 7",
                "base_url = \"http://h:1\"",
                &["line 10", "twice"],
            ),
            ("question", "problem", &["problem", "question"]),
            (
                "num_prompts = 7",
                "cache = \"hot\"",
                &["line 14", "hot", "cold"],
            ),
            (
                "num_prompts = 20",
                "seed = -1",
                &["line 7: seed = -1: must be a whole number, at least 0, not -1"],
            ),
            (
                "num_prompts = 20",
                "ignore_eos = \"no\"",
                &[
                    "line 7: ignore_eos",
                    "must be true or false, not the text \"no\"",
                ],
            ),
            (
                "reading = \"Compare itl_ms p99.\"",
                "",
                &["`reading` is missing: add it"],
            ),
            ("[bench]", "[bench", &["line 5: [bench: "]),
        ] {
            let error = parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{part} is missing in: {error}");
            }
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
