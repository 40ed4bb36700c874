//! Two runs side by side: what was asked differently, and what came of it.
//!
//! Two single runs decide nothing, because the same server differs from itself from run to run. So
//! figures are shown with their change and without a verdict; [`pb_judge::compare`] gives one, of
//! several pairs.

use std::collections::BTreeMap;

use pb_bench::Document;
use pb_contract::RunManifest;
use pb_record::visible;
use serde::Serialize;
use serde_json::Value;

use crate::format::{ABSENT, percent, percent_change, significant};
use crate::sections::Section;
use crate::table::{Table, markdown_safe};
use crate::text::{Paint, in_terminal, markdown_sections, wrapped};

/// Longest value that a table shows, in characters.
const LONGEST: usize = 60;

/// Keys of the receipt that differ between any two runs and say nothing about them, by how they
/// begin or end.
const PASSING: [&str; 7] = [
    "created",
    "command.",
    "order.",
    "state",
    "workload.",
    "schedule_sha256",
    ".nonce",
];

/// Settings that say where a run went and not what it was.
const PLACES: [&str; 4] = [
    "base_url",
    "options.base_url",
    "options.out",
    "options.nonce",
];

/// A run of one side.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Its directory, as it was named.
    pub name: &'a str,
    /// Its receipt.
    pub manifest: &'a RunManifest,
    /// Its numbers.
    pub document: &'a Document,
}

/// What differs between two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// Version of the keys.
    pub schema_version: u32,
    /// Directories of the runs.
    pub runs: [String; 2],
    /// Whether both sent the same requests at the same instants.
    pub same_schedule: bool,
    /// What speaks against the numbers of each run.
    pub reasons: [Vec<String>; 2],
    /// Settings that differ.
    pub settings: Vec<Setting>,
    /// Conditions that differ: what was measured with, where and in which state.
    pub conditions: Vec<Setting>,
    /// Figures of both runs.
    pub figures: Vec<Figure>,
}

/// A setting that differs. What one of the runs has not is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Its path.
    pub key: String,
    /// Values of the two runs.
    pub values: [Value; 2],
}

/// A figure of both runs. What was not measured is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// As a suite writes it, for example `ttft_ms.p50`.
    pub metric: String,
    /// Values of the two runs, in the unit of `bench.json`.
    pub values: [Option<f64>; 2],
    /// Second over first; null when one is missing or not above 0.
    pub ratio: Option<f64>,
}

/// Compares two runs.
///
/// # Errors
/// A receipt that JSON cannot hold: a fault of this program.
pub fn diff(a: Side<'_>, b: Side<'_>) -> Result<Diff, serde_json::Error> {
    let manifests = [
        serde_json::to_value(a.manifest)?,
        serde_json::to_value(b.manifest)?,
    ];
    let documents = [
        serde_json::to_value(a.document)?,
        serde_json::to_value(b.document)?,
    ];
    let settings = |manifest: &Value| {
        let workload = &manifest["workload"];
        let mut all = flat(&workload["settings"]);
        all.retain(|key, _| !PLACES.contains(&key.as_str()));
        // What a suite says of its arm: the settings of the server.
        for part in ["arm", "command", "env"] {
            let own = flat(&workload["suite"][part]).into_iter();
            let own = own.filter(|(_, value)| !value.is_null());
            all.extend(own.map(|(below, value)| (joined(&format!("suite.{part}"), &below), value)));
        }
        all
    };
    let conditions = |manifest: &Value, document: &Value| {
        let mut all = flat(manifest);
        let passing = |key: &str| {
            let mut known = PASSING.iter();
            known
                .any(|part| key.starts_with(part) || (part.starts_with('.') && key.ends_with(part)))
        };
        all.retain(|key, _| !passing(key));
        for (name, part) in [
            ("identity", &document["identity"]),
            ("load", &document["load"]["asked"]),
            ("workload", &document["workload"]["facts"]),
            ("cache", &document["cache"]["state"]),
            ("schedule_sha256", &document["schedule_sha256"]),
        ] {
            let own = flat(part).into_iter().filter(|(key, _)| key != "created");
            all.extend(own.map(|(below, value)| (joined(name, &below), value)));
        }
        all
    };
    let [first, second] = &documents;
    Ok(Diff {
        schema_version: 1,
        runs: [a.name.to_owned(), b.name.to_owned()],
        same_schedule: a.document.schedule_sha256 == b.document.schedule_sha256,
        reasons: [&a, &b].map(|side| side.document.validity.reasons.clone()),
        settings: differences(&settings(&manifests[0]), &settings(&manifests[1])),
        conditions: differences(
            &conditions(&manifests[0], first),
            &conditions(&manifests[1], second),
        ),
        figures: figures(first, second),
    })
}

/// A path below another one.
fn joined(path: &str, below: &str) -> String {
    match (path, below) {
        ("", other) | (other, "") => other.to_owned(),
        (path, below) => format!("{path}.{below}"),
    }
}

/// Every value by its path.
pub(crate) fn flat(value: &Value) -> BTreeMap<String, Value> {
    fn walk(path: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(table) if !table.is_empty() => {
                for (key, value) in table {
                    walk(&joined(path, key), value, into);
                }
            }
            Value::Array(list) if !list.is_empty() => {
                for (number, value) in list.iter().enumerate() {
                    walk(&joined(path, &number.to_string()), value, into);
                }
            }
            value => {
                into.insert(path.to_owned(), value.clone());
            }
        }
    }
    let mut all = BTreeMap::new();
    walk("", value, &mut all);
    all
}

pub(crate) fn differences(
    a: &BTreeMap<String, Value>,
    b: &BTreeMap<String, Value>,
) -> Vec<Setting> {
    let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let value = |of: &BTreeMap<String, Value>, key: &str| of.get(key).cloned().unwrap_or_default();
    let both = keys.into_iter().map(|key| Setting {
        key: key.clone(),
        values: [value(a, key), value(b, key)],
    });
    both.filter(|setting| setting.values[0] != setting.values[1])
        .collect()
}

/// Figures of all requests, with their statistics.
const SPREADS: [&str; 6] = [
    "ttft_ms",
    "service_ttft_ms",
    "itl_ms",
    "event_gap_ms",
    "tpot_ms",
    "e2e_ms",
];
const STATISTICS: [&str; 3] = ["p50", "p99", "max"];

/// Other figures.
const SINGLES: [&str; 6] = [
    "stalls.share",
    "offered.success_rate",
    "cache.hit_rate",
    "rates.achieved_rps",
    "rates.output_tps",
    "rates.goodput_rps",
];

/// All figures that one of the runs has.
fn figures(a: &Value, b: &Value) -> Vec<Figure> {
    let spreads = || {
        let each = SPREADS.iter();
        each.flat_map(|head| STATISTICS.iter().map(move |tail| format!("{head}.{tail}")))
    };
    let mut names: Vec<String> = spreads().collect();
    names.extend(SINGLES.map(str::to_owned));
    let classes = |document: &Value| -> Vec<String> {
        let classes = document["classes"].as_object().into_iter().flatten();
        classes.map(|(name, _)| name.clone()).collect()
    };
    // The only class has the numbers of the whole.
    let shared = classes(a);
    for class in shared.iter().filter(|_| shared.len() > 1) {
        names.extend(spreads().map(|name| format!("classes.{class}.{name}")));
    }
    let figure = |metric: String| {
        let values = [a, b].map(|document| crate::suite::figure(&metric, document));
        let both = values[0].zip(values[1]);
        Figure {
            ratio: both
                .filter(|(a, b)| *a > 0.0 && *b > 0.0)
                .map(|(a, b)| b / a),
            metric,
            values,
        }
    };
    let all = names.into_iter().map(figure);
    all.filter(|figure| figure.values.iter().any(Option::is_some))
        .collect()
}

impl Diff {
    /// For a terminal of `width` columns (at least 40); colours only when asked for.
    pub fn terminal(&self, width: u16, color: bool) -> String {
        let (paint, width) = (Paint { color }, width.max(40));
        let mut out = wrapped(&paint, "1", &self.sentence(), usize::from(width));
        for section in self.sections() {
            out.push('\n');
            out.push_str(&in_terminal(&section, &paint, width));
        }
        out
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let head = markdown_safe(&self.sentence());
        let sections = markdown_sections(&self.sections());
        format!("# What differs\n\n**{head}**\n{sections}")
    }

    fn sentence(&self) -> String {
        let schedule = match self.same_schedule {
            true => "the same requests",
            false => "different requests, so their figures differ for that reason too",
        };
        format!(
            "{} and {}: {} settings and {} conditions differ; {schedule}.",
            self.runs[0],
            self.runs[1],
            self.settings.len(),
            self.conditions.len()
        )
    }

    fn sections(&self) -> Vec<Section> {
        let mut validity = Section::new("validity", "May these numbers be used?");
        for (run, reasons) in self.runs.iter().zip(&self.reasons) {
            let words = match reasons.first() {
                None => format!("{run}: valid."),
                Some(first) => format!("{run}: not valid: {first} ({} reasons).", reasons.len()),
            };
            validity.text.push(words);
        }
        validity.text.push(
            "One run of each is no comparison: the same server differs from itself from run to \
             run. The changes below are shown, and nothing is claimed; `prefillbench compare` \
             judges several pairs."
                .to_owned(),
        );
        let mut all = vec![validity];
        for (key, title, rows) in [
            ("settings", "What was asked differently", &self.settings),
            ("conditions", "What else was different", &self.conditions),
        ] {
            all.push(listed(key, title, rows));
        }
        let mut figures = Section::new("figures", "Figures");
        let headers = ["figure", "first", "second", "change, %"];
        let mut table = Table::new(
            "Both runs; change of the second against the first",
            1,
            &headers,
        );
        for figure in &self.figures {
            let share = figure.metric.ends_with("share") || figure.metric.ends_with("_rate");
            let shown = |value: Option<f64>| match (value, share) {
                (None, _) => ABSENT.to_owned(),
                (Some(value), true) => format!("{} %", percent(value)),
                (Some(value), false) => significant(value),
            };
            let change = figure
                .ratio
                .map_or_else(|| ABSENT.to_owned(), percent_change);
            let [first, second] = figure.values.map(shown);
            table.push(vec![figure.metric.clone(), first, second, change]);
        }
        figures.tables.push(table);
        all.push(figures);
        all
    }
}

pub(crate) fn listed(key: &'static str, title: &str, rows: &[Setting]) -> Section {
    let mut section = Section::new(key, title);
    if rows.is_empty() {
        section.text.push("Nothing.".to_owned());
        return section;
    }
    let mut table = Table::new("Only what differs", 3, &["key", "first", "second"]);
    for row in rows {
        let shown = |value: &Value| {
            let text = match value {
                Value::Null => ABSENT.to_owned(),
                Value::String(text) => visible(text),
                value => visible(&value.to_string()),
            };
            crate::svg::frame::shorten(&text, LONGEST)
        };
        let [first, second] = [&row.values[0], &row.values[1]].map(shown);
        table.push(vec![row.key.clone(), first, second]);
    }
    section.tables.push(table);
    section
}
