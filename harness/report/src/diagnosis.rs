//! A diagnosis for a terminal.

use pb_judge::diagnose::{Diagnosis, Hypothesis, Outcome, Symptom};

use crate::format::{ABSENT, percent_or_dash, significant};
use crate::sections::Section;
use crate::table::Table;
use crate::text::{Paint, in_terminal, wrapped};
use crate::tone::Tone;

/// A diagnosis for a terminal of `width` columns (at least 40); colours only when asked for.
pub fn diagnosis_terminal(diagnosis: &Diagnosis, width: u16, color: bool) -> String {
    let (paint, width) = (Paint { color }, width.max(40));
    let tone = match diagnosis.outcome {
        Outcome::Leading => Tone::Plain,
        Outcome::InsufficientEvidence => Tone::Inconclusive,
        Outcome::Void => Tone::Void,
    };
    let head = format!("{}.", diagnosis.sentence);
    let mut out = wrapped(&paint, tone.style(), &head, usize::from(width));
    for section in sections(diagnosis) {
        out.push('\n');
        out.push_str(&in_terminal(&section, &paint, width));
    }
    out
}

fn sections(diagnosis: &Diagnosis) -> Vec<Section> {
    let mut all = Vec::new();
    if !diagnosis.void.is_empty() {
        let mut void = Section::new("void", "Why it is void");
        void.text = diagnosis
            .void
            .iter()
            .map(|why| format!("- {why}"))
            .collect();
        all.push(void);
    }
    if let Some(containment) = &diagnosis.containment {
        let mut section = Section::new("containment", "Containment");
        section.text.push(format!("{containment}."));
        all.push(section);
    }
    all.push(symptoms(&diagnosis.symptoms));
    all.push(hypotheses(&diagnosis.hypotheses));
    all.push(evidence(diagnosis));
    all.extend(next(diagnosis));
    all
}

fn symptoms(symptoms: &[Symptom]) -> Section {
    let mut section = Section::new("symptoms", "Symptoms");
    let headers = ["symptom", "there", "undisturbed", "longest"];
    let mut table = Table::new("Means in ms, as the client measured them", 2, &headers);
    let mut parts = Table::new(
        "Where the time of the longest gaps went: means in ms, and % of what they have more",
        1,
        &["part", "undisturbed", "longest", "share"],
    );
    let number = |value: Option<f64>| value.map_or_else(|| ABSENT.to_owned(), significant);
    for symptom in symptoms {
        let there = match symptom.present {
            Some(true) => "yes",
            Some(false) => "no",
            None => "cannot tell",
        };
        table.push(vec![
            symptom.name.words().to_owned(),
            there.to_owned(),
            number(symptom.calm_ms),
            number(symptom.slow_ms),
        ]);
        section.text.push(format!("{}.", symptom.text));
        for part in &symptom.parts {
            parts.push(vec![
                part.part.replace('_', " "),
                significant(part.calm_ms),
                significant(part.slow_ms),
                percent_or_dash(Some(part.share)),
            ]);
        }
    }
    section.tables = vec![table, parts];
    section
}

fn hypotheses(hypotheses: &[Hypothesis]) -> Section {
    let mut section = Section::new("hypotheses", "Hypotheses");
    let headers = ["hypothesis", "state", "claim", "share"];
    let caption = "Share: of the symptom's time, %. A leading one is to be tested, not believed";
    let mut table = Table::new(caption, 3, &headers);
    for hypothesis in hypotheses {
        table.push(vec![
            hypothesis.id.to_owned(),
            hypothesis.state.word().to_owned(),
            hypothesis.claim.to_owned(),
            percent_or_dash(hypothesis.share),
        ]);
        section.text.push(format!("{}:", hypothesis.id));
        let sides = [
            ("for", &hypothesis.speaks_for),
            ("against", &hypothesis.against),
            ("missing", &hypothesis.missing),
        ];
        for (side, findings) in sides {
            let lines = findings.iter().map(|text| format!("  {side}: {text}"));
            section.text.extend(lines);
        }
    }
    section.tables.push(table);
    section
}

fn evidence(diagnosis: &Diagnosis) -> Section {
    let mut section = Section::new("evidence", "Evidence required before a change");
    for evidence in &diagnosis.evidence {
        section
            .text
            .push(format!("{}: {}.", evidence.name, evidence.text));
    }
    section
}

fn next(diagnosis: &Diagnosis) -> Option<Section> {
    if diagnosis.outcome == Outcome::Void {
        // What a void run leaves to be tested is a run that is not void.
        return None;
    }
    let next = diagnosis.next.as_deref()?;
    let hypothesis = diagnosis.hypotheses.iter().find(|h| h.id == next)?;
    let experiment = &hypothesis.experiment;
    let mut section = Section::new("next", "Next experiment");
    section.text = vec![
        format!("{} It tests {next}.", experiment.question),
        format!("It varies {}.", experiment.varies),
        format!("The hypothesis predicts: {}.", experiment.predicts),
        "--suite-out FILE writes it as a suite for `prefillbench run`.".to_owned(),
    ];
    Some(section)
}
