//! The check of the logits as a command: clean variants agree, the planted fault is rejected.

mod common;

use common::{run, stderr, stdout};
use serde_json::Value;

/// Runs `validate` and checks what must hold whatever the number of prompts: all bits equal, no
/// clean variant fails, every planted fault is rejected.
fn check(args: &[&str]) -> Value {
    let output = run(&[&["validate", "--json"], args].concat());
    let code = output.status.code();
    // A few prompts may leave a mean undecided (3), but never failed (1).
    assert!(
        code == Some(0) || code == Some(3),
        "{code:?}: {}",
        stderr(&output)
    );
    let outcome: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let list = |key: &str| outcome[key].as_array().expect("a list").clone();
    let (bits, tolerance, faults) = (list("bits"), list("tolerance"), list("faults"));
    assert!(bits.len() >= 8 && tolerance.len() >= 8 && faults.len() >= 4);
    for check in &bits {
        assert_eq!(check["bits"]["differing_values"], 0, "{}", check["config"]);
        assert!(
            check["bits"]["values"].as_u64() > Some(0),
            "{}",
            check["config"]
        );
    }
    for verdict in &tolerance {
        assert_ne!(verdict["verdict"]["verdict"], "fail", "{verdict}");
    }
    for fault in &faults {
        assert_eq!(fault["rejected"], true, "{}", fault["label"]);
    }
    outcome
}

#[test]
fn the_sharp_synthetic_model() {
    check(&["--model", "synthetic", "--prompts", "8"]);
}

#[test]
fn the_real_model() {
    let home = |name: &str| std::env::var_os(name).map(std::path::PathBuf::from);
    let cache = home("PREFILLBENCH_HOME")
        .or_else(|| Some(home("XDG_CACHE_HOME")?.join("prefillbench")))
        .or_else(|| Some(home("HOME")?.join(".cache/prefillbench")));
    let model = cache.map(|dir| dir.join("models/SmolLM2-135M-Instruct.Q4_1.gguf"));
    if !model.is_some_and(|path| path.exists()) {
        eprintln!("skipped: get the model with `prefillbench model fetch smollm2-135m`");
        return;
    }
    // Prompts of 128 tokens: the limits of the served mode were calibrated on these.
    check(&["--model", "smollm2-135m", "--prompts", "3"]);
}
