//! A run as a trace for <https://ui.perfetto.dev> and `chrome://tracing`, in the Trace Event
//! Format: engine steps as slices with their parts, requests as asynchronous slices, counters for
//! blocks and queues.
//!
//! Nothing in a trace is computed that the rows do not say. A row of a step has the durations of
//! its parts and not their order, so parts are laid one after the other inside their step; a client
//! does not see when the server began with a request, so the time from sending to the first token
//! is one slice. Timestamps are microseconds with three decimals, so that every nanosecond is kept,
//! from the first instant of the run.

mod requests;
mod steps;

use std::collections::BTreeMap;
use std::io::{self, Write};

use pb_bench::ServerPoint;
use pb_contract::{Nanos, RequestRow};
use pb_record::StepRecord;
use serde_json::{Value, json};

/// What a trace is made of.
#[derive(Clone, Copy, Debug)]
pub struct TraceRows<'a> {
    /// Requests, of all arms and blocks.
    pub requests: &'a [RequestRow],
    /// Engine steps; empty when the server tells none.
    pub steps: &'a [StepRecord],
    /// What a metrics page said over time; empty when there was none.
    pub server: &'a [ServerPoint],
    /// What the trace is of, for people.
    pub title: &'a str,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSize {
    /// Events.
    pub events: u64,
    /// Engine steps.
    pub steps: u64,
    /// Requests.
    pub requests: u64,
}

/// Thread of the steps.
const STEPS: u64 = 1;
/// Thread on which first tokens are marked.
const FIRST_TOKENS: u64 = 2;

/// Writes the trace as one JSON document. Each arm of each block is a process of the trace.
///
/// # Errors
/// The destination cannot be written.
pub fn write(rows: &TraceRows<'_>, to: &mut dyn Write) -> io::Result<TraceSize> {
    let origin = origin(rows);
    let mut out = Out {
        to,
        origin,
        size: TraceSize::default(),
    };
    let other = json!({"title": rows.title, "origin_ns": origin.0});
    write!(
        out.to,
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":["
    )?;
    for (number, (key, process)) in processes(rows).into_iter().enumerate() {
        // 0 is the idle process to some viewers.
        let pid = number as u64 + 1;
        out.names(pid, &key)?;
        steps::write(&mut out, pid, &process)?;
        requests::write(&mut out, pid, &process)?;
        if number == 0 {
            for point in rows.server {
                out.server(pid, point)?;
            }
        }
    }
    out.to.write_all(b"\n]}\n")?;
    Ok(out.size)
}

/// The first instant of a run.
fn origin(rows: &TraceRows<'_>) -> Nanos {
    let requests = rows.requests.iter().map(|row| row.intended_ns);
    let steps = rows.steps.iter().map(|step| step.row.start_ns);
    let server = rows.server.iter().map(|point| point.at_ns);
    let first = requests.chain(steps).chain(server).min();
    first.unwrap_or(Nanos::ZERO)
}

/// One arm in one block.
#[derive(Debug, Default)]
struct Process<'a> {
    /// In the order of their start.
    steps: Vec<&'a StepRecord>,
    /// In the order of their arrival.
    requests: Vec<&'a RequestRow>,
}

type Key = (u32, String);

fn processes<'a>(rows: &TraceRows<'a>) -> BTreeMap<Key, Process<'a>> {
    let mut all: BTreeMap<Key, Process<'a>> = BTreeMap::new();
    for row in rows.requests {
        let process = all.entry((row.block, row.arm.clone())).or_default();
        process.requests.push(row);
    }
    for step in rows.steps {
        let process = all.entry((step.block, step.arm.clone())).or_default();
        process.steps.push(step);
    }
    for process in all.values_mut() {
        process
            .steps
            .sort_by_key(|step| (step.row.start_ns, step.row.step));
        process
            .requests
            .sort_by_key(|row| (row.intended_ns, row.request));
    }
    all
}

/// Where events go.
struct Out<'a> {
    to: &'a mut dyn Write,
    origin: Nanos,
    size: TraceSize,
}

/// An event of the trace.
struct Event<'a> {
    /// Kind: `B`, `E`, `b`, `e`, `C`, `s`, `f`, `M`.
    ph: &'a str,
    /// When.
    at: Nanos,
    /// Process.
    pid: u64,
    /// Thread.
    tid: u64,
    /// Name.
    name: &'a str,
    /// Further keys.
    more: Value,
}

impl Out<'_> {
    /// Writes an event.
    fn event(&mut self, event: Event<'_>) -> io::Result<()> {
        let start = if self.size.events == 0 { "\n" } else { ",\n" };
        self.size.events += 1;
        let ns = event.at.saturating_sub(self.origin).0;
        let name = Value::from(event.name);
        write!(
            self.to,
            "{start}{{\"ph\":\"{}\",\"ts\":{}.{:03},\"pid\":{},\"tid\":{},\"name\":{name}",
            event.ph,
            ns / 1_000,
            ns % 1_000,
            event.pid,
            event.tid,
        )?;
        for (key, value) in event.more.as_object().into_iter().flatten() {
            write!(self.to, ",\"{key}\":{value}")?;
        }
        self.to.write_all(b"}")
    }

    /// Names a process and its threads.
    fn names(&mut self, pid: u64, (block, arm): &Key) -> io::Result<()> {
        let name = format!("{arm}, block {block}");
        let named = [
            ("process_name", 0, name.as_str()),
            ("thread_name", STEPS, "engine steps"),
            ("thread_name", FIRST_TOKENS, "first tokens"),
        ];
        for (kind, tid, name) in named {
            self.event(Event {
                ph: "M",
                at: self.origin,
                pid,
                tid,
                name: kind,
                more: json!({"args": {"name": name}}),
            })?;
        }
        Ok(())
    }

    /// A counter with its series.
    fn counter(&mut self, pid: u64, at: Nanos, name: &str, args: Value) -> io::Result<()> {
        self.event(Event {
            ph: "C",
            at,
            pid,
            tid: 0,
            name,
            more: json!({"args": args}),
        })
    }

    /// What the metrics page said at one instant.
    fn server(&mut self, pid: u64, point: &ServerPoint) -> io::Result<()> {
        let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
        let series = [
            ("server: running", finite(point.running)),
            ("server: waiting", finite(point.waiting)),
            (
                "server: KV cache in use, %",
                finite(point.kv_usage).map(|share| 100.0 * share),
            ),
        ];
        for (name, value) in series {
            if let Some(value) = value {
                self.counter(pid, point.at_ns, name, json!({"value": value}))?;
            }
        }
        Ok(())
    }
}
