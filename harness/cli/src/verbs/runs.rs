//! Run directories for `compare` and `gate`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use pb_judge::compare::{Aspect, Memory, Run};
use pb_target::{Exposition, Scrape, ServerStats};

use super::bench::SCRAPES_FILE;

/// Size of the KV pool, as this project's server tells it.
const KV_POOL: &str = "prefillbench_kv_pool_bytes";
/// Resident memory, as the usual Prometheus clients tell it.
const RESIDENT: &str = "process_resident_memory_bytes";

/// Reads runs. Their numbers are made again from the rows.
///
/// # Errors
/// A directory that holds no run of `bench`.
pub(crate) fn read(dirs: &[PathBuf]) -> Result<Vec<Run>> {
    let one = |dir: &PathBuf| {
        let files = pb_bench::files::read(dir)
            .with_context(|| format!("cannot read the run {}", dir.display()))?;
        let memory = memory(dir)?;
        Ok(Run::of(&dir.display().to_string(), &files, &memory))
    };
    dirs.iter().map(one).collect()
}

/// The aspects named on the command line; `version` stands for tool and server.
///
/// # Errors
/// A name that is none.
pub(crate) fn aspects(names: &[String]) -> Result<BTreeSet<Aspect>> {
    let mut aspects = BTreeSet::new();
    for name in names {
        match name.as_str() {
            "version" => aspects.extend([Aspect::Tool, Aspect::Server]),
            name => {
                let parsed = name.parse::<Aspect>();
                aspects.insert(parsed.map_err(|error| anyhow!("--allow-different: {error}"))?);
            }
        }
    }
    Ok(aspects)
}

/// The largest figures among the metrics pages that were kept; nothing where none were. A line
/// that is cut off, as by a killed run, is passed over.
fn memory(dir: &Path) -> Result<Memory> {
    let path = dir.join(SCRAPES_FILE);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Memory::default()),
        Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
    };
    let mut memory = Memory::default();
    for line in BufReader::new(file).split(b'\n') {
        let line = line.with_context(|| format!("{}", path.display()))?;
        let Ok(scrape) = serde_json::from_slice::<Scrape>(&line) else {
            continue;
        };
        let Some(page) = scrape.body.as_deref().map(Exposition::parse) else {
            continue;
        };
        let used = ServerStats::read(&page).kv_usage.zip(sum(&page, KV_POOL));
        raise(
            &mut memory.kv_max_bytes,
            used.map(|(share, pool)| share * pool),
        );
        raise(&mut memory.host_max_bytes, sum(&page, RESIDENT));
    }
    Ok(memory)
}

/// All samples of a name together; nothing when there is none, or none that is a size.
fn sum(page: &Exposition, name: &str) -> Option<f64> {
    let sizes = page.named(name).map(|sample| sample.value);
    let sizes = sizes.filter(|size| size.is_finite() && *size >= 0.0);
    sizes.reduce(|a, b| a + b)
}

fn raise(largest: &mut Option<f64>, value: Option<f64>) {
    let known = largest.iter().copied().chain(value);
    *largest = known.reduce(f64::max);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_largest_that_was_seen() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(memory(dir.path()).unwrap(), Memory::default());
        let page = |usage: f64, resident: f64| {
            let body = format!(
                "vllm:kv_cache_usage_perc {usage}\nprefillbench_kv_pool_bytes 1000\n\
                 process_resident_memory_bytes{{worker=\"0\"}} {resident}\n\
                 process_resident_memory_bytes{{worker=\"1\"}} 5\n"
            );
            let line = serde_json::json!({
                "edge": "between", "at_ns": 1, "took_ns": 1, "body": body
            });
            line.to_string()
        };
        let lines = format!("{}\n{}\n{{\"edge\":\"en", page(0.5, 70.0), page(0.25, 90.0));
        std::fs::write(dir.path().join(SCRAPES_FILE), lines).unwrap();
        let found = memory(dir.path()).unwrap();
        assert_eq!(found.kv_max_bytes, Some(500.0));
        assert_eq!(found.host_max_bytes, Some(95.0));
    }

    #[test]
    fn versions_are_two_aspects() {
        let names = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let found = aspects(&names("version,machine")).unwrap();
        let want = [Aspect::Machine, Aspect::Tool, Aspect::Server];
        assert_eq!(found, want.into());
        let error = aspects(&names("colour")).unwrap_err().to_string();
        assert!(error.contains("--allow-different") && error.contains("schedule"));
    }
}
