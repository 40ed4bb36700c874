//! What must be the same in two runs before their numbers may be held against each other.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use pb_bench::Document;
use pb_contract::RunManifest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Something that two runs may differ in beside their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// The requests and their arrivals, by the hash of the schedule.
    Schedule,
    /// Where the prompts come from: data set, API, tokenizer.
    Prompts,
    /// What every request asks for beside its prompt: sampling, further fields, headers.
    Requests,
    /// How the client reaches the server: version of HTTP, TLS, connections kept or not.
    Connection,
    /// The load that was asked for.
    Load,
    /// The state of the prefix cache that was asked for.
    Cache,
    /// The model.
    Model,
    /// The machine of the client.
    Machine,
    /// The version of this program.
    Tool,
    /// Kind and version of the server, and the route.
    Server,
    /// The rule for bundled tokens and the limits that goodput counts by.
    Rules,
}

/// All aspects, in the order of messages.
pub const ASPECTS: [Aspect; 11] = [
    Aspect::Schedule,
    Aspect::Prompts,
    Aspect::Requests,
    Aspect::Connection,
    Aspect::Load,
    Aspect::Cache,
    Aspect::Model,
    Aspect::Machine,
    Aspect::Tool,
    Aspect::Server,
    Aspect::Rules,
];

impl Aspect {
    /// The word of the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Aspect::Schedule => "schedule",
            Aspect::Prompts => "prompts",
            Aspect::Requests => "requests",
            Aspect::Connection => "connection",
            Aspect::Load => "load",
            Aspect::Cache => "cache",
            Aspect::Model => "model",
            Aspect::Machine => "machine",
            Aspect::Tool => "tool",
            Aspect::Server => "server",
            Aspect::Rules => "rules",
        }
    }

    /// Whether it may change from block to block while both runs of a block agree: several
    /// schedules and several machines are more evidence, not less.
    pub(super) const fn may_vary_between_blocks(self) -> bool {
        matches!(self, Aspect::Schedule | Aspect::Machine)
    }
}

impl fmt::Display for Aspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Aspect {
    type Err = String;

    fn from_str(text: &str) -> Result<Aspect, String> {
        let found = ASPECTS.into_iter().find(|aspect| aspect.name() == text);
        found.ok_or_else(|| {
            let names = ASPECTS.map(Aspect::name).join(", ");
            format!("`{text}` is nothing that runs are compared by: use {names}")
        })
    }
}

/// The aspects of a run, each as one line of text.
pub(super) fn aspects(manifest: &RunManifest, document: &Document) -> BTreeMap<Aspect, String> {
    let all = ASPECTS.map(|aspect| (aspect, describe(aspect, manifest, document)));
    all.into()
}

fn describe(aspect: Aspect, manifest: &RunManifest, document: &Document) -> String {
    let identity = &document.identity;
    match aspect {
        Aspect::Schedule => document.schedule_sha256.clone(),
        Aspect::Prompts => prompts(manifest, document),
        Aspect::Requests => requests(manifest),
        Aspect::Connection => connection(manifest, document),
        Aspect::Load => {
            let mut asked = document.load.asked.clone();
            // These became so; they were not asked for.
            asked.connections = None;
            asked.lag_limit_ms = None;
            listed(&json!(asked))
        }
        Aspect::Cache => document.cache.state.clone(),
        Aspect::Model => match manifest.model.sha256.as_str() {
            "" => identity.model.clone(),
            digest => format!("{} ({digest})", identity.model),
        },
        Aspect::Machine => {
            let machine = &manifest.machine;
            // The last digits of the memory change with every start of the machine.
            let gib = (machine.memory_bytes as f64 / (1_u64 << 30) as f64).round();
            let (cpu, cores) = (&machine.cpu, machine.cores);
            let (isa, os) = (&machine.isa, &machine.os);
            format!("{cpu}, {cores} cores, {gib} GiB, {isa}, {os}")
        }
        Aspect::Tool => {
            let tool = &manifest.tool;
            let dirty = if tool.git_dirty { ", changed" } else { "" };
            format!("{} ({}{dirty})", tool.version, tool.git_rev)
        }
        Aspect::Server => format!("{} at {}", server(manifest, document), identity.route),
        Aspect::Rules => {
            let limits: Vec<&str> = document.slo.keys().map(String::as_str).collect();
            let rule = json!(document.itl_rule);
            format!("bundles {rule}, limits {}", limits.join(" "))
        }
    }
}

/// Data set and form. The path of a file is left out: it may lie elsewhere on another machine,
/// and its content is in the hash of the schedule.
fn prompts(manifest: &RunManifest, document: &Document) -> String {
    let settings = &manifest.workload["settings"];
    let mut dataset = settings["dataset"].clone();
    if let Value::Object(fields) = &mut dataset {
        fields.remove("path");
    }
    let all = json!({
        "api": document.identity.api,
        "dataset": document.workload.facts.dataset,
        "tokenizer": document.identity.tokenizer,
        "settings": dataset,
        "form": settings["form"],
        "ignore_eos": settings["ignore_eos"],
    });
    listed(&all)
}

/// Sampling and whatever else stands in every body. Values of headers are in no manifest.
fn requests(manifest: &RunManifest) -> String {
    let options = &manifest.workload["settings"]["options"];
    let text = |key: &str| options[key].as_str();
    // As it is sent: 0 where nothing was said, and 0.50 is 0.5.
    let number = |key: &str| text(key).and_then(|text| text.parse::<f64>().ok());
    // A null in it takes a field away, so it says something too.
    let object = |text: &str| {
        let fields = serde_json::from_str::<Value>(text).ok();
        fields.map_or_else(|| text.to_owned(), |fields| sorted(fields).to_string())
    };
    let names = |header: &Value| {
        let pair = header.as_str().and_then(|pair| pair.split_once('='));
        pair.map(|(name, _)| name.to_ascii_lowercase())
    };
    let mut headers: Vec<String> = options["header"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(names)
        .collect();
    headers.sort_unstable();
    let all = json!({
        "temperature": number("temperature").unwrap_or(0.0),
        "top_p": number("top_p"),
        "extra_body": text("extra_body").map(object),
        "headers": (!headers.is_empty()).then(|| headers.join(" ")),
    });
    listed(&all)
}

/// A value whose keys stand in one order, however they were written.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> = fields
                .into_iter()
                .map(|(name, value)| (name, sorted(value)))
                .collect();
            fields.into_iter().collect()
        }
        Value::Array(values) => values.into_iter().map(sorted).collect(),
        other => other,
    }
}

fn connection(manifest: &RunManifest, document: &Document) -> String {
    let options = &manifest.workload["settings"]["options"];
    let http = options["http"].as_str().unwrap_or("1.1");
    let secure = document.identity.base_url.starts_with("https:");
    let kept = manifest
        .arms
        .first()
        .map(|arm| &arm.config["reuse_connections"]);
    let all = json!({
        "HTTP": http,
        "TLS": secure,
        "kept": kept.and_then(Value::as_bool),
    });
    listed(&all)
}

/// The settings that are set, as `name value, name value`; inner ones in braces.
fn listed(value: &Value) -> String {
    let Value::Object(fields) = value else {
        let text = value.as_str().map(str::to_owned);
        return text.unwrap_or_else(|| value.to_string());
    };
    let set = fields.iter().filter(|(_, value)| !value.is_null());
    let one = |(name, value): (&String, &Value)| match value.is_object() {
        true => format!("{name} {{{}}}", listed(value)),
        false => format!("{name} {}", listed(value)),
    };
    set.map(one).collect::<Vec<String>>().join(", ")
}

/// Kind and version: what stands before the evidence in the manifest's words.
pub(super) fn server(manifest: &RunManifest, document: &Document) -> String {
    let words = manifest.arms.first().and_then(|arm| {
        let text = arm.config["server"].as_str()?;
        let (name, _) = text.split_once(": ")?;
        Some(name.to_owned())
    });
    words.unwrap_or_else(|| document.identity.server.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_listed_without_those_that_are_not_set() {
        let value = json!({"a": "x", "b": null, "c": {"d": 1, "e": null}, "f": false});
        assert_eq!(listed(&value), "a x, c {d 1}, f false");
    }

    fn manifest(settings: Value) -> RunManifest {
        let manifest = json!({
            "schema_version": 1, "kind": "bench", "state": "complete", "created": "",
            "command": [], "tool": {"version": "", "git_rev": "", "git_dirty": false},
            "machine": {"cpu": "", "cores": 1, "memory_bytes": 0, "os": "", "isa": ""},
            "model": {"name": "", "kind": "", "sha256": "", "substitute_reason": null},
            "seed": 1, "schedule_sha256": {}, "order": [],
            "arms": [{"name": "", "command": "", "version": "",
                      "config": {"reuse_connections": true}}],
            "workload": {"settings": settings},
        });
        serde_json::from_value(manifest).unwrap()
    }

    #[test]
    fn requests_are_told_as_they_are_sent() {
        let of = |options: Value| requests(&manifest(json!({"options": options})));
        assert_eq!(of(json!({})), "temperature 0.0");
        assert_eq!(of(json!({"temperature": "0"})), "temperature 0.0");
        let fields = json!({
            "temperature": "0.70", "top_p": "0.9", "extra_body": "{\"b\":1, \"a\":[2]}",
            "header": ["X-B=(hidden)", "X-A=(hidden)"],
        });
        let expected =
            "temperature 0.7, top_p 0.9, extra_body {\"a\":[2],\"b\":1}, headers x-a x-b";
        assert_eq!(of(fields), expected);
    }

    #[test]
    fn aspects_are_read_as_they_are_written() {
        for aspect in ASPECTS {
            assert_eq!(aspect.name().parse(), Ok(aspect));
        }
        let error = "weather".parse::<Aspect>().unwrap_err();
        assert!(error.contains("schedule, prompts"), "{error}");
    }
}
