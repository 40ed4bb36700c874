//! `prefillbench trace convert`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use pb_workloads::trace::{
    LengthScale, ReuseCounter, TraceError, TraceFile, TraceRow, TraceWriter, fits, spread_arrivals,
    time_scale,
};

use super::TextCounter;
use crate::args::{ArrivalsArg, ConvertArgs};
use crate::console;

/// Writes the trace in another format and says on standard error what became of it.
pub(crate) fn run(args: &ConvertArgs) -> Result<ExitCode> {
    let file = TraceFile::open(&args.file.file, &args.file.options())?;
    let same = args.out != Path::new("-")
        && args.out.canonicalize().ok() == args.file.file.canonicalize().ok();
    ensure!(!same, "--out {}: is the trace itself", args.out.display());
    let mut counter = TextCounter::new(args.file.tokenizer.as_deref())?;
    let mut out: Box<dyn Write> = match args.out == Path::new("-") {
        true => Box::new(BufWriter::new(std::io::stdout().lock())),
        false => {
            let created = File::create(&args.out);
            Box::new(BufWriter::new(
                created.with_context(|| format!("--out {}", args.out.display()))?,
            ))
        }
    };
    let mut conversion = Conversion::new(args, &file)?;
    let mut rows = file.rows()?;
    let limit = args.limit.unwrap_or(usize::MAX);
    // Bins and conversations need the rows that follow; all else is written as it is read.
    let mut waiting = Vec::new();
    let must_wait = args.arrivals == ArrivalsArg::Spread || file.format.has_local_times();
    for row in rows.by_ref().take(limit) {
        let row = conversion.shaped(row, &mut counter)?;
        match (row, must_wait) {
            (None, _) => {}
            (Some(row), true) => waiting.push(row),
            (Some(row), false) => conversion.write(&row, &mut out)?,
        }
    }
    // Stable: conversations that start together stay in file order.
    waiting.sort_by_key(|row: &TraceRow| row.arrival_ns);
    if args.arrivals == ArrivalsArg::Spread {
        spread_arrivals(&mut waiting, args.file.seed);
    }
    for row in &waiting {
        conversion.write(row, &mut out)?;
    }
    out.flush().context("--out")?;
    counter.finish()?;
    for (reason, count) in rows.dropped() {
        conversion.dropped.insert((*reason).to_owned(), *count);
    }
    conversion.report(&file);
    Ok(ExitCode::SUCCESS)
}

struct Conversion<'a> {
    args: &'a ConvertArgs,
    scale: Option<LengthScale>,
    writer: TraceWriter,
    reuse: ReuseCounter,
    dropped: BTreeMap<String, u64>,
}

impl<'a> Conversion<'a> {
    fn new(args: &'a ConvertArgs, file: &TraceFile) -> Result<Self> {
        // Judged before anything is written.
        time_scale(args.time_scale).map(drop)?;
        let block_tokens = file.blocks.map_or(0, |rule| rule.tokens);
        let scale = args
            .scale_length
            .map(|factor| LengthScale::new(factor, block_tokens));
        Ok(Conversion {
            args,
            scale: scale.transpose()?,
            writer: TraceWriter::new(args.to.into(), file.blocks.is_some()),
            reuse: ReuseCounter::new(1, None),
            dropped: BTreeMap::new(),
        })
    }

    /// The row as it is to be written, unless it is to be dropped.
    fn shaped(
        &mut self,
        row: Result<TraceRow, TraceError>,
        counter: &mut TextCounter,
    ) -> Result<Option<TraceRow>> {
        let mut row = row?;
        if counter.is_set() {
            row.count_tokens(&mut |text| counter.count(text));
        }
        time_scale(self.args.time_scale)?(&mut row);
        if let Some(scale) = &self.scale {
            scale.apply(&mut row);
        }
        if self
            .args
            .max_model_len
            .is_some_and(|most| !fits(&row, most))
        {
            *self.dropped.entry("over_max_model_len".into()).or_default() += 1;
            return Ok(None);
        }
        Ok(Some(row))
    }

    fn write(&mut self, row: &TraceRow, out: &mut dyn Write) -> Result<()> {
        self.reuse.add(row);
        writeln!(out, "{}", self.writer.line(row)?).context("--out")
    }

    /// Says what was written.
    fn report(&self, file: &TraceFile) {
        for why in &file.evidence {
            console::say(why);
        }
        let stats = self.reuse.stats();
        console::say(format!(
            "wrote {} rows, arrivals {} times {}; {} of {} blocks are found again, {} tokens",
            stats.requests,
            match self.args.arrivals {
                ArrivalsArg::AsIs => "as recorded",
                ArrivalsArg::Spread => "spread within their bins",
            },
            self.args.time_scale,
            stats.hit_blocks,
            stats.blocks,
            stats.hit_tokens
        ));
        for (reason, count) in &self.dropped {
            console::say(format!("dropped {count}: {reason}"));
        }
    }
}
