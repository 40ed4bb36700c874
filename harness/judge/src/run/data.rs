//! Who took part in a run, in an order that every table and picture keeps.
//!
//! The judge opens no file: it gets the rows of one run already read, so that a verdict is a
//! function of the rows alone and a test can hand it rows that no engine ever made.

use pb_record::RunData;

/// Arm names: the manifest's in its order, then any that only rows mention, sorted.
pub fn arm_names(data: &RunData) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut extra: Vec<&str> = data.requests.iter().map(|r| r.arm.as_str()).collect();
    extra.extend(data.steps.iter().map(|s| s.arm.as_str()));
    extra.sort_unstable();
    let declared = data.manifest.arms.iter().map(|arm| arm.name.as_str());
    for name in declared.chain(extra) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Classes of an arm's requests, sorted, each once.
pub fn class_names(data: &RunData, arm: &str) -> Vec<String> {
    let of_arm = data.requests.iter().filter(|r| r.arm == arm);
    let mut names: Vec<String> = of_arm.map(|r| r.class.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Blocks in which an arm has requests, sorted, each once.
pub fn block_numbers(data: &RunData, arm: &str) -> Vec<u32> {
    let mut blocks: Vec<u32> = data
        .requests
        .iter()
        .filter(|r| r.arm == arm)
        .map(|r| r.block)
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}
