//! The answer, as `--json` prints it. A key is never left out; what was not measured is null.

use serde::Serialize;

use super::experiment::Experiment;

/// Version of the document's keys.
pub const SCHEMA_VERSION: u32 = 1;

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// At least one symptom has a hypothesis that leads.
    Leading,
    /// None has one.
    InsufficientEvidence,
    /// The run must not be used.
    Void,
}

impl Outcome {
    /// Exit code: 0 with a leading hypothesis, else 3.
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Leading => 0,
            Outcome::InsufficientEvidence | Outcome::Void => 3,
        }
    }
}

/// How a hypothesis stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It alone explains its symptom: to be tested next.
    Leading,
    /// It explains its symptom, and so does another, or the run is void.
    Supported,
    /// Something that was measured speaks against it.
    Against,
    /// What was measured neither shows nor refutes it.
    Open,
}

impl State {
    /// As a table shows it.
    pub fn word(self) -> &'static str {
        match self {
            State::Leading => "leading",
            State::Supported => "supported",
            State::Against => "against",
            State::Open => "open",
        }
    }
}

/// What a client suffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SymptomName {
    /// The longest gaps between tokens are far above the shortest ones.
    TokenGaps,
    /// The latest first tokens are far later than the earliest ones.
    FirstTokens,
}

impl SymptomName {
    /// As a sentence says it.
    pub fn words(self) -> &'static str {
        match self {
            SymptomName::TokenGaps => "long gaps between tokens",
            SymptomName::FirstTokens => "late first tokens",
        }
    }
}

/// Where a part of the time went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartTime {
    /// Name of the part.
    pub part: &'static str,
    /// In the undisturbed ones, mean in ms.
    pub calm_ms: f64,
    /// In the longest ones, mean in ms.
    pub slow_ms: f64,
    /// Of what the longest have more, 0 to 1; negative where they have less.
    pub share: f64,
}

/// A symptom as measured by the client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Symptom {
    /// Which.
    pub name: SymptomName,
    /// Whether it is there; null when too little was measured to tell.
    pub present: Option<bool>,
    /// Values measured.
    pub n: u64,
    /// Mean of the undisturbed ones in ms.
    pub calm_ms: Option<f64>,
    /// Mean of the longest ones in ms.
    pub slow_ms: Option<f64>,
    /// What is meant by these, and what was found.
    pub text: String,
    /// Where the time went; empty where the engine's steps are not known.
    pub parts: Vec<PartTime>,
    /// Its leading hypothesis.
    pub leading: Option<String>,
}

/// A hypothesis, held against the rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hypothesis {
    /// Name.
    pub id: &'static str,
    /// What it claims.
    pub claim: &'static str,
    /// The symptom that it would explain.
    pub symptom: SymptomName,
    /// How it stands.
    pub state: State,
    /// Share of the symptom's time that its mechanism took; null when that is not known.
    pub share: Option<f64>,
    /// What speaks for it.
    #[serde(rename = "for")]
    pub speaks_for: Vec<String>,
    /// What speaks against it.
    pub against: Vec<String>,
    /// What was not measured.
    pub missing: Vec<String>,
    /// What would decide.
    pub experiment: Experiment,
}

/// Something that is required before anything is changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// Which.
    pub name: &'static str,
    /// Whether the run has it.
    pub present: bool,
    /// What it says, or what is missing.
    pub text: String,
}

/// The blocks of the KV pool over the steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Buckets {
    /// Size of the pool.
    pub pool: u64,
    /// Most blocks with a reference.
    pub active_max: u64,
    /// Most blocks without one whose data is valid.
    pub reclaimable_max: u64,
    /// Fewest blocks that are free or reclaimable.
    pub available_min: u64,
    /// Blocks with a reference, mean over time, as a share of the pool.
    pub active_mean_share: f64,
    /// Whether the count of free blocks has the reclaimable ones in it.
    pub free_includes_reclaimable: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The run.
    pub run: String,
    /// Its arm.
    pub arm: String,
    /// What came out.
    pub outcome: Outcome,
    /// Exit code of the program.
    pub exit_code: u8,
    /// The same in a sentence.
    pub sentence: String,
    /// A hard failure was seen, and what may be done at once.
    pub containment: Option<String>,
    /// Why the run must not be used.
    pub void: Vec<String>,
    /// The evidence that is required before a change.
    pub evidence: Vec<Evidence>,
    /// The pool; null where the steps are not known.
    pub buckets: Option<Buckets>,
    /// Hypothesis whose experiment comes next.
    pub next: Option<String>,
    /// Symptoms.
    pub symptoms: Vec<Symptom>,
    /// Hypotheses.
    pub hypotheses: Vec<Hypothesis>,
}

impl Diagnosis {
    /// The suite of the next experiment.
    pub fn next_suite(&self) -> Option<&str> {
        let next = self.next.as_deref()?;
        let found = self.hypotheses.iter().find(|h| h.id == next)?;
        Some(&found.experiment.suite)
    }
}

/// The answer in words. A cause is never named: what leads is to be tested.
pub(super) fn sentence(
    outcome: Outcome,
    symptoms: &[Symptom],
    hypotheses: &[Hypothesis],
    rival: bool,
) -> String {
    match outcome {
        Outcome::Void => "VOID: the run must not be used, so nothing is concluded from it".into(),
        Outcome::Leading => {
            let leads = symptoms.iter().filter_map(|symptom| {
                let id = symptom.leading.as_deref()?;
                let hypothesis = hypotheses.iter().find(|h| h.id == id)?;
                let words = symptom.name.words();
                Some(format!("for {words}, {id} ({})", hypothesis.claim))
            });
            let leads: Vec<String> = leads.collect();
            format!(
                "LEADING, to be tested by the suite below and not shown yet: {}",
                leads.join("; ")
            )
        }
        Outcome::InsufficientEvidence => {
            let why = match (rival, symptoms.iter().any(|s| s.present == Some(true))) {
                (true, _) => "several hypotheses explain the same time",
                (false, true) => "no hypothesis is shown by what was measured",
                (false, false) if symptoms.iter().any(|s| s.present.is_none()) => {
                    "too little was measured to see a symptom"
                }
                (false, false) => "the run shows no symptom to explain",
            };
            format!("INSUFFICIENT EVIDENCE: {why}; change nothing on its account")
        }
    }
}
