//! A run directory written, read back, broken and read again.

use std::fs;

use crate::common::{manifest, row, tokens};
use pb_contract::manifest::RunState;
use pb_contract::{FailKind, Nanos, RequestStatus, StepRow};
use pb_record::{RecordError, RunReader, RunWriter};

fn step(number: u64) -> StepRow {
    StepRow {
        step: number,
        start_ns: Nanos(5),
        other_ns: Nanos(9),
        free_blocks: 3,
        ..StepRow::default()
    }
}

fn write(dir: &std::path::Path) -> RunWriter {
    let mut writer = RunWriter::create(dir, manifest()).unwrap();
    writer
        .request(&row(1), &tokens(1, &[(200, 1), (300, 3), (400, 1)]))
        .unwrap();
    let mut failed = row(2);
    failed.status = RequestStatus::Failed;
    failed.fail = Some(FailKind::HttpStatus);
    failed.http_status = Some(503);
    failed.fail_message = Some("busy, \"try\"\nlater é".into());
    (
        failed.first_token_ns,
        failed.cached_tokens,
        failed.finish_reason,
    ) = (None, None, None);
    writer.request(&failed, &[]).unwrap();
    writer.steps("B", 4, &[step(0), step(1)]).unwrap();
    writer
}

#[test]
fn what_was_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/run");
    let mut writer = write(&path);
    writer
        .update_manifest(|m| m.order.push("0:A".into()))
        .unwrap();
    writer.write_json("notes.json", &vec![1, 2]).unwrap();
    writer.write_text("report.md", "# x\n").unwrap();
    writer.finish(RunState::Complete).unwrap();

    let data = RunReader::open(&path).unwrap();
    assert!(data.complete() && data.notes.is_empty(), "{:?}", data.notes);
    assert_eq!(data.manifest.order, ["0:A"]);
    assert_eq!(data.requests[0], row(1));
    assert_eq!(
        data.requests[1].fail_message.as_deref(),
        Some("busy, \"try\" later é")
    );
    assert_eq!(data.requests[1].fail, Some(FailKind::HttpStatus));
    assert_eq!(
        (
            data.requests[1].first_token_ns,
            data.requests[1].cached_tokens
        ),
        (None, None)
    );
    assert_eq!(
        data.tokens_of(&row(1)),
        tokens(1, &[(200, 1), (300, 3), (400, 1)])
    );
    assert!(data.tokens_of(&row(2)).is_empty() && data.tokens_of(&row(77)).is_empty());
    assert_eq!((data.steps[1].arm.as_str(), data.steps[1].block), ("B", 4));
    assert_eq!(data.steps[1].row, step(1));
    assert_eq!(
        data.read_json::<Vec<u32>>("notes.json").unwrap(),
        Some(vec![1, 2])
    );
    assert_eq!(data.read_json::<Vec<u32>>("absent.json").unwrap(), None);
    assert!(matches!(
        data.read_json::<u32>("../x"),
        Err(RecordError::Name(_))
    ));
    let report = pb_record::hlog::export(&data).unwrap();
    assert_eq!((report.ttft.values, report.itl.values), (1, 4));
    assert!(path.join("ttft.hlog").exists() && path.join("itl.hlog").exists());
}

#[test]
fn the_header_names_every_column_of_a_row() {
    let dir = tempfile::tempdir().unwrap();
    drop(write(dir.path()));
    for (file, columns) in [("requests.csv", 22), ("tokens.csv", 6), ("steps.csv", 41)] {
        let text = fs::read_to_string(dir.path().join(file)).unwrap();
        let counts: Vec<usize> = csv_lines(&text);
        assert!(counts.iter().all(|&n| n == columns), "{file}: {counts:?}");
        assert!(text.starts_with("arm,block,") && text.ends_with('\n'));
    }
}

/// The last 15 columns came later; a table without them reads, with zeros there.
#[test]
fn a_step_table_without_the_later_columns_is_read() {
    let dir = tempfile::tempdir().unwrap();
    drop(write(dir.path()));
    let path = dir.path().join("steps.csv");
    let text = fs::read_to_string(&path).unwrap();
    let old: String = text
        .lines()
        .map(|line| line.split(',').take(26).collect::<Vec<_>>().join(",") + "\n")
        .collect();
    assert!(
        old.lines()
            .next()
            .is_some_and(|l| l.ends_with(",free_blocks"))
    );
    let now = RunReader::open(dir.path()).unwrap().steps;
    fs::write(&path, old).unwrap();
    let then = RunReader::open(dir.path()).unwrap().steps;
    assert!(!then.is_empty());
    assert_eq!(then, now);
}

fn csv_lines(text: &str) -> Vec<usize> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(text.as_bytes());
    reader
        .records()
        .map(|record| record.unwrap().len())
        .collect()
}

#[test]
fn every_cut_of_a_table_keeps_the_whole_lines() {
    let dir = tempfile::tempdir().unwrap();
    drop(write(dir.path()));
    let path = dir.path().join("requests.csv");
    let bytes = fs::read(&path).unwrap();
    for cut in 0..=bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        let data = RunReader::open(dir.path()).unwrap();
        let feeds = bytes[..cut].iter().filter(|&&b| b == b'\n').count();
        assert_eq!(data.requests.len(), feeds.saturating_sub(1), "cut at {cut}");
        let whole = cut == 0 || bytes[cut - 1] == b'\n';
        assert_eq!(data.partial_lines, u64::from(!whole), "cut at {cut}");
        assert!(!data.complete());
        let orphans = if feeds >= 2 { 0 } else { 3 };
        assert_eq!(data.orphan_tokens, orphans);
    }
}

#[test]
fn a_missing_table_is_empty_and_noted() {
    let dir = tempfile::tempdir().unwrap();
    drop(write(dir.path()));
    fs::remove_file(dir.path().join("steps.csv")).unwrap();
    let data = RunReader::open(dir.path()).unwrap();
    assert!(data.steps.is_empty());
    assert!(
        data.notes
            .iter()
            .any(|n| n.contains("steps.csv is missing")),
        "{:?}",
        data.notes
    );
    assert!(data.notes.iter().any(|n| n.starts_with("incomplete")));
}

#[test]
fn a_wrong_value_is_named_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    drop(write(dir.path()));
    let path = dir.path().join("tokens.csv");
    let text = fs::read_to_string(&path)
        .unwrap()
        .replacen("A,0,1,1,", "A,0,1,many,", 1);
    fs::write(&path, text).unwrap();
    let message = RunReader::open(dir.path()).unwrap_err().to_string();
    for part in ["tokens.csv", "line 3", "column event", "\"many\""] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn wrong_directories_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let message = RunReader::open(dir.path()).unwrap_err().to_string();
    assert!(
        message.contains("holds no manifest.json, which every run has"),
        "{message}"
    );
    drop(write(dir.path()));
    assert!(matches!(
        RunWriter::create(dir.path(), manifest()),
        Err(RecordError::Exists(_))
    ));
    let path = dir.path().join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("\"schema_version\": 1", "\"schema_version\": 99"),
    )
    .unwrap();
    let message = RunReader::open(dir.path()).unwrap_err().to_string();
    assert!(
        message.contains("99") && message.contains("newer"),
        "{message}"
    );
    fs::write(&path, "{").unwrap();
    assert!(matches!(
        RunReader::open(dir.path()),
        Err(RecordError::Json { .. })
    ));
}

/// A finished run whose tables are changed afterwards, one after the other.
#[test]
fn a_table_that_is_not_as_it_was_written_is_told() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path()).finish(RunState::Complete).unwrap();
    let changed = || RunReader::open(dir.path()).unwrap().changed_tables;
    assert_eq!(changed(), [""; 0]);
    for (file, from, to) in [
        ("requests.csv", "background", "foreground"),
        ("tokens.csv", "A,0,1,2,1400000000,1\n", ""),
        ("steps.csv", "B,4,0,5,", "B,4,0,6,"),
    ] {
        let path = dir.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let told = changed();
        assert!(told.len() == 1 && told[0].starts_with(file), "{told:?}");
        fs::write(&path, text).unwrap();
    }
    fs::remove_file(dir.path().join("steps.csv")).unwrap();
    assert_eq!(changed(), ["steps.csv is missing"]);
    fs::remove_file(dir.path().join("tables.json")).unwrap();
    assert_eq!(changed(), [""; 0]);
}

#[test]
fn two_rows_for_one_request_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = write(dir.path());
    writer.request(&row(1), &[]).unwrap();
    assert!(matches!(
        RunReader::open(dir.path()),
        Err(RecordError::Duplicate { request: 1, .. })
    ));
}
