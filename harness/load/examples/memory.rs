//! Memory of a long run: an hour of 100 requests a second with 100 tokens each, in virtual time.
//!
//! ```text
//! cargo run --release -p pb-load --example memory [SECONDS]
//! ```
//!
//! Rows leave as their requests end, so the memory is that of the plan and of what is in flight,
//! whatever the length of the run. The figure is the process's peak resident set.

use pb_contract::plan::{OpenRequest, Plan, PlannedBody};
use pb_contract::{Nanos, RequestId};
use pb_load::RunContext;
use pb_load::shell_sim::{FixedServer, SimOptions, run_sim_each};

const RATE: u64 = 100;
const TOKENS: u32 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1);
    let seconds: u64 = seconds.map_or(Ok(3_600), |text| text.parse())?;
    let request = |id: u64| OpenRequest {
        id: RequestId(id),
        offset_ns: Nanos(id * 1_000_000_000 / RATE),
        body: PlannedBody::of_ids("x", vec![1; 16], TOKENS),
    };
    let plan = Plan {
        open: (0..seconds * RATE).map(request).collect(),
        horizon_ns: Nanos::from_secs(seconds),
        drain_ns: Nanos::from_secs(60),
        ..Plan::default()
    };
    let planned = peak_kib();
    let mut server = FixedServer::new(Nanos::from_millis(50), Nanos::from_millis(10), 1 << 20);
    let (mut requests, mut tokens) = (0_u64, 0_u64);
    let emit = |record: pb_load::Record| {
        requests += 1;
        tokens += record.tokens.len() as u64;
    };
    run_sim_each(
        plan,
        RunContext::default(),
        &mut server,
        &SimOptions::default(),
        emit,
    )?;
    println!(
        "{requests} requests, {tokens} events; peak {} MiB, of which the plan {} MiB",
        peak_kib() / 1_024,
        planned / 1_024
    );
    Ok(())
}

/// Peak resident set of this process so far.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
