//! A small validator of the words that the committed schemas use. Where Python has `jsonschema`,
//! that one is asked too. Tests of other crates that print documents include this file.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// What does not fit, each with its place.
pub(crate) fn check(schema: &Value, document: &Value) -> Vec<String> {
    let mut out = Vec::new();
    problems(schema, schema, document, "", &mut out);
    out
}

/// What is wrong with `value` under `schema`, each with its place.
fn problems(root: &Value, schema: &Value, value: &Value, place: &str, out: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let target = root
            .pointer(name.trim_start_matches('#'))
            .expect("a known reference");
        problems(root, target, value, place, out);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let fits = |one: &&Value| {
            let mut inner = Vec::new();
            problems(root, one, value, place, &mut inner);
            inner.is_empty()
        };
        if any.iter().find(fits).is_none() {
            out.push(format!("{place}: fits none of anyOf"));
        }
    }
    let wrong = |word: &str| format!("{place}: {word}, found {value}");
    if !type_fits(&schema["type"], value) {
        out.push(wrong("type"));
    }
    if schema.get("const").is_some_and(|want| want != value) {
        out.push(wrong("const"));
    }
    if schema["enum"]
        .as_array()
        .is_some_and(|all| !all.contains(value))
    {
        out.push(wrong("enum"));
    }
    let number = value.as_f64();
    let below = number
        .zip(schema["minimum"].as_f64())
        .is_some_and(|(v, min)| v < min);
    let above = number
        .zip(schema["maximum"].as_f64())
        .is_some_and(|(v, max)| v > max);
    if below || above {
        out.push(wrong("range"));
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        problems(root, &schema["items"], item, &format!("{place}/{i}"), out);
    }
    if let Some(object) = value.as_object() {
        object_problems(root, schema, object, place, out);
    }
}

fn type_fits(types: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str().unwrap_or("") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("type {other:?}"),
    };
    match types {
        Value::Null => true,
        Value::Array(any) => any.iter().any(is),
        one => is(one),
    }
}

fn object_problems(
    root: &Value,
    schema: &Value,
    object: &serde_json::Map<String, Value>,
    place: &str,
    out: &mut Vec<String>,
) {
    for key in schema["required"].as_array().into_iter().flatten() {
        if !object.contains_key(key.as_str().unwrap()) {
            out.push(format!("{place}: {key} is missing"));
        }
    }
    for (key, inner) in object {
        let place = format!("{place}/{key}");
        let names = schema["propertyNames"]["enum"].as_array();
        if names.is_some_and(|names| !names.contains(&json!(key))) {
            out.push(format!("{place}: not a known name"));
        }
        match (
            schema["properties"].get(key),
            &schema["additionalProperties"],
        ) {
            (Some(property), _) => problems(root, property, inner, &place, out),
            (None, Value::Bool(false)) => out.push(format!("{place}: not in the schema")),
            (None, others) => problems(root, others, inner, &place, out),
        }
    }
}

const PYTHON: &str = "
import json, sys
try:
    import jsonschema
except ImportError:
    sys.exit(77)
schema, documents = json.load(sys.stdin)
validator = jsonschema.Draft202012Validator(schema)
jsonschema.Draft202012Validator.check_schema(schema)
print(json.dumps([[e.json_path for e in validator.iter_errors(d)] for d in documents]))
";

/// What `jsonschema` finds in each document; nothing where there is no Python, or it has no such
/// module.
pub(crate) fn jsonschema(schema: &Value, documents: &[Value]) -> Option<Vec<Vec<String>>> {
    let mut command = Command::new("python3");
    command
        .args(["-c", PYTHON])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped: no python3");
        return None;
    };
    let input = json!([schema, documents]).to_string();
    child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(77) {
        eprintln!("skipped: python3 has no jsonschema");
        return None;
    }
    assert!(output.status.success());
    Some(serde_json::from_slice(&output.stdout).unwrap())
}
