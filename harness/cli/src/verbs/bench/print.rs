//! The result in the form that was asked for, and the file that `vllm bench serve` would save.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pb_bench::vllm::VllmOptions;
use pb_bench::{Document, Tally, csv, table, vllm_result};

use super::settings::Settings;
use crate::args::{Above0, Format, Text};
use crate::{console, output};

/// Prints the result and says where the files are.
///
/// # Errors
/// Standard output or a file cannot be written.
pub(crate) fn result(
    settings: &Settings,
    document: &Document,
    tally: &Tally,
    dir: &Path,
) -> Result<()> {
    let vllm = |detailed| {
        let selection = settings.selection.clone().unwrap_or_default();
        let options = VllmOptions {
            selection,
            detailed,
        };
        serde_json::to_string_pretty(&vllm_result(document, tally, &options))
    };
    let detailed = settings.options.save_detailed == Some(true);
    // Files first: standard output may be full.
    if settings.options.save_result == Some(true) || detailed {
        let path = result_path(settings, document);
        if let Some(folder) = path.parent() {
            let place = || format!("--result-dir {}", folder.display());
            std::fs::create_dir_all(folder).with_context(place)?;
        }
        let place = || format!("cannot write {}", path.display());
        std::fs::write(&path, vllm(detailed)? + "\n").with_context(place)?;
        console::say(format!("result file: {}", path.display()));
    }
    console::say(format!("run directory: {}", dir.display()));
    console::say(format!(
        "a report of it: prefillbench report {}",
        dir.display()
    ));
    match (settings.format, &settings.selection) {
        (Format::Json, _) => output::json(document),
        (Format::Csv, _) => output::line(csv::text(document).trim_end()),
        (Format::Vllm, _) => output::line(&vllm(detailed)?),
        (Format::Table, Some(selection)) => {
            output::table(&table::text_with(document, tally, selection))
        }
        (Format::Table, None) => output::table(&table::text(document)),
    }
}

/// Where the file goes, named as `vllm bench serve` names it: label, rate, concurrency, model,
/// time.
fn result_path(settings: &Settings, document: &Document) -> PathBuf {
    let options = &settings.options;
    let folder = options.result_dir.clone().unwrap_or_default();
    if let Some(name) = &options.result_filename {
        return folder.join(name);
    }
    let label = options
        .label
        .as_deref()
        .unwrap_or(match document.identity.api.as_str() {
            "chat" => "openai-chat",
            _ => "openai",
        });
    let rate = match (options.ramp_up_strategy, settings.shape.request_rate) {
        (Some(strategy), _) => {
            let rps = |rate: &Option<Text<Above0>>| {
                rate.as_ref().map_or(String::new(), ToString::to_string)
            };
            let (start, end) = (&options.ramp_up_start_rps, &options.ramp_up_end_rps);
            let strategy = format!("{strategy:?}").to_lowercase();
            format!("ramp-up-{strategy}-{}qps-{}qps", rps(start), rps(end))
        }
        (None, Some(rate)) => format!("{rate:?}qps"),
        (None, None) => "infqps".to_owned(),
    };
    let slots = settings.shape.max_concurrency;
    let slots = slots.map_or_else(String::new, |n| format!("-concurrency{n}"));
    let model = document
        .identity
        .model
        .rsplit('/')
        .next()
        .unwrap_or_default();
    let digits = |c: &char| c.is_ascii_digit();
    let time: String = document.identity.created.chars().filter(digits).collect();
    let (day, second) = time.split_at_checked(8).unwrap_or((&time, ""));
    folder.join(format!("{label}-{rate}{slots}-{model}-{day}-{second}.json"))
}

#[cfg(test)]
mod tests {
    use pb_bench::Conditions;

    use super::*;

    fn path(text: &str) -> String {
        let options = toml::from_str(text).unwrap();
        let settings = Settings::new(options, false).unwrap();
        let mut conditions = Conditions::default();
        conditions.identity.model = "org/model".into();
        conditions.identity.created = "2026-11-30T01:02:03Z".into();
        let document = Document::of(&conditions.tally(), &conditions);
        result_path(&settings, &document).display().to_string()
    }

    #[test]
    fn the_file_has_the_name_that_the_other_tool_would_give_it() {
        let base = "base_url = \"http://h:1\"\n";
        for (more, expected) in [
            ("", "openai-infqps-model-20261130-010203.json"),
            (
                "request_rate = 4\n",
                "openai-4.0qps-model-20261130-010203.json",
            ),
            (
                "max_concurrency = 8\nlabel = \"x\"\nresult_dir = \"d\"",
                "d/x-infqps-concurrency8-model-20261130-010203.json",
            ),
            ("result_filename = \"r.json\"", "r.json"),
        ] {
            assert_eq!(path(&format!("{base}{more}")), expected);
        }
    }
}
