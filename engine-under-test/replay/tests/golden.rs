//! Scripts answered by vLLM's and SGLang's own code, answered again here.

use std::path::{Path, PathBuf};

use pb_replay::Replay;
use serde_json::Value;

/// The recordings of one program.
fn scripts(name: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/replay");
    let entries = std::fs::read_dir(root.join(name)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ext| ext == "json"));
    files.sort();
    files
}

/// Whether `answer` has every field of `expected` with an equal value. Lists must be equal in
/// length; so must the map of requests, where an extra one would be a difference.
fn agrees(expected: &Value, answer: &Value, at: &str) -> Result<(), String> {
    match (expected, answer) {
        (Value::Object(want), Value::Object(got)) => {
            if at.ends_with(".requests") && want.len() != got.len() {
                return Err(format!(
                    "{at}: {} requests, expected {}",
                    got.len(),
                    want.len()
                ));
            }
            want.iter().try_for_each(|(key, value)| match got.get(key) {
                Some(found) => agrees(value, found, &format!("{at}.{key}")),
                None => Err(format!("{at}.{key} is missing")),
            })
        }
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => {
            let pairs = want.iter().zip(got).enumerate();
            pairs
                .into_iter()
                .try_for_each(|(i, (w, g))| agrees(w, g, &format!("{at}[{i}]")))
        }
        (want, got) if want == got => Ok(()),
        (want, got) => Err(format!("{at}: {got}, expected {want}")),
    }
}

/// Runs every recording of `name`; how many lines were compared.
fn compare(name: &str) -> usize {
    let mut lines = 0;
    for file in scripts(name) {
        let script: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let (ops, results) = (&script["ops"], &script["results"]);
        let (ops, results) = (ops.as_array().unwrap(), results.as_array().unwrap());
        assert_eq!(ops.len(), results.len());
        let mut replay = Replay::default();
        for (number, (op, expected)) in ops.iter().zip(results).enumerate() {
            let answer = replay.line(&op.to_string());
            if let Err(difference) = agrees(expected, &answer, "") {
                panic!("{} line {number}: {op}\n{difference}", file.display());
            }
            assert!(answer.get("error").is_none() || expected.get("error").is_some());
            lines += 1;
        }
    }
    lines
}

#[test]
fn vllm_scheduler_and_kv_cache_manager() {
    assert!(compare("vllm-v1") > 1000);
}

#[test]
fn sglang_radix_cache() {
    assert!(compare("sglang-radix") > 500);
}

#[test]
fn the_comparison_sees_differences() {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let want = json(r#"{"requests":{"r0":{"computed":4}},"free_queue":[1,2]}"#);
    assert!(agrees(&want, &want, "").is_ok());
    for wrong in [
        r#"{"requests":{"r0":{"computed":5}},"free_queue":[1,2]}"#,
        r#"{"requests":{"r0":{"computed":4},"r1":{}},"free_queue":[1,2]}"#,
        r#"{"requests":{"r0":{"computed":4}},"free_queue":[2,1]}"#,
        r#"{"requests":{"r0":{"computed":4}},"free_queue":[1]}"#,
        r#"{"free_queue":[1,2]}"#,
    ] {
        assert!(agrees(&want, &json(wrong), "").is_err(), "{wrong}");
    }
}
