//! `prefillbench trace inspect`.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use pb_workloads::trace::{InspectOptions, Inspection, LengthStats, TraceFile, inspect};

use super::TextCounter;
use crate::args::InspectArgs;
use crate::output;

/// Prints what the file holds.
pub(crate) fn run(args: &InspectArgs) -> Result<ExitCode> {
    let file = TraceFile::open(&args.file.file, &args.file.options())?;
    let options = InspectOptions {
        max_model_len: args.max_model_len,
        engine_block: args.at_block_size,
        pool_blocks: args.pool,
    };
    let mut counter = TextCounter::new(args.file.tokenizer.as_deref())?;
    let found = if counter.is_set() {
        inspect(&file, &options, Some(&mut |text| counter.count(text)))?
    } else {
        inspect(&file, &options, None)?
    };
    counter.finish()?;
    match args.json {
        true => output::json(&found)?,
        false => output::table(&described(&file, &found))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The inspection for people.
fn described(file: &TraceFile, found: &Inspection) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    for why in &file.evidence {
        lines.push(("inferred", why.clone()));
    }
    let span = found
        .span_s
        .map_or("no arrivals".into(), |s| format!("{s:.3} s"));
    lines.push(("rows", format!("{} over {span}", found.rows)));
    lines.push(("input tokens", lengths(found.input_tokens)));
    lines.push(("output tokens", lengths(found.output_tokens)));
    lines.push(("arrivals", arrivals(found)));
    if let Some(size) = found.block_size {
        let blocks = found.blocks;
        let share = percent(blocks.hit, blocks.total);
        lines.push((
            "blocks",
            format!(
                "{} of {size} tokens, {} different, {} found again ({share})",
                blocks.total, blocks.unique, blocks.hit
            ),
        ));
        lines.push((
            "hit tokens",
            format!("{} with an unlimited cache", found.hit_tokens),
        ));
    }
    if let Some(pool) = found.pool {
        let room = pool
            .pool_blocks
            .map_or("unlimited".into(), |n| n.to_string());
        let rate = pool
            .hit_rate
            .map_or("none".into(), |rate| format!("{:.2} %", 100.0 * rate));
        lines.push((
            "ideal hit rate",
            format!(
                "{rate} of prompt tokens ({} blocks) with blocks of {} tokens, pool {room}, LRU",
                pool.hit_blocks, pool.block_size
            ),
        ));
    }
    for (reason, count) in &found.dropped {
        lines.push(("dropped", format!("{count} {reason}")));
    }
    let mut text = String::new();
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<15} {value}");
    }
    text.trim_end().to_owned()
}

fn lengths(stats: Option<LengthStats>) -> String {
    match stats {
        None => "unknown: the file holds text; count it with --tokenizer".into(),
        Some(s) => format!(
            "p50 {} mean {:.1} p95 {} max {}",
            s.p50, s.mean, s.p95, s.max
        ),
    }
}

fn arrivals(found: &Inspection) -> String {
    let arrivals = found.arrivals;
    let mut text = format!("{} different times", arrivals.distinct);
    let gaps = (arrivals.gap_p50_s, arrivals.gap_mean_s, arrivals.gap_p95_s);
    if let (Some(p50), Some(mean), Some(p95)) = gaps {
        let _ = write!(text, ", gaps p50 {p50:.3} mean {mean:.3} p95 {p95:.3} s");
    }
    if let Some(cv) = arrivals.cv {
        let _ = write!(text, ", CV {cv:.2}");
    }
    if let Some(bin) = arrivals.bin_s {
        let _ = write!(text, ", in bins of {bin} s: --arrivals spread undoes them");
    }
    text
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "none".into(),
        _ => format!("{:.1} %", 100.0 * part as f64 / whole as f64),
    }
}
