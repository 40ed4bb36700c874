//! The suite file as it is written.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use pb_judge::suite::{Expect, LEAST_PAIRS, StopRule};
use serde::{Deserialize, Serialize};
use toml::{Spanned, Table, Value};

use crate::args::BenchOptions;

/// Version of the format.
const SCHEMA: u32 = 2;

/// Most blocks of a suite.
pub(crate) const MOST_BLOCKS: usize = 1_000;

/// A suite file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suite {
    /// [`SCHEMA`]; looked at before the rest is read.
    #[serde(rename = "schema")]
    _schema: u32,
    /// Name.
    pub(crate) name: String,
    /// What the suite is to find out.
    pub(crate) question: String,
    /// How its numbers are to be read.
    pub(crate) reading: String,
    /// Blocks, stopping, freshness.
    #[serde(default)]
    pub(crate) run: Run,
    /// Settings of every cell.
    #[serde(default)]
    pub(crate) bench: BenchOptions,
    /// Settings of every arm that is this project's engine.
    #[serde(default)]
    pub(crate) engine: Table,
    /// Servers by name.
    #[serde(default)]
    pub(crate) arms: BTreeMap<String, ArmTable>,
    /// What is varied.
    #[serde(default)]
    pub(crate) factors: BTreeMap<String, Factor>,
    /// Which levels of the factors go together.
    #[serde(default)]
    pub(crate) design: Design,
    /// What is claimed or asked.
    #[serde(default, rename = "hypothesis")]
    pub(crate) hypotheses: Vec<HypothesisTable>,
}

/// How often, and when it is enough.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Run {
    /// Blocks; under `sequential` the most.
    pub(crate) blocks: usize,
    /// When to stop.
    pub(crate) stop: StopRule,
    /// How long a server lives.
    pub(crate) fresh: Fresh,
    /// Chance of any false claim in the family of hypotheses.
    pub(crate) alpha: f64,
    /// Share of the requests of each cell that must end well, or no latency is compared.
    pub(crate) least_success: f64,
    /// Seeds of the blocks; default: drawn from the suite's seed.
    pub(crate) seeds: Option<Vec<u64>>,
}

impl Default for Run {
    fn default() -> Self {
        Run {
            blocks: 6,
            stop: StopRule::Fixed,
            fresh: Fresh::Cell,
            alpha: 0.05,
            least_success: 1.0,
            seeds: None,
        }
    }
}

/// How long a server process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fresh {
    /// One cell.
    Cell,
    /// All conditions of one block.
    Block,
}

/// A server under test.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ArmTable {
    /// Settings of this project's engine, laid over those of the suite.
    pub(crate) engine: Option<Table>,
    /// Several of this project's engines behind its router instead of one: `1P1D` is one that
    /// prefills and one that decodes, as for `prefillbench router --topology`.
    pub(crate) topology: Option<String>,
    /// Command that starts another server.
    pub(crate) start: Option<Vec<String>>,
    /// Where a server listens; without `start` it runs already.
    pub(crate) base_url: Option<String>,
    /// Environment of the command.
    pub(crate) env: BTreeMap<String, String>,
    /// How it is known that the server is ready.
    pub(crate) ready: Ready,
    /// How the server is ended.
    pub(crate) stop: Stop,
    /// Settings of its cells.
    pub(crate) bench: BenchOptions,
}

/// How it is known that a server is ready.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ready {
    /// Path that is asked for until it is answered.
    pub(crate) path: String,
    /// Seconds until the server counts as failed.
    pub(crate) timeout_s: f64,
}

impl Default for Ready {
    fn default() -> Self {
        Ready {
            path: "/v1/models".into(),
            timeout_s: 300.0,
        }
    }
}

/// How a server is ended.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Stop {
    /// Name of the signal.
    pub(crate) signal: String,
    /// Seconds that it then has before it is killed.
    pub(crate) grace_s: f64,
}

impl Default for Stop {
    fn default() -> Self {
        Stop {
            signal: "TERM".into(),
            grace_s: 10.0,
        }
    }
}

/// What a factor varies: the server (arms) or the load (conditions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// Its levels are arms, compared in a block.
    Arm,
    /// Its levels are conditions, in each of which arms are compared.
    Condition,
}

/// Something that is varied.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Factor {
    /// One setting: `engine.KEY`, `bench.KEY` or `env.NAME`.
    pub(crate) key: Option<String>,
    /// Its values.
    pub(crate) values: Vec<Value>,
    /// Levels of several settings, by name.
    pub(crate) levels: BTreeMap<String, Level>,
    /// What it varies; default: arms, but conditions when only `bench` keys are set.
    pub(crate) of: Option<Side>,
}

/// Settings of one level of a factor.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Level {
    /// Settings of this project's engine.
    pub(crate) engine: Table,
    /// Words after the command of `start`.
    pub(crate) args: Vec<String>,
    /// Environment of the command.
    pub(crate) env: BTreeMap<String, String>,
    /// Settings of the cells.
    pub(crate) bench: BenchOptions,
}

/// Which levels go together; the product of the three. Without any, all with all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Design {
    /// Factors whose levels go with all others.
    pub(crate) cross: Vec<String>,
    /// For a level of an outer factor the factors that exist only there.
    pub(crate) nest: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    /// Rows of levels, written out.
    pub(crate) list: Vec<BTreeMap<String, Value>>,
}

/// A hypothesis as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HypothesisTable {
    /// What is claimed, in words.
    pub(crate) name: String,
    /// A figure of the document of `bench`.
    pub(crate) metric: String,
    /// The arm, or part of one, that is compared with.
    pub(crate) baseline: String,
    /// The arm, or part of one, that is judged; `*` is every other one.
    pub(crate) candidate: String,
    /// Condition, or part of one; default: all.
    pub(crate) when: Option<String>,
    /// What is expected of the candidate's value.
    pub(crate) expect: Option<Expect>,
    /// Change that does not matter; default: of the metric.
    pub(crate) margin: Option<f64>,
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
    /// Name of the condition, when there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) condition: Option<String>,
    /// How its server is started.
    pub(crate) command: Vec<String>,
    /// Names of the environment variables that it is started with; the values may be keys.
    pub(crate) env: Vec<String>,
}

/// Reads a suite.
///
/// # Errors
/// Anything that is not a suite; the message has the line.
pub(crate) fn parse(text: &str) -> Result<Suite> {
    #[derive(Deserialize)]
    struct Head {
        schema: Spanned<u32>,
    }
    let head: Head = read(text)?;
    let schema = *head.schema.get_ref();
    if schema != SCHEMA {
        let line = line_of(text, head.schema.span().start);
        let hint = match schema {
            1 => "; write each [[arm]] as [arms.NAME], and its command as start",
            _ => "",
        };
        bail!("line {line}: schema = {schema}: this program reads schema {SCHEMA}{hint}");
    }
    let suite: Suite = read(text)?;
    suite.check()?;
    Ok(suite)
}

/// What the text holds, or the mistake in it.
fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T> {
    toml::Deserializer::parse(text)
        .map_err(|error| anyhow!("{}", told(text, "", &error)))
        .and_then(|table| {
            serde_path_to_error::deserialize(table).map_err(|error| {
                anyhow!("{}", told(text, &error.path().to_string(), error.inner()))
            })
        })
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
    fn check(&self) -> Result<()> {
        name_of("name", &self.name)?;
        for arm in self.arms.keys() {
            name_of(&format!("arms.{arm}"), arm)?;
        }
        for factor in self.factors.keys() {
            name_of(&format!("factors.{factor}"), factor)?;
        }
        let run = &self.run;
        if !(1..=MOST_BLOCKS).contains(&run.blocks) {
            bail!(
                "run.blocks = {}: give a number from 1 to {MOST_BLOCKS}",
                run.blocks
            );
        }
        if !self.hypotheses.is_empty() && run.blocks < LEAST_PAIRS {
            bail!(
                "run.blocks = {}: a hypothesis is judged over at least {LEAST_PAIRS} blocks; run \
                 as many, or take the hypotheses out",
                run.blocks
            );
        }
        if run.stop != StopRule::Fixed && run.blocks < 4 {
            bail!(
                "run.blocks = {}: a rule that may stop early needs at least four blocks; allow \
                 more, or use stop = \"fixed\"",
                run.blocks
            );
        }
        if !(run.alpha > 0.0 && run.alpha < 0.5) {
            bail!("run.alpha = {}: give a number between 0 and 0.5", run.alpha);
        }
        if !(0.0..=1.0).contains(&run.least_success) {
            bail!(
                "run.least_success = {}: give a share from 0 to 1",
                run.least_success
            );
        }
        let seeds = run.seeds.as_ref().map_or(run.blocks, Vec::len);
        if seeds < run.blocks {
            bail!(
                "run.seeds: {seeds} seeds for {} blocks: give one for each block, or none",
                run.blocks
            );
        }
        for (name, arm) in &self.arms {
            arm.check(name)?;
        }
        Ok(())
    }
}

impl ArmTable {
    fn check(&self, name: &str) -> Result<()> {
        if self.base_url.is_some() && self.bench.base_url.is_some() {
            bail!("arms.{name} has base_url twice: keep the one beside its name");
        }
        let placed = self.base_url.is_some() || self.bench.base_url.is_some();
        if self.engine.is_some() && (self.start.is_some() || placed) {
            bail!(
                "arms.{name}: engine starts this project's server, so leave start and base_url out"
            );
        }
        if let Some(start) = &self.start {
            let told = start.iter().any(|word| word.contains("{port}"));
            if start.is_empty() {
                bail!("arms.{name}.start is empty: write the command, a word an entry");
            }
            if !told && !placed {
                bail!(
                    "arms.{name}.start: where does it listen? Write {{port}} where its port goes, \
                     or give base_url"
                );
            }
        }
        for (key, seconds) in [
            ("ready.timeout_s", self.ready.timeout_s),
            ("stop.grace_s", self.stop.grace_s),
        ] {
            if !(seconds > 0.0 && seconds <= 86_400.0) {
                bail!("arms.{name}.{key} = {seconds}: give seconds, above 0 and at most a day");
            }
        }
        if !self.ready.path.starts_with('/') {
            bail!(
                "arms.{name}.ready.path = \"{}\": a path begins with /",
                self.ready.path
            );
        }
        crate::verbs::guard::signal(&self.stop.signal)
            .map_err(|error| anyhow::anyhow!("arms.{name}.stop.signal = {error}"))?;
        Ok(())
    }
}

/// A name becomes part of paths and of selectors, so it has few characters.
pub(crate) fn name_of(key: &str, name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let good = !name.is_empty() && name.len() <= 48 && name.chars().all(plain);
    if !good || name.starts_with(['.', '-']) {
        bail!(
            "{key}: \"{}\" is no name here: use up to 48 letters, digits and . _ + -, beginning \
             with a letter, a digit or _",
            pb_record::visible(name)
        );
    }
    Ok(())
}
