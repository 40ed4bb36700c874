//! Requests as asynchronous slices, and the step that each first token came out of.

use std::collections::BTreeMap;
use std::io;

use pb_contract::{Nanos, RequestRow};
use serde_json::{Value, json};

use super::{Event, FIRST_TOKENS, Out, Process, STEPS};

pub(super) fn write(out: &mut Out<'_>, pid: u64, process: &Process<'_>) -> io::Result<()> {
    for row in &process.requests {
        out.size.requests += 1;
        // Numbers of requests begin anew in each block and arm.
        let id = format!("0x{:x}", out.size.requests);
        request(out, pid, &id, row)?;
    }
    first_tokens(out, pid, process)
}

/// Parts of a request that happened: name, start, end.
fn parts(row: &RequestRow) -> Vec<(&'static str, Nanos, Nanos)> {
    let mut parts = Vec::new();
    let Some(sent) = row.sent_ns else {
        return parts;
    };
    parts.push(("queue of the client", row.intended_ns, sent));
    if let Some(first) = row.first_token_ns {
        parts.push(("queue of the server and prefill", sent, first));
        if let Some(last) = row.last_token_ns {
            parts.push(("decode", first, last));
        }
    }
    parts
}

/// A request from its arrival to the end of its stream.
fn request(out: &mut Out<'_>, pid: u64, id: &str, row: &RequestRow) -> io::Result<()> {
    let parts = parts(row);
    let last = parts.iter().map(|part| part.2).max();
    let end = row.closed_ns.or(last).unwrap_or(row.intended_ns);
    let end = end
        .max(last.unwrap_or(row.intended_ns))
        .max(row.intended_ns);
    let name = match row.class.as_str() {
        "" => format!("request {}", row.request.0),
        class => format!("request {} ({class})", row.request.0),
    };
    let status = serde_json::to_value(row.status).unwrap_or(Value::Null);
    let fail = row
        .fail
        .map(|kind| serde_json::to_value(kind).unwrap_or(Value::Null));
    let args = json!({
        "request": row.request.0,
        "status": status,
        "fail": fail,
        "intended_ns": row.intended_ns.0,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "streamed_tokens": row.streamed_tokens,
    });
    let event = |ph: &'static str, at, name: &str, more: Value| {
        let mut all = json!({"cat": "request", "id": id});
        for (key, value) in more.as_object().into_iter().flatten() {
            all[key] = value.clone();
        }
        (ph, at, name.to_owned(), all)
    };
    let mut events = vec![event("b", row.intended_ns, &name, json!({"args": args}))];
    for (part, from, to) in parts {
        // A clock that went back is none of ours; no slice ends before it begins.
        let to = to.max(from);
        events.push(event("b", from, part, json!({})));
        events.push(event("e", to, part, json!({})));
    }
    events.push(event("e", end, &name, json!({})));
    for (ph, at, name, more) in events {
        let name = name.as_str();
        let tid = FIRST_TOKENS;
        out.event(Event {
            ph,
            at,
            pid,
            tid,
            name,
            more,
        })?;
    }
    Ok(())
}

/// A mark for each instant at which first tokens arrived, with an arrow from the last step with
/// prompt tokens that had ended by then.
fn first_tokens(out: &mut Out<'_>, pid: u64, process: &Process<'_>) -> io::Result<()> {
    let mut instants: BTreeMap<Nanos, Vec<&RequestRow>> = BTreeMap::new();
    for row in &process.requests {
        if let Some(first) = row.first_token_ns {
            instants.entry(first).or_default().push(row);
        }
    }
    let prefills = process
        .steps
        .iter()
        .filter(|step| step.row.prefill_tokens > 0);
    let prefills: Vec<(Nanos, Nanos)> = prefills
        .map(|step| (step.row.start_ns, step.row.start_ns + step.row.duration_ns))
        .collect();
    let event = |ph: &'static str, at, tid, name: &'static str, more| Event {
        ph,
        at,
        pid,
        tid,
        name,
        more,
    };
    const FLOW: &str = "first token";
    for (at, rows) in instants {
        let numbers: Vec<u64> = rows.iter().map(|row| row.request.0).collect();
        let more = json!({"cat": "request", "args": {"requests": numbers}});
        out.event(event("B", at, FIRST_TOKENS, FLOW, more))?;
        let ended = prefills.partition_point(|(_, end)| *end <= at);
        if let Some((start, _)) = ended.checked_sub(1).map(|last| prefills[last]) {
            let id = format!("0x{:x}", out.size.events);
            let more = json!({"cat": "flow", "id": id});
            out.event(event("s", start, STEPS, FLOW, more))?;
            let more = json!({"cat": "flow", "id": id, "bp": "e"});
            out.event(event("f", at, FIRST_TOKENS, FLOW, more))?;
        }
        let end = at + Nanos(1);
        out.event(event(
            "E",
            end,
            FIRST_TOKENS,
            FLOW,
            json!({"cat": "request"}),
        ))?;
    }
    Ok(())
}
