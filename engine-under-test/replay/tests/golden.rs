//! Scripts answered by vLLM's and SGLang's own code, answered again here.

use std::path::{Path, PathBuf};

use pb_replay::Replay;
use serde_json::Value;

/// The recordings of a directory.
fn scripts(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ext| ext == "json"));
    files.sort();
    files
}

/// The directory of the recordings of one program.
fn recorded(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/replay");
    root.join(name)
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

/// Runs one recording: how many lines agreed, or the first one that did not.
fn run(file: &Path) -> Result<usize, String> {
    let script: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let (ops, results) = (&script["ops"], &script["results"]);
    let (ops, results) = (ops.as_array().unwrap(), results.as_array().unwrap());
    assert_eq!(ops.len(), results.len(), "{}", file.display());
    let mut replay = Replay::default();
    for (number, (op, expected)) in ops.iter().zip(results).enumerate() {
        let answer = replay.line(&op.to_string());
        agrees(expected, &answer, "")
            .and_then(|()| match (answer.get("error"), expected.get("error")) {
                (Some(error), None) => Err(format!("unexpected {error}")),
                _ => Ok(()),
            })
            .map_err(|what| format!("{} line {number}: {op}\n{what}", file.display()))?;
    }
    Ok(ops.len())
}

/// Runs every recording of a directory; how many lines were compared.
fn compare(directory: &Path) -> usize {
    let outcomes: Vec<_> = scripts(directory).iter().map(|file| run(file)).collect();
    let differences: Vec<&str> = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().err().map(String::as_str))
        .collect();
    let (total, count) = (outcomes.len(), differences.len());
    let listed = differences.join("\n");
    assert!(count == 0, "{count} of {total} scripts differ:\n{listed}");
    println!("{}: {total} scripts agree", directory.display());
    outcomes.into_iter().filter_map(Result::ok).sum()
}

/// Scripts made with `golden/replay/make_vllm.py` and `make_sglang.py`, beside the recorded ones.
#[test]
fn scripts_of_a_given_directory() {
    let Some(directory) = std::env::var_os("PREFILLBENCH_REPLAY_DIR") else {
        println!("skipped: PREFILLBENCH_REPLAY_DIR names no directory of scripts");
        return;
    };
    assert!(compare(Path::new(&directory)) > 0);
}

#[test]
fn vllm_scheduler_and_kv_cache_manager() {
    assert!(compare(&recorded("vllm-v1")) > 1000);
}

/// Rules that the preset leaves at vLLM's default: priorities, watermarks, whole prompts.
#[test]
fn vllm_with_other_rules() {
    assert!(compare(&recorded("vllm-v1-rules")) > 400);
}

#[test]
fn sglang_radix_cache() {
    assert!(compare(&recorded("sglang-radix")) > 500);
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
