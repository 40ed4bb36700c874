//! From options to the workload: which option sets what of which data set.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use pb_workloads::Dataset;
use serde_json::{Map, Value};

use crate::args::{BenchOptions, DatasetName};

/// The data set that the options describe.
///
/// # Errors
/// An option of another data set, a value that the data set refuses, or a file that is missing.
pub(crate) fn dataset(options: &BenchOptions) -> Result<Dataset> {
    let name = options.dataset_name.unwrap_or(DatasetName::Random);
    let mut fields = Map::new();
    let place = |flag: &str| format!("--{}", flag.replace('_', "-"));
    for (flag, owners, key, value) in known(options)? {
        if !owners.contains(&name) {
            let names: Vec<String> = owners.iter().map(|owner| owner.name()).collect();
            bail!(
                "{}: it belongs to --dataset-name {}, and this run has {}: leave one out",
                place(flag),
                names.join(" or "),
                name.name()
            );
        }
        fields.insert(key.to_owned(), value);
    }
    for pair in options.dataset_option.iter().flatten() {
        let (key, text) = (&pair.value.0, &pair.value.1);
        if !set(&mut fields, key, free_value(text)) {
            bail!("--dataset-option {key}={text}: {key} is set twice; leave one out");
        }
    }
    let name = name.name();
    if Dataset::needs_path(&name) && !fields.contains_key("path") {
        bail!("--dataset-name {name}: give its file with --dataset-path");
    }
    fields.insert("dataset_name".to_owned(), name.clone().into());
    serde_path_to_error::deserialize(Value::Object(fields))
        .map_err(|error| anyhow::anyhow!("{}", error))
        .with_context(|| format!("--dataset-name {name}"))
}

/// Sets a key, or with dots the key of a table within; false when it is set already.
fn set(fields: &mut Map<String, Value>, key: &str, value: Value) -> bool {
    let Some((table, rest)) = key.split_once('.') else {
        return fields.insert(key.to_owned(), value).is_none();
    };
    let inner = fields.entry(table).or_insert_with(|| Map::new().into());
    inner
        .as_object_mut()
        .is_some_and(|inner| set(inner, rest, value))
}

/// An option's name, the data sets that have it, their key, and its value.
type Known = (&'static str, &'static [DatasetName], &'static str, Value);

/// The options that were given and belong to a data set.
fn known(options: &BenchOptions) -> Result<Vec<Known>> {
    use DatasetName as D;
    const FILES: &[D] = &[D::Sharegpt, D::Custom, D::TimedTrace, D::Trace, D::Servegen];
    const TRACE: &[D] = &[D::Trace];
    const PREFIX: &[D] = &[D::PrefixRepetition];
    const GSP: &[D] = &[D::SharedPrefix];
    const RANDOM: &[D] = &[D::Random];
    // As the manifest shows them, which is how a file would have them.
    let Value::Object(given) = serde_json::to_value(options)? else {
        bail!("the options are no table");
    };
    let table: [(&'static str, &'static [D], &'static str); 27] = [
        ("dataset_path", FILES, "path"),
        ("random_input_len", RANDOM, "input_len"),
        ("random_output_len", RANDOM, "output_len"),
        ("random_range_ratio", RANDOM, "range_ratio"),
        ("random_prefix_len", RANDOM, "prefix_len"),
        ("prefix_repetition_prefix_len", PREFIX, "prefix_len"),
        ("prefix_repetition_suffix_len", PREFIX, "suffix_len"),
        ("prefix_repetition_num_prefixes", PREFIX, "num_prefixes"),
        ("prefix_repetition_output_len", PREFIX, "output_len"),
        ("gsp_num_groups", GSP, "num_groups"),
        ("gsp_prompts_per_group", GSP, "prompts_per_group"),
        ("gsp_system_prompt_len", GSP, "system_prompt_len"),
        ("gsp_question_len", GSP, "question_len"),
        ("gsp_output_len", GSP, "output_len"),
        ("gsp_range_ratio", GSP, "range_ratio"),
        ("gsp_num_turns", GSP, "num_turns"),
        ("gsp_ordered", GSP, "ordered"),
        ("sharegpt_output_len", &[D::Sharegpt], "output_len"),
        ("custom_output_len", &[D::Custom], "output_len"),
        ("sessions", &[D::Sessions, D::Agent], "sessions"),
        ("trace_format", TRACE, "format"),
        ("trace_unit", TRACE, "unit"),
        ("trace_arrivals", TRACE, "arrivals"),
        ("time_scale", TRACE, "time_scale"),
        ("scale_length", TRACE, "length_scale"),
        ("trace_block_size", &[D::Trace, D::TimedTrace], "block_size"),
        ("trace_turns", TRACE, "turns"),
    ];
    let timed = options.dataset_name == Some(D::TimedTrace);
    let found = table.into_iter().filter_map(|(flag, owners, key)| {
        let key = match (key, timed) {
            ("block_size", true) => "chunk_size",
            _ => key,
        };
        Some((flag, owners, key, plain(given.get(flag)?)))
    });
    Ok(found.collect())
}

/// A number that stands as a text, as the number that it is.
fn plain(value: &Value) -> Value {
    let number = value
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok());
    number
        .filter(Value::is_number)
        .unwrap_or_else(|| value.clone())
}

/// A value as written on the command line: JSON, a distribution as `uniform:1,9`, or a text.
fn free_value(text: &str) -> Value {
    if let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    if text.contains(':')
        && let Ok(length) = text.parse::<pb_workloads::Length>()
        && let Ok(value) = serde_json::to_value(length)
    {
        return value;
    }
    text.into()
}

/// Counts of a map as text, as in `too_long 3, empty 1`.
pub(crate) fn counted(counts: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = counts
        .iter()
        .map(|(what, n)| format!("{what} {n}"))
        .collect();
    if parts.is_empty() {
        return "none".to_owned();
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Dataset> {
        dataset(&toml::from_str(text).unwrap())
    }

    fn json(text: &str) -> Value {
        serde_json::to_value(of(text).unwrap()).unwrap()
    }

    #[test]
    fn each_flag_reaches_its_key() {
        let random = json(
            "random_input_len = 33\nrandom_output_len = 5\nrandom_range_ratio = 0.25\n\
             random_prefix_len = 7",
        );
        assert_eq!(random["dataset_name"], "random");
        assert_eq!(random["input_len"], 33);
        assert_eq!(random["output_len"], 5);
        assert_eq!(random["range_ratio"], 0.25);
        assert_eq!(random["prefix_len"], 7);
        let shared = json(
            "dataset_name = \"generated-shared-prefix\"\ngsp_num_groups = 2\n\
             gsp_prompts_per_group = 3\ngsp_system_prompt_len = 64\ngsp_question_len = 8\n\
             gsp_output_len = 4\ngsp_ordered = true",
        );
        assert_eq!(shared["dataset_name"], "shared-prefix");
        assert_eq!(shared["num_groups"], 2);
        assert_eq!(shared["ordered"], true);
        let trace = json(
            "dataset_name = \"trace\"\ndataset_path = \"t.jsonl\"\ntrace_format = \"mooncake\"\n\
             trace_unit = \"ms\"\ntrace_block_size = 512\ntrace_arrivals = \"spread\"\n\
             time_scale = 2\nscale_length = 0.5",
        );
        assert_eq!(
            (&trace["path"], &trace["block_size"]),
            (&"t.jsonl".into(), &512.into())
        );
        assert_eq!(trace["length_scale"], 0.5);
    }

    #[test]
    fn an_option_of_another_data_set_is_refused() {
        for (text, part) in [
            (
                "gsp_num_groups = 2",
                "--gsp-num-groups: it belongs to --dataset-name shared-prefix",
            ),
            ("dataset_path = \"x\"", "sharegpt or custom"),
            ("dataset_name = \"sharegpt\"", "--dataset-path"),
            ("dataset_option = [\"speed=3\"]", "speed"),
            (
                "random_input_len = 1\ndataset_option = [\"input_len=3\"]",
                "twice",
            ),
        ] {
            let error = format!("{:#}", of(text).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_with_dots_is_that_of_a_table_within() {
        let made = json(
            "dataset_name = \"interference\"\n\
             dataset_option = [\"params.streams=3\", \"params.long_output_len=2\"]",
        );
        let params = (
            &made["params"]["streams"],
            &made["params"]["long_output_len"],
        );
        assert_eq!(params, (&3.into(), &2.into()), "{made}");
        let twice = of("dataset_name = \"interference\"\n\
                        dataset_option = [\"params.streams=3\", \"params.streams=4\"]");
        assert!(format!("{:#}", twice.unwrap_err()).contains("twice"));
    }

    #[test]
    fn other_keys_are_json_or_a_distribution() {
        let sessions = json(
            "dataset_name = \"sessions\"\nsessions = 3\n\
             dataset_option = [\"turns=2\", \"question=uniform:10,20\"]",
        );
        assert_eq!(
            (&sessions["sessions"], &sessions["turns"]),
            (&3.into(), &2.into())
        );
        let bound = |key: &str| sessions["question"][key].as_f64();
        assert_eq!((bound("min"), bound("max")), (Some(10.0), Some(20.0)));
    }
}
