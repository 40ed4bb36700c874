//! The table of KV transfers: there when there are some, with every column of a row.

use std::fs;

use pb_contract::manifest::RunState;
use pb_contract::{Nanos, RequestId, TransferEnd, TransferLine, TransferRow};
use pb_record::{RunReader, RunWriter, read_transfers};

use crate::common::manifest;

/// A transfer that went well, and one that did not.
fn lines() -> [TransferLine; 2] {
    let good = TransferRow {
        id: u64::MAX,
        request: RequestId(9),
        mode: "pull".into(),
        granularity: "chunk".into(),
        tokens: 40,
        blocks: 3,
        cells: 12,
        resent_cells: 1,
        bytes: 4096,
        early_bytes: 1024,
        frames: 2,
        descriptors: 5,
        offered_ns: Nanos(100),
        queue_wait_ns: Some(7),
        copy_ns: 1,
        wire_ns: 2,
        total_ns: 30,
        exposed_ns: Some(0),
        ended: TransferEnd::Acknowledged,
        cause: None,
    };
    let bad = TransferRow {
        queue_wait_ns: None,
        exposed_ns: None,
        ended: TransferEnd::Aborted,
        cause: Some("cancelled".into()),
        ..good.clone()
    };
    let line = |seq, worker, row| TransferLine {
        seq,
        told_ns: Nanos(130 + seq),
        worker,
        row,
    };
    [line(4, Some(1), good), line(5, None, bad)]
}

#[test]
fn transfers_are_read_as_they_were_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest()).unwrap();
    writer.transfers("A\nB", 2, &lines()).unwrap();
    writer.finish(RunState::Complete).unwrap();
    let text = fs::read_to_string(dir.path().join("transfers.csv")).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    assert_eq!(
        head,
        "arm,block,seq,told_ns,worker,id,request,mode,granularity,tokens,blocks,cells,\
         resent_cells,bytes,early_bytes,frames,descriptors,offered_ns,queue_wait_ns,\
         copy_ns,wire_ns,total_ns,exposed_ns,ended,cause"
    );
    assert_eq!(
        rows,
        "A B,2,4,134,1,18446744073709551615,9,pull,chunk,40,3,12,1,4096,1024,2,5,100,7,1,2,30,0,\
         acknowledged,\n\
         A B,2,5,135,,18446744073709551615,9,pull,chunk,40,3,12,1,4096,1024,2,5,100,,1,2,30,,\
         aborted,cancelled\n"
    );
    let data = RunReader::open(dir.path()).unwrap();
    assert!(data.changed_tables.is_empty() && data.notes.is_empty());
    let read: Vec<TransferLine> = data.transfers.iter().map(|one| one.line.clone()).collect();
    assert_eq!(read, lines());
    assert_eq!(
        (&*data.transfers[0].arm, data.transfers[0].block),
        ("A B", 2)
    );
    assert_eq!(read_transfers(dir.path()).unwrap(), Some(data.transfers));
    // Receipted like the others: a value that was changed is told, and so is a table taken away.
    let changed = text.replace(",4096,", ",4097,");
    fs::write(dir.path().join("transfers.csv"), changed).unwrap();
    let told = RunReader::open(dir.path()).unwrap().changed_tables;
    assert!(
        told.len() == 1 && told[0].starts_with("transfers.csv"),
        "{told:?}"
    );
    fs::remove_file(dir.path().join("transfers.csv")).unwrap();
    let told = RunReader::open(dir.path()).unwrap().changed_tables;
    assert_eq!(told, ["transfers.csv is missing"]);
}

#[test]
fn a_run_without_transfers_has_no_such_table() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest()).unwrap();
    writer.transfers("A", 0, &[]).unwrap();
    writer.finish(RunState::Complete).unwrap();
    assert!(!dir.path().join("transfers.csv").exists());
    let data = RunReader::open(dir.path()).unwrap();
    assert!(data.transfers.is_empty() && data.notes.is_empty());
    assert_eq!(read_transfers(dir.path()).unwrap(), None);
}

#[test]
fn another_way_to_end_is_named_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest()).unwrap();
    writer.transfers("A", 0, &lines()).unwrap();
    drop(writer);
    let path = dir.path().join("transfers.csv");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(",aborted,", ",vanished,")).unwrap();
    let message = read_transfers(dir.path()).unwrap_err().to_string();
    for part in ["transfers.csv", "line 3", "vanished"] {
        assert!(message.contains(part), "{message}");
    }
}
