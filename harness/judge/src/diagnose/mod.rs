//! What may be wrong with a server, from what a run of it left behind.
//!
//! A symptom proves no cause: long gaps between tokens look alike whether whole prompts run
//! between them, a lock is waited for, keys are read, or requests are thrown out of the pool. So
//! every hypothesis is put to the rows by the time that its mechanism took out of the symptom, and
//! gets what speaks for it, what speaks against it, and what was not measured. One that alone
//! explains its symptom *leads*, which means that it is to be tested next, by the suite that comes
//! with it. Where rows are missing, or two explain the same, the answer is that the evidence is
//! insufficient. A correlation is told and never decides.
//!
//! Pure: rows in, one document out. Times are accounted for in `account`, the rules are in
//! `of_gaps` and `of_first_tokens`, the experiments in `experiment`.

mod account;
mod case;
mod document;
mod evidence;
mod experiment;
mod of_first_tokens;
mod of_gaps;
mod queue;
mod rules;
mod suite;

pub use account::Part;
pub use case::{Case, EngineFacts};
pub use document::{
    Buckets, Diagnosis, Evidence, Hypothesis, Outcome, PartTime, SCHEMA_VERSION, State, Symptom,
    SymptomName,
};
pub use experiment::Experiment;

use account::{Timelines, TokenGaps};
use queue::FirstTokens;
use rules::{Facts, judged};

/// Judges what a case shows.
pub fn diagnose(case: &Case<'_>) -> Diagnosis {
    let timelines = Timelines::of(case);
    let gaps = TokenGaps::of(case, &timelines);
    let first_tokens = FirstTokens::of(case, &timelines);
    let facts = Facts::of(case, &timelines, &gaps, &first_tokens);
    let mut symptoms = vec![gaps.symptom(), first_tokens.symptom()];
    let mut hypotheses = judged(&facts, &symptoms);
    for hypothesis in &mut hypotheses {
        hypothesis.experiment = experiment::of(hypothesis.id, &facts);
    }
    let rival = rivals(&mut symptoms, &mut hypotheses);
    let outcome = match (
        case.void.is_empty(),
        symptoms.iter().any(|s| s.leading.is_some()),
    ) {
        (false, _) => Outcome::Void,
        (true, true) => Outcome::Leading,
        (true, false) => Outcome::InsufficientEvidence,
    };
    if outcome == Outcome::Void {
        symptoms
            .iter_mut()
            .for_each(|symptom| symptom.leading = None);
        let leads = hypotheses.iter_mut().filter(|h| h.state == State::Leading);
        leads.for_each(|hypothesis| hypothesis.state = State::Supported);
    }
    let sentence = document::sentence(outcome, &symptoms, &hypotheses, rival);
    Diagnosis {
        schema_version: SCHEMA_VERSION,
        run: case.run.clone(),
        arm: case.arm.to_owned(),
        outcome,
        exit_code: outcome.exit_code(),
        sentence,
        containment: evidence::containment(case),
        void: case.void.clone(),
        evidence: evidence::required(case, &timelines),
        buckets: evidence::buckets(&timelines),
        next: next(&hypotheses, &symptoms),
        symptoms,
        hypotheses,
    }
}

/// Makes the only supported hypothesis of each symptom its leading one. Whether there were two of
/// one symptom.
fn rivals(symptoms: &mut [Symptom], hypotheses: &mut [Hypothesis]) -> bool {
    let mut rival = false;
    for symptom in symptoms {
        let of_it = hypotheses
            .iter_mut()
            .filter(|h| h.symptom == symptom.name && h.state == State::Supported);
        let mut supported: Vec<&mut Hypothesis> = of_it.collect();
        match &mut supported[..] {
            [only] => {
                only.state = State::Leading;
                symptom.leading = Some(only.id.to_owned());
            }
            [] => {}
            several => {
                rival = true;
                let ids: Vec<&str> = several.iter().map(|h| h.id).collect();
                let ids = ids.join(" and ");
                for hypothesis in several {
                    hypothesis.missing.push(format!(
                        "what tells {ids} apart: they explain the same time in this run"
                    ));
                }
            }
        }
    }
    rival
}

/// Whose experiment comes next: a leading hypothesis, else a supported one, else the first that is
/// open, since it can still be either. What is about a symptom that nobody saw is not tested.
fn next(hypotheses: &[Hypothesis], symptoms: &[Symptom]) -> Option<String> {
    let seen = |name| {
        let mut all = symptoms.iter();
        all.any(|symptom| symptom.name == name && symptom.present == Some(true))
    };
    let order = [State::Leading, State::Supported, State::Open];
    let first = order.iter().find_map(|state| {
        let mut all = hypotheses.iter();
        all.find(|h| h.state == *state && seen(h.symptom))
    });
    first.map(|hypothesis| hypothesis.id.to_owned())
}

#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
