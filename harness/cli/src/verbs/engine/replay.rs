//! `prefillbench engine replay`: a script in, an answer a line out.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use pb_replay::Replay;
use serde_json::Value;

use crate::args::ReplayArgs;
use crate::console;

/// Exit code when a law of the engine is broken.
const EXIT_BROKEN: u8 = 1;

/// A line longer than this is not a script.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// Answers every line of the script as it is read.
pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let mut script = open(&args.script)?;
    let mut out = std::io::stdout().lock();
    let mut replay = Replay::default();
    let mut line = String::new();
    for number in 1u64.. {
        line.clear();
        let mut limited = (&mut script).take(MAX_LINE_BYTES);
        let read = limited
            .read_line(&mut line)
            .with_context(|| format!("{} line {number}", args.script.display()))?;
        if read == 0 {
            break;
        }
        if read as u64 == MAX_LINE_BYTES {
            bail!(
                "{} line {number}: longer than {MAX_LINE_BYTES} bytes; split it",
                args.script.display()
            );
        }
        if line.trim().is_empty() {
            continue;
        }
        let answer = replay.line(&line);
        match args.json {
            true => writeln!(out, "{answer}")?,
            false => {
                let text = console::safe(&describe(line.trim(), &answer));
                writeln!(out, "{number:>5}  {text}")?
            }
        }
        out.flush()?;
    }
    Ok(match replay.broken() {
        true => ExitCode::from(EXIT_BROKEN),
        false => ExitCode::SUCCESS,
    })
}

fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    let file = File::open(path).with_context(|| format!("--script {}", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// One answer for people.
fn describe(line: &str, answer: &Value) -> String {
    let op = serde_json::from_str::<Value>(line).ok();
    let op = op.as_ref().and_then(|op| op["op"].as_str()).unwrap_or("?");
    if let Some(message) = answer["error"]["message"].as_str() {
        return format!("{op}: error: {message}");
    }
    let Some(scheduled) = answer["scheduled"].as_array() else {
        return match answer.as_object() {
            Some(map) if map.is_empty() => op.to_owned(),
            _ => format!("{op}: {answer}"),
        };
    };
    let mut parts: Vec<String> = scheduled.iter().map(scheduled_text).collect();
    let names = answer["preempted"].as_array().into_iter().flatten();
    parts.extend(names.map(|id| format!("preempted {}", id.as_str().unwrap_or("?"))));
    let ended = answer["finished"].as_array().into_iter().flatten();
    parts.extend(ended.map(|row| format!("finished {} {}", text(&row["id"]), row["output"])));
    if parts.is_empty() {
        parts.push("nothing to do".into());
    }
    format!("{op}: {}", parts.join("; "))
}

fn scheduled_text(row: &Value) -> String {
    let start = row["start"].as_u64().unwrap_or(0);
    let end = start + row["count"].as_u64().unwrap_or(0);
    let hit = match row["hit_tokens"].as_u64() {
        Some(hit) => format!(" (hit {hit})"),
        None => String::new(),
    };
    format!("{} {start}..{end}{hit}", text(&row["id"]))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
