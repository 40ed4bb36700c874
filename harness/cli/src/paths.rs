//! Where files live: the cache directory and the run directories.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The cache directory: `PREFILLBENCH_HOME`, else the platform's.
pub(crate) fn home() -> Result<PathBuf> {
    let var = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    if let Some(home) = var("PREFILLBENCH_HOME") {
        return Ok(home);
    }
    if let Some(cache) = var("XDG_CACHE_HOME") {
        return Ok(cache.join("prefillbench"));
    }
    let user = var("HOME").context(
        "no cache directory: neither PREFILLBENCH_HOME nor HOME is set; set PREFILLBENCH_HOME",
    )?;
    if cfg!(target_os = "macos") {
        return Ok(user.join("Library/Caches/prefillbench"));
    }
    Ok(user.join(".cache/prefillbench"))
}

/// A run directory that does not exist yet: `out`, else `results/KIND-TIME` below the current
/// directory.
pub(crate) fn new_run_dir(out: Option<&Path>, kind: &str) -> Result<PathBuf> {
    if let Some(out) = out {
        return Ok(out.to_path_buf());
    }
    let stamp = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string();
    let base = Path::new("results").join(format!("{kind}-{stamp}"));
    let mut dir = base.clone();
    for n in 2.. {
        if !dir.exists() {
            break;
        }
        dir = PathBuf::from(format!("{}-{n}", base.display()));
    }
    Ok(dir)
}
