//! What a run of a suite will do, all of it checked before anything is started.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, Result, bail};
use pb_contract::Nanos;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::checks::{check, known_ids};
use super::order::{Block, Blocks};
use crate::args::{BenchOptions, Warmup};
use crate::machine;
use crate::verbs::bench::{self, Known, Settings, TargetTokenizer};
use crate::verbs::suite::{Resolved, Selector, Way};

/// Seed of a suite that names none.
const SEED: u64 = 1;

/// Most cells of a suite.
const MOST_CELLS: usize = 10_000;

/// Longest name of an arm or a condition: both are directories, and files beside them have more.
const LONGEST_NAME: usize = 200;

/// Stands for the address of a server that is not started yet.
const LATER: &str = "http://127.0.0.1:1";

/// What a calibration takes: about two seconds of load (`docs/BENCH.md`).
const CALIBRATION: Nanos = Nanos::from_secs(2);

/// A cell by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CellId {
    /// Block.
    pub(crate) block: usize,
    /// Condition.
    pub(crate) condition: usize,
    /// Arm.
    pub(crate) arm: usize,
}

/// A suite with its blocks.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The suite.
    pub(crate) suite: Resolved,
    /// The suite's seed.
    pub(crate) seed: u64,
    /// The blocks, in order.
    pub(crate) blocks: Vec<Block>,
    /// sha256 of everything that decides what is run and concluded.
    pub(crate) sha256: String,
    /// The same, readable; without what may be keys.
    pub(crate) facts: Value,
}

impl Plan {
    /// Plans a suite.
    ///
    /// # Errors
    /// Settings that no cell can be run with, arms under different schedules, too many cells.
    pub(crate) fn of(suite: Resolved) -> Result<Plan> {
        if suite.arms.is_empty() {
            bail!(
                "arms: the suite names no server: add [arms.NAME], or [engine] for our own; a \
                 suite that is a load only is for `prefillbench bench --suite FILE --base-url URL`"
            );
        }
        let cells = suite.arms.len() * suite.conditions.len() * suite.run.blocks;
        if cells > MOST_CELLS {
            bail!(
                "the suite has {cells} cells; at most {MOST_CELLS} can be run: take fewer blocks"
            );
        }
        let arms = suite.arms.iter().map(|arm| &arm.name);
        let names = arms.chain(suite.conditions.iter().map(|condition| &condition.name));
        if let Some(name) = names.into_iter().find(|name| name.len() > LONGEST_NAME) {
            bail!(
                "{name}: too long for the name of a directory; shorten names of factors or levels"
            );
        }
        check(&suite)?;
        let seed = suite.bench.seed.unwrap_or(SEED);
        let blocks = Blocks {
            seed,
            arms: suite.arms.len(),
            conditions: suite.conditions.len(),
            blocks: suite.run.blocks,
            fresh: suite.run.fresh,
            seeds: suite.run.seeds.clone(),
        };
        let facts = json!({
            "suite": suite.facts()?,
            "seed": seed,
            "tool": machine::tool(),
            "machine": place(),
        });
        let envs: Vec<_> = suite.arms.iter().map(|arm| &arm.env).collect();
        let all = serde_json::to_vec(&json!({"facts": facts, "env": envs}))?;
        Ok(Plan {
            sha256: hex(&Sha256::digest(&all)),
            blocks: blocks.all(),
            seed,
            facts,
            suite,
        })
    }

    /// Cells of the suite.
    pub(crate) fn cells(&self) -> usize {
        self.suite.arms.len() * self.suite.conditions.len() * self.blocks.len()
    }

    /// The settings of a cell; its server is at `url`.
    pub(crate) fn options(&self, cell: CellId, url: &str) -> BenchOptions {
        let (arm, condition) = (
            &self.suite.arms[cell.arm],
            &self.suite.conditions[cell.condition],
        );
        let mut options = self.suite.options(arm, condition);
        options.base_url = Some(url.to_owned());
        options.seed = Some(self.blocks[cell.block].seed);
        options
    }

    /// For people: `block 3, rate=8, budget=32`.
    pub(crate) fn label(&self, cell: CellId) -> String {
        let arm = &self.suite.arms[cell.arm].name;
        match self.suite.conditions[cell.condition].name.as_str() {
            "" => format!("block {}, {arm}", cell.block),
            condition => format!("block {}, {condition}, {arm}", cell.block),
        }
    }

    /// Where a cell lies below the directory of the suite.
    pub(crate) fn folder(&self, cell: CellId) -> String {
        let arm = &self.suite.arms[cell.arm].name;
        match self.suite.conditions[cell.condition].name.as_str() {
            "" => format!("cells/block-{:03}/{arm}", cell.block),
            condition => format!("cells/block-{:03}/{condition}/{arm}", cell.block),
        }
    }

    /// The schedule of each condition in the first block, which all its arms must share.
    ///
    /// # Errors
    /// A workload that cannot be made, or arms whose schedules differ.
    pub(crate) fn loads(&self) -> Result<Vec<Load>> {
        let mut loads: Vec<Load> = Vec::new();
        for condition in 0..self.suite.conditions.len() {
            let mut first: Option<(usize, Load)> = None;
            for arm in 0..self.suite.arms.len() {
                let cell = CellId {
                    block: 0,
                    condition,
                    arm,
                };
                let load = self.load(cell).with_context(|| self.label(cell))?;
                match &first {
                    None => first = Some((arm, load)),
                    Some((other, known)) if known.sha256 != load.sha256 => bail!(
                        "the arms {} and {} have different schedules, so nothing can be compared; \
                         a setting under `bench` of an arm or of one of its factors changes the \
                         load: move it to [bench], or make it a factor of = \"condition\"",
                        self.suite.arms[*other].name,
                        self.suite.arms[arm].name
                    ),
                    Some(_) => {}
                }
            }
            loads.extend(first.map(|(_, load)| load));
        }
        self.check_classes(&loads)?;
        Ok(loads)
    }

    /// A hypothesis about a class that its load does not have would be found out after the run.
    fn check_classes(&self, loads: &[Load]) -> Result<()> {
        for comparison in &self.suite.comparisons {
            let load = loads.get(comparison.condition);
            let (Some(class), Some(load)) = (comparison.question.metric.class(), load) else {
                continue;
            };
            if !load.classes.contains(class) {
                let known: Vec<&str> = load.classes.iter().map(String::as_str).collect();
                let condition = match self.suite.conditions[comparison.condition].name.as_str() {
                    "" => String::new(),
                    name => format!(" under {name}"),
                };
                bail!(
                    "hypothesis \"{}\": metric = \"{}\": no request{condition} is of class \
                     \"{}\"; there are: {}",
                    pb_record::visible(&comparison.hypothesis),
                    pb_record::visible(&comparison.question.metric.name),
                    pb_record::visible(class),
                    known.join(" ")
                );
            }
        }
        Ok(())
    }

    fn load(&self, cell: CellId) -> Result<Load> {
        let settings = Settings::new(self.options(cell, LATER), true)?;
        known_ids(&self.suite.arms[cell.arm], &settings)?;
        let tokenizer = settings.options.tokenizer.as_deref();
        let tokenizer = tokenizer.map(TargetTokenizer::read).transpose()?;
        let schedule = bench::schedule(&settings, tokenizer.as_ref(), Known::default())?;
        let facts = &schedule.planned.facts;
        let timed = settings.shape.duration_s.map(Nanos::from_secs_f64);
        let closed = !schedule.plan.closed.is_empty();
        // The horizon of a closed loop without a duration is that of its last request at most.
        let horizon =
            (closed && facts.dataset == "interference").then_some(schedule.plan.horizon_ns);
        let warmup = match settings.warmup {
            Some(Warmup::Seconds(seconds)) => Nanos::from_secs_f64(seconds),
            Some(Warmup::Requests(_)) | None => Nanos::ZERO,
        };
        let calibration = if settings.calibrate {
            CALIBRATION
        } else {
            Nanos::ZERO
        };
        let span = [Some(facts.span_ns), timed, horizon]
            .into_iter()
            .flatten()
            .max();
        Ok(Load {
            requests: facts.requests,
            least: span.unwrap_or(Nanos::ZERO) + warmup + calibration,
            classes: bench::classes(&schedule.plan),
            sha256: schedule.sha256,
        })
    }

    /// What `--dry-run` prints for people.
    pub(crate) fn text(&self, loads: &[Load], chosen: &[CellId]) -> String {
        let suite = &self.suite;
        let mut out = String::new();
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "{}",
            wrapped(&format!("suite {}:", suite.name), &suite.question, 2)
        );
        let _ = writeln!(
            out,
            "{}, {}, {}: {}, {} of them to be run; seed {}",
            counted(suite.arms.len(), "arm"),
            counted(suite.conditions.len(), "condition"),
            counted(self.blocks.len(), "block"),
            counted(self.cells(), "cell"),
            chosen.len(),
            self.seed
        );
        for arm in &suite.arms {
            let how = match &arm.way {
                Way::Running(url) => format!("runs at {url}"),
                _ => pb_record::visible(&arm.command().join(" ")),
            };
            let _ = writeln!(out, "{}", wrapped(&format!("  arm {}:", arm.name), &how, 4));
        }
        for (condition, load) in suite.conditions.iter().zip(loads) {
            let name = if condition.name.is_empty() {
                "the load"
            } else {
                &condition.name
            };
            let _ = writeln!(
                out,
                "  {name}: {} in block 0, at least {} a cell, schedule {}",
                counted(load.requests, "request"),
                seconds(load.least),
                &load.sha256[..12]
            );
        }
        let _ = writeln!(out, "{}", counted(suite.comparisons.len(), "comparison"));
        for block in &self.blocks {
            let cells = self.names(block, chosen);
            if !cells.is_empty() {
                let head = format!("block {}, seed {}:", block.index, block.seed);
                let _ = writeln!(out, "{}", wrapped(&head, &cells.join(" | "), 2));
            }
        }
        let _ = write!(
            out,
            "at least {} of load; the start of servers, the state of caches and late answers come \
             on top\nsuite sha256 {}",
            seconds(least(loads, chosen)),
            self.sha256
        );
        out
    }

    /// The chosen cells of a block, in the order in which they are run.
    fn names(&self, block: &Block, chosen: &[CellId]) -> Vec<String> {
        let suite = &self.suite;
        let cells = block.steps.iter().flat_map(|step| {
            step.conditions.iter().map(|&condition| CellId {
                block: block.index,
                condition,
                arm: step.arm,
            })
        });
        let name = |cell: CellId| {
            let names = [
                &suite.conditions[cell.condition].name,
                &suite.arms[cell.arm].name,
            ];
            let names = names.into_iter().filter(|name| !name.is_empty());
            names.cloned().collect::<Vec<_>>().join(" ")
        };
        cells
            .filter(|cell| chosen.contains(cell))
            .map(name)
            .collect()
    }

    /// The cells that `--only` names; all without it.
    ///
    /// # Errors
    /// A block or an arm that does not exist.
    pub(crate) fn chosen(&self, only: &[String]) -> Result<Vec<CellId>> {
        let filters: Vec<Filter> = only
            .iter()
            .map(|text| Filter::parse(text, self))
            .collect::<Result<_>>()?;
        let mut chosen = Vec::new();
        for block in &self.blocks {
            for step in &block.steps {
                for &condition in &step.conditions {
                    let cell = CellId {
                        block: block.index,
                        condition,
                        arm: step.arm,
                    };
                    if filters.is_empty() || filters.iter().any(|one| one.takes(cell, self)) {
                        chosen.push(cell);
                    }
                }
            }
        }
        Ok(chosen)
    }
}

/// What is known of a cell's load before it is run.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Requests.
    pub(crate) requests: usize,
    /// Time that it takes at least.
    pub(crate) least: Nanos,
    /// Hash of the schedule.
    pub(crate) sha256: String,
    /// Classes of its requests.
    pub(crate) classes: BTreeSet<String>,
}

/// The time that these cells take at least.
pub(crate) fn least(loads: &[Load], cells: &[CellId]) -> Nanos {
    let of = |cell: &CellId| loads.get(cell.condition).map_or(0, |load| load.least.0);
    Nanos(cells.iter().map(of).fold(0, u64::saturating_add))
}

/// A number of things: `1 cell`, `2 cells`.
pub(crate) fn counted(n: usize, thing: &str) -> String {
    match n {
        1 => format!("1 {thing}"),
        n => format!("{n} {thing}s"),
    }
}

/// A time for people.
pub(crate) fn seconds(time: Nanos) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 100.0 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match (whole / 3600, whole % 3600 / 60, whole % 60) {
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// What `--only` names.
struct Filter {
    block: Option<usize>,
    parts: Selector,
}

impl Filter {
    fn parse(text: &str, plan: &Plan) -> Result<Filter> {
        let shown = pb_record::visible(text);
        let (block, parts) = text.split_once('/').with_context(|| {
            format!("--only {shown}: write BLOCK/ARM, for example 0/* or */NAME")
        })?;
        let block = match block {
            "*" => None,
            number => {
                let number: Option<usize> = number.parse().ok();
                let number = number.filter(|number| *number < plan.blocks.len());
                let blocks = plan.blocks.len();
                Some(number.with_context(|| {
                    format!("--only {shown}: blocks are 0 to {}, or *", blocks - 1)
                })?)
            }
        };
        let arms = plan.suite.arms.iter().flat_map(|arm| arm.parts.iter());
        let conditions = plan.suite.conditions.iter().flat_map(|c| c.parts.iter());
        let known = arms.chain(conditions).cloned().collect();
        Ok(Filter {
            block,
            parts: Selector::parse("--only", parts, &known)?,
        })
    }

    fn takes(&self, cell: CellId, plan: &Plan) -> bool {
        let own = &plan.suite.arms[cell.arm].parts;
        let all = own.union(&plan.suite.conditions[cell.condition].parts);
        self.block.is_none_or(|block| block == cell.block)
            && self.parts.matches(&all.cloned().collect())
    }
}

/// The machine without what changes by itself.
fn place() -> Value {
    let machine = machine::machine();
    json!({"cpu": machine.cpu, "cores": machine.cores, "isa": machine.isa, "os": machine.os})
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `head` and `text` in lines of at most 98 characters, all but the first indented.
pub(crate) fn wrapped(head: &str, text: &str, indent: usize) -> String {
    let mut out = head.to_owned();
    let mut width = head.chars().count();
    for word in pb_record::visible(text.trim()).split_whitespace() {
        let length = word.chars().count();
        if width + 1 + length > 98 {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            width = indent;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += length;
    }
    out
}
