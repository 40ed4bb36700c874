//! The trace of a run, checked by another program: its format, and its values against the rows.

#[allow(dead_code, reason = "other tests use more of it")]
mod support;

use std::path::Path;
use std::process::Command;

use pb_contract::{Nanos, RequestStatus};
use pb_report::perfetto::{TraceRows, TraceSize, write};
use serde_json::{Value, json};
use support::{Setting, run};

/// What the checker is told of the rows, as JSON: it knows nothing of this crate.
fn rows_as_json(data: &pb_record::RunData) -> Value {
    let steps = data.steps.iter().map(|step| {
        let row = &step.row;
        json!({
            "arm": step.arm, "block": step.block, "step": row.step, "start": row.start_ns.0,
            "duration": row.duration_ns.0, "buckets":
                [row.active_blocks, row.reclaimable_blocks, row.free_blocks],
            "queue": [row.running, row.waiting],
            "kernel": row.prefill_gemm_ns.0 + row.prefill_attention_ns.0
                + row.decode_gemm_ns.0 + row.decode_attention_ns.0,
        })
    });
    let requests = data.requests.iter().map(|row| {
        json!({
            "arm": row.arm, "block": row.block, "request": row.request.0,
            "intended": row.intended_ns.0, "sent": row.sent_ns.map(|at| at.0),
            "first": row.first_token_ns.map(|at| at.0), "last": row.last_token_ns.map(|at| at.0),
            "closed": row.closed_ns.map(|at| at.0),
        })
    });
    json!({"steps": steps.collect::<Vec<_>>(), "requests": requests.collect::<Vec<_>>()})
}

fn trace(data: &pb_record::RunData) -> (Vec<u8>, TraceSize) {
    let rows = TraceRows {
        requests: &data.requests,
        steps: &data.steps,
        server: &[],
        title: "a \"quoted\" run",
    };
    let mut bytes = Vec::new();
    let size = write(&rows, &mut bytes).unwrap();
    (bytes, size)
}

/// Runs the checker; `None` without Python.
fn checked(name: &str, trace: &[u8], rows: &Value) -> Option<Result<String, String>> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (trace_file, rows_file) = (
        dir.join(format!("{name}-trace.json")),
        dir.join(format!("{name}-rows.json")),
    );
    std::fs::write(&trace_file, trace).unwrap();
    std::fs::write(&rows_file, rows.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perfetto_check.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(trace_file)
        .arg(rows_file)
        .output();
    let Ok(output) = output else {
        eprintln!("no python3: the trace was not checked by another program");
        return None;
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    })
}

fn small() -> pb_record::RunData {
    run(&Setting {
        blocks: 2,
        ..Setting::default()
    })
}

#[test]
fn another_program_finds_every_row_in_the_trace() {
    let mut data = small();
    // One that was never sent, and one that broke off before its first token.
    data.requests[3].sent_ns = None;
    data.requests[3].first_token_ns = None;
    data.requests[3].last_token_ns = None;
    data.requests[3].closed_ns = None;
    data.requests[3].status = RequestStatus::NotOffered;
    data.requests[4].first_token_ns = None;
    data.requests[4].last_token_ns = None;
    data.requests[4].status = RequestStatus::Truncated;
    let (bytes, size) = trace(&data);
    assert_eq!(size.steps as usize, data.steps.len());
    assert_eq!(size.requests as usize, data.requests.len());
    let parsed: Value = serde_json::from_slice(&bytes).unwrap();
    let events = parsed["traceEvents"].as_array().unwrap();
    assert_eq!(events.len() as u64, size.events);
    assert_eq!(parsed["otherData"]["title"], "a \"quoted\" run");
    if let Some(found) = checked("whole", &bytes, &rows_as_json(&data)) {
        let found = found.unwrap();
        let expected = format!("{} steps, {} requests", size.steps, size.requests);
        assert!(found.contains(&expected), "{found}");
    }
}

#[test]
fn the_checker_notices_what_is_planted() {
    let data = small();
    let (bytes, _) = trace(&data);
    let text = String::from_utf8(bytes).unwrap();
    let rows = rows_as_json(&data);
    // An end is lost; a value is another one; an instant is later by a nanosecond.
    let end = text
        .lines()
        .find(|line| line.contains("\"ph\":\"E\""))
        .unwrap();
    let lost = text.replacen(&format!("{end}\n"), "", 1);
    let mut other = rows.clone();
    other["steps"][5]["buckets"][0] = json!(1_000_000);
    let mut later = rows.clone();
    let first = later["requests"][0]["first"].as_u64().unwrap();
    later["requests"][0]["first"] = json!(first + 1);
    for (name, trace, rows) in [
        ("lost", &lost, &rows),
        ("other", &text, &other),
        ("later", &text, &later),
    ] {
        if let Some(found) = checked(name, trace.as_bytes(), rows) {
            assert!(found.is_err(), "{name} was not noticed: {found:?}");
        }
    }
}

#[test]
fn a_run_without_rows_is_a_trace_without_events() {
    let rows = TraceRows {
        requests: &[],
        steps: &[],
        server: &[],
        title: "",
    };
    let mut bytes = Vec::new();
    assert_eq!(write(&rows, &mut bytes).unwrap(), TraceSize::default());
    let parsed: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(parsed["traceEvents"], json!([]));
}

#[test]
fn steps_that_overlap_by_their_clock_stay_one_after_the_other() {
    let mut data = small();
    data.requests.clear();
    data.steps.truncate(2);
    data.steps[1].row.start_ns = data.steps[0].row.start_ns + Nanos(1);
    let (bytes, _) = trace(&data);
    let mut rows = rows_as_json(&data);
    // The second is told from the end of the first on, for the checker too.
    let end = data.steps[0].row.start_ns + data.steps[0].row.duration_ns;
    let own = data.steps[1].row.start_ns + data.steps[1].row.duration_ns;
    rows["steps"][1]["start"] = json!(end.0);
    rows["steps"][1]["duration"] = json!(own.max(end).0 - end.0);
    rows["steps"][1]["kernel"] = Value::Null;
    if let Some(found) = checked("overlap", &bytes, &rows) {
        assert!(found.is_ok(), "{found:?}");
    }
}
