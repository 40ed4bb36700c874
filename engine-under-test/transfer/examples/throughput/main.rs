//! How fast each transport is, beside a plain copy and a plain socket, in one run.
//!
//! ```text
//! cargo run --release -p pb-transfer --example throughput [-- --repeats N] [--json FILE] [--quick]
//!     [--arms NAMES] [--only TEXT]
//! ```
//!
//! Every payload goes through every arm once in each repeat, in turns, so that what else happens on
//! the machine happens to all. A ratio is the geometric mean over repeats of one arm's rate over
//! the socket's in the same repeat, with a 95 % interval (paired t on logarithms).
//!
//! Arms: `memcpy` copies within one process. `socket` writes to one TCP connection of the loopback
//! from where the payload lies, and another process reads to where it belongs. The transports
//! carry frames of cells that the receiver puts into its blocks. `+sums` are whole transfers
//! between two agents: offered, asked for, every cell verified before it is written, acknowledged.
//! Checksums of the source are made when cells are computed, and are timed apart. With
//! `PB_NIXL_LIBRARY` naming NIXL's `libnixl_capi.so` and `NIXL_PLUGIN_DIR` its plugins, NIXL is an
//! arm too; so is Mooncake with `PB_MOONCAKE_PYTHON` naming a Python that has it. `--arms a,b`
//! leaves the others out, but not `memcpy` and `socket`; `--only TEXT` the payloads without that
//! text.

mod arms;
mod job;
mod report;
mod sink;
mod source;

use std::error::Error;

use arms::{Arm, Child};
use job::{Job, Payload};
use pb_transfer::TransportError;
use report::{Samples, seal_rate};

/// What can go wrong here is for people to read.
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

struct Options {
    repeats: usize,
    json: Option<String>,
    quick: bool,
    arms: Vec<Arm>,
    only: String,
}

fn options(mut args: impl Iterator<Item = String>) -> Outcome<Options> {
    let mut options = Options {
        repeats: 9,
        json: None,
        quick: false,
        arms: Arm::all(),
        only: String::new(),
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--repeats" => {
                let n = args.next().and_then(|n| n.parse().ok());
                options.repeats = n.filter(|n| *n >= 2).ok_or("--repeats needs 2 or more")?;
            }
            "--json" => options.json = Some(args.next().ok_or("--json needs a file")?),
            "--quick" => options.quick = true,
            "--arms" => {
                let names = args
                    .next()
                    .ok_or("--arms needs names with commas between them")?;
                let chosen: Result<Vec<Arm>, String> = names.split(',').map(str::parse).collect();
                let chosen = chosen?;
                options
                    .arms
                    .retain(|arm| !arm.is_transport() || chosen.contains(arm));
            }
            "--only" => options.only = args.next().ok_or("--only needs a text")?,
            _ => {
                let known = "--repeats N, --json FILE, --quick, --arms NAMES or --only TEXT";
                return Err(format!("{arg}: expected {known}").into());
            }
        }
    }
    Ok(options)
}

fn main() {
    if let Err(error) = run() {
        let missing = matches!(error.downcast_ref(), Some(TransportError::Missing { .. }));
        eprintln!("{error}");
        std::process::exit(if missing { 2 } else { 1 });
    }
}

fn run() -> Outcome<()> {
    let mut args = std::env::args().skip(1).peekable();
    if args.peek().is_some_and(|arg| arg == "sink") {
        return sink::child(args.nth(1).ok_or("sink needs an arm")?.parse()?);
    }
    let options = match options(args) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            std::process::exit(2);
        }
    };
    let mut payloads = Payload::all(options.quick);
    payloads.retain(|payload| payload.name().contains(&options.only));
    if payloads.is_empty() {
        return Err(format!("--only {}: no payload has that in its name", options.only).into());
    }
    let mut children = Vec::new();
    for arm in options.arms {
        children.push(Child::start(arm)?);
    }
    let mut source = source::Source::new();
    let mut samples = Samples::default();
    for repeat in 0..options.repeats {
        for (p, payload) in payloads.iter().enumerate() {
            for turn in 0..children.len() {
                let arms = children.len();
                let child = &mut children[(turn + repeat) % arms];
                for job in Job::of(child.arm(), *payload) {
                    let taken = source.run(child, job)?;
                    samples.add(job, child.arm(), taken);
                }
            }
            eprintln!(
                "repeat {} of {}, payload {} of {}",
                repeat + 1,
                options.repeats,
                p + 1,
                payloads.len()
            );
        }
    }
    drop(children);
    let seal = seal_rate(options.repeats);
    print!("{}", samples.table(&payloads, &seal)?);
    if let Some(path) = options.json {
        std::fs::write(&path, samples.json(&payloads, &seal)?)?;
    }
    Ok(())
}
