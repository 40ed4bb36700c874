//! `kernels` and `scripts/gpu-check` as an outsider relies on them.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{prefillbench, run, stderr, stdout};

/// A cache directory whose `kernels` the tests of all crates share.
fn home() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// The verb with a home of its own.
fn kernels(args: &[&str]) -> std::process::Output {
    let mut command = prefillbench(&["kernels"]);
    command.args(args).env("PREFILLBENCH_HOME", home());
    command.output().expect("the binary runs")
}

/// Whether this machine has the NVIDIA driver.
fn has_driver() -> bool {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/aarch64-linux-gnu",
    ];
    folders
        .iter()
        .any(|f| Path::new(f).join("libcuda.so.1").exists())
}

#[test]
fn the_cpus_kernels_are_right() {
    let absent = ["--torch", "/no/such/python"];
    let output = kernels(&[&["--skip-timing", "--threads", "2"][..], &absent].concat());
    let text = stdout(&output);
    let line = "not compared with PyTorch: cannot start /no/such/python";
    assert!(text.contains(line), "{text}");
    assert!(output.status.success(), "{text}{}", stderr(&output));
    for kernel in [
        "gemm exact",
        "gemm fast bf16",
        "rmsnorm",
        "rope",
        "attention fast",
    ] {
        assert!(text.contains(kernel), "{kernel} in {text}");
    }
    assert!(text.trim_end().ends_with("pass"), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
}

#[test]
fn the_emulated_kernels_are_right_and_a_planted_fault_is_not() {
    let csv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated.csv");
    let named = csv.display().to_string();
    let output = kernels(&["--device", "emulated", "--csv", &named]);
    if stderr(&output).contains("no C++ compiler") {
        assert_eq!(output.status.code(), Some(2));
        eprintln!("skipped: {}", stderr(&output));
        return;
    }
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert!(text.contains("not timed"), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    let rows = std::fs::read_to_string(&csv).expect("the CSV file");
    for kernel in [
        "prefill",
        "prefill_sm90",
        "decode",
        "gemm",
        "rope_kv",
        "sample_rows",
        "block_checksum",
    ] {
        let of = |row: &&str| row.starts_with(&format!("validation,{kernel},"));
        assert!(rows.lines().filter(of).count() > 1, "{kernel}");
    }
    let output = kernels(&["--device", "emulated", "--plant", "PB_FAULT_HEADS"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stderr(&output));
    assert!(text.contains("WRONG  bf16 d64 group 3"), "{text}");
    assert!(text.contains("\nFAIL: "), "{text}");
}

#[test]
fn a_missing_gpu_is_a_clear_message_and_exit_code_2() {
    if has_driver() {
        eprintln!("skipped: this machine has an NVIDIA driver");
        return;
    }
    for args in [
        &["--device", "cuda"][..],
        &["--device", "cuda", "--forward"],
    ] {
        let output = kernels(args);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("no CUDA device"),
            "{}",
            stderr(&output)
        );
        assert!(output.stdout.is_empty());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/gpu-check");
    let output = Command::new(script)
        .args(["--binary", env!("CARGO_BIN_EXE_prefillbench")])
        .output()
        .expect("bash is there");
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("no NVIDIA driver") || message.contains("no CUDA device"),
        "{message}"
    );
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    for (args, named) in [
        (
            &["kernels", "--plant", "PB_FAULT_MASK"][..],
            "--device emulated",
        ),
        (
            &["kernels", "--plant", "mask", "--device", "emulated"],
            "PB_FAULT_MASK",
        ),
        (
            &[
                "kernels",
                "--plant",
                "PB_FAULT_NONE",
                "--device",
                "emulated",
            ],
            "no kernel has this fault",
        ),
        (&["kernels", "--forward"], "prefillbench validate"),
        (&["kernels", "--every-shape"], "--device emulated"),
        (
            &["kernels", "--device", "emulated", "--torch", "python3"],
            "no time to compare",
        ),
        (&["kernels", "--device", "tpu"], "tpu"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(named), "{}", stderr(&output));
    }
}
