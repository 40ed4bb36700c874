//! Every planted fault is caught by the check named for it, and the clean engine by none.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use pb_contract::{Fault, PrefixCacheKind};
use pb_tests::mutations::expected::{accepted_by, expected};
use pb_tests::mutations::{Check, Matrix, document, loads};

/// One run for all tests.
fn matrix() -> &'static Matrix {
    static MATRIX: OnceLock<Matrix> = OnceLock::new();
    MATRIX.get_or_init(|| Matrix::measure().unwrap())
}

#[test]
fn the_clean_engine_passes_every_check() {
    let row = &matrix().rows[&Fault::None];
    let run: BTreeSet<Check> = row.keys().copied().collect();
    assert_eq!(run, BTreeSet::from(Check::ALL), "not every check was run");
    for (check, outcome) in row {
        assert!(!outcome.caught, "{}: {}", check.name(), outcome.evidence);
    }
    assert_eq!(matrix().ratios[&Fault::None], [1.0; 2]);
}

#[test]
fn every_fault_is_caught_by_the_checks_named_for_it() {
    let mut missed = Vec::new();
    for &fault in Fault::ALL {
        assert!(!expected(fault).is_empty(), "{fault:?} has no check");
        let row = &matrix().rows[&fault];
        for check in expected(fault) {
            // A panic in place of the check's own words is no finding of that check.
            let found = row.get(check).filter(|cell| cell.caught);
            if found.is_none_or(|cell| cell.evidence.contains("panic: ")) {
                missed.push(format!("{} misses {fault:?}: {found:?}", check.name()));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn what_is_no_defect_for_a_check_is_accepted_by_it() {
    for &fault in Fault::ALL {
        for check in accepted_by(fault) {
            let cell = &matrix().rows[&fault][&check];
            assert!(
                !cell.caught,
                "{fault:?}, {}: {}",
                check.name(),
                cell.evidence
            );
        }
    }
}

#[test]
fn every_check_catches_a_fault() {
    for check in Check::ALL {
        let catches = matrix().catches(check);
        assert!(!catches.is_empty(), "{} catches nothing", check.name());
    }
}

/// There is no partial block to miss in chunks of whole blocks: why chunk sizes must vary.
#[test]
fn a_missing_partial_block_shows_in_odd_chunks_only() {
    let cell = &matrix().rows[&Fault::PartialBlockMissing][&Check::T0Bits];
    assert_eq!(cell.evidence, "chunks of 50 only");
}

/// Loads without hits, evictions, preemptions and copies would pass every check.
#[test]
fn the_loads_exercise_what_the_faults_are_about() {
    for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        let seen = loads::exercised(cache).unwrap();
        assert!(seen.hit_tokens > 1_000, "{cache:?}: {seen:?}");
        assert!(seen.preempted_hit_tokens > 100, "{cache:?}: {seen:?}");
        assert!(seen.preemptions > 20, "{cache:?}: {seen:?}");
        assert!(seen.evicted_blocks > 100, "{cache:?}: {seen:?}");
        assert!(seen.copied_blocks > 20, "{cache:?}: {seen:?}");
    }
}

#[test]
fn the_document_is_what_the_run_gives() {
    let path = pb_tests::repository().join("docs/MUTATIONS.md");
    let want = document::render(matrix());
    if std::env::var_os("PREFILLBENCH_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, want).unwrap();
        return;
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    let pairs = have.lines().zip(want.lines());
    let differing = pairs.clone().find(|(have, want)| have != want);
    assert!(
        have == want,
        "docs/MUTATIONS.md is out of date; run again with PREFILLBENCH_BLESS=1 and read the \
         difference. First line that differs: {differing:?}"
    );
}
