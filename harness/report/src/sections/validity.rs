//! The conditions of a valid run.

use pb_judge::run::{Check, CheckState, RunVerdict};

use super::{Detail, Section};
use crate::table::Table;

pub(super) fn section(verdict: &RunVerdict, detail: Detail) -> Section {
    let mut section = Section::new("validity", "Was the run valid?");
    let broken = verdict.validity.reasons.len();
    section.text.push(if verdict.validity.valid {
        "Yes: no condition is broken.".to_owned()
    } else {
        format!(
            "No: {broken} condition{} broken. The numbers below are shown for diagnosis and \
             support no claim.",
            if broken == 1 { " is" } else { "s are" }
        )
    });
    let caption = "Conditions of a valid run";
    let full = ["condition", "state", "found", "required"];
    let mut table = match detail {
        Detail::Full => Table::new(caption, 4, &full),
        Detail::Brief => Table::new(caption, 3, &full[..3]),
    };
    for check in rows(&verdict.validity.checks) {
        let mut row = vec![check.name, check.state.word().to_owned(), check.measured];
        match detail {
            Detail::Full => row.push(check.limit),
            // What a condition required is of interest where it was not met.
            Detail::Brief if check.state == CheckState::Broken => {
                row[2].push_str(&format!("; required: {}", check.limit));
            }
            Detail::Brief => {}
        }
        table.push(row);
    }
    section.tables.push(table);
    section
}

/// The checks, with those of one group (one condition in several blocks) as one row in the place
/// of the first.
fn rows(checks: &[Check]) -> Vec<Check> {
    let mut rows: Vec<Check> = Vec::new();
    for check in checks {
        match &check.group {
            None => rows.push(check.clone()),
            Some(group) if rows.iter().any(|row| row.name == *group) => {}
            Some(group) => {
                let of_group = |c: &&Check| c.group.as_ref() == Some(group);
                rows.push(merged(
                    group,
                    &checks.iter().filter(of_group).collect::<Vec<_>>(),
                ));
            }
        }
    }
    rows
}

/// One row for all blocks of a condition: broken if any is, with the first block that is not held.
fn merged(group: &str, blocks: &[&Check]) -> Check {
    let not_held: Vec<&&Check> = blocks
        .iter()
        .filter(|check| check.state != CheckState::Held)
        .collect();
    let any = |state| blocks.iter().any(|check| check.state == state);
    let state = [CheckState::Broken, CheckState::NotChecked]
        .into_iter()
        .find(|&state| any(state))
        .unwrap_or(CheckState::Held);
    let held = blocks.len() - not_held.len();
    let mut measured = format!("{held} of {} blocks proven", blocks.len());
    if let Some((first, more)) = not_held.split_first() {
        measured.push_str(&format!("; {}: {}", first.name, first.measured));
        if !more.is_empty() {
            measured.push_str(&format!("; and {} more", more.len()));
        }
    }
    Check {
        name: group.to_owned(),
        state,
        measured,
        limit: blocks.first().map_or_else(String::new, |c| c.limit.clone()),
        group: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, group: Option<&str>, state: CheckState) -> Check {
        Check {
            name: name.to_owned(),
            state,
            measured: format!("found in {name}"),
            limit: "nothing".to_owned(),
            group: group.map(str::to_owned),
        }
    }

    #[test]
    fn blocks_of_a_condition_are_one_row() {
        let checks = [
            check("first", None, CheckState::Held),
            check("cache block 0", Some("cache"), CheckState::Held),
            check("cache block 1", Some("cache"), CheckState::Held),
            check("last", None, CheckState::Held),
        ];
        let merged = rows(&checks);
        let names: Vec<&str> = merged.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["first", "cache", "last"]);
        assert_eq!(merged[1].measured, "2 of 2 blocks proven");
        assert_eq!(merged[1].state, CheckState::Held);
    }

    #[test]
    fn a_broken_block_breaks_the_row_and_is_named() {
        let checks = [
            check("cache block 0", Some("cache"), CheckState::Held),
            check("cache block 1", Some("cache"), CheckState::Broken),
            check("cache block 2", Some("cache"), CheckState::NotChecked),
        ];
        let merged = rows(&checks);
        assert_eq!((merged.len(), merged[0].state), (1, CheckState::Broken));
        assert_eq!(
            merged[0].measured,
            "1 of 3 blocks proven; cache block 1: found in cache block 1; and 1 more"
        );
    }
}
