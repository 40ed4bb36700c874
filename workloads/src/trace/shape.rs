//! Changes to a trace before it is replayed: each is named in the report, and what it costs is
//! counted.

use pb_contract::Nanos;

use crate::trace::TraceRow;
use crate::trace::error::TraceError;

/// Whether prompt and output fit into a context of `max_model_len` tokens.
pub fn fits(row: &TraceRow, max_model_len: usize) -> bool {
    row.input_tokens + row.output_tokens <= max_model_len
}

/// Stretches (above 1) or compresses (below 1) the arrivals of a trace.
///
/// # Errors
/// A factor that is not a positive number.
pub fn time_scale(factor: f64) -> Result<impl Fn(&mut TraceRow), TraceError> {
    positive("time_scale", factor)?;
    let scale = move |ns: Nanos| Nanos((ns.0 as f64 * factor).round() as u64);
    Ok(move |row: &mut TraceRow| {
        row.arrival_ns = scale(row.arrival_ns);
        if let Some(delay) = row.turn.as_mut().and_then(|turn| turn.delay_ns.as_mut()) {
            *delay = scale(*delay);
        }
    })
}

fn positive(key: &'static str, factor: f64) -> Result<(), TraceError> {
    match factor.is_finite() && factor > 0.0 {
        true => Ok(()),
        false => Err(TraceError::Parameter {
            key,
            value: factor.to_string(),
            fix: "must be a positive number".into(),
        }),
    }
}

/// Shortens prompts for a small context and keeps which blocks are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LengthScale {
    factor: f64,
    /// Tokens of a scaled block.
    block_tokens: usize,
}

impl LengthScale {
    /// Scales by `factor` rows whose names stand for `block_tokens` tokens (0: no names).
    ///
    /// # Errors
    /// A factor that is not a positive number, or that makes a block of no whole number of tokens:
    /// names would then stand for slices of different lengths.
    pub fn new(factor: f64, block_tokens: usize) -> Result<Self, TraceError> {
        positive("length_scale", factor)?;
        let scaled = factor * block_tokens as f64;
        let whole = scaled.round();
        if block_tokens > 0 && (whole < 1.0 || (scaled - whole).abs() > 1e-9 * whole) {
            return Err(TraceError::Parameter {
                key: "length_scale",
                value: factor.to_string(),
                fix: format!(
                    "must turn a block of {block_tokens} tokens into a whole number of them, not \
                     {scaled}: for example 1/{}",
                    block_tokens.min(16)
                ),
            });
        }
        Ok(LengthScale {
            factor,
            block_tokens: whole as usize,
        })
    }

    /// Scales a row: full blocks stay full, a partial one stays partial where a block has more
    /// than one token, and nothing becomes empty.
    pub fn apply(&self, row: &mut TraceRow) {
        let scaled = |tokens: usize| ((tokens as f64 * self.factor).round() as usize).max(1);
        if row.output_tokens > 0 {
            row.output_tokens = scaled(row.output_tokens);
        }
        if row.block_tokens == 0 {
            row.input_tokens = scaled(row.input_tokens);
            return;
        }
        let (full, tail) = (
            row.input_tokens / row.block_tokens,
            row.input_tokens % row.block_tokens,
        );
        let tail = match tail {
            0 => 0,
            tail => scaled(tail).min(self.block_tokens.saturating_sub(1).max(1)),
        };
        row.input_tokens = full * self.block_tokens + tail;
        row.block_tokens = self.block_tokens;
    }
}

/// The rows of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Selected {
    /// As many as asked for.
    pub rows: Vec<TraceRow>,
    /// How many of them are different rows of the trace.
    pub unique: usize,
}

/// The first `requests` rows. A trace that has fewer would be sent again, and its prompts would be
/// found in the cache: that must be asked for. Repeated rows follow the trace's last arrival.
///
/// # Errors
/// Too few rows and `allow_repeat` not set, or none at all.
pub fn select(
    rows: &[TraceRow],
    requests: usize,
    allow_repeat: bool,
) -> Result<Selected, TraceError> {
    if requests > rows.len() && (!allow_repeat || rows.is_empty()) {
        return Err(TraceError::Parameter {
            key: "requests",
            value: requests.to_string(),
            fix: format!(
                "the trace has {} rows to replay: ask for fewer, or allow repeats, whose prompts \
                 a prefix cache will hold",
                rows.len()
            ),
        });
    }
    let span = rows.last().map_or(0, |row| row.arrival_ns.0);
    let repeat = |(at, row): (usize, &TraceRow)| TraceRow {
        arrival_ns: Nanos(row.arrival_ns.0 + (at / rows.len()) as u64 * span),
        ..row.clone()
    };
    Ok(Selected {
        rows: rows
            .iter()
            .cycle()
            .take(requests)
            .enumerate()
            .map(repeat)
            .collect(),
        unique: requests.min(rows.len()),
    })
}
