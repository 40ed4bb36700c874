//! The receipts of a run: this machine and this binary.

use pb_contract::manifest::{Machine, ToolVersion};

/// The first value of `key` in a `key: value` file such as `/proc/cpuinfo`.
fn proc_value(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text
        .lines()
        .find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Memory that can be had without swapping, where the system says so.
pub(crate) fn available_bytes() -> Option<u64> {
    let text = proc_value("/proc/meminfo", "MemAvailable")?;
    let kib: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// What this machine is.
pub(crate) fn machine() -> Machine {
    let kib = proc_value("/proc/meminfo", "MemTotal")
        .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok());
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Machine {
        cpu: proc_value("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
        cores: cores(),
        memory_bytes: kib.unwrap_or(0) * 1024,
        os: format!("{} {}", std::env::consts::OS, release.trim())
            .trim()
            .to_string(),
        isa: pb_kernels_cpu::Isa::detect().name().to_string(),
    }
}

/// Processors available to this process.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What this binary is.
pub(crate) fn tool() -> ToolVersion {
    ToolVersion {
        version: env!("CARGO_PKG_VERSION").into(),
        git_rev: env!("PREFILLBENCH_GIT_REV").into(),
        git_dirty: env!("PREFILLBENCH_GIT_DIRTY") == "true",
    }
}
