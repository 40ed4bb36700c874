//! The manifest against the rows: every cell (an arm in a block) that has rows was declared.

use std::collections::BTreeSet;

use pb_record::RunData;

/// The first cell that the manifest and the rows disagree about.
pub(super) fn fault(data: &RunData) -> Option<String> {
    let manifest = &data.manifest;
    let mut arms = BTreeSet::new();
    for arm in &manifest.arms {
        if !arms.insert(arm.name.as_str()) {
            return Some(format!("manifest.json: arm {} stands twice", arm.name));
        }
    }
    let mut order = BTreeSet::new();
    for cell in &manifest.order {
        if !order.insert(cell.clone()) {
            return Some(format!("manifest.json: {cell} stands twice in the order"));
        }
    }
    let mut seen = BTreeSet::new();
    for row in &data.requests {
        let cell = format!("{}:{}", row.block, row.arm);
        if seen.contains(&cell) {
            continue;
        }
        let lacks = |what: &str| {
            let place = super::place(row);
            Some(format!(
                "manifest.json: no {what} of {cell}, but requests.csv has {place}"
            ))
        };
        if !arms.contains(row.arm.as_str()) {
            return lacks("arm");
        }
        if !order.contains(&cell) {
            return lacks("place in the order");
        }
        if manifest
            .schedule_sha256
            .get(&cell)
            .is_none_or(String::is_empty)
        {
            return lacks("schedule digest");
        }
        seen.insert(cell);
    }
    // A run that was stopped may have begun a cell of which no request ended.
    let absent = order.difference(&seen).next();
    absent
        .filter(|_| data.complete())
        .map(|cell| format!("manifest.json: {cell} ran, but requests.csv has no row of it"))
}
