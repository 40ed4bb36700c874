//! The bare client: closed or open loop against any OpenAI-compatible endpoint, every instant to
//! a file. `tests/speed/fidelity.py` compares it with what `prefillbench mock` wrote.
//!
//! ```text
//! cargo run --release -p pb-load --example streams -- \
//!     closed --url http://127.0.0.1:8000 --streams 1000 --requests 3000 --tokens 100
//! cargo run --release -p pb-load --example streams -- \
//!     open --url http://127.0.0.1:8000 --rate 2000 --count 9000 --tokens 1 --connections 500
//! ```

use std::collections::BTreeMap;
use std::io::Write;

use pb_contract::plan::{ClosedLoop, OpenRequest, Plan, PlannedBody};
use pb_contract::{Nanos, RequestId, Stream};
use pb_load::{Endpoint, Limits, Record, RunContext, StopSignal, run_plan_blocking};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let mode = words.next().ok_or("say `closed` or `open`")?;
    let mut options = BTreeMap::new();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        options.insert(name.trim_start_matches('-').to_owned(), value);
    }
    let number = |name: &str, default: f64| -> Result<f64, Error> {
        let text = options.get(name);
        Ok(text
            .map(|text| text.parse())
            .transpose()?
            .unwrap_or(default))
    };
    let tokens = number("tokens", 100.0)? as u32;
    let prompt = number("prompt", 8.0)? as usize;
    let body = |id: u64| PlannedBody::of_ids("x", vec![1 + id as u32 % 1_000; prompt], tokens);
    let mut plan = Plan {
        drain_ns: Nanos::from_secs(120),
        ..Plan::default()
    };
    match mode.as_str() {
        "closed" => {
            let streams = number("streams", 100.0)? as usize;
            let requests = number("requests", streams as f64)? as u64;
            plan.horizon_ns = Nanos::from_secs(3_600);
            plan.closed = vec![ClosedLoop {
                streams,
                first_id: RequestId(0),
                bodies: (0..requests).map(body).collect(),
            }];
        }
        _ => {
            let count = number("count", 500.0)? as u64;
            let constant = options
                .get("arrival")
                .is_some_and(|kind| kind == "constant");
            plan_open(&mut plan, number("rate", 100.0)?, count, constant, body);
        }
    }
    let url = options.get("url").ok_or("--url is missing")?;
    let model = options.get("model").map_or("mock", String::as_str);
    let mut endpoint = Endpoint::parse(url)?.with_model(model);
    if let Some(connections) = options.get("connections") {
        endpoint = endpoint.with_connections(connections.parse()?);
    }
    let mut records: Vec<Record> = Vec::new();
    let (context, limits) = (RunContext::default(), Limits::default());
    let emit = |record| records.push(record);
    let summary = run_plan_blocking(plan, context, &endpoint, limits, StopSignal::new(), emit)?;
    if let Some(path) = options.get("out") {
        write(
            &mut std::io::BufWriter::new(std::fs::File::create(path)?),
            &records,
        )?;
    }
    let ok = records
        .iter()
        .filter(|record| record.row.fail.is_none())
        .count();
    let events: usize = records.iter().map(|record| record.tokens.len()).sum();
    let report = serde_json::json!({
        "requests": records.len(), "ok": ok, "events": events, "cpu_ms": cpu_ms(),
        "summary": summary,
    });
    println!("{report}");
    Ok(())
}

/// Arrivals at a constant distance, or of a Poisson process.
fn plan_open(
    plan: &mut Plan,
    rate: f64,
    count: u64,
    constant: bool,
    body: impl Fn(u64) -> PlannedBody,
) {
    let mut random = Stream::new(1, "streams/arrivals");
    let mut at = 0.0;
    for id in 0..count {
        let offset_ns = Nanos::from_secs_f64(at);
        plan.open.push(OpenRequest {
            id: RequestId(id),
            offset_ns,
            body: body(id),
        });
        plan.horizon_ns = offset_ns;
        at += match constant {
            true => 1.0 / rate,
            false => random.exponential(1.0 / rate),
        };
    }
}

/// A line for each request; its token instants are the last column.
fn write(out: &mut impl Write, records: &[Record]) -> std::io::Result<()> {
    writeln!(
        out,
        "id,intended_ns,sent_ns,first_event_ns,closed_ns,fail,token_ns"
    )?;
    let text = |at: Option<Nanos>| at.map_or(String::new(), |at| at.0.to_string());
    for Record { row, tokens } in records {
        let instants: Vec<String> = tokens
            .iter()
            .map(|token| token.at_ns.0.to_string())
            .collect();
        writeln!(
            out,
            "{},{},{},{},{},{},{}",
            row.request,
            row.intended_ns.0,
            text(row.sent_ns),
            text(row.first_event_ns),
            text(row.closed_ns),
            row.fail.map_or(String::new(), |kind| format!("{kind:?}")),
            instants.join(" ")
        )?;
    }
    out.flush()
}

/// Processor time of this process so far.
fn cpu_ms() -> Option<u64> {
    // Fields 14 and 15 of the line, in hundredths of a second; the name before them has no blank.
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let field = |index: usize| text.split(' ').nth(index)?.parse::<u64>().ok();
    Some(10 * (field(13)? + field(14)?))
}
