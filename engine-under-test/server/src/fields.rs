//! The fields of a request: which there are, of what type, in what range.
//!
//! Checked by a table before the typed parse, so that every error names its field and its value.
//! Fields that vLLM knows and this engine does not implement are accepted only with a value that
//! changes nothing: a silently ignored penalty would be a wrong answer.

use serde_json::{Map, Number, Value};

use crate::error::ApiError;

/// Type and range of a field; null always counts as absent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// True or false.
    Bool,
    /// An integer in a range, both ends included.
    Int(i64, i64),
    /// A number of at least zero.
    NonNegative,
    /// A number above 0 and at most 1.
    Fraction,
    /// A string that is not empty and at most [`TEXT_BYTES_MAX`] long.
    Text,
    /// Such a string or a list of at most [`TEXTS_MAX`] of them.
    Texts,
    /// A list of at most [`IDS_MAX`] token ids.
    Ids,
    /// A list of objects.
    Objects,
    /// An object of booleans.
    Flags,
    /// An object that is read elsewhere.
    Object,
    /// Not implemented: any value but the ones that change nothing is refused.
    Neutral(Neutral),
}

/// A value that changes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Neutral {
    /// This number.
    Number(f64),
    /// This boolean.
    Bool(bool),
    /// An empty string, list or object.
    Empty,
    /// `{"type": "text"}`.
    TextFormat,
}

/// A field and its rule.
pub(crate) type Field = (&'static str, Rule);

/// Longest string. vLLM has no such limits; they bound what every choice of a request keeps, and
/// what the engine thread does for each token.
const TEXT_BYTES_MAX: usize = 4096;
/// Most strings in a list.
const TEXTS_MAX: usize = 128;
/// Most token ids in a list.
const IDS_MAX: usize = 4096;

const U32: i64 = u32::MAX as i64;

/// Fields of both request types.
const COMMON: &[Field] = &[
    ("model", Rule::Text),
    ("n", Rule::Int(1, U32)),
    ("best_of", Rule::Int(1, U32)),
    ("temperature", Rule::NonNegative),
    ("top_p", Rule::Fraction),
    ("top_k", Rule::Int(-1, U32)),
    ("seed", Rule::Int(i64::MIN, i64::MAX)),
    ("stop", Rule::Texts),
    ("stop_token_ids", Rule::Ids),
    ("max_tokens", Rule::Int(1, U32)),
    ("min_tokens", Rule::Int(0, U32)),
    ("ignore_eos", Rule::Bool),
    ("prompt_logprobs", Rule::Int(0, U32)),
    ("stream", Rule::Bool),
    ("stream_options", Rule::Flags),
    ("cache_salt", Rule::Text),
    ("priority", Rule::Int(i64::MIN, i64::MAX)),
    ("return_token_ids", Rule::Bool),
    ("kv_transfer_params", Rule::Object),
    ("add_special_tokens", Rule::Bool),
    ("presence_penalty", Rule::Neutral(Neutral::Number(0.0))),
    ("frequency_penalty", Rule::Neutral(Neutral::Number(0.0))),
    ("repetition_penalty", Rule::Neutral(Neutral::Number(1.0))),
    ("min_p", Rule::Neutral(Neutral::Number(0.0))),
    ("logit_bias", Rule::Neutral(Neutral::Empty)),
    ("bad_words", Rule::Neutral(Neutral::Empty)),
    ("allowed_token_ids", Rule::Neutral(Neutral::Empty)),
    ("use_beam_search", Rule::Neutral(Neutral::Bool(false))),
    (
        "include_stop_str_in_output",
        Rule::Neutral(Neutral::Bool(false)),
    ),
    ("skip_special_tokens", Rule::Neutral(Neutral::Bool(true))),
    ("truncate_prompt_tokens", Rule::Neutral(Neutral::Empty)),
    ("response_format", Rule::Neutral(Neutral::TextFormat)),
    ("structured_outputs", Rule::Neutral(Neutral::Empty)),
];

/// Further fields of a completion; the prompt is read by its own parser.
const COMPLETION: &[Field] = &[
    ("echo", Rule::Bool),
    ("logprobs", Rule::Int(0, U32)),
    ("return_tokens_as_token_ids", Rule::Bool),
    ("suffix", Rule::Neutral(Neutral::Empty)),
    ("prompt_embeds", Rule::Neutral(Neutral::Empty)),
];

/// Further fields of a chat completion.
const CHAT: &[Field] = &[
    ("messages", Rule::Objects),
    ("max_completion_tokens", Rule::Int(1, U32)),
    ("logprobs", Rule::Bool),
    ("top_logprobs", Rule::Int(0, U32)),
    ("add_generation_prompt", Rule::Bool),
    (
        "continue_final_message",
        Rule::Neutral(Neutral::Bool(false)),
    ),
    ("echo", Rule::Neutral(Neutral::Bool(false))),
    ("tools", Rule::Neutral(Neutral::Empty)),
];

/// The rule of a completion's field.
pub(crate) fn completion_rule(name: &str) -> Option<Rule> {
    rule(&[COMPLETION, COMMON], name)
}

/// The rule of a chat completion's field.
pub(crate) fn chat_rule(name: &str) -> Option<Rule> {
    rule(&[CHAT, COMMON], name)
}

fn rule(tables: &[&[Field]], name: &str) -> Option<Rule> {
    tables
        .iter()
        .flat_map(|table| table.iter())
        .find(|f| f.0 == name)
        .map(|f| f.1)
}

/// Checks every field, takes nulls out and writes whole numbers as integers.
pub(crate) fn check(
    fields: Map<String, Value>,
    rule_of: fn(&str) -> Option<Rule>,
) -> Result<Map<String, Value>, ApiError> {
    let mut checked = Map::new();
    for (name, value) in fields {
        if value.is_null() {
            continue;
        }
        if let Some(rule) = rule_of(&name) {
            let value = check_one(&name, rule, value)?;
            checked.insert(name, value);
        }
    }
    Ok(checked)
}

fn check_one(name: &str, rule: Rule, value: Value) -> Result<Value, ApiError> {
    let refuse = |sentence: &str| ApiError::value(name, &format!("{name} {sentence}"), &value);
    match rule {
        Rule::Bool if !value.is_boolean() => return Err(refuse("must be true or false")),
        Rule::Int(low, high) => return integer(name, low, high, &value),
        Rule::NonNegative | Rule::Fraction if !value.is_number() => {
            return Err(refuse("must be a number"));
        }
        Rule::NonNegative if value.as_f64().is_none_or(|v| v < 0.0) => {
            return Err(refuse("must be non-negative"));
        }
        Rule::Fraction if value.as_f64().is_none_or(|v| v <= 0.0 || v > 1.0) => {
            return Err(refuse("must be in (0, 1]"));
        }
        Rule::Text if !filled(&value) => return Err(refuse("must be a non-empty string")),
        Rule::Text => check_size(name, std::slice::from_ref(&value))?,
        Rule::Texts => {
            let list = value.as_array();
            let list = list.map_or(std::slice::from_ref(&value), Vec::as_slice);
            if !list.iter().all(filled) {
                return Err(refuse("must be a non-empty string or a list of them"));
            }
            check_size(name, list)?;
        }
        Rule::Ids => return ids(name, &value),
        Rule::Objects
            if !value
                .as_array()
                .is_some_and(|l| l.iter().all(Value::is_object)) =>
        {
            return Err(refuse("must be a list of objects"));
        }
        Rule::Object if !value.is_object() => return Err(refuse("must be an object")),
        Rule::Flags => {
            let flag = |v: &Value| v.is_boolean() || v.is_null();
            if !value
                .as_object()
                .is_some_and(|object| object.values().all(flag))
            {
                return Err(refuse("must be an object of booleans"));
            }
        }
        Rule::Neutral(neutral) if !neutral.is(&value) => {
            return Err(refuse("is not supported by this server; leave it out"));
        }
        _ => {}
    }
    Ok(value)
}

/// Refuses too many strings and too long ones.
fn check_size(name: &str, texts: &[Value]) -> Result<(), ApiError> {
    if texts.len() > TEXTS_MAX {
        let message = format!(
            "{name} must hold at most {TEXTS_MAX} strings, got {}.",
            texts.len()
        );
        return Err(ApiError::field(name, message));
    }
    let longest = texts.iter().filter_map(Value::as_str).map(str::len).max();
    match longest {
        Some(bytes) if bytes > TEXT_BYTES_MAX => {
            let message = format!(
                "{name} must be at most {TEXT_BYTES_MAX} bytes for each string, got {bytes}."
            );
            Err(ApiError::field(name, message))
        }
        _ => Ok(()),
    }
}

fn ids(name: &str, value: &Value) -> Result<Value, ApiError> {
    let refuse = |sentence: String| ApiError::value(name, &format!("{name} {sentence}"), value);
    let wrong = || refuse("must be a list of token ids".to_owned());
    let list = value.as_array().ok_or_else(wrong)?;
    if list.len() > IDS_MAX {
        return Err(refuse(format!("must hold at most {IDS_MAX} token ids")));
    }
    let id = |v: &Value| integer(name, 0, U32, v).map_err(|_| wrong());
    list.iter()
        .map(id)
        .collect::<Result<Vec<_>, _>>()
        .map(Value::Array)
}

fn filled(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

/// Whole numbers written as `4.0` count as integers, as they do in vLLM.
fn integer(name: &str, low: i64, high: i64, value: &Value) -> Result<Value, ApiError> {
    let refuse = |sentence: String| Err(ApiError::value(name, &sentence, value));
    let exact_limit = 9_007_199_254_740_992.0; // 2^53
    let whole = |v: f64| (v.fract() == 0.0 && v.abs() <= exact_limit).then_some(v as i64);
    let integer = match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            if number.is_u64() {
                None
            } else {
                number.as_f64().and_then(whole)
            }
        }),
        _ => return refuse(format!("{name} must be an integer")),
    };
    match integer {
        Some(v) if v < low => refuse(format!("{name} must be at least {low}")),
        Some(v) if v > high => refuse(format!("{name} must be at most {high}")),
        Some(v) => Ok(Value::Number(Number::from(v))),
        None if value.is_u64() => refuse(format!("{name} must be at most {high}")),
        None => refuse(format!("{name} must be an integer")),
    }
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match self {
            Neutral::Number(number) => value.as_f64() == Some(number),
            Neutral::Bool(flag) => value.as_bool() == Some(flag),
            Neutral::Empty => {
                value.as_str().is_some_and(str::is_empty)
                    || value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(Map::is_empty)
            }
            Neutral::TextFormat => value.get("type").and_then(Value::as_str) == Some("text"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_completion(json: &str) -> Result<Map<String, Value>, String> {
        let fields: Map<String, Value> = serde_json::from_str(json).unwrap();
        check(fields, completion_rule).map_err(|error| error.body().error.message)
    }

    #[test]
    fn vllms_sentence_for_a_value_out_of_range() {
        assert_eq!(
            check_completion("{\"max_tokens\": -5}").unwrap_err(),
            "max_tokens must be at least 1, got -5. (parameter=max_tokens, value=-5)"
        );
    }

    #[test]
    fn good_values_pass_and_nulls_go() {
        let json = "{\"n\": 2.0, \"seed\": -1, \"stop\": [\"a\"], \"temperature\": 0, \"top_p\": 1,
            \"top_k\": -1, \"min_p\": 0, \"logit_bias\": {}, \"stream\": null,
            \"stream_options\": {\"include_usage\": null}, \"unknown\": 3}";
        let checked = check_completion(json).unwrap();
        assert_eq!(checked.get("n"), Some(&Value::from(2)));
        let ids = check_completion("{\"stop_token_ids\": [1.0, 2]}").unwrap();
        assert_eq!(ids["stop_token_ids"], serde_json::json!([1, 2]));
        assert!(!checked.contains_key("stream") && !checked.contains_key("unknown"));
    }

    #[test]
    fn lists_and_strings_have_a_largest_size() {
        let many = |element: &str, count: usize| format!("[{}]", vec![element; count].join(","));
        let long = |bytes: usize| format!("\"{}\"", "s".repeat(bytes));
        for (name, largest, too_large) in [
            ("stop", many("\"s\"", 128), many("\"s\"", 129)),
            ("stop", long(4096), long(4097)),
            ("stop", many(&long(4096), 2), many(&long(4097), 2)),
            ("cache_salt", long(4096), long(4097)),
            ("stop_token_ids", many("1", 4096), many("1", 4097)),
        ] {
            let body = |value: &str| format!("{{\"{name}\": {value}}}");
            assert!(check_completion(&body(&largest)).is_ok(), "{name}");
            let message = check_completion(&body(&too_large)).unwrap_err();
            assert!(message.starts_with(&format!("{name} must")), "{message}");
            assert!(message.len() < 400, "{} bytes", message.len());
        }
    }

    #[test]
    fn bad_values_are_refused_with_the_fields_name() {
        let wrong = [
            ("n", "0"),
            ("n", "1.5"),
            ("n", "4294967296"),
            ("n", "\"2\""),
            ("n", "[]"),
            ("temperature", "-0.1"),
            ("temperature", "\"hot\""),
            ("top_p", "0"),
            ("top_p", "1.01"),
            ("top_k", "-2"),
            ("seed", "18446744073709551615"),
            ("seed", "1e300"),
            ("stop", "\"\""),
            ("stop", "[\"\"]"),
            ("stop", "7"),
            ("stop_token_ids", "[-1]"),
            ("stop_token_ids", "7"),
            ("stop_token_ids", "[1.5]"),
            ("best_of", "0"),
            ("min_tokens", "-1"),
            ("ignore_eos", "1"),
            ("stream", "\"true\""),
            ("stream_options", "[]"),
            ("stream_options", "{\"include_usage\": 1}"),
            ("cache_salt", "\"\""),
            ("priority", "1.5"),
            ("priority", "\"high\""),
            ("echo", "0"),
            ("logprobs", "true"),
            ("min_p", "0.1"),
            ("presence_penalty", "1"),
            ("logit_bias", "{\"1\": 2}"),
            ("suffix", "\"x\""),
            ("response_format", "{\"type\": \"json_object\"}"),
            ("use_beam_search", "true"),
        ];
        for (name, value) in wrong {
            let message = check_completion(&format!("{{\"{name}\": {value}}}")).unwrap_err();
            assert!(message.starts_with(name), "{message}");
        }
    }
}
