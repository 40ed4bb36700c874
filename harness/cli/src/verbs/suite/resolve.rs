//! A suite with its factors worked out: arms, conditions and comparisons.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value as Json, json};
use toml::{Table, Value};

use super::beside;
use super::design::{Combination, Levels, combinations, level_name};
use super::engine::{RoleBy, flags};
use super::file::{ArmTable, Factor, Level, Ready, Run, Side, Stop, Suite, SuiteReceipt, name_of};
use super::hypothesis::{Comparison, comparisons, only};
use super::select::Parts;
use crate::args::{BenchOptions, Topology};

/// Name of the arm of a suite that names none.
const ENGINE: &str = "engine";

/// Levels of a factor with their names, in order.
type NamedLevels = Vec<(String, Level)>;

/// How an arm's server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// This project's engine, with these flags of `serve`.
    Engine(Vec<String>),
    /// A command, and where it listens if not at `{port}`.
    Command(Vec<String>, Option<String>),
    /// It runs already.
    Running(String),
    /// The suite does not say.
    Unknown,
}

/// A server under test.
#[derive(Clone, Debug)]
pub(crate) struct Arm {
    /// Name: its parts, without its name under `[arms]` where that says nothing.
    pub(crate) name: String,
    /// What it is made of.
    pub(crate) parts: Parts,
    /// How its server is reached.
    pub(crate) way: Way,
    /// Environment of the command.
    pub(crate) env: BTreeMap<String, String>,
    /// How it is known to be ready.
    pub(crate) ready: Ready,
    /// How it is ended.
    pub(crate) stop: Stop,
    /// Settings of its cells.
    pub(crate) bench: BenchOptions,
}

/// A load under which arms are compared.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    /// Name; empty when there is only one.
    pub(crate) name: String,
    /// What it is made of.
    pub(crate) parts: Parts,
    /// Settings of its cells.
    pub(crate) bench: BenchOptions,
}

/// A suite, ready to be planned.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// Name.
    pub(crate) name: String,
    /// What it is to find out.
    pub(crate) question: String,
    /// How its numbers are to be read.
    pub(crate) reading: String,
    /// How often, and when it is enough.
    pub(crate) run: Run,
    /// Settings of every cell.
    pub(crate) bench: BenchOptions,
    /// Servers.
    pub(crate) arms: Vec<Arm>,
    /// Loads.
    pub(crate) conditions: Vec<Condition>,
    /// What is compared with what.
    pub(crate) comparisons: Vec<Comparison>,
}

impl Resolved {
    /// Works out a suite that lies in `folder`.
    ///
    /// # Errors
    /// Anything in it that contradicts itself.
    pub(crate) fn of(mut suite: Suite, folder: &Path) -> Result<Resolved> {
        let mut factors = BTreeMap::new();
        for (name, factor) in &suite.factors {
            factors.insert(name.clone(), levels(name, factor)?);
        }
        let plain = factors.iter().map(|(name, (side, levels))| {
            let names = levels.iter().map(|(name, _)| name.clone()).collect();
            (name.clone(), Levels { side: *side, names })
        });
        let plain: BTreeMap<String, Levels> = plain.collect();
        let (of_arms, of_conditions) = combinations(&plain, &suite.design)?;
        if suite.arms.is_empty() && !suite.engine.is_empty() {
            suite.arms.insert(ENGINE.into(), ArmTable::default());
        }
        // The seed is the suite's: all arms of a block have it.
        let seeded = suite.arms.values().any(|arm| arm.bench.seed.is_some());
        let levels: BTreeMap<_, _> = factors
            .into_iter()
            .map(|(name, (_, l))| (name, l))
            .collect();
        let in_level = levels
            .values()
            .flatten()
            .any(|(_, level)| level.bench.seed.is_some());
        if seeded || in_level {
            bail!(
                "seed: all arms of a block have the same; write it under [bench], or one for each \
                 block as run.seeds"
            );
        }
        let maker = Maker {
            several: suite.arms.len() > 1,
            suite: &suite,
            levels: &levels,
            folder,
        };
        let mut arms = Vec::new();
        for (name, table) in &suite.arms {
            for combination in &of_arms {
                arms.push(maker.arm(name, table, combination)?);
            }
        }
        let conditions: Vec<Condition> = of_conditions
            .iter()
            .map(|combination| maker.condition(combination))
            .collect();
        let comparisons = comparisons(&suite.hypotheses, &arms, &conditions)?;
        Ok(Resolved {
            name: suite.name,
            question: suite.question,
            reading: suite.reading,
            run: suite.run,
            bench: beside(suite.bench, folder),
            arms,
            conditions,
            comparisons,
        })
    }

    /// The settings of a cell: the arm's over the condition's over the suite's.
    pub(crate) fn options(&self, arm: &Arm, condition: &Condition) -> BenchOptions {
        let own = arm.bench.clone().over(condition.bench.clone());
        own.over(self.bench.clone())
    }

    /// What the manifest of a cell says.
    pub(crate) fn receipt(&self, arm: Option<&Arm>, condition: &Condition) -> SuiteReceipt {
        let named = Some(condition.name.clone()).filter(|name| !name.is_empty());
        SuiteReceipt {
            name: self.name.clone(),
            question: self.question.clone(),
            reading: self.reading.clone(),
            arm: arm.map(|arm| arm.name.clone()),
            condition: named,
            command: arm.map_or_else(Vec::new, Arm::command),
            env: arm.map_or_else(Vec::new, |arm| arm.env.keys().cloned().collect()),
        }
    }

    /// One cell by the parts of its arm and condition; the only one where none is named.
    ///
    /// # Errors
    /// No such cell, or several.
    pub(crate) fn chosen(&self, name: Option<&str>) -> Result<(BenchOptions, SuiteReceipt)> {
        let mut cells = Vec::new();
        for condition in &self.conditions {
            for arm in &self.arms {
                cells.push((Some(arm), condition));
            }
            if self.arms.is_empty() {
                cells.push((None, condition));
            }
        }
        let parts = |&(arm, condition): &(Option<&Arm>, &Condition)| -> Parts {
            let arm = arm.iter().flat_map(|arm| arm.parts.iter());
            arm.chain(&condition.parts).cloned().collect()
        };
        let sets: Vec<Parts> = cells.iter().map(parts).collect();
        let index = match name {
            Some(name) => only("--arm", name, &sets)?,
            None if cells.len() == 1 => 0,
            None => {
                let names = cells.iter().map(|&(arm, condition)| {
                    let arm = arm.map_or("", |arm| arm.name.as_str());
                    [arm, &condition.name]
                        .into_iter()
                        .filter(|n| !n.is_empty())
                        .collect::<Vec<_>>()
                });
                let names: Vec<String> = names.map(|words| words.join(",")).collect();
                bail!(
                    "--arm: the suite has several cells; name one of {}",
                    names.join(", ")
                )
            }
        };
        let (arm, condition) = cells[index];
        let options = match arm {
            Some(arm) => self.options(arm, condition),
            None => condition.bench.clone().over(self.bench.clone()),
        };
        Ok((options, self.receipt(arm, condition)))
    }

    /// All that decides what is run and what is concluded; comments and layout do not.
    pub(crate) fn facts(&self) -> Result<Json> {
        let mut arms = serde_json::Map::new();
        for arm in &self.arms {
            arms.insert(arm.name.clone(), arm.facts()?);
        }
        let mut conditions = serde_json::Map::new();
        for condition in &self.conditions {
            conditions.insert(
                condition.name.clone(),
                serde_json::to_value(&condition.bench)?,
            );
        }
        let comparisons: Vec<Json> = self
            .comparisons
            .iter()
            .map(|one| {
                json!({
                    "hypothesis": one.hypothesis,
                    "metric": one.question.metric.name,
                    "baseline": self.arms[one.baseline].name,
                    "candidate": self.arms[one.candidate].name,
                    "condition": self.conditions[one.condition].name,
                    "expect": one.question.expect,
                    "margin": one.question.margin,
                })
            })
            .collect();
        Ok(json!({
            "name": self.name,
            "question": self.question,
            "reading": self.reading,
            "run": {
                "blocks": self.run.blocks,
                "stop": self.run.stop,
                "fresh": self.run.fresh,
                "alpha": self.run.alpha,
                "least_success": self.run.least_success,
                "seeds": self.run.seeds,
            },
            "bench": self.bench,
            "arms": arms,
            "conditions": conditions,
            "comparisons": comparisons,
        }))
    }
}

impl Arm {
    /// How its server is started, for people: a command or an address.
    pub(crate) fn command(&self) -> Vec<String> {
        match &self.way {
            Way::Engine(flags) => {
                let words = ["prefillbench", "serve"].into_iter().map(String::from);
                words.chain(flags.iter().cloned()).collect()
            }
            Way::Command(words, _) => words.clone(),
            Way::Running(_) | Way::Unknown => Vec::new(),
        }
    }

    fn facts(&self) -> Result<Json> {
        let at = match &self.way {
            Way::Running(url) | Way::Command(_, Some(url)) => Some(url),
            _ => None,
        };
        Ok(json!({
            "start": self.command(),
            "base_url": at,
            // The values may be keys.
            "env": self.env.keys().collect::<Vec<_>>(),
            "ready": self.ready,
            "stop": self.stop,
            "bench": serde_json::to_value(&self.bench)?,
        }))
    }
}

/// Makes arms and conditions from combinations.
struct Maker<'a> {
    several: bool,
    suite: &'a Suite,
    levels: &'a BTreeMap<String, NamedLevels>,
    folder: &'a Path,
}

impl Maker<'_> {
    fn chosen<'b>(&'b self, combination: &'b Combination) -> impl Iterator<Item = &'b Level> {
        combination.iter().filter_map(|(factor, name)| {
            let levels = self.levels.get(factor)?;
            levels
                .iter()
                .find(|(level, _)| level == name)
                .map(|(_, level)| level)
        })
    }

    fn arm(&self, name: &str, table: &ArmTable, combination: &Combination) -> Result<Arm> {
        let mut words = parts(combination);
        if self.several || words.is_empty() {
            words.insert(0, name.to_owned());
        }
        let full = words.join(",");
        let mut parts: Parts = parts(combination).into_iter().collect();
        parts.insert(name.to_owned());
        let mut arm = Arm {
            way: Way::Unknown,
            env: table.env.clone(),
            ready: table.ready.clone(),
            stop: table.stop.clone(),
            bench: beside(table.bench.clone(), self.folder),
            name: full,
            parts,
        };
        let (mut settings, mut args) = (Table::new(), Vec::new());
        for level in self.chosen(combination) {
            settings.extend(level.engine.clone());
            args.extend(level.args.iter().cloned());
            arm.env.extend(level.env.clone());
            arm.bench = beside(level.bench.clone(), self.folder).over(arm.bench);
        }
        arm.way = self.way(name, table, settings, args)?;
        if let Way::Running(url) | Way::Command(_, Some(url)) = &arm.way {
            arm.bench.base_url = Some(url.clone());
        }
        Ok(arm)
    }

    /// How the server is reached, with what the levels add to it.
    fn way(&self, name: &str, table: &ArmTable, own: Table, args: Vec<String>) -> Result<Way> {
        let url = table.base_url.as_ref().or(table.bench.base_url.as_ref());
        if let Some(start) = &table.start {
            if table.topology.is_some() {
                bail!("arms.{name}.topology: start is another server: leave one of them out");
            }
            if !own.is_empty() {
                bail!(
                    "arms.{name}: a factor sets engine keys, but start is another server: use args"
                );
            }
            let words = start.iter().cloned().chain(args).collect();
            return Ok(Way::Command(words, url.cloned()));
        }
        if !args.is_empty() {
            bail!("arms.{name}: a factor gives args, but there is no start to put them behind");
        }
        let is_engine = table.engine.is_some() || (url.is_none() && !self.suite.engine.is_empty());
        if is_engine {
            let mut settings = self.suite.engine.clone();
            settings.extend(table.engine.clone().unwrap_or_default());
            settings.extend(own);
            // Without settings of its own an arm is what [engine] says.
            let key = match table.engine {
                Some(_) => format!("arms.{name}.engine"),
                None => "engine".to_owned(),
            };
            let role = match table.topology {
                Some(_) => RoleBy::Router,
                None => RoleBy::Table,
            };
            let flags = flags(&key, &settings, self.folder, role)?;
            return Ok(match &table.topology {
                Some(topology) => Way::Command(behind_router(name, topology, flags)?, None),
                None => Way::Engine(flags),
            });
        }
        if table.topology.is_some() {
            bail!("arms.{name}.topology: only this project's engine is started so: give [engine]");
        }
        if !own.is_empty() {
            bail!("arms.{name}: a factor sets engine keys, but its server runs already");
        }
        let url = url.or(self.suite.bench.base_url.as_ref());
        Ok(url.map_or(Way::Unknown, |url| Way::Running(url.clone())))
    }

    fn condition(&self, combination: &Combination) -> Condition {
        let mut bench = BenchOptions::default();
        for level in self.chosen(combination) {
            bench = beside(level.bench.clone(), self.folder).over(bench);
        }
        let words = parts(combination);
        Condition {
            name: words.join(","),
            parts: words.into_iter().collect(),
            bench,
        }
    }
}

/// The command that starts engines with these flags, and the router before them.
fn behind_router(arm: &str, topology: &str, flags: Vec<String>) -> Result<Vec<String>> {
    if let Err(why) = topology.parse::<Topology>() {
        bail!("arms.{arm}.topology = {topology:?}: {why}");
    }
    let words = [
        "{program}",
        "router",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
    ];
    let words = words.into_iter().chain(["--topology", topology, "--"]);
    Ok(words.map(String::from).chain(flags).collect())
}

fn parts(combination: &Combination) -> Vec<String> {
    let part = |(factor, level): (&String, &String)| format!("{factor}={level}");
    combination.iter().map(part).collect()
}

/// What a factor varies, and its levels.
fn levels(name: &str, factor: &Factor) -> Result<(Side, NamedLevels)> {
    let mut levels = NamedLevels::new();
    match (&factor.key, factor.levels.is_empty()) {
        (Some(key), true) => {
            for value in &factor.values {
                let place = || format!("factors.{name}");
                let level = single(key, value).with_context(place)?;
                levels.push((level_name(value).with_context(place)?, level));
            }
        }
        (None, false) if factor.values.is_empty() => levels.extend(factor.levels.clone()),
        _ => bail!("factors.{name}: give key and values, or levels, and not both"),
    }
    for (i, (level, _)) in levels.iter().enumerate() {
        name_of(&format!("factors.{name}"), level)?;
        if levels[..i].iter().any(|(other, _)| other == level) {
            bail!("factors.{name}: the level {level} is there twice");
        }
    }
    if levels.is_empty() {
        bail!("factors.{name}: no levels: give some values");
    }
    let loads_only = levels
        .iter()
        .all(|(_, level)| level.engine.is_empty() && level.args.is_empty() && level.env.is_empty());
    let usual = if loads_only {
        Side::Condition
    } else {
        Side::Arm
    };
    let side = factor.of.unwrap_or(usual);
    if side == Side::Condition && !loads_only {
        bail!("factors.{name}: of = \"condition\", but it sets the server; use of = \"arm\"");
    }
    Ok((side, levels))
}

/// The level that sets one key.
fn single(key: &str, value: &Value) -> Result<Level> {
    let mut level = Level::default();
    match key.split_once('.') {
        Some(("engine", name)) => {
            level.engine.insert(name.to_owned(), value.clone());
        }
        Some(("env", name)) => {
            level.env.insert(name.to_owned(), level_name(value)?);
        }
        Some(("bench", name)) => {
            let table = Table::from_iter([(name.to_owned(), value.clone())]);
            let told = |error: toml::de::Error| anyhow::anyhow!("{}", error.message());
            level.bench = Value::Table(table).try_into().map_err(told)?;
        }
        _ => bail!("key = \"{key}\": write engine.KEY, bench.KEY or env.NAME"),
    }
    Ok(level)
}
