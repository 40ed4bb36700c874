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
        "quantize_rows",
        "gemm_e4m3",
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

/// Runs `scripts/gpu-check` where a GPU seems to be there and `prefillbench` is the shell script
/// `body`; gives its exit code and `exit_codes.txt` without the seconds.
fn gpu_check(body: &str, limit_s: u32) -> (Option<i32>, Vec<String>) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let program = |name: &str, body: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    program("nvidia-smi", "echo GPU 0");
    let out = dir.path().join("out");
    let path = std::env::var("PATH").unwrap_or_default();
    let output =
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/gpu-check"))
            .arg("--binary")
            .arg(program("fake", body))
            .arg("--out")
            .arg(&out)
            .args(["--limit-s", &limit_s.to_string()])
            .env("PATH", format!("{}:{path}", dir.path().display()))
            .output()
            .expect("bash is there");
    let lines = std::fs::read_to_string(out.join("exit_codes.txt")).unwrap_or_default();
    let without_seconds = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        [&words[..2], &words[3..]].concat().join(" ")
    };
    (
        output.status.code(),
        lines.lines().map(without_seconds).collect(),
    )
}

#[test]
fn the_gpu_check_reports_what_it_had_no_time_for() {
    let ends = |code: i32, lines: [&str; 2]| (Some(code), lines.map(str::to_owned).to_vec());
    assert_eq!(
        gpu_check("exit 0", 480),
        ends(0, ["forward 0 done", "kernels 0 done"])
    );
    // A part that hangs is stopped, and the next one has its turn.
    let hangs = "case \"$*\" in *--forward-only*) exec sleep 60;; esac";
    let want = ends(3, ["forward 3 out of time", "kernels 0 done"]);
    assert_eq!(gpu_check(hangs, 24), want);
    // What was found wrong is not hidden by what could not be judged.
    let wrong = "case \"$*\" in *--forward-only*) exit 1;; esac; exit 3";
    assert_eq!(
        gpu_check(wrong, 480),
        ends(1, ["forward 1 done", "kernels 3 done"])
    );
    // No time for anything.
    let want = ends(3, ["forward 3 not run", "kernels 3 not run"]);
    assert_eq!(gpu_check("exit 0", 6), want);
    let crashes = "case \"$*\" in *--version*) exit 0;; esac; kill -SEGV $$";
    assert_eq!(
        gpu_check(crashes, 480),
        ends(1, ["forward 1 done", "kernels 1 done"])
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
