//! The device build, without a device: `check_ptx.py` and what it refuses.

use std::path::Path;
use std::process::{Command, Output};

use pb_kernels_cuda::source::{DEVICE_FLAGS, SM_90A, files_of};

fn python(arguments: &[&str]) -> Option<Output> {
    let run = Command::new("python3")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output();
    match run {
        Ok(output) => Some(output),
        Err(e) => {
            eprintln!("skipped: python3: {e}");
            None
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn all_kernels_compile_for_three_architectures_within_the_committed_resources() {
    let Some(toolkit) = std::env::var_os("PB_CUDA_TOOLKIT") else {
        eprintln!("skipped: set PB_CUDA_TOOLKIT to a folder with libnvrtc and ptxas");
        return;
    };
    let toolkit = toolkit.to_string_lossy();
    let Some(output) = python(&["check_ptx.py", "--toolkit", &toolkit]) else {
        return;
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_folder_without_a_toolkit_is_bad_usage() {
    let empty = env!("CARGO_TARGET_TMPDIR");
    let Some(output) = python(&["check_ptx.py", "--toolkit", empty]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no libnvrtc and ptxas below"));
}

/// A report of ptxas, and the row that it should become.
const PLANTED: &str = r#"
import check_ptx as c
report = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 64 bytes smem
"""
row, = c.resources(report, "90a")
assert row == dict(kernel="k", arch="sm_90a", static_shared_bytes=64, stack_bytes=16,
                   spill_bytes=12, registers=40), row
good = dict(row, stack_bytes=0, spill_bytes=0)
as_text = {k: str(v) for k, v in good.items()}
assert c.problems([good], [as_text]) == []
for change in [dict(stack_bytes=16), dict(spill_bytes=12), dict(registers=41)]:
    assert c.problems([dict(good, **change)], [as_text]), change
assert c.problems([], [as_text]) and c.problems([good], [])
c.refuse_serialized(report, "k")
try:
    c.refuse_serialized(report + "ptxas info : (C7514) Potential Performance Loss: "
                        "wgmma.mma_async instructions are serialized due to ...", "k")
    raise AssertionError("serialized products pass")
except ValueError as refused:
    assert "k: ptxas info : (C7514)" in str(refused), refused

def sass(first, last):
    wait = "WARPGROUP.DEPBAR.LE gsb0, 0x"
    lines = [".text.k:", wait + "1 ;"] + ["MUFU.EX2 R1, R1 ;"] * first + [wait + "0 ;"]
    return "\n".join(lines + ["MUFU.EX2 R1, R1 ;"] * last)

def refused(text, kernels):
    try:
        c.refuse_early_waits(text, kernels, "f")
    except ValueError as why:
        return str(why)
    raise AssertionError("passes: " + text)

good = sass(66, 0)
assert c.refuse_early_waits(good, ["k"], "f") == 1
assert c.refuse_early_waits(good + "\n" + good, ["k"], "f") == 2
early = "f: k waits for its products after 3 of 64"
assert refused(sass(3, 63), ["k"]).startswith(early)
assert refused(good + "\n" + sass(3, 63), ["k"]).startswith(early), "the second one"
none = " has no wait for all groups of products but one"
unfinished = "\n".join(good.splitlines()[:-1])
for text in [good.replace("0x1", "0x0"), good.replace("gsb0", "gsb1"), unfinished, ".text.k:", ""]:
    assert refused(text, ["k"]) == "f: k" + none, text
assert refused(good, ["k", "l"]) == "f: l" + none
assert c.refuse_early_waits(".text.other:", [], "f") == 0
"#;

#[test]
fn spills_stacks_changes_and_early_waits_are_refused() {
    let Some(output) = python(&["-c", PLANTED]) else {
        return;
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Names that `PB_KERNEL` and the macros over it define.
fn kernels(source: &str) -> usize {
    let starts = ["PB_KERNEL(", "PREFILL(", "PREFILL_SM90(", "DECODE("];
    let lines = source.lines().filter(|l| !l.contains("name"));
    lines
        .filter(|l| starts.iter().any(|s| l.starts_with(s)))
        .count()
}

#[test]
fn the_table_has_every_kernel_and_the_script_the_flags_of_the_engine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = std::fs::read_to_string(folder.join("ptxas.csv")).unwrap();
    let defined = |architecture| -> usize {
        let files = files_of(architecture);
        files.map(|f| kernels(f.text)).sum()
    };
    let rows_of = |architecture: &str| {
        let column = format!(",{architecture},");
        table.lines().filter(|l| l.contains(&column)).count()
    };
    assert!(defined("sm_80") > 25);
    assert_eq!(defined(SM_90A), defined("sm_80") + 4, "those of wgmma");
    for architecture in ["sm_80", SM_90A, "sm_100"] {
        let (rows, kernels) = (rows_of(architecture), defined(architecture));
        assert_eq!(rows, kernels, "rows of {architecture} in ptxas.csv");
    }
    let all: usize = ["sm_80", SM_90A, "sm_100"].map(rows_of).iter().sum();
    assert_eq!(table.lines().count() - 1, all, "other rows in ptxas.csv");
    let script = std::fs::read_to_string(folder.join("check_ptx.py")).unwrap();
    for flag in DEVICE_FLAGS {
        assert!(script.contains(&format!("\"{flag}\"")), "{flag}");
    }
}
