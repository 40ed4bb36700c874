//! Where the target is and what every request carries; and what of that is never shown.

use std::path::Path;

use anyhow::{Context, Result, bail};
use pb_load::control::{Control, Method};
use pb_load::{ControlLimits, Endpoint, HttpVersion};
use serde_json::{Map, Value};

use super::settings::Settings;
use crate::args::{BenchOptions, HttpArg, Secret};
use crate::console;

/// The endpoint, without a model that was not named.
///
/// # Errors
/// A bad address or header, a key that is not there.
pub(crate) fn endpoint(settings: &Settings) -> Result<Endpoint> {
    let options = &settings.options;
    let mut endpoint = Endpoint::parse(&settings.base_url)?;
    if let Some(model) = options
        .served_model_name
        .as_ref()
        .or(options.model.as_ref())
    {
        endpoint = endpoint.with_model(model);
    }
    if let Some(route) = &options.endpoint {
        endpoint = endpoint.with_route(&route.value.0).context("--endpoint")?;
    }
    if let Some((key, place)) = api_key(options)? {
        endpoint = endpoint.with_api_key(key).context(place)?;
    }
    for Secret(pair) in options.header.iter().flatten() {
        endpoint = endpoint.with_header(&pair.0, &pair.1).context("--header")?;
    }
    if options.http == Some(HttpArg::Http2) {
        endpoint = endpoint.with_http_version(HttpVersion::Http2);
    }
    if let Some(file) = &options.ca_file {
        endpoint = endpoint.with_root_file(file);
    }
    let usual = ControlLimits::default();
    let total = options.timeout_total.as_ref();
    let limits = ControlLimits {
        connect_ns: settings.limits.connect_ns,
        total_ns: total.map_or(usual.total_ns, |_| settings.limits.total_ns),
    };
    let endpoint = endpoint.with_control_limits(limits);
    Ok(endpoint.with_extra_body(fields(options)))
}

/// The fields of every body that options set.
pub(crate) fn fields(options: &BenchOptions) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Some(temperature) = &options.temperature {
        fields.insert("temperature".to_owned(), temperature.value.0.into());
    }
    if let Some(top_p) = &options.top_p {
        fields.insert("top_p".to_owned(), top_p.value.0.into());
    }
    if let Some(extra) = &options.extra_body {
        fields.extend(extra.value.0.clone());
    }
    fields
}

/// The key, from where it was said to be, and where that is.
fn api_key(options: &BenchOptions) -> Result<Option<(String, String)>> {
    match (&options.api_key_env, &options.api_key_file) {
        (Some(_), Some(_)) => {
            bail!("--api-key-env and --api-key-file name two keys: leave one out")
        }
        (Some(name), None) => {
            let key = std::env::var(name).ok().filter(|key| !key.is_empty());
            let place = format!("--api-key-env {name}");
            let missing = || format!("{place}: the variable is not set");
            Ok(Some((key.with_context(missing)?, place)))
        }
        (None, Some(path)) => {
            let place = format!("--api-key-file {}", path.display());
            Ok(Some((key_file(path)?, place)))
        }
        (None, None) => Ok(None),
    }
}

fn key_file(path: &Path) -> Result<String> {
    let place = || format!("--api-key-file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(place)?;
    match text.trim() {
        "" => bail!("{}: the file is empty; write the key into it", place()),
        key => Ok(key.to_owned()),
    }
}

/// Asks the server for its models, so that one that cannot be reached is told before anything is
/// written. The first one is used where none was named.
///
/// # Errors
/// The server cannot be reached; it names no model and the options do not either.
pub(crate) async fn greet(endpoint: Endpoint) -> Result<Endpoint> {
    let place = || format!("--base-url {}", endpoint.url(""));
    let control = Control::new(&endpoint)?;
    let answer = control.exchange(Method::GET, "/v1/models", None).await;
    let answer = answer.with_context(place)?;
    let list: Value = serde_json::from_str(&answer.body).unwrap_or_default();
    if let Some(model) = endpoint.model() {
        if let Some(told) = not_listed(model, &list) {
            console::say(told);
        }
        return Ok(endpoint);
    }
    match list["data"][0]["id"].as_str() {
        Some(name) => Ok(endpoint.clone().with_model(name)),
        None => bail!(
            "{}: GET /v1/models (HTTP {}) names no model; give one with --model",
            place(),
            answer.status
        ),
    }
}

/// A word about a model that the server does not list. It is no error: some servers list one name
/// and take any.
fn not_listed(model: &str, list: &Value) -> Option<String> {
    let known = list["data"].as_array()?.iter();
    let known: Vec<&str> = known.filter_map(|one| one["id"].as_str()).collect();
    if known.is_empty() || known.contains(&model) {
        return None;
    }
    Some(pb_record::visible(&format!(
        "--model {model}: the server lists no such model, but: {}",
        known.join(" ")
    )))
}

/// The command line without the values of headers, which may be keys.
pub(crate) fn shown_command(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let hide = |header: &str| match header.split_once('=') {
        Some((name, _)) => format!("{name}=(hidden)"),
        None => "(hidden)".to_owned(),
    };
    let mut in_headers = false;
    let mut shown = Vec::new();
    for word in words {
        if word.starts_with("--") {
            in_headers = word == "--header";
            shown.push(match word.strip_prefix("--header=") {
                Some(header) => format!("--header={}", hide(header)),
                None => word,
            });
        } else if in_headers {
            shown.push(hide(&word));
        } else {
            shown.push(word);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_do_not_get_into_the_manifest() {
        let words =
            "bench --header x-key=s3cret y=s3cret --header=x=s3cret --header s3cret --json a";
        let shown = shown_command(words.split(' ').map(String::from)).join(" ");
        let expected = "bench --header x-key=(hidden) y=(hidden) --header=x=(hidden) --header \
                        (hidden) --json a";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_model_that_is_not_listed_is_told() {
        let list = serde_json::json!({"data": [{"id": "mock"}, {"id": "lora"}]});
        let told = not_listed("wrong", &list).unwrap();
        assert!(
            told.contains("wrong") && told.ends_with("mock lora"),
            "{told}"
        );
        assert_eq!(not_listed("lora", &list), None);
        assert_eq!(not_listed("any", &Value::Null), None);
    }

    #[test]
    fn fields_of_the_body_are_laid_over_each_other() {
        let options = toml::from_str(
            "temperature = 0.5\ntop_p = 0.9\nextra_body = '{\"top_p\": 0.8, \"top_k\": 3}'",
        );
        let fields = Value::Object(fields(&options.unwrap()));
        let expected = serde_json::json!({"temperature": 0.5, "top_p": 0.8, "top_k": 3});
        assert_eq!(fields, expected);
    }

    #[test]
    fn a_key_comes_from_its_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "hunter2\n").unwrap();
        assert_eq!(key_file(&path).unwrap(), "hunter2");
        std::fs::write(&path, "\n").unwrap();
        assert!(format!("{:#}", key_file(&path).unwrap_err()).contains("--api-key-file"));
        let missing = key_file(&dir.path().join("none")).unwrap_err();
        assert!(format!("{missing:#}").contains("none"));
    }
}
