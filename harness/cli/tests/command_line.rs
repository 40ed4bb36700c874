//! The command line as an outsider relies on it: help, completions, exit codes, clear errors.

mod common;

use common::{prefillbench, run, stderr, stdout};

#[test]
fn help_names_every_verb_and_gives_examples() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let text = stdout(&output);
    let verbs = [
        "quickstart",
        "model",
        "serve",
        "router",
        "validate",
        "calc",
        "engine",
        "kernels",
        "trace",
        "bench",
        "run",
        "compare",
        "gate",
        "mock",
        "diagnose",
        "leak",
        "golden",
        "merge",
        "report",
        "completions",
    ];
    for verb in verbs {
        assert!(text.contains(verb), "{verb} is missing");
        let help = run(&[verb, "--help"]);
        assert!(
            help.status.success() && stdout(&help).contains("Usage:"),
            "{verb}"
        );
        for flag in ["--help", "-h"] {
            let text = stdout(&run(&[verb, flag]));
            let wide = text.lines().find(|line| line.chars().count() > 100);
            assert_eq!(wide, None, "{verb} {flag}");
        }
    }
    assert!(text.contains("Examples:") && text.contains("Exit codes:"));
    assert!(text.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn completions_exist_for_common_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success());
        assert!(stdout(&output).contains("prefillbench"), "{shell}");
    }
}

/// Commands that must fail, words separated by spaces, and what the message must name.
/// `FILE` stands for a file that is no model.
const BAD: [(&str, &str); 17] = [
    ("serve --model no-such-file.gguf", "no-such-file.gguf"),
    ("serve --model FILE", "x.gguf"),
    (
        "serve --model synthetic-tiny --block-size 0",
        "--block-size",
    ),
    ("serve --model synthetic-tiny --kv-bytes 1", "--kv-bytes"),
    ("serve --model synthetic-tiny --kv-bytes lots", "lots"),
    (
        "serve --model synthetic-tiny --kv-bytes 9999GiB",
        "--kv-bytes",
    ),
    ("serve --model synthetic-tiny --threads 100000000", "1024"),
    ("quickstart --blocks 0", "blocks"),
    ("quickstart --budget 0", "budget"),
    (
        "validate --model synthetic-tiny --prompts 18446744073709551615",
        "--prompts",
    ),
    (
        "validate --model synthetic-tiny --prompt-len 37",
        "--prompt-len",
    ),
    ("model export-bf16 synthetic-tiny FILE", "exists"),
    ("calc prefix --prompt 10 --shared 20", "--shared"),
    (
        "serve --model synthetic-tiny --max-model-len 99999999",
        "max_model_len",
    ),
    (
        "serve --model synthetic-tiny --api-key-env NO_SUCH_VAR",
        "NO_SUCH_VAR",
    ),
    ("report no-such-run", "no-such-run"),
    ("model fetch gpt-5", "gpt-5"),
];

#[test]
fn bad_input_names_what_is_wrong_and_exits_with_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("x.gguf");
    std::fs::write(&file, b"not a model at all").expect("written");
    let file = file.to_str().expect("UTF-8");
    for (line, needle) in BAD {
        let words = line.split(' ').map(|w| if w == "FILE" { file } else { w });
        let output = prefillbench(&words.collect::<Vec<_>>())
            .env("PREFILLBENCH_HOME", dir.path().join("home"))
            .output()
            .expect("the binary runs");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(needle), "{line}: {said}");
        assert!(!said.contains("panicked"), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}

#[test]
fn a_generated_model_can_be_written_and_inspected() {
    let dir = tempfile::tempdir().expect("a directory");
    let target = dir.path().join("tiny");
    let target = target.to_str().expect("UTF-8");
    assert!(
        run(&["model", "synth", target, "--seed", "7"])
            .status
            .success()
    );
    for file in ["model.safetensors", "config.json", "tokenizer.json"] {
        assert!(std::path::Path::new(target).join(file).exists(), "{file}");
    }
    let info = common::json(&["model", "info", target, "--json"]);
    assert_eq!(info["kind"], "safetensors");
    assert_eq!(info["sha256"].as_str().expect("a digest").len(), 64);
    let again = dir.path().join("again");
    let again = again.to_str().expect("UTF-8");
    assert!(
        run(&["model", "synth", again, "--seed", "7"])
            .status
            .success()
    );
    let second = common::json(&["model", "info", again, "--json"]);
    assert_eq!(
        info["sha256"], second["sha256"],
        "the same seed gives the same bytes"
    );
}
