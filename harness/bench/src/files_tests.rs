//! Runs written, read again, cut off, dealt to shards and joined.

use std::fs;

use proptest::prelude::*;

use super::*;
use crate::conditions::Shard;
use crate::sample::{self, Sample};
use crate::tests::{MS, failed, frame, request, under, worked};

type Records = Vec<Sample>;

fn write(dir: &Path, conditions: &Conditions, records: &Records, state: Option<RunState>) {
    sample::write(dir, conditions, records.iter().cloned(), state).unwrap();
}

fn with_objective() -> Conditions {
    Conditions {
        objectives: vec!["ttft:250".parse().unwrap()],
        ..Conditions::new(frame())
    }
}

fn some() -> Records {
    let one = request(3, 1100, &[(300, 1), (350, 2)]);
    vec![worked(0, 1000), failed(2, 1020), worked(1, 1010), one]
}

#[test]
fn a_finished_run_has_its_document_again() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &with_objective(),
        &some(),
        Some(RunState::Complete),
    );
    let run = read(dir.path()).unwrap();
    assert_eq!(run.document, under(&with_objective(), some()));
    assert!(run.notes.is_empty(), "{:?}", run.notes);
}

/// aws sample-apj-sup-sa #181: what had ended when the writer was killed counts.
#[test]
fn row_34_a_killed_run_keeps_what_had_ended_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let unstarted = Conditions {
        frame: Frame {
            start: Nanos(0),
            ..frame()
        },
        ..with_objective()
    };
    write(dir.path(), &unstarted, &some(), None);
    for file in ["requests.csv", "tokens.csv"] {
        let path = dir.path().join(file);
        let mut text = fs::read_to_string(&path).unwrap();
        text.truncate(text.len() - 3);
        fs::write(&path, text).unwrap();
    }
    let run = read(dir.path()).unwrap();
    assert_eq!(
        (run.document.counts.offered, run.document.counts.ok),
        (3, 2)
    );
    assert_eq!(
        (run.document.state.as_str(), run.document.exit_code()),
        ("partial", 3)
    );
    assert_eq!(run.document.window.start_ns, Nanos(1000 * MS));
    assert_eq!(run.notes.len(), 4, "{:?}", run.notes);
    assert!(run.findings.is_empty(), "{:?}", run.findings);
}

#[test]
fn a_run_without_conditions_or_of_another_kind_says_so() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        &with_objective(),
        &some(),
        Some(RunState::Complete),
    );
    fs::remove_file(dir.path().join(CONDITIONS_FILE)).unwrap();
    let run = read(dir.path()).unwrap();
    assert!(run.document.validity.reasons[0].contains("conditions.json is missing"));
    fs::write(dir.path().join(CONDITIONS_FILE), "{\"speed\": 1}").unwrap();
    let error = read(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("conditions.json") && error.contains("speed"),
        "{error}"
    );
    let path = dir.path().join("manifest.json");
    let text = fs::read_to_string(&path)
        .unwrap()
        .replace("\"bench\"", "\"quickstart\"");
    fs::write(&path, text).unwrap();
    let error = read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("kind \"quickstart\""), "{error}");
}

/// Deals records to shards, each with a clock of its own, and joins their directories.
fn joined(
    records: &Records,
    parts: &[u32],
    of: u32,
    clocks: &[u64],
    dir: &Path,
) -> Result<Document, FileError> {
    let mut runs = Vec::new();
    for index in 0..of {
        let clock = Offset(-(clocks[index as usize % clocks.len()] as i64));
        let mine = records
            .iter()
            .zip(parts)
            .filter(|(_, part)| **part == index);
        let mine = mine.map(|((row, tokens), _)| {
            let mut tokens = tokens.clone();
            tokens.iter_mut().for_each(|token| clock.token(token));
            (clock.request(row.clone()), tokens)
        });
        let conditions = Conditions {
            frame: Frame {
                start: clock.rebase(frame().start),
                ..frame()
            },
            shard: Some(Shard { index, of }),
            ..with_objective()
        };
        let path = dir.join(format!("shard-{index}"));
        write(
            &path,
            &conditions,
            &mine.collect(),
            Some(RunState::Complete),
        );
        runs.push(path);
    }
    // The order in which they are named does not matter.
    runs.reverse();
    join(&runs, &dir.join("joined"), &JoinOptions::default())
}

#[test]
fn joined_directories_have_the_document_of_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let clocks = [0, 77 * MS + 3, 5_000 * MS];
    let found = joined(&some(), &[0, 1, 2, 1], 3, &clocks, dir.path()).unwrap();
    let out = dir.path().join("joined");
    let rows: Vec<u64> = found.shards.iter().map(|note| note.rows).collect();
    assert_eq!(rows, [1, 2, 1]);
    let offsets: Vec<i64> = found
        .shards
        .iter()
        .map(|note| note.clock_offset_ns)
        .collect();
    assert_eq!(offsets, [0, 77_000_003, 5_000_000_000]);
    // Read again it is the same, and it is that of the whole.
    let again = read(&out).unwrap();
    assert_eq!(again.document, found);
    let whole = under(&with_objective(), some());
    let plain = Document {
        shards: Vec::new(),
        ..found
    };
    assert_eq!(plain, whole);
    for file in ["bench.json", "bench.csv", "ttft.hlog", "event_gap.hlog"] {
        assert!(out.join(file).exists(), "{file}");
    }
    let stored = fs::read_to_string(out.join(DOCUMENT_FILE)).unwrap();
    assert_eq!(
        stored,
        serde_json::to_string_pretty(&again.document).unwrap() + "\n"
    );
}

#[test]
fn shards_that_overlap_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut records = some();
    records.push(worked(1, 1010));
    let error = joined(&records, &[0, 1, 0, 0, 1], 2, &[0], dir.path()).unwrap_err();
    assert!(
        matches!(error, FileError::Overlap { request: 1, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("the shards overlap"), "{error}");
}

#[test]
fn a_refusal_writes_nothing_and_a_run_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let shard = |index: u32, state| {
        let conditions = Conditions {
            shard: Some(Shard { index, of: 2 }),
            ..with_objective()
        };
        let path = dir.path().join(format!("{index}"));
        write(&path, &conditions, &some()[..1].to_vec(), state);
        path
    };
    let (a, out) = (shard(0, Some(RunState::Complete)), dir.path().join("out"));
    let error = join(std::slice::from_ref(&a), &out, &JoinOptions::default()).unwrap_err();
    assert!(error.to_string().contains("1/2"), "{error}");
    assert!(!out.exists());
    let partial = JoinOptions {
        allow_partial: true,
        ..JoinOptions::default()
    };
    let document = join(std::slice::from_ref(&a), &out, &partial).unwrap();
    assert_eq!(
        (document.state.as_str(), document.exit_code()),
        ("partial", 3)
    );
    assert_eq!(read(&out).unwrap().document.state, "partial");
    let error = join(&[a], &out, &partial).unwrap_err();
    assert!(error.to_string().contains("already holds a run"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_rows_dealt_to_any_shards(
        rows in prop::collection::vec((0_u64..40, 1_u64..90, 0_u32..3, any::<bool>()), 1..12),
        clocks in prop::collection::vec(0_u64..1_000_000_000_000, 3),
    ) {
        let records: Records = rows.iter().enumerate().map(|(id, &(at, gap, _, ok))| {
            let (id, at) = (id as u64, 1000 + at);
            match ok {
                true => request(id, at, &[(60, 1), (60 + gap, 2), (61 + 2 * gap, 1)]),
                false => failed(id, at),
            }
        }).collect();
        let parts: Vec<u32> = rows.iter().map(|row| row.2).collect();
        let dir = tempfile::tempdir().unwrap();
        let found = joined(&records, &parts, 3, &clocks, dir.path()).unwrap();
        let whole = under(&with_objective(), records);
        prop_assert_eq!(&found.counts, &whole.counts);
        prop_assert_eq!(&found.itl_ms, &whole.itl_ms);
        prop_assert_eq!(&found.load, &whole.load);
        prop_assert_eq!(&found.rates, &whole.rates);
        prop_assert_eq!(&found.validity, &whole.validity);
    }
}
