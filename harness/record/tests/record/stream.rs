//! Records one after the other: whole, cut anywhere, from elsewhere.

use std::fs;
use std::path::Path;
use std::process::Command;

use pb_contract::TokenRow;
use pb_contract::manifest::RunState;
use pb_record::{
    Fault, Findings, Receipts, Record, RecordError, RecordStream, RunReader, RunWriter, read_rows,
};
use proptest::prelude::*;

use crate::common::{manifest, row, tokens};

/// A run of three requests, the second without a content event.
fn write(dir: &Path) {
    let mut writer = RunWriter::create(dir, manifest()).unwrap();
    writer
        .request(&row(2), &tokens(2, &[(200, 1), (300, 3)]))
        .unwrap();
    writer.request(&row(7), &[]).unwrap();
    writer.request(&row(1), &tokens(1, &[(200, 1)])).unwrap();
}

fn read(dir: &Path) -> Result<(Vec<Record>, Vec<String>), RecordError> {
    let mut stream = RecordStream::open(dir)?;
    let mut records = Vec::new();
    while let Some(record) = stream.next_record()? {
        records.push(record);
    }
    assert!(stream.next_record()?.is_none());
    Ok((records, stream.notes().to_vec()))
}

fn replace(dir: &Path, file: &str, change: impl Fn(String) -> String) {
    let path = dir.join(file);
    fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
}

#[test]
fn records_come_in_the_order_of_the_file_with_their_events() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let (records, notes) = read(dir.path()).unwrap();
    let want = [
        (row(2), tokens(2, &[(200, 1), (300, 3)])),
        (row(7), Vec::<TokenRow>::new()),
        (row(1), tokens(1, &[(200, 1)])),
    ];
    assert_eq!(records.len(), 3);
    for (record, (row, tokens)) in records.iter().zip(&want) {
        assert_eq!((&record.row, &record.tokens), (row, tokens));
    }
    assert!(notes.is_empty(), "{notes:?}");
}

#[test]
fn events_of_a_request_that_never_ended_are_left_out_and_told() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    replace(dir.path(), "tokens.csv", |text| {
        text + "A,0,9,0,5,1\nA,0,9,1,6,1\nA,0,9,2"
    });
    let (records, notes) = read(dir.path()).unwrap();
    assert_eq!(records.len(), 3);
    assert!(
        notes
            .iter()
            .any(|n| n.starts_with("2 content events left out")),
        "{notes:?}"
    );
    assert!(
        notes
            .iter()
            .any(|n| n.contains("tokens.csv: the last line was cut")),
        "{notes:?}"
    );
}

/// The findings of a run, read to its end.
fn findings(dir: &Path) -> Findings {
    let mut stream = RecordStream::open(dir).unwrap();
    while stream.next_record().unwrap().is_some() {}
    stream.findings().clone()
}

#[test]
fn tables_in_different_orders_and_double_requests_are_told() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    replace(dir.path(), "tokens.csv", |text| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines[1..].reverse();
        lines.join("\n") + "\n"
    });
    // The event of the last request comes first; those of the first one come too late.
    assert_eq!(findings(dir.path()).count(Fault::DisplacedTokens), 2);
    let (records, _) = read(dir.path()).unwrap();
    let events: Vec<usize> = records.iter().map(|record| record.tokens.len()).collect();
    assert_eq!(events, [0, 0, 1]);

    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    replace(dir.path(), "requests.csv", |text| {
        let last = text.lines().last().unwrap().to_owned();
        format!("{text}{last}\n")
    });
    assert_eq!(read(dir.path()).unwrap().0.len(), 3);
    let found = findings(dir.path());
    assert_eq!(found.count(Fault::DuplicateRequest), 1);
    assert!(
        found
            .reasons()
            .concat()
            .contains("request 1 of arm \"A\", block 0"),
        "{found:?}"
    );
}

/// Of a thousand faults the reason names two and counts the others.
#[test]
fn a_reason_does_not_grow_with_the_number_of_faults() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    replace(dir.path(), "tokens.csv", |text| {
        let more = (0..1_000).map(|n| format!("A,0,2,{n},\u{1b}[2J,1\n"));
        text + &more.collect::<String>()
    });
    let found = findings(dir.path());
    assert_eq!(found.count(Fault::UnreadableRow), 1_000);
    let reason = found.reasons().remove(0);
    let start = "contradiction: rows cannot be read: tokens.csv, line 5, column at_ns";
    assert!(reason.starts_with(start), "{reason}");
    assert!(
        reason.ends_with("; and 998 more") && reason.len() < 500,
        "{reason}"
    );
    assert!(!reason.contains('\u{1b}'), "{reason}");
}

/// What a finished writer left in its tables.
#[test]
fn the_receipts_of_the_tables_are_those_of_their_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest()).unwrap();
    writer
        .request(&row(2), &tokens(2, &[(200, 4), (400, 1)]))
        .unwrap();
    writer.finish(RunState::Complete).unwrap();
    let text = fs::read(dir.path().join("tables.json")).unwrap();
    let receipts: Receipts = serde_json::from_slice(&text).unwrap();
    let rows: Vec<u64> = receipts.values().map(|table| table.rows).collect();
    assert_eq!(rows, [1, 0, 2], "{receipts:?}");
    for (name, receipt) in &receipts {
        let path = dir.path().join(name);
        assert_eq!(receipt.bytes, fs::metadata(&path).unwrap().len(), "{name}");
        // By another program, where there is one.
        if let Ok(output) = Command::new("sha256sum").arg(&path).output() {
            let printed = String::from_utf8(output.stdout).unwrap();
            assert_eq!(
                printed.split(' ').next(),
                Some(receipt.sha256.as_str()),
                "{name}"
            );
        }
    }
    assert!(findings(dir.path()).is_empty());
}

#[test]
fn columns_of_others_are_ignored_and_wrong_values_are_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    replace(dir.path(), "requests.csv", |text| {
        let lines = text.lines().enumerate();
        let more = lines.map(|(i, line)| format!("{line},{}\n", ["mood", "good"][i.min(1)]));
        more.collect()
    });
    assert_eq!(read(dir.path()).unwrap().0.len(), 3);
    assert_eq!(RunReader::open(dir.path()).unwrap().requests.len(), 3);
    for (bad, fits) in [
        ("9223372036854775808", true), // 2^63
        ("18446744073709551616", false),
        ("NaN", false),
        ("-1", false),
        ("1e3", false),
        ("", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        // The instant of the only event of request 1.
        replace(dir.path(), "tokens.csv", |text| {
            text.replace("1,0,1200000000,1", &format!("1,0,{bad},1"))
        });
        let (records, _) = read(dir.path()).unwrap();
        let found = findings(dir.path());
        assert_eq!(found.count(Fault::UnreadableRow), u64::from(!fits), "{bad}");
        let said = found.reasons().concat();
        match fits {
            true => assert_eq!(records[2].tokens[0].at_ns.0, 1 << 63),
            false => assert!(
                said.contains("column at_ns") && said.contains("line 4"),
                "{said}"
            ),
        }
    }
}

#[test]
fn a_missing_table_is_empty_and_further_tables_are_read() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    fs::remove_file(dir.path().join("tokens.csv")).unwrap();
    let (records, notes) = read(dir.path()).unwrap();
    assert!(records.iter().all(|record| record.tokens.is_empty()));
    assert_eq!(notes, ["tokens.csv is missing: read as empty"]);

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Pair {
        a: u64,
        b: Option<f64>,
    }
    fs::write(dir.path().join("x.csv"), "a,b\n1,\n2,0.5\n3,0.").unwrap();
    let rows: Vec<Pair> = read_rows(dir.path(), "x.csv").unwrap().unwrap();
    assert_eq!(rows, [Pair { a: 1, b: None }, Pair { a: 2, b: Some(0.5) }]);
    assert!(read_rows::<Pair>(dir.path(), "y.csv").unwrap().is_none());
    assert!(matches!(
        read_rows::<Pair>(dir.path(), "../x.csv"),
        Err(RecordError::Name(_))
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Wherever the files are cut and whatever byte of them is wrong: an answer or an error that
    /// names a file, never a panic, never a record that was not written.
    #[test]
    fn broken_tables_never_panic(
        requests_at in 0.0_f64..=1.0, tokens_at in 0.0_f64..=1.0,
        at in 0.0_f64..1.0, byte in any::<u8>(), flip in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path());
        for (file, share) in [("requests.csv", requests_at), ("tokens.csv", tokens_at)] {
            let path = dir.path().join(file);
            let mut bytes = fs::read(&path).unwrap();
            bytes.truncate((bytes.len() as f64 * share) as usize);
            if flip && !bytes.is_empty() {
                let at = (bytes.len() as f64 * at) as usize;
                bytes[at] = byte;
            }
            fs::write(&path, bytes).unwrap();
        }
        match read(dir.path()) {
            Ok((records, _)) if !flip => {
                let ids: Vec<u64> = records.iter().map(|r| r.row.request.0).collect();
                prop_assert!([2, 7, 1].starts_with(&ids), "{:?}", ids);
            }
            Ok((records, _)) => prop_assert!(records.len() <= 4),
            Err(error) => prop_assert!(error.to_string().contains(".csv"), "{}", error),
        }
        let _ = RunReader::open(dir.path());
    }
}
