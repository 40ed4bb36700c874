//! The result of a gate: one document, its keys fixed by `docs/schema/gate-1.schema.json`.

use serde::Serialize;

use crate::compare::{Comparison, Receipt};
use crate::verdict::Interval;

/// Version of the document's keys.
pub const SCHEMA_VERSION: u32 = 1;

/// What a gate came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GateOutcome {
    /// Every rule is met.
    Pass,
    /// At least one is broken.
    Fail,
    /// None is broken, and at least one cannot be decided.
    Inconclusive,
    /// A run must not be used.
    Void,
}

impl GateOutcome {
    /// Process exit code: 0 pass, 1 fail, 3 inconclusive or void.
    pub fn exit_code(self) -> u8 {
        match self {
            GateOutcome::Pass => 0,
            GateOutcome::Fail => 1,
            GateOutcome::Inconclusive | GateOutcome::Void => 3,
        }
    }

    /// The word of the headline.
    pub fn word(self) -> &'static str {
        match self {
            GateOutcome::Pass => "PASS",
            GateOutcome::Fail => "FAIL",
            GateOutcome::Inconclusive => "INCONCLUSIVE",
            GateOutcome::Void => "VOID",
        }
    }
}

/// What one rule came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Met.
    Pass,
    /// Broken.
    Fail,
    /// The data cannot tell.
    Inconclusive,
    /// A run must not be used.
    Void,
    /// Not judged, because a rule before it is broken.
    Skipped,
}

impl State {
    /// The word of tables.
    pub fn word(self) -> &'static str {
        match self {
            State::Pass => "pass",
            State::Fail => "fail",
            State::Inconclusive => "inconclusive",
            State::Void => "void",
            State::Skipped => "not judged",
        }
    }
}

/// The kind of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Share of the requests that ended well.
    Success,
    /// Outputs that were checked.
    Outputs,
    /// A limit on the candidate.
    Limit,
    /// A change against the baseline.
    Change,
}

impl Kind {
    /// The word of the document.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Success => "success",
            Kind::Outputs => "outputs",
            Kind::Limit => "limit",
            Kind::Change => "change",
        }
    }
}

/// One rule and what was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleResult {
    /// The rule in words, unique within the gate.
    pub rule: String,
    /// Its kind.
    pub kind: Kind,
    /// The metric; absent for outputs.
    pub metric: Option<String>,
    /// The metric's unit.
    pub unit: Option<String>,
    /// What it came to.
    pub state: State,
    /// Why, in one sentence.
    pub why: String,
    /// The limit in the metric's unit, or the margin.
    pub limit: Option<f64>,
    /// The baseline's value, median over blocks.
    pub baseline: Option<f64>,
    /// The candidate's value: median over blocks, of the success rate over all requests.
    pub candidate: Option<f64>,
    /// What the rule looks at, at `1 - 2 alpha`: the candidate's value of a limit, the ratio or
    /// the difference of a change.
    pub interval: Option<Interval>,
    /// For an undecided change, blocks that would show one below the margin if there is none.
    pub blocks_needed: Option<usize>,
}

/// The policy as applied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyReceipt {
    /// Its name.
    pub name: String,
    /// Level of every claim.
    pub alpha: f64,
    /// Fewest blocks.
    pub min_blocks: usize,
    /// Power at which blocks are planned.
    pub power: f64,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GateReport {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What it came to.
    pub outcome: GateOutcome,
    /// Process exit code.
    pub exit_code: u8,
    /// The result in one sentence.
    pub sentence: String,
    /// The policy.
    pub policy: PolicyReceipt,
    /// Why the runs must not be used; empty when they may.
    pub void: Vec<String>,
    /// The rules in the order of the judgement.
    pub rules: Vec<RuleResult>,
    /// The candidate's runs.
    pub candidate: Vec<Receipt>,
    /// The comparison behind the rules on changes; absent without such rules.
    pub comparison: Option<Comparison>,
}

impl GateReport {
    /// Rules in a state.
    pub fn count(&self, state: State) -> usize {
        self.rules.iter().filter(|rule| rule.state == state).count()
    }
}
