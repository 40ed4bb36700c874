//! Runs the cells of a plan, one after the other.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use pb_contract::{Clock, Nanos, WallClock};
use pb_judge::suite::{StopRule, looks};

use super::document::{CellNote, Document, Found, State};
use super::order::Step;
use super::plan::{CellId, Load, Plan, counted, least, seconds};
use super::server::Server;
use super::store::{CellState, Done, SUITE_FILE, Store};
use super::verdict::{Judged, Pair, Pairs, Rules, judged, pairs, settled};
use crate::interrupt::{Interrupt, Interrupted};
use crate::progress::Progress;
use crate::verbs::bench;
use crate::verbs::suite::{Comparison, Fresh};

/// Starts of one arm's server that may fail, one after the other, before the arm is left alone.
const FAILED_STARTS: usize = 2;

/// A run of a suite.
pub(crate) struct Runner {
    /// The plan.
    pub(crate) plan: Plan,
    /// Where it is kept.
    pub(crate) store: Store,
    /// The schedules of the conditions.
    pub(crate) loads: Vec<Load>,
    /// The cells that shall be run.
    pub(crate) chosen: Vec<CellId>,
    /// The wish to stop.
    pub(crate) interrupt: Interrupt,
    /// What people see.
    pub(crate) progress: Progress,
    done: BTreeMap<CellId, Done>,
    /// Of each condition the block from which on it needs none, as soon as that is known.
    closed_at: Vec<Option<usize>>,
    failed_starts: BTreeMap<usize, usize>,
}

impl Runner {
    /// Of a plan, with the cells that an earlier run finished; with `retry_void` without the
    /// blocks of which a cell is not valid.
    ///
    /// # Errors
    /// A cell that cannot be read, or that is a copy of another one.
    pub(crate) fn new(
        plan: Plan,
        store: Store,
        loads: Vec<Load>,
        chosen: Vec<CellId>,
        interrupt: Interrupt,
        retry_void: bool,
    ) -> Result<Runner> {
        let mut done: BTreeMap<CellId, Done> = BTreeMap::new();
        for cell in plan.chosen(&[])? {
            if let Some(finished) = store.done(&plan, cell)? {
                done.insert(cell, finished);
            }
        }
        no_copies(&plan, &done)?;
        if retry_void {
            let void = |(cell, finished): (&CellId, &Done)| {
                (!finished.reasons().is_empty()).then_some(cell.block)
            };
            let again: BTreeSet<usize> = done.iter().filter_map(void).collect();
            done.retain(|cell, _| !again.contains(&cell.block));
        }
        Ok(Runner {
            closed_at: vec![None; plan.suite.conditions.len()],
            plan,
            store,
            loads,
            chosen,
            interrupt,
            progress: Progress::new(),
            done,
            failed_starts: BTreeMap::new(),
        })
    }

    /// Runs what is missing and judges all of it.
    ///
    /// # Errors
    /// The directory cannot be written. A cell that fails is no error but a failed cell.
    pub(crate) fn run(&mut self) -> Result<Document> {
        let kept = self
            .chosen
            .iter()
            .filter(|cell| self.done.contains_key(cell))
            .count();
        if kept > 0 {
            let kept = counted(kept, "finished cell");
            self.progress
                .note(format!("{kept} of an earlier run: not repeated"));
        }
        for index in 0..self.plan.blocks.len() {
            self.close(index)?;
            for step in self.plan.blocks[index].steps.clone() {
                let cells = self.missing(index, &step);
                if !cells.is_empty() && !self.interrupt.signal().is_stopped() {
                    self.step(&cells)?;
                }
            }
            // Written after each block, so that a run that is watched can be read.
            let document = self.document()?;
            pb_record::write_json_atomic(&self.store.dir().join(SUITE_FILE), &document)?;
        }
        self.progress.clear();
        self.document()
    }

    /// The cells of a step that have to be run now.
    fn missing(&self, block: usize, step: &Step) -> Vec<CellId> {
        let given_up = self.is_given_up(step.arm);
        let cells = step.conditions.iter().map(|&condition| CellId {
            block,
            condition,
            arm: step.arm,
        });
        let wanted = |cell: &CellId| {
            !self.is_closed(*cell)
                && !given_up
                && self.chosen.contains(cell)
                && !self.done.contains_key(cell)
        };
        cells.filter(wanted).collect()
    }

    /// Whether an arm is left alone, since its server does not start.
    fn is_given_up(&self, arm: usize) -> bool {
        self.failed_starts.get(&arm) >= Some(&FAILED_STARTS)
    }

    /// Why the cells of an arm that is left alone are missing.
    fn left_alone(&self, arm: usize) -> String {
        format!(
            "not run: the server of {} did not start {FAILED_STARTS} times in a row, so the arm is \
             left alone; run the suite again when it starts",
            self.plan.suite.arms[arm].name
        )
    }

    /// Closes the conditions that the blocks before `block` settled.
    fn close(&mut self, block: usize) -> Result<()> {
        let rules = self.rules();
        let looks_here = match rules.stop {
            StopRule::Fixed => false,
            StopRule::Sequential => true,
            StopRule::Spending => looks(rules.blocks).contains(&block),
        };
        if !looks_here {
            return Ok(());
        }
        let (comparisons, pairs) = (&self.plan.suite.comparisons, self.pairs(block));
        let judged = judged(comparisons, &pairs, &rules)?;
        let settled = settled(comparisons, &judged, self.closed_at.len());
        for (closed_at, settled) in self.closed_at.iter_mut().zip(settled) {
            *closed_at = closed_at.or(settled.then_some(block));
        }
        Ok(())
    }

    fn is_closed(&self, cell: CellId) -> bool {
        self.closed_at[cell.condition].is_some_and(|from| cell.block >= from)
    }

    /// Starts a server, runs its cells, ends it.
    fn step(&mut self, cells: &[CellId]) -> Result<()> {
        let first = cells[0];
        let alone = self.plan.suite.run.fresh == Fresh::Cell;
        for &cell in cells {
            self.store.begin(&self.plan, cell)?;
        }
        let log = self.store.log(&self.plan, first, alone)?;
        self.progress.phase(format!(
            "{}: starting its server{}",
            self.plan.label(first),
            self.left()
        ));
        let start = WallClock.now();
        let arm = &self.plan.suite.arms[first.arm];
        let server = Server::start(arm, &log, &self.interrupt);
        let mut server = match server {
            Ok(server) => server,
            Err(error) => {
                let stopped = error.is::<Interrupted>() || self.interrupt.signal().is_stopped();
                if !stopped {
                    *self.failed_starts.entry(first.arm).or_default() += 1;
                }
                for &cell in cells {
                    self.failed(cell, &error, stopped, start)?;
                }
                if self.is_given_up(first.arm) {
                    self.progress.note(self.left_alone(first.arm));
                }
                return Ok(());
            }
        };
        self.failed_starts.remove(&first.arm);
        let mut begun = start;
        for &cell in cells {
            self.cell(cell, &mut server, begun)?;
            begun = WallClock.now();
        }
        Ok(())
    }

    fn cell(&mut self, cell: CellId, server: &mut Server, begun: Nanos) -> Result<()> {
        if self.interrupt.signal().is_stopped() {
            return self.failed(cell, &Interrupted.into(), true, begun);
        }
        self.progress
            .phase(format!("{}{}", self.plan.label(cell), self.left()));
        let mut options = self.plan.options(cell, server.base_url());
        options.out = Some(self.store.cell(&self.plan, cell));
        let suite = &self.plan.suite;
        let receipt = suite.receipt(
            Some(&suite.arms[cell.arm]),
            &suite.conditions[cell.condition],
        );
        // What every cell says of its server and its stages is in its directory, too.
        let measured = bench::measure(options, receipt, &self.interrupt, Progress::quiet());
        let stopped = self.interrupt.signal().is_stopped();
        let measured = match measured {
            Ok(measured) if !stopped => measured,
            Ok(_) => return self.failed(cell, &Interrupted.into(), true, begun),
            Err(error) => return self.failed(cell, &error, stopped, begun),
        };
        if server.is_gone() {
            let error = anyhow::anyhow!("the server ended during the cell; see its server.log");
            return self.failed(cell, &error, false, begun);
        }
        let wall_ns = WallClock.now() - begun;
        self.store
            .note(&self.plan, cell, CellState::Complete, None, wall_ns)?;
        let done = Done {
            document: serde_json::to_value(&measured)?,
            wall_ns,
            fingerprint: None,
        };
        for reason in done.reasons() {
            let label = self.plan.label(cell);
            self.progress.note(format!(
                "{label}: not valid: {}",
                pb_record::visible(&reason)
            ));
        }
        self.done.insert(cell, done);
        Ok(())
    }

    fn failed(
        &mut self,
        cell: CellId,
        error: &anyhow::Error,
        stopped: bool,
        begun: Nanos,
    ) -> Result<()> {
        let (state, why) = match stopped {
            true => (CellState::Interrupted, "stopped by hand".to_owned()),
            false => (CellState::Failed, format!("{error:#}")),
        };
        if !stopped {
            let lines = why.lines().map(pb_record::visible);
            let lines: Vec<String> = lines.collect();
            self.progress.note(format!(
                "{}: failed: {}",
                self.plan.label(cell),
                lines.join("\n  ")
            ));
        }
        let wall_ns = WallClock.now() - begun;
        self.store.note(&self.plan, cell, state, Some(why), wall_ns)
    }

    /// What is left, by what the finished cells took.
    fn left(&self) -> String {
        let left: Vec<CellId> = self
            .chosen
            .iter()
            .copied()
            .filter(|cell| !self.done.contains_key(cell))
            .collect();
        let walls: Vec<u64> = self.done.values().map(|done| done.wall_ns.0).collect();
        let time = match walls.len() as u64 {
            0 => least(&self.loads, &left),
            n => Nanos((walls.iter().sum::<u64>() / n).saturating_mul(left.len() as u64)),
        };
        format!(
            " ({} left, about {})",
            counted(left.len(), "cell"),
            seconds(time)
        )
    }

    fn rules(&self) -> Rules {
        let run = &self.plan.suite.run;
        Rules {
            stop: run.stop,
            blocks: run.blocks.max(2),
            alpha: run.alpha,
            least_success: run.least_success,
        }
    }

    /// The pairs of every comparison in the blocks before `blocks`.
    fn pairs(&self, blocks: usize) -> Vec<Pairs> {
        let comparisons = self.plan.suite.comparisons.iter();
        let of = |comparison: &Comparison| {
            let pair = |block| -> Pair<'_> {
                let cell = |arm| {
                    let condition = comparison.condition;
                    self.done.get(&CellId {
                        block,
                        condition,
                        arm,
                    })
                };
                (cell(comparison.baseline), cell(comparison.candidate))
            };
            let all: Vec<Pair<'_>> = (0..blocks).map(pair).collect();
            pairs(comparison, &all, self.plan.suite.run.least_success)
        };
        comparisons.map(of).collect()
    }

    fn document(&self) -> Result<Document> {
        let blocks = self.plan.blocks.len();
        let pairs = self.pairs(blocks);
        let judged: Vec<Judged> = judged(&self.plan.suite.comparisons, &pairs, &self.rules())?;
        let mut cells = Vec::new();
        for cell in self.plan.chosen(&[])? {
            if self.done.contains_key(&cell) || !self.is_closed(cell) {
                cells.push(self.note(cell)?);
            }
        }
        let missing = cells.iter().any(|cell| cell.state != "complete");
        let state = match (missing, self.interrupt.signal().is_stopped()) {
            (false, _) => State::Complete,
            (true, true) => State::Interrupted,
            (true, false) => State::Incomplete,
        };
        Ok(Document::of(Found {
            plan: &self.plan,
            state,
            cells,
            pairs: &pairs,
            judged: &judged,
        }))
    }

    fn note(&self, cell: CellId) -> Result<CellNote> {
        let told = self.store.told(&self.plan, cell)?;
        let done = self.done.get(&cell);
        let state = match (&told, done) {
            (_, Some(_)) => "complete".to_owned(),
            (Some(file), None) => {
                let name = serde_json::to_value(file.state)?;
                name.as_str().unwrap_or_default().to_owned()
            }
            (None, None) => "missing".to_owned(),
        };
        let gates = done.and_then(|done| done.document["gates"].as_array());
        let failed = gates
            .into_iter()
            .flatten()
            .filter(|gate| gate["pass"] == false);
        let names = failed.filter_map(|gate| gate["name"].as_str().map(str::to_owned));
        Ok(CellNote {
            block: cell.block,
            condition: self.plan.suite.conditions[cell.condition].name.clone(),
            arm: self.plan.suite.arms[cell.arm].name.clone(),
            seed: self.plan.blocks[cell.block].seed,
            dir: self.plan.folder(cell),
            state,
            valid: done.map(|done| done.reasons().is_empty()),
            reasons: match done {
                Some(done) => done.reasons(),
                None => told
                    .as_ref()
                    .and_then(|file| file.why.clone())
                    .or_else(|| {
                        self.is_given_up(cell.arm)
                            .then(|| self.left_alone(cell.arm))
                    })
                    .into_iter()
                    .collect(),
            },
            drifts: done.map(Done::drifts).unwrap_or_default(),
            schedule_sha256: done.map(|done| done.schedule().to_owned()),
            success_rate: done.and_then(Done::success),
            gates_failed: names.collect(),
            wall_s: done.map(|done| done.wall_ns.as_secs_f64()),
        })
    }
}

/// A cell that was copied over another one is no second measurement.
///
/// # Errors
/// Two finished cells with the same instants.
fn no_copies(plan: &Plan, done: &BTreeMap<CellId, Done>) -> Result<()> {
    let mut seen: BTreeMap<u64, CellId> = BTreeMap::new();
    for (&cell, finished) in done {
        let first = finished
            .fingerprint
            .and_then(|hash| seen.insert(hash, cell));
        if let Some(first) = first {
            bail!(
                "{} and {} are the same run: a copy is no second measurement; remove the copy, and \
                 its cell is run",
                plan.folder(first),
                plan.folder(cell)
            );
        }
    }
    Ok(())
}
