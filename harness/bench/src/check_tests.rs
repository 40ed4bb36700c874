//! Faults planted one at a time into the directory of a real run, each found and named.
//!
//! The run is `golden/runs/vllm-warm`: 12 requests at a Poisson rate and 2 of the
//! warm-up, 448 content events, measured on vLLM.

use std::fs;
use std::path::{Path, PathBuf};

use pb_contract::manifest::RunState;
use pb_record::{Fault, RecordStream, RunWriter, TABLES_FILE};

use super::planted::{PLANTED, golden_run, lines, lost, results, with, without_column};
use crate::files::{self, JoinOptions, join};

/// The run as today's writer would leave it in a directory of its own.
fn whole(dir: &Path) -> PathBuf {
    let (from, to) = (golden_run(), dir.join("run"));
    let mut stream = RecordStream::open(&from).unwrap();
    let mut writer = RunWriter::create(&to, stream.manifest().clone()).unwrap();
    while let Some(record) = stream.next_record().unwrap() {
        writer.request(&record.row, &record.tokens).unwrap();
    }
    writer.finish(RunState::Complete).unwrap();
    for entry in fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if !to.join(name).exists() {
            fs::copy(&path, to.join(name)).unwrap();
        }
    }
    to
}

fn edit(run: &Path, file: &str, change: &dyn Fn(&str) -> String) {
    let path = run.join(file);
    let text = fs::read_to_string(&path).unwrap();
    let changed = change(&text);
    assert_ne!(text, changed, "{file}: the fault was not planted");
    fs::write(&path, changed).unwrap();
}

/// Every one is found without the receipts of the tables, and with them.
#[test]
fn every_planted_fault_is_named_and_voids_the_run() {
    for &(fault, what, file, change) in PLANTED {
        for receipts in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let run = whole(dir.path());
            edit(&run, file, &change);
            if !receipts {
                fs::remove_file(run.join(TABLES_FILE)).unwrap();
            }
            let read = files::read(&run).unwrap();
            let found: Vec<Fault> = read.findings.faults().collect();
            assert!(
                found.contains(&fault),
                "{what}: {fault:?} is not in {found:?}"
            );
            let is_table = file.ends_with(".csv");
            assert_eq!(
                found.contains(&Fault::ChangedTable),
                receipts && is_table,
                "{what}"
            );
            let reasons = &read.document.validity.reasons;
            assert!(reasons[0].starts_with("contradiction: "), "{reasons:?}");
            assert_eq!(read.document.exit_code(), 3, "{what}");
        }
    }
}

#[test]
fn every_kind_of_fault_is_planted() {
    let planted = |fault: &Fault| PLANTED.iter().any(|(named, ..)| named == fault);
    let elsewhere = [Fault::ChangedTable];
    let all = [
        Fault::MissingTable,
        Fault::CutLine,
        Fault::ChangedTable,
        Fault::UnreadableRow,
        Fault::DuplicateRequest,
        Fault::UnknownTokens,
        Fault::DisplacedTokens,
        Fault::EventNumbers,
        Fault::EmptyEvent,
        Fault::EventInstants,
        Fault::EventSum,
        Fault::EventEnds,
        Fault::Instants,
        Fault::Status,
        Fault::Columns,
        Fault::RequestCount,
        Fault::RequestNumbers,
        Fault::Lengths,
        Fault::BeforeStart,
        Fault::Receipts,
        Fault::Document,
        Fault::Histograms,
    ];
    let missing: Vec<&Fault> = all.iter().filter(|fault| !planted(fault)).collect();
    assert_eq!(missing, elsewhere.iter().collect::<Vec<_>>());
}

/// Runs on real servers, this project's and others'.
#[test]
fn nothing_speaks_against_the_committed_runs() {
    for name in [
        "own-trace-conversation",
        "own-trace-synthetic",
        "vllm-agree-chat",
        "vllm-agree-completions",
        "vllm-chunk-2048-cache-off",
        "vllm-chunk-2048-cache-on",
        "vllm-chunk-256-cache-off",
        "vllm-chunk-256-cache-on",
        "vllm-trace-conversation",
        "vllm-trace-synthetic",
        "vllm-worked",
    ] {
        let read = files::read(&results(name)).unwrap();
        assert!(read.findings.is_empty(), "{name}: {:?}", read.findings);
    }
    let dir = tempfile::tempdir().unwrap();
    let read = files::read(&whole(dir.path())).unwrap();
    assert!(read.findings.is_empty(), "{:?}", read.findings);
    assert!(
        read.document.validity.valid && read.notes.is_empty(),
        "{:?}",
        read.notes
    );
}

/// A value that contradicts nothing else.
#[test]
fn only_the_receipt_tells_of_a_value_that_fits() {
    let dir = tempfile::tempdir().unwrap();
    let run = whole(dir.path());
    edit(&run, "requests.csv", &|t| {
        with(t, 3, "finish_reason", "stopee")
    });
    for file in ["bench.json", "ttft.hlog"] {
        fs::remove_file(run.join(file)).unwrap();
    }
    let read = files::read(&run).unwrap();
    assert_eq!(
        read.findings.faults().collect::<Vec<_>>(),
        [Fault::ChangedTable]
    );
    let reason = &read.document.validity.reasons[0];
    assert!(
        reason.contains("requests.csv: a value was changed"),
        "{reason}"
    );
    fs::write(run.join(TABLES_FILE), "{\"tokens.csv\": 1}").unwrap();
    let reason = files::read(&run).unwrap().findings.reasons().remove(0);
    assert!(reason.contains("tables.json: "), "{reason}");
}

#[test]
fn a_lost_request_costs_the_others_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let run = whole(dir.path());
    edit(&run, "requests.csv", &|t| lost(t, 5));
    let read = files::read(&run).unwrap();
    assert_eq!(
        (read.document.counts.ok, read.document.tokens.events),
        (11, 11 * 32)
    );
    assert_eq!(read.findings.count(Fault::UnknownTokens), 32);
    assert_eq!(read.findings.count(Fault::EventEnds), 0);
}

#[test]
fn what_cannot_be_read_at_all_is_an_error_that_names_it() {
    for (file, change, words) in [
        (
            "requests.csv",
            &(|t: &str| without_column(t, "closed_ns")) as &dyn Fn(&str) -> String,
            "requests.csv: there is no column closed_ns",
        ),
        (
            "tokens.csv",
            &|t| without_column(t, "event"),
            "tokens.csv: there is no column event",
        ),
        (
            "requests.csv",
            &|t| t.replacen("max_tokens", "\u{1b}[2J", 1),
            "there is no column max_tokens",
        ),
        (
            "conditions.json",
            &|t| t[..90].to_owned(),
            "conditions.json",
        ),
        (
            "conditions.json",
            &|t| t.replacen("frame", "\u{1b}[2J", 1),
            "conditions.json",
        ),
        ("manifest.json", &|t| t[..90].to_owned(), "manifest.json"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let run = whole(dir.path());
        edit(&run, file, change);
        let error = files::read(&run).unwrap_err().to_string();
        assert!(
            error.contains(words) && !error.contains('\u{1b}'),
            "{error}"
        );
    }
}

/// A run whose writer was killed: what it leaves is unfinished, not corrupt.
#[test]
fn a_killed_run_contradicts_nothing_wherever_it_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let run = whole(dir.path());
    for file in [TABLES_FILE, "bench.json"] {
        fs::remove_file(run.join(file)).unwrap();
    }
    edit(&run, "manifest.json", &|t| {
        t.replacen("\"complete\"", "\"running\"", 1)
    });
    edit(&run, "conditions.json", &|t| {
        t.replacen("5806549989793", "0", 1)
    });
    let read = |name: &str| fs::read_to_string(run.join(name)).unwrap();
    let (requests, tokens) = (read("requests.csv"), read("tokens.csv"));
    let ended = |text: &str| text.matches('\n').count();
    // The writer appends the events of a request and then its row: here it dies within the ninth.
    let rows: usize = requests.lines().take(9).map(|line| line.len() + 1).sum();
    let events: usize = tokens
        .lines()
        .take(1 + 9 * 32)
        .map(|line| line.len() + 1)
        .sum();
    for (row_bytes, token_bytes) in [
        (rows, events),
        (rows, events - 1),
        (rows, events - 200),
        (rows + 1, events),
        (rows + 100, events),
    ] {
        fs::write(run.join("requests.csv"), &requests[..row_bytes]).unwrap();
        fs::write(run.join("tokens.csv"), &tokens[..token_bytes]).unwrap();
        assert_eq!(ended(&requests[..row_bytes]), 9);
        let found = files::read(&run).unwrap();
        assert!(found.findings.is_empty(), "{:?}", found.findings);
        assert_eq!(found.document.state, "partial");
        let told = "unfinished: 6 of 12 planned requests have rows".to_owned();
        assert!(found.notes.contains(&told), "{:?}", found.notes);
    }
    // What no kill leaves: events of nobody before those of somebody, a row without its events.
    fs::write(run.join("requests.csv"), &requests[..rows]).unwrap();
    fs::write(run.join("tokens.csv"), &tokens[..events]).unwrap();
    edit(&run, "tokens.csv", &|t| {
        lines(t, |l| l.insert(80, "target,0,999,0,5812000000000,1"))
    });
    let found = files::read(&run).unwrap();
    assert_eq!(
        found.findings.faults().collect::<Vec<_>>(),
        [Fault::UnknownTokens]
    );
}

/// Whichever byte is wrong: an answer or an error, never a panic; and with receipts never a valid
/// run, but where the byte is not part of the numbers.
#[test]
fn no_flipped_byte_of_a_table_goes_unnoticed() {
    let dir = tempfile::tempdir().unwrap();
    let run = whole(dir.path());
    for (file, step) in [("requests.csv", 97), ("tokens.csv", 1_009)] {
        let whole = fs::read(run.join(file)).unwrap();
        for at in (0..whole.len()).step_by(step) {
            for flip in [1_u8, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                fs::write(run.join(file), &bytes).unwrap();
                let noticed = files::read(&run).map_or(true, |run| !run.document.validity.valid);
                assert!(noticed, "{file}: byte {at} of {}", whole.len());
            }
        }
        fs::write(run.join(file), &whole).unwrap();
    }
}

/// A shard with a fault makes the joined run void, and the joined directory keeps the reason.
#[test]
fn a_damaged_shard_makes_the_joined_run_void() {
    let dir = tempfile::tempdir().unwrap();
    let run = whole(dir.path());
    edit(&run, "conditions.json", &|t| {
        t.replacen("\"shard\": null", "\"shard\": {\"index\": 0, \"of\": 1}", 1)
    });
    let whole = join(
        std::slice::from_ref(&run),
        &dir.path().join("good"),
        &JoinOptions::default(),
    )
    .unwrap();
    assert!(whole.validity.valid, "{:?}", whole.validity);
    let again = files::read(&dir.path().join("good")).unwrap();
    assert!(again.findings.is_empty(), "{:?}", again.findings);
    edit(&run, "tokens.csv", &|t| lost(t, 70));
    let out = dir.path().join("bad");
    let joined = join(&[run], &out, &JoinOptions::default()).unwrap();
    let reasons = joined.validity.reasons.join("\n");
    for words in [
        "shard 0/1: contradiction: content events are missing",
        "tables.json says",
    ] {
        assert!(reasons.contains(words), "{reasons}");
    }
    assert_eq!(joined.exit_code(), 3);
    assert_eq!(files::read(&out).unwrap().document.exit_code(), 3);
}
