//! Faults for the run directory `golden/runs/vllm-warm`, each planted in one file.

use std::fs;
use std::path::{Path, PathBuf};

use pb_record::Fault;

/// The run in which faults are planted.
pub(super) fn golden_run() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/runs/vllm-warm")
}

/// A committed run directory.
pub(super) fn results(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../results")
        .join(name)
}

/// A table with one value changed; lines count from 0, the header.
pub(super) fn with(text: &str, line: usize, column: &str, value: &str) -> String {
    let names: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let at = names.iter().position(|name| *name == column).unwrap();
    let changed = text.lines().enumerate().map(|(number, row)| {
        let mut cells: Vec<&str> = row.split(',').collect();
        if number == line {
            cells[at] = value;
        }
        cells.join(",") + "\n"
    });
    changed.collect()
}

/// A table without one column.
pub(super) fn without_column(text: &str, column: &str) -> String {
    let names: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let at = names.iter().position(|name| *name == column).unwrap();
    let kept = text.lines().map(|row| {
        let mut cells: Vec<&str> = row.split(',').collect();
        cells.remove(at);
        cells.join(",") + "\n"
    });
    kept.collect()
}

/// A table without one line.
pub(super) fn lost(text: &str, line: usize) -> String {
    lines(text, |lines| {
        lines.remove(line);
    })
}

/// A table whose lines were put in another order, doubled or left out.
pub(super) fn lines(text: &str, change: impl FnOnce(&mut Vec<&str>)) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    change(&mut lines);
    lines.join("\n") + "\n"
}

pub(super) type Change = fn(&str) -> String;

/// What is broken, in which file, and the fault that must be named.
pub(super) const PLANTED: &[(Fault, &str, &str, Change)] = &[
    // Line 3 of requests.csv is request 0, which ended well; its events are lines 65 to 96 of
    // tokens.csv.
    (
        Fault::RequestCount,
        "a request row is lost",
        "requests.csv",
        |t| lost(t, 5),
    ),
    (
        Fault::UnknownTokens,
        "a request row is lost",
        "requests.csv",
        |t| lost(t, 5),
    ),
    (
        Fault::RequestCount,
        "the last rows are lost",
        "requests.csv",
        |t| lines(t, |l| l.truncate(10)),
    ),
    (
        Fault::RequestNumbers,
        "a request row is lost",
        "requests.csv",
        |t| lost(t, 5),
    ),
    (
        Fault::DuplicateRequest,
        "a request row is doubled",
        "requests.csv",
        |t| lines(t, |l| l.push(l[4])),
    ),
    (
        Fault::RequestNumbers,
        "a request beyond the plan",
        "requests.csv",
        |t| with(t, 14, "request", "12"),
    ),
    (Fault::CutLine, "the last row is cut", "requests.csv", |t| {
        t[..t.len() - 4].to_owned()
    }),
    (Fault::CutLine, "the last event is cut", "tokens.csv", |t| {
        t[..t.len() - 4].to_owned()
    }),
    (
        Fault::UnreadableRow,
        "text after a cut line",
        "requests.csv",
        |t| {
            format!(
                "{}\n{}",
                &t[..t.len() - 30],
                t.lines().last().unwrap().to_owned() + "\n"
            )
        },
    ),
    (
        Fault::UnreadableRow,
        "a negative number",
        "requests.csv",
        |t| with(t, 3, "sent_ns", "-5"),
    ),
    (
        Fault::UnreadableRow,
        "more than 32 bits",
        "requests.csv",
        |t| with(t, 3, "max_tokens", "4294967296"),
    ),
    (
        Fault::UnreadableRow,
        "a word for a number",
        "tokens.csv",
        |t| with(t, 70, "event", "many"),
    ),
    (
        Fault::UnreadableRow,
        "an unknown status",
        "requests.csv",
        |t| with(t, 3, "status", "fine"),
    ),
    (
        Fault::UnknownTokens,
        "events of nobody",
        "tokens.csv",
        |t| lines(t, |l| l.insert(80, "target,0,999,0,5812000000000,1")),
    ),
    (
        Fault::DisplacedTokens,
        "a sorted table",
        "tokens.csv",
        |t| lines(t, |l| l[1..].sort_unstable()),
    ),
    (Fault::EventNumbers, "an event is lost", "tokens.csv", |t| {
        lost(t, 70)
    }),
    (
        Fault::EventNumbers,
        "an event is doubled",
        "tokens.csv",
        |t| lines(t, |l| l.insert(70, l[70])),
    ),
    (
        Fault::EventEnds,
        "the last event of a request is lost",
        "tokens.csv",
        |t| lost(t, 96),
    ),
    (
        Fault::EventEnds,
        "all events of a request are lost",
        "tokens.csv",
        |t| lines(t, |l| drop(l.drain(65..97))),
    ),
    (
        Fault::EmptyEvent,
        "an event without a token",
        "tokens.csv",
        |t| with(t, 70, "tokens", "0"),
    ),
    (
        Fault::EventSum,
        "an event of many tokens",
        "tokens.csv",
        |t| with(t, 70, "tokens", "9"),
    ),
    (
        Fault::EventSum,
        "fewer tokens in the row",
        "requests.csv",
        |t| with(t, 3, "streamed_tokens", "31"),
    ),
    (
        Fault::EventInstants,
        "an event before the one before",
        "tokens.csv",
        |t| with(t, 70, "at_ns", "5809588587784"),
    ),
    (
        Fault::EventEnds,
        "another first token",
        "requests.csv",
        |t| with(t, 3, "first_token_ns", "5809588587786"),
    ),
    (
        Fault::Instants,
        "sent before it was due",
        "requests.csv",
        |t| with(t, 3, "sent_ns", "5809308842650"),
    ),
    (
        Fault::Instants,
        "answered before it was sent",
        "requests.csv",
        |t| with(t, 3, "headers_ns", "5809300000000"),
    ),
    (
        Fault::Instants,
        "a token before the first event",
        "requests.csv",
        |t| with(t, 3, "first_event_ns", "5809588587786"),
    ),
    (
        Fault::Instants,
        "closed before the last token",
        "requests.csv",
        |t| with(t, 3, "closed_ns", "5813816882497"),
    ),
    (
        Fault::Status,
        "ended well with a failure",
        "requests.csv",
        |t| with(t, 3, "fail", "http_status"),
    ),
    (Fault::Status, "failed without one", "requests.csv", |t| {
        with(t, 3, "status", "failed")
    }),
    (
        Fault::Columns,
        "ended well and never closed",
        "requests.csv",
        |t| with(t, 3, "closed_ns", ""),
    ),
    (
        Fault::Columns,
        "ended well with status 503",
        "requests.csv",
        |t| with(t, 3, "http_status", "503"),
    ),
    (
        Fault::Columns,
        "a refusal with tokens",
        "requests.csv",
        |t| with(&with(t, 3, "fail", "http_status"), 3, "status", "failed"),
    ),
    (
        Fault::Columns,
        "never sent and answered",
        "requests.csv",
        |t| {
            with(
                &with(t, 3, "fail", "not_offered"),
                3,
                "status",
                "not_offered",
            )
        },
    ),
    (Fault::Lengths, "a shorter prompt", "requests.csv", |t| {
        with(t, 3, "prompt_tokens_planned", "447")
    }),
    (Fault::Lengths, "a longer output", "requests.csv", |t| {
        with(t, 3, "max_tokens", "33")
    }),
    (
        Fault::BeforeStart,
        "due before the start",
        "requests.csv",
        |t| with(t, 3, "intended_ns", "5806549989792"),
    ),
    (
        Fault::Receipts,
        "a warm-up row is lost",
        "requests.csv",
        |t| lost(t, 1),
    ),
    (
        Fault::Receipts,
        "other hits than counted",
        "requests.csv",
        |t| with(t, 3, "cached_tokens", "383"),
    ),
    (
        Fault::Receipts,
        "no hits where there were some",
        "requests.csv",
        |t| with(t, 3, "cached_tokens", ""),
    ),
    (Fault::Receipts, "another seed", "manifest.json", |t| {
        t.replacen("\n  \"seed\": 1", "\n  \"seed\": 2", 1)
    }),
    (
        Fault::Receipts,
        "another schedule",
        "conditions.json",
        |t| t.replacen("2bd65c99", "2bd65c98", 1),
    ),
    (Fault::Document, "another count", "bench.json", |t| {
        t.replacen("\"offered\": 12", "\"offered\": 13", 1)
    }),
    (
        Fault::Document,
        "a later row is better",
        "requests.csv",
        |t| with(t, 3, "intended_ns", "5809308842652"),
    ),
    (Fault::Document, "half a document", "bench.json", |t| {
        t[..t.len() / 2].to_owned()
    }),
    (Fault::Histograms, "another run's log", "ttft.hlog", |_| {
        fs::read_to_string(results("vllm-worked/ttft.hlog")).unwrap()
    }),
    (Fault::Histograms, "a log that is none", "itl.hlog", |_| {
        "0,x,1,HIST\n".to_owned()
    }),
    (Fault::MissingTable, "an empty table", "tokens.csv", |_| {
        String::new()
    }),
];
