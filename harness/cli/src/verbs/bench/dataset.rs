//! From options to the workload: which option sets what of which data set.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use pb_workloads::trace::TraceError;
use pb_workloads::{Dataset, DatasetError, WorkloadError};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::args::{BenchOptions, DatasetName};

/// A setting of a data set: as it was written, its key, its value.
type Given = (String, String, Value);

/// The data set that the options describe.
///
/// # Errors
/// An option of another data set, a value that the data set refuses, or a file that is missing.
pub(crate) fn dataset(options: &BenchOptions) -> Result<Dataset> {
    let name = options.dataset_name.unwrap_or(DatasetName::Random);
    let given = given(options, name)?;
    let name = name.name();
    let fields = fields(&name, given.iter())?;
    if Dataset::needs_path(&name) && fields.get("path").is_none() {
        bail!("--dataset-name {name}: give its file with --dataset-path");
    }
    Dataset::deserialize(fields).map_err(|error| wrong(&name, &given, &error))
}

/// Everything that was given of the data set.
fn given(options: &BenchOptions, name: DatasetName) -> Result<Vec<Given>> {
    let mut given = Vec::new();
    for (flag, owners, key, value) in known(options)? {
        let flag = flag_of(flag);
        if !owners.contains(&name) {
            let names: Vec<String> = owners.iter().map(|owner| owner.name()).collect();
            bail!(
                "{flag}: it belongs to --dataset-name {}, and this run has {}: leave one out",
                names.join(" or "),
                name.name()
            );
        }
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        given.push((format!("{flag} {text}"), key.to_owned(), value));
    }
    for pair in options.dataset_option.iter().flatten() {
        let (key, text) = (&pair.value.0, &pair.value.1);
        let place = format!("--dataset-option {key}={text}");
        given.push((place, key.clone(), free_value(text)));
    }
    Ok(given)
}

/// The data set as a table.
fn fields<'a>(name: &str, given: impl Iterator<Item = &'a Given>) -> Result<Value> {
    let mut fields = Map::new();
    for (place, key, value) in given {
        if !set(&mut fields, key, value.clone()) {
            bail!("{place}: {key} is set twice; leave one out");
        }
    }
    fields.insert("dataset_name".to_owned(), name.into());
    Ok(Value::Object(fields))
}

/// The error with the setting that is wrong, which the reader of a table with a tag does not tell:
/// the one without which the others are right, or else the first that is wrong alone.
fn wrong(name: &str, given: &[Given], error: &serde_json::Error) -> anyhow::Error {
    let reads = |chosen: &dyn Fn(usize) -> bool| {
        let parts = given.iter().enumerate();
        let parts = parts.filter(|(n, _)| chosen(*n)).map(|(_, part)| part);
        let made = fields(name, parts).ok();
        made.is_some_and(|made| Dataset::deserialize(made).is_ok())
    };
    let all = 0..given.len();
    let found = all.clone().find(|&n| reads(&|other| other != n));
    let found = found.or_else(|| all.clone().find(|&n| !reads(&|other| other == n)));
    let why = pb_workloads::plain(&error.to_string());
    match found.map(|n| &given[n].0) {
        Some(place) => anyhow!("{place}: {why}"),
        None => anyhow!("--dataset-name {name}: {why}"),
    }
}

/// The error of a plan with the flag that sets what it is about.
pub(crate) fn flagged(error: DatasetError, options: &BenchOptions) -> anyhow::Error {
    let Some(flag) = error.key().and_then(|key| flag_for(key, &error, options)) else {
        return error.into();
    };
    match &error {
        DatasetError::Workload(WorkloadError::Parameter { value, fix, .. })
        | DatasetError::Trace(TraceError::Parameter { value, fix, .. }) => {
            let sign = if flag.contains("--dataset-option") {
                "="
            } else {
                " "
            };
            let more = match flag.as_str() {
                INPUT_UNIT => " (--api chat sends chats, --input-unit text sends texts)",
                _ => "",
            };
            anyhow!("{flag}{sign}{value}: {fix}{more}")
        }
        _ => anyhow!("{error} ({flag})"),
    }
}

/// The flag that decides the form of prompts.
const INPUT_UNIT: &str = "--input-unit";

/// The flag for a key that a plan's error names; absent for what no flag sets.
fn flag_for(key: &str, error: &DatasetError, options: &BenchOptions) -> Option<String> {
    let name = options.dataset_name.unwrap_or(DatasetName::Random);
    let own = FLAGS.iter().find(|(_, owners, own)| {
        owners.contains(&name) && own_key(own, name == DatasetName::TimedTrace) == key
    });
    if let Some((flag, ..)) = own {
        return Some(flag_of(flag));
    }
    let of_the_load = [
        "request_rate",
        "max_concurrency",
        "num_prompts",
        "max_model_len",
        "arrival",
    ];
    match (key, error) {
        ("form", _) => Some(INPUT_UNIT.to_owned()),
        ("duration_s", DatasetError::Workload(_)) => Some("--duration".to_owned()),
        ("block_size", DatasetError::Workload(_)) => Some("--block-size".to_owned()),
        (key, _) if of_the_load.contains(&key) => Some(flag_of(key)),
        (key, _) => {
            let made = serde_json::to_value(dataset(options).ok()?).ok()?;
            made.get(key)?;
            Some(format!("--dataset-option {key}"))
        }
    }
}

/// How the command line spells an option.
fn flag_of(option: &str) -> String {
    format!("--{}", option.replace('_', "-"))
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

use DatasetName as D;
const FILES: &[D] = &[D::Sharegpt, D::Custom, D::TimedTrace, D::Trace, D::Servegen];
const TRACE: &[D] = &[D::Trace];
const PREFIX: &[D] = &[D::PrefixRepetition];
const GSP: &[D] = &[D::SharedPrefix];
const RANDOM: &[D] = &[D::Random];

/// An option, the data sets that have it, and their key.
const FLAGS: [(&str, &[D], &str); 27] = [
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

/// The key by which a data set knows a setting: `timed-trace` calls blocks chunks.
fn own_key(key: &'static str, timed_trace: bool) -> &'static str {
    match (key, timed_trace) {
        ("block_size", true) => "chunk_size",
        _ => key,
    }
}

/// The options that were given and belong to a data set.
fn known(options: &BenchOptions) -> Result<Vec<Known>> {
    // As the manifest shows them, which is how a file would have them.
    let Value::Object(given) = serde_json::to_value(options)? else {
        bail!("the options are no table");
    };
    let timed = options.dataset_name == Some(DatasetName::TimedTrace);
    let found = FLAGS.into_iter().filter_map(|(flag, owners, key)| {
        Some((flag, owners, own_key(key, timed), plain(given.get(flag)?)))
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
    fn a_value_that_does_not_do_is_named_with_its_flag() {
        for (text, part) in [
            (
                "dataset_name = \"sessions\"\nsessions = 3\n\
                 dataset_option = [\"turns=2\", \"question=uniform:1,2\", \"answers=loud\"]",
                "--dataset-option answers=loud: `loud` is not known: use ",
            ),
            (
                "dataset_name = \"interference\"\n\
                 dataset_option = [\"params.streams=many\", \"params.long_output_len=2\"]",
                "--dataset-option params.streams=many: must be a whole number, at least 0, not \
                 the text \"many\"",
            ),
            (
                "dataset_name = \"trace\"\ndataset_path = \"t\"\ntrace_format = \"x\"",
                "--trace-format x: `x` is not known: use ",
            ),
        ] {
            let error = format!("{:#}", of(text).unwrap_err());
            assert!(error.starts_with(part), "{text}: {error}");
        }
    }

    #[test]
    fn an_error_of_a_plan_has_the_flag_of_this_verb() {
        let parameter = |key: &'static str| {
            DatasetError::Workload(WorkloadError::Parameter {
                key,
                value: "7".into(),
                fix: "must be less".into(),
            })
        };
        let random: BenchOptions = toml::from_str("").unwrap();
        let shared: BenchOptions = toml::from_str("dataset_name = \"shared-prefix\"").unwrap();
        for (options, key, expected) in [
            (&random, "input_len", "--random-input-len 7: must be less"),
            (&shared, "output_len", "--gsp-output-len 7: must be less"),
            (&random, "duration_s", "--duration 7: must be less"),
            (&random, "requests", "requests = 7: must be less"),
        ] {
            assert_eq!(flagged(parameter(key), options).to_string(), expected);
        }
        let text = "dataset_name = \"servegen\"\ndataset_path = \"d\"";
        let servegen: BenchOptions = toml::from_str(text).unwrap();
        let error = DatasetError::Trace(TraceError::Parameter {
            key: "rate_scale",
            value: "0".into(),
            fix: "must be positive".into(),
        });
        let error = flagged(error, &servegen).to_string();
        assert_eq!(error, "--dataset-option rate_scale=0: must be positive");
        let form = flagged(parameter("form"), &random).to_string();
        assert!(
            form.starts_with("--input-unit 7") && form.contains("--api chat"),
            "{form}"
        );
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
