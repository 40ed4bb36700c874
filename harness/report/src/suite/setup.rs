//! What was run: model, servers, load, limits, when. From the plan and from the documents of the
//! cells; what neither says is not shown.

use serde_json::Value;

use super::read::{Cell, SuiteDir};
use super::settings::{Setting, counted};
use crate::format::{ABSENT, duration, significant};
use crate::sections::{Detail, Section};
use crate::table::Table;

/// Arms up to which each command is shown whole; of more, what differs.
const WHOLE: usize = 4;

/// The section.
pub(super) fn section(suite: &SuiteDir, settings: &[Setting<'_>], detail: Detail) -> Section {
    let mut section = Section::new("setup", "What was run");
    let mut facts = Table::new("Model, load and conditions", 2, &["what", "as it was"]);
    facts.wraps_last = true;
    let generated = is_generated(suite);
    let model = text(suite, &|d| &d["identity"]["model"]);
    let model = model.map(|model| match generated {
        true => format!("{model}: generated weights, so sizes of effects are of no real model"),
        false => model,
    });
    let rows = [
        ("model", model),
        ("server", server(suite)),
        ("load", load(suite)),
        ("limits (goodput)", limits(suite)),
        ("prefix cache", cache(suite)),
        ("blocks", blocks(suite)),
        ("when", when(suite)),
    ];
    for (what, found) in rows {
        if let Some(found) = found {
            facts.push(vec![what.to_owned(), found]);
        }
    }
    if !facts.rows.is_empty() {
        section.tables.push(facts);
    }
    if detail == Detail::Full {
        section.tables.extend(commands(suite));
        section.tables.extend(requests(settings));
    }
    if section.tables.is_empty() {
        let none = "Neither a plan nor the document of a cell says what was run.";
        section.text.push(none.to_owned());
    }
    section
}

fn documents(suite: &SuiteDir) -> impl Iterator<Item = &Value> {
    suite.cells.iter().filter_map(|cell| cell.document.as_ref())
}

/// What all documents say of something, each saying once; absent when none does.
fn text(suite: &SuiteDir, of: &dyn Fn(&Value) -> &Value) -> Option<String> {
    let mut all: Vec<&str> = Vec::new();
    for said in documents(suite).filter_map(|document| of(document).as_str()) {
        if !said.is_empty() && !all.contains(&said) {
            all.push(said);
        }
    }
    (!all.is_empty()).then(|| all.join(", "))
}

/// Whether a model was made rather than trained: by its name, as the engine gives it.
fn is_generated(suite: &SuiteDir) -> bool {
    let names = documents(suite).filter_map(|d| d["identity"]["model"].as_str());
    let arms = suite.plan["arms"].as_object().into_iter().flatten();
    let starts = arms.flat_map(|(_, arm)| words_of(&arm["start"]));
    let mut starts = starts.filter_map(|word| word.strip_prefix("--model=").map(str::to_owned));
    names.into_iter().any(|name| name.starts_with("synthetic"))
        || starts.any(|name| name.starts_with("synthetic"))
}

fn server(suite: &SuiteDir) -> Option<String> {
    let kind = text(suite, &|d| &d["identity"]["server"])?;
    let route = text(suite, &|d| &d["identity"]["route"]);
    let fresh = match suite.plan["run"]["fresh"].as_str() {
        Some("cell") => "; a new server for each cell",
        Some("block") => "; a new server for each arm of a block",
        _ => "",
    };
    let route = route.map_or_else(String::new, |route| format!(" at {route}"));
    Some(format!("{kind}{route}{fresh}"))
}

/// The options of the load that all conditions share, and those that each has.
fn load(suite: &SuiteDir) -> Option<String> {
    let bench = suite.plan["bench"].as_object();
    let mut parts: Vec<String> = Vec::new();
    for (key, value) in bench.into_iter().flatten() {
        if !["seed", "goodput"].contains(&key.as_str()) {
            parts.extend(options(key, value));
        }
    }
    let conditions = suite.plan["conditions"].as_object();
    let of = |options_of: &Value| -> Vec<String> {
        let own = options_of.as_object().into_iter().flatten();
        own.flat_map(|(key, value)| options(key, value)).collect()
    };
    let own: Vec<(&String, Vec<String>)> = conditions
        .into_iter()
        .flatten()
        .map(|(name, value)| (name, of(value)))
        .collect();
    let shared = |option: &String| own.iter().all(|(_, all)| all.contains(option));
    let first = own.first().map(|(_, all)| all.clone()).unwrap_or_default();
    parts.extend(first.into_iter().filter(|option| shared(option)));
    for (name, all) in &own {
        let only: Vec<&str> = all
            .iter()
            .filter(|o| !shared(o))
            .map(String::as_str)
            .collect();
        if !only.is_empty() {
            parts.push(format!("at {name}: {}", only.join(", ")));
        }
    }
    match parts.is_empty() {
        true => text(suite, &|d| &d["workload"]["dataset"]),
        false => Some(parts.join("; ")),
    }
}

/// Options as they are read: `params.mean_gap_ns=1900000000` is "mean_gap 1.90 s".
fn options(key: &str, value: &Value) -> Vec<String> {
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let written = |key: &str, value: &str| {
        let key = key.trim_start_matches("params.");
        match (key.strip_suffix("_ns"), value.parse::<f64>()) {
            (Some(key), Ok(ns)) => format!("{key} {}", duration(ns)),
            _ => format!("{key} {value}"),
        }
    };
    match value {
        Value::Null | Value::Bool(false) => Vec::new(),
        Value::Bool(true) => vec![key.to_owned()],
        Value::Array(all) => {
            let each = all.iter().map(plain);
            each.map(|one| match one.split_once('=') {
                Some((key, value)) => written(key, value),
                None => written(key, &one),
            })
            .collect()
        }
        value => vec![written(key, &plain(value))],
    }
}

/// Limits that a good request keeps.
fn limits(suite: &SuiteDir) -> Option<String> {
    let first = documents(suite).find_map(|document| document["slo"].as_object())?;
    let limit = |(name, slo): (&String, &Value)| {
        let figure = name.split(':').next().unwrap_or_default().to_uppercase();
        let ms = slo["limit_ms"].as_f64()?;
        Some(format!("{figure} at most {} ms", significant(ms)))
    };
    let all: Vec<String> = first.iter().filter_map(limit).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn cache(suite: &SuiteDir) -> Option<String> {
    let state = text(suite, &|d| &d["cache"]["state"])?;
    let words = match state.as_str() {
        "asis" => "left as it was, neither emptied nor filled before a cell",
        "cold" => "empty before each cell",
        "warm" => "filled with the prompts before each cell",
        "unproven" => "not in a state that was proved",
        other => other,
    };
    Some(words.to_owned())
}

fn blocks(suite: &SuiteDir) -> Option<String> {
    let (file, arms) = (&suite.file, names(suite, &|cell| &cell.note.arm));
    let conditions = names(suite, &|cell| &cell.note.condition);
    if suite.cells.is_empty() {
        return None;
    }
    let count = |n: usize, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    Some(format!(
        "{} of {}, each with {} under {}: {}; within a block every arm has the same requests",
        file.blocks_run,
        count(file.blocks_planned, "block"),
        count(arms, "arm"),
        count(conditions, "load"),
        count(suite.cells.len(), "cell"),
    ))
}

fn names<'a>(suite: &'a SuiteDir, of: &dyn Fn(&'a Cell) -> &'a String) -> usize {
    let all = suite.cells.iter().map(of);
    all.collect::<std::collections::BTreeSet<&String>>().len()
}

/// Begin of the first and of the last cell, and what the cells took.
fn when(suite: &SuiteDir) -> Option<String> {
    let mut created: Vec<&str> = documents(suite)
        .filter_map(|document| document["identity"]["created"].as_str())
        .collect();
    created.sort_unstable();
    let (first, last) = (created.first()?, created.last()?);
    let took: f64 = suite.cells.iter().filter_map(|cell| cell.note.wall_s).sum();
    Some(format!(
        "cells begun from {first} to {last}; {} in all, servers included",
        duration_s(took)
    ))
}

fn duration_s(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn words_of(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|word| word.as_str().map(str::to_owned))
        .collect()
}

/// What each arm is: its command, or the address of a server that ran already.
fn commands(suite: &SuiteDir) -> Option<Table> {
    let arms = suite.plan["arms"].as_object()?;
    let commands: Vec<(&str, Vec<String>)> = suite
        .arms
        .iter()
        .map(|name| (name.as_str(), command(&arms[name])))
        .collect();
    let first = commands.first()?.1.clone();
    let everywhere = |word: &String| commands.iter().all(|(_, all)| all.contains(word));
    let shared: Vec<String> = first.into_iter().filter(everywhere).collect();
    let short = commands.len() > WHOLE;
    let caption = match short {
        true => format!("Servers of the arms; all of them: {}", shared.join(" ")),
        false => "Servers of the arms".to_owned(),
    };
    let mut table = Table::new(caption, 2, &["arm", if short { "and" } else { "command" }]);
    table.wraps_last = true;
    for (name, words) in &commands {
        let kept = words.iter().filter(|word| !short || !shared.contains(word));
        let kept: Vec<&str> = kept.map(String::as_str).collect();
        let said = if kept.is_empty() {
            ABSENT.to_owned()
        } else {
            kept.join(" ")
        };
        table.push(vec![(*name).to_owned(), said]);
    }
    Some(table)
}

fn command(arm: &Value) -> Vec<String> {
    let mut words = words_of(&arm["start"]);
    if words.is_empty() {
        words.extend(
            arm["base_url"]
                .as_str()
                .map(|url| format!("running at {url}")),
        );
    }
    words.extend(words_of(&arm["env"]).iter().map(|one| format!("env {one}")));
    let own = arm["bench"].as_object().into_iter().flatten();
    words.extend(own.flat_map(|(key, value)| options(key, value)));
    words
}

/// Requests of a cell by class: how many, and how long in the mean.
fn requests(settings: &[Setting<'_>]) -> Option<Table> {
    let headers = [
        "load",
        "class",
        "requests",
        "prompt tokens, mean",
        "output tokens, mean",
    ];
    let caption = "Requests of a cell: over the finished cells from the smallest to the largest";
    let mut table = Table::new(caption, 2, &headers);
    for condition in super::settings::conditions(settings) {
        let own = settings.iter().filter(|s| s.condition == condition);
        let cells = own.flat_map(|setting| setting.cells.iter());
        let documents: Vec<&Value> = cells.filter_map(|cell| cell.document.as_ref()).collect();
        let classes = documents.iter().filter_map(|d| d["classes"].as_object());
        let classes: std::collections::BTreeSet<&String> =
            classes.flat_map(|classes| classes.keys()).collect();
        let mut parts: Vec<(&str, Vec<&Value>)> = Vec::new();
        for class in classes {
            let own = documents.iter().map(|d| &d["classes"][class.as_str()]);
            parts.push((class, own.collect()));
        }
        if parts.is_empty() {
            parts.push(("all", documents.clone()));
        }
        for (class, all) in parts {
            table.rows.extend(request_row(condition, class, &all));
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn request_row(condition: &str, class: &str, all: &[&Value]) -> Option<Vec<String>> {
    let offered = |part: &&&Value| part["counts"]["offered"].as_u64();
    let counts: Vec<u64> = all.iter().filter_map(|part| offered(&part)).collect();
    let (least, most) = (counts.iter().min()?, counts.iter().max()?);
    let mean = |key: &str| {
        let each = all.iter().filter_map(|part| {
            let n = offered(&part).filter(|n| *n > 0)?;
            Some(part["tokens"][key].as_f64()? / n as f64)
        });
        let each: Vec<f64> = each.collect();
        let low = each.iter().copied().min_by(f64::total_cmp);
        let high = each.iter().copied().max_by(f64::total_cmp);
        match low.zip(high) {
            Some((low, high)) => counted((low.round() as u64, high.round() as u64)),
            None => ABSENT.to_owned(),
        }
    };
    Some(vec![
        match condition {
            "" => "all".to_owned(),
            condition => pb_record::visible(condition),
        },
        pb_record::visible(class),
        counted((*least, *most)),
        mean("input_planned"),
        mean("output"),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_are_read_with_their_units() {
        let list = json!(["params.streams=2", "params.mean_gap_ns=1900000000"]);
        assert_eq!(
            options("dataset_option", &list),
            ["streams 2", "mean_gap 1.90 s"]
        );
        assert_eq!(options("ignore_eos", &json!(true)), ["ignore_eos"]);
        assert!(options("no_calibration", &json!(false)).is_empty());
        assert_eq!(options("request_rate", &json!(4)), ["request_rate 4"]);
    }

    #[test]
    fn lengths_are_means_over_the_requests_of_a_cell() {
        let cell = |offered: u64, input: u64| {
            let tokens = json!({"input_planned": input, "output": 8});
            json!({"counts": {"offered": offered}, "tokens": tokens})
        };
        let (a, b) = (cell(2, 2000), cell(4, 3200));
        let row = request_row("rate=2", "long", &[&a, &b]).unwrap();
        assert_eq!(row, ["rate=2", "long", "2 to 4", "800 to 1000", "2 to 4"]);
        assert_eq!(request_row("", "x", &[&Value::Null]), None);
    }
}
