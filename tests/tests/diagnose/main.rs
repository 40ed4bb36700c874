//! Recorded scenarios and what `diagnose` must say of them.
//!
//! The recordings are in `golden/diagnose`. They are made again, into a directory that does not
//! exist yet, by `PREFILLBENCH_RECORD_DIR=DIR cargo test --release -p pb-tests --test diagnose --
//! --ignored --nocapture`.

mod recorder;
mod scenarios;

use std::path::{Path, PathBuf};

use pb_judge::diagnose::{Case, Diagnosis, EngineFacts, Hypothesis, Outcome, State, diagnose};
use pb_record::RunReader;
use recorder::{ARM, Scenario, record};

/// Largest recording in bytes.
const MOST_BYTES: u64 = 200_000;

fn golden(scenario: &Scenario) -> PathBuf {
    pb_tests::repository()
        .join("golden/diagnose")
        .join(scenario.name)
}

/// Bytes of the files of a directory.
fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let bytes = entries.map(|entry| entry.and_then(|e| e.metadata()).expect("a file").len());
    bytes.sum()
}

fn diagnosed(dir: &Path) -> Diagnosis {
    let run = pb_bench::files::read(dir).expect("a run");
    let data = RunReader::open(dir).expect("a run");
    let receipt = &data.manifest.arms[0];
    diagnose(&Case {
        run: dir.display().to_string(),
        data: &data,
        arm: ARM,
        void: run.document.validity.reasons,
        engine: EngineFacts::of(&receipt.config, &data.manifest.model.name),
        server: run.conditions.server,
        ideal_hit_tokens: run.conditions.workload.ideal_hit_tokens,
        gates_missed: Vec::new(),
        base_url: None,
    })
}

fn named<'a>(diagnosis: &'a Diagnosis, id: &str) -> &'a Hypothesis {
    let found = diagnosis.hypotheses.iter().find(|h| h.id == id);
    found.unwrap_or_else(|| panic!("no hypothesis {id}"))
}

/// What is wrong with the answer to a scenario.
fn problems(scenario: &Scenario, diagnosis: &Diagnosis) -> Vec<String> {
    let mut problems = Vec::new();
    let leading = diagnosis
        .hypotheses
        .iter()
        .filter(|h| h.state == State::Leading);
    let leading: Vec<&str> = leading.map(|h| h.id).collect();
    let wanted: Vec<&str> = scenario.leads.into_iter().collect();
    if leading != wanted {
        problems.push(format!("{leading:?} lead, not {wanted:?}"));
    }
    let outcome = match scenario.leads {
        Some(_) => Outcome::Leading,
        None => Outcome::InsufficientEvidence,
    };
    if diagnosis.outcome != outcome {
        problems.push(format!("the outcome is {:?}", diagnosis.outcome));
    }
    // A near miss without a symptom would be refused for want of one.
    if !diagnosis.symptoms.iter().any(|s| s.present == Some(true)) {
        problems.push("no symptom".to_owned());
    }
    for (id, words) in &scenario.not {
        let hypothesis = named(diagnosis, id);
        let mut said = hypothesis.against.iter().chain(&hypothesis.missing);
        if !said.any(|text| text.contains(words)) {
            problems.push(format!("{id}: nothing says {words:?}: {hypothesis:#?}"));
        }
    }
    problems
}

#[test]
fn each_recording_gets_its_answer() {
    let mut all = Vec::new();
    for scenario in scenarios::all() {
        let diagnosis = diagnosed(&golden(&scenario));
        let found = problems(&scenario, &diagnosis);
        if !found.is_empty() {
            let (name, found) = (scenario.name, found.join("\n"));
            all.push(format!("{name}: {found}\n{:#?}", diagnosis.symptoms));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n\n"));
}

/// Every hypothesis leads somewhere, and somewhere else it is held back by name: otherwise a rule
/// that always, or never, says yes would pass.
#[test]
fn every_hypothesis_has_a_case_and_a_near_miss() {
    let all = scenarios::all();
    let first = diagnosed(&golden(&all[0]));
    for hypothesis in &first.hypotheses {
        let leads = all.iter().any(|s| s.leads == Some(hypothesis.id));
        let missed = |s: &&Scenario| s.not.iter().any(|(id, _)| *id == hypothesis.id);
        assert!(leads && all.iter().any(|s| missed(&s)), "{}", hypothesis.id);
    }
}

/// Rows are compared and not bytes, so that a new column alone makes no recording an old one.
#[test]
fn recordings_are_what_the_engine_does() {
    for scenario in scenarios::all() {
        let dir = tempfile::tempdir().expect("a directory");
        let again = dir.path().join(scenario.name);
        record(&scenario, &again);
        let [again, golden] = [again, golden(&scenario)].map(|dir| {
            assert!(
                size(&dir) <= MOST_BYTES,
                "{}: {} bytes",
                scenario.name,
                size(&dir)
            );
            RunReader::open(&dir).expect("a run")
        });
        let same = again.requests == golden.requests
            && again.tokens == golden.tokens
            && again.steps == golden.steps;
        assert!(
            same,
            "{}: the engine does not do this any more; record the scenarios again and look at \
             what changed",
            scenario.name
        );
    }
}

/// The rows decide, not the names: steps taken away, or those of another run, lead nowhere.
#[test]
fn without_its_steps_nothing_leads() {
    for scenario in scenarios::all().iter().filter(|s| s.leads.is_some()) {
        let mut data = RunReader::open(&golden(scenario)).expect("a run");
        let engine = EngineFacts::of(&data.manifest.arms[0].config, "synthetic");
        data.steps.clear();
        let diagnosis = diagnose(&Case {
            run: scenario.name.to_owned(),
            data: &data,
            arm: ARM,
            void: Vec::new(),
            engine,
            server: None,
            ideal_hit_tokens: Some(0),
            gates_missed: Vec::new(),
            base_url: None,
        });
        assert_eq!(
            diagnosis.outcome,
            Outcome::InsufficientEvidence,
            "{}",
            scenario.name
        );
        assert_eq!(diagnosis.exit_code, 3);
    }
}

/// Makes the recordings again.
#[test]
#[ignore = "writes the recordings into PREFILLBENCH_RECORD_DIR"]
fn record_the_scenarios() {
    let folder = std::env::var_os("PREFILLBENCH_RECORD_DIR").expect("PREFILLBENCH_RECORD_DIR");
    for scenario in scenarios::all() {
        let dir = Path::new(&folder).join(scenario.name);
        record(&scenario, &dir);
        println!("{}: {} bytes", scenario.name, size(&dir));
    }
}
