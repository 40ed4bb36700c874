//! What the cross-crate tests share: finding golden files and the real model, and running the
//! engine core in this process.

pub mod covering;
pub mod engine;
pub mod golden;
pub mod load;
pub mod mutations;
pub mod numeric_faults;

use std::path::PathBuf;

/// The root of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The SmolLM2 file in the cache directory, or `None` with a message when it is not there.
pub fn real_model() -> Option<PathBuf> {
    let var = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let home = var("PREFILLBENCH_HOME")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("prefillbench")))
        .or_else(|| Some(var("HOME")?.join(".cache/prefillbench")))?;
    let path = home.join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if path.exists() {
        return Some(path);
    }
    eprintln!(
        "skipped: {} is absent; get it with `prefillbench model fetch smollm2-135m`",
        path.display()
    );
    None
}

/// A file or folder of the shared data, or `None` with a message when it is not there.
/// `PREFILLBENCH_SHARED` names the folder with `data/`; without it `../shared` is tried.
pub fn shared_data(path: &str) -> Option<PathBuf> {
    let inside = PathBuf::from("data").join(path);
    let named = std::env::var_os("PREFILLBENCH_SHARED").map(|dir| PathBuf::from(dir).join(&inside));
    let beside = repository().join("../shared").join(&inside);
    let found = [named, Some(beside)]
        .into_iter()
        .flatten()
        .find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: no {path}; set PREFILLBENCH_SHARED to the folder with data/");
    }
    found
}
