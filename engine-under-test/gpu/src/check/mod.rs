//! Judging a whole forward pass on a device: against f64, and against itself in other cuts.

mod naive;

use std::collections::BTreeMap;
use std::sync::Arc;

use pb_contract::{BlockId, KvDtype, Numerics, RequestId, TokenId, VirtualClock};
use pb_core::{Chunk, DecoderExecutor, Executor};
use pb_kernels_cpu::Pool;
use pb_model::Weights;
use pb_model::forward::{ForwardOptions, LogitRow, LogitRows, LogitSink};
use pb_model::lora::AdapterSet;

use crate::build::GpuOptions;
use crate::error::GpuError;
pub use naive::Cache;

/// Largest natural logarithm of the ratio of two errors of one prompt, the split and the whole
/// one's: the limit of docs/NUMERICS.md for single prompts.
const LOG_RATIO_MAX: f64 = 0.4;

/// Logits by prompt and position.
pub type Rows = BTreeMap<(usize, usize), Vec<f64>>;

/// A prompt and the adapter that it is computed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Tokens, at least one.
    pub tokens: Vec<TokenId>,
    /// Index of its adapter; `None` for the base model.
    pub adapter: Option<usize>,
}

impl From<Vec<TokenId>> for Prompt {
    fn from(tokens: Vec<TokenId>) -> Self {
        Prompt {
            tokens,
            adapter: None,
        }
    }
}

struct Sink<'a>(&'a mut Rows);

impl LogitSink for Sink<'_> {
    fn row(&mut self, seq: usize, position: usize, logits: LogitRow<'_>) {
        self.0.insert((seq, position), logits.to_f64());
    }

    fn token(&mut self, _seq: usize, _token: TokenId) {}
}

/// How a prompt is cut: chunks of this size, and the last tokens one by one, as decode does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Tokens of a chunk.
    pub chunk: usize,
    /// Tokens at the end that come alone.
    pub singles: usize,
}

/// All of it in one step.
pub const WHOLE: Cut = Cut {
    chunk: usize::MAX,
    singles: 0,
};

/// Logits of every position of every prompt; the parts with the same number share a step. Blocks
/// of the prompts lie among one another, in falling order. `options` are those of `executor`.
///
/// # Errors
/// The executor's message; blocks that do not suffice are one.
pub fn logits(
    executor: &mut dyn Executor,
    options: &GpuOptions,
    prompts: &[Prompt],
    cut: Cut,
) -> Result<Rows, String> {
    let (count, blocks) = (prompts.len(), options.num_blocks);
    let block = |seq: usize, i: usize| BlockId((blocks - 1 - (seq + count * i)) as u32);
    let tables: Vec<Vec<BlockId>> = (0..count)
        .map(|seq| (0..blocks / count).map(|i| block(seq, i)).collect())
        .collect();
    let mut done = vec![0; count];
    let mut rows = Rows::new();
    loop {
        let mut chunks = Vec::new();
        for (seq, Prompt { tokens, adapter }) in prompts.iter().enumerate() {
            let (start, prefill) = (done[seq], tokens.len().saturating_sub(cut.singles));
            let end = if start < prefill {
                start.saturating_add(cut.chunk).min(prefill)
            } else {
                (start + 1).min(tokens.len())
            };
            if start == end {
                continue;
            }
            chunks.push(Chunk {
                id: RequestId(seq as u64),
                tokens: &tokens[start..end],
                start,
                block_table: &tables[seq],
                rows: LogitRows::All,
                is_prefill: start < prefill,
                is_last: end == tokens.len(),
                adapter: *adapter,
            });
            done[seq] = end;
        }
        if chunks.is_empty() {
            return Ok(rows);
        }
        let mut some = Rows::new();
        executor.execute(&chunks, &VirtualClock::new(), &mut Sink(&mut some))?;
        let entry = |i: usize| chunks[i].id.0 as usize;
        rows.extend(some.into_iter().map(|((i, p), row)| ((entry(i), p), row)));
    }
}

/// The f64 reference with the blocks and adapters of `options`; its cache is rounded to E4M3 where
/// theirs is.
///
/// # Errors
/// When it cannot be built.
pub fn reference(weights: &Weights, options: &GpuOptions) -> Built {
    let forward = ForwardOptions {
        numerics: Numerics::F64,
        kv_dtype: KvDtype::F64,
        kv_rounding: match options.kv_dtype {
            KvDtype::Fp8E4m3 => KvDtype::Fp8E4m3,
            _ => KvDtype::F64,
        },
        threads: threads(),
        block_size: options.block_size,
        num_blocks: options.num_blocks,
        ..ForwardOptions::default()
    };
    let weights = Arc::new(weights.clone());
    let decoder = pb_model::forward::build(&weights, &options.adapters, forward)?;
    Ok(Box::new(DecoderExecutor::new(decoder)))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The error of a device against f64, beside that of the naive evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Relative error of all rows.
    pub error: f64,
    /// That of the naive evaluation.
    pub naive: f64,
    /// Largest relative error of a row.
    pub worst_row: f64,
    /// That of the naive evaluation.
    pub worst_naive_row: f64,
    /// Rows compared.
    pub rows: usize,
    /// Rows whose two best are clearly apart.
    pub decidable: usize,
    /// Rows of these that choose another first.
    pub flips: usize,
}

impl Verdict {
    /// The rule for kernels, on whole forward passes: at most twice the error of an evaluation in
    /// the low precision that rounds after every operation, over all rows and in the worst one;
    /// and no other first choice where the two best are clearly apart.
    pub fn passes(&self) -> bool {
        self.error <= 2.0 * self.naive
            && self.worst_row <= 2.0 * self.worst_naive_row
            && self.flips == 0
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "error {:.2e} (naive {:.2e}), worst row {:.2e} ({:.2e}), {} of {} rows decidable, \
             {} flip",
            self.error,
            self.naive,
            self.worst_row,
            self.worst_naive_row,
            self.decidable,
            self.rows,
            self.flips
        )
    }
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|v| v * v).sum::<f64>().sqrt()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    norm(a.iter().zip(b).map(|(x, y)| x - y))
}

/// The largest entry, the first of equals.
fn best(row: &[f64]) -> usize {
    let better = |a: usize, b: usize| if row[b] > row[a] { b } else { a };
    (0..row.len()).reduce(better).unwrap_or_default()
}

/// Judges `got` against `want`; `naive` is the yardstick.
///
/// # Panics
/// When the rows are not those of the same positions.
pub fn judge(got: &Rows, naive: &Rows, want: &Rows) -> Verdict {
    let same = got.keys().eq(want.keys()) && naive.keys().eq(want.keys());
    assert!(same, "rows of other positions");
    let total = |rows: &Rows| {
        let errors = want.iter().map(|(key, row)| distance(&rows[key], row));
        norm(errors) / norm(want.values().flatten().copied())
    };
    let worst = |rows: &Rows| {
        let one = |(key, row): (&(usize, usize), &Vec<f64>)| {
            distance(&rows[key], row) / norm(row.iter().copied())
        };
        want.iter().map(one).fold(0.0, f64::max)
    };
    let (mut decidable, mut flips) = (0, 0);
    for (key, row) in want {
        let first = best(row);
        let others = row.iter().enumerate().filter(|(i, _)| *i != first);
        let second = others.map(|(_, x)| *x).fold(f64::NEG_INFINITY, f64::max);
        let sigma = distance(&naive[key], row) / (row.len() as f64).sqrt();
        if row[first] - second > 6.0 * 2f64.sqrt() * sigma {
            decidable += 1;
            flips += usize::from(best(&got[key]) != first);
        }
    }
    let finite = got.values().flatten().all(|x| x.is_finite());
    Verdict {
        error: if finite { total(got) } else { f64::INFINITY },
        naive: total(naive),
        worst_row: worst(got),
        worst_naive_row: worst(naive),
        rows: want.len(),
        decidable,
        flips,
    }
}

/// The naive evaluation of every prompt, in bf16; adapters are counted in `adapters`.
///
/// # Errors
/// When the compute threads cannot be started.
pub fn naive_rows(
    (weights, adapters): (&Weights, &AdapterSet),
    prompts: &[Prompt],
    cache: Cache,
) -> Result<Rows, GpuError> {
    let threads = threads();
    let pool = Pool::new(threads).map_err(|e| {
        GpuError::Options(pb_model::forward::ForwardError::Threads {
            threads,
            problem: e.to_string(),
        })
    })?;
    let mut all = Rows::new();
    for (seq, Prompt { tokens, adapter }) in prompts.iter().enumerate() {
        let adapter = adapter.and_then(|index| adapters.get(index));
        let rows = naive::logits(&pool, (weights, adapter), tokens, cache);
        let keyed = rows.into_iter().enumerate();
        all.extend(keyed.map(|(position, row)| ((seq, position), row)));
    }
    Ok(all)
}

/// Largest magnitude, over the prompts, of the logarithm of the ratio of two errors against `want`.
pub fn worst_log_ratio(got: &Rows, whole: &Rows, want: &Rows) -> f64 {
    let error = |rows: &Rows, seq: usize| {
        let of_prompt = want.iter().filter(|((s, _), _)| *s == seq);
        norm(of_prompt.map(|(key, row)| distance(&rows[key], row)))
    };
    let prompts = want
        .keys()
        .map(|(seq, _)| seq + 1)
        .max()
        .unwrap_or_default();
    let ratios = (0..prompts).map(|seq| (error(got, seq) / error(whole, seq)).ln().abs());
    ratios.fold(0.0, f64::max)
}

/// An executor, or why there is none.
pub type Built = Result<Box<dyn Executor>, GpuError>;

/// One claim about forward passes, and whether it holds.
#[derive(Clone, Debug)]
pub struct ForwardCheck {
    /// What was computed.
    pub name: String,
    /// Whether it is right.
    pub passed: bool,
    /// Rows whose first choice could have been seen to flip, where choices were compared.
    pub decidable: Option<usize>,
    /// Figures.
    pub detail: String,
}

/// Checks forward passes of `weights` (they and the adapters of `options` are already
/// [`rounded`](crate::rounded) to bf16) with a bf16 cache on executors that `make` builds: whole
/// prompts against f64; in `exact`, every cut of them bit for bit against the whole; in `fast`,
/// every cut against f64 and against the error of the whole. Results go to `each` as they come.
///
/// # Errors
/// [`GpuError`] when an executor cannot be built, or a sentence when one fails.
pub fn chunked_against_whole(
    weights: &Weights,
    options: &GpuOptions,
    prompts: &[Prompt],
    cuts: &[Cut],
    make: &mut dyn FnMut(&GpuOptions) -> Built,
    each: &mut dyn FnMut(ForwardCheck),
) -> Result<(), GpuError> {
    let failed = |problem: String| GpuError::Forward { problem };
    let mut judge_by = reference(weights, options)?;
    let want = logits(judge_by.as_mut(), options, prompts, WHOLE).map_err(failed)?;
    let naive = naive_rows((weights, &options.adapters), prompts, Cache::Bf16)?;
    for numerics in [Numerics::Exact, Numerics::Fast] {
        let options = GpuOptions {
            numerics,
            ..options.clone()
        };
        let name = if numerics == Numerics::Exact {
            "exact"
        } else {
            "fast"
        };
        let mut executor = make(&options)?;
        let whole = logits(executor.as_mut(), &options, prompts, WHOLE).map_err(failed)?;
        let verdict = judge(&whole, &naive, &want);
        each(ForwardCheck {
            name: format!("{name}, whole prompts"),
            passed: verdict.passes(),
            decidable: Some(verdict.decidable),
            detail: verdict.to_string(),
        });
        for cut in cuts {
            // Nothing of the last pass may be found.
            executor.resize_kv(options.block_size, options.num_blocks);
            let got = logits(executor.as_mut(), &options, prompts, *cut).map_err(failed)?;
            let differing = differing_values(&got, &whole);
            let values: usize = whole.values().map(Vec::len).sum();
            let (passed, decidable, detail) = if numerics == Numerics::Exact {
                (
                    differing == 0,
                    None,
                    format!("{differing} of {values} values differ in a bit"),
                )
            } else {
                let verdict = judge(&got, &naive, &want);
                let ratio = worst_log_ratio(&got, &whole, &want);
                let passed = verdict.passes() && ratio < LOG_RATIO_MAX;
                let decidable = Some(verdict.decidable);
                (
                    passed,
                    decidable,
                    format!("log error ratio {ratio:.3}; {verdict}"),
                )
            };
            each(ForwardCheck {
                name: format!("{name}, chunks of {}, {} single", cut.chunk, cut.singles),
                passed,
                decidable,
                detail,
            });
        }
    }
    Ok(())
}

/// Values whose bits differ.
pub fn differing_values(got: &Rows, want: &Rows) -> usize {
    let rows = want.iter().map(|(key, row)| match got.get(key) {
        Some(other) => {
            let pairs = row.iter().zip(other);
            pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count()
        }
        None => row.len(),
    });
    rows.sum()
}
