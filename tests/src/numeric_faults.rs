//! What the numerical checks see of each planted fault of the forward pass.
//!
//! Prompts of 200 tokens on a generated model with sharp weights are prefilled whole, without a
//! fault, and in chunks, with one. The checks are those of `validate`: T0 compares bits with the
//! whole prefill, T1 holds the errors against a float64 reference to the judge's limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use pb_contract::{BlockId, Fault, KvDtype, Numerics, Stream, TokenId, WallClock};
use pb_judge::numerics::{
    BitDifference, CheckName, ConfigStats, ConfigVerdict, Limits, Outcome, PromptScores,
    ReferenceRow, judge,
};
use pb_kernels_cpu::Dot;
use pb_model::forward::{
    Decoder, ForwardOptions, LogitRow, LogitRows, LogitSink, SeqInput, build,
    round_matrices_to_bf16,
};
use pb_model::lora::AdapterSet;
use pb_model::synth::{self, Kind, Size};

/// Tokens of a prompt.
pub const PROMPT_TOKENS: usize = 200;
/// Tokens per block: divides a chunk of 64, not one of 50.
pub const BLOCK_SIZE: usize = 16;

/// Faults of the forward pass, with the ratio of errors that an experiment on a small trained
/// model in f32 found for each: chunks of 64, for a missing partial block of 50.
pub const FAULTS: &[(Fault, f64)] = &[
    (Fault::MaskSeesFuture, 3.3e5),
    (Fault::MaskExcludesSelf, 3.7e5),
    (Fault::MaskTopLeft, 1.4e6),
    (Fault::ContextIgnored, 3.4e5),
    (Fault::LastOfPreviousChunkMissing, 1.7e5),
    (Fault::FirstTokenMissing, 4.6e3),
    (Fault::PartialBlockMissing, 2.5e5),
    (Fault::RopeRestartsEachChunk, 1.1e6),
    (Fault::RopePlusOneAfterFirstChunk, 9.6e4),
    (Fault::RopeMinusOneAfterFirstChunk, 9.2e4),
    (Fault::StaleBlockOneLayer, 1.9e4),
    (Fault::StaleBlock, 6.4e4),
    (Fault::StaleSlotOneLayer, 4.8e4),
    (Fault::ZeroSlotOneLayer, 3.0e4),
    (Fault::ZeroSlot, 1.7e5),
    (Fault::KvHeadModulo, 1.1e6),
    (Fault::MergeBase2, 3.0e5),
    (Fault::KBlocksSwapped, 5.6e4),
    (Fault::KAndVBlocksSwapped, 1.01),
    (Fault::LogitsRowOffByOne, 1.3e6),
    (Fault::KvMantissaCut, 5.4e4),
];

/// One check of one fault: a cell of the table of planted faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The planted fault.
    pub fault: Fault,
    /// Chunk size, tokens.
    pub chunk: usize,
    /// The check's name, such as `T1 max_rho`.
    pub check: String,
    /// Whether it rejects the faulty run.
    pub caught: bool,
    /// What it measured.
    pub measure: String,
}

/// A faulty run against a clean monolithic one, over all prompts.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The planted fault.
    pub fault: Fault,
    /// Chunk size, tokens.
    pub chunk: usize,
    /// T0: bits against the clean monolithic run.
    pub bits: BitDifference,
    /// T0 again, against a monolithic run with the same fault: what an approximation of stored
    /// values is judged by.
    pub own_bits: BitDifference,
    /// T1: the judge's verdict with its f32 limits.
    pub verdict: ConfigVerdict,
    /// Geometric mean over prompts of `|error| / |monolithic error|`, rows after the first chunk.
    pub ratio: f64,
}

impl Measured {
    /// The cells of this run: T0, then T1 check by check.
    pub fn cells(&self) -> Vec<Cell> {
        let cell = |check: String, caught, measure| Cell {
            fault: self.fault,
            chunk: self.chunk,
            check,
            caught,
            measure,
        };
        let bits = &self.bits;
        let differing = format!("{} of {} values differ", bits.differing_values, bits.values);
        let mut cells = vec![cell("T0 bits".into(), !bits.is_equal(), differing)];
        for check in &self.verdict.checks {
            let value = check
                .value
                .map_or("none".to_string(), |v| format!("{v:.3e}"));
            let measure = format!("{value} (limit {:.3e})", check.limit);
            let name = format!("T1 {}", check_name(check.name));
            cells.push(cell(name, check.outcome == Outcome::Fail, measure));
        }
        cells
    }
}

/// A check's name as result files spell it.
fn check_name(name: CheckName) -> String {
    let name = serde_json::to_value(name).unwrap_or_default();
    name.as_str().unwrap_or("unknown").to_string()
}

/// All logits of one prompt by position.
type Rows<T> = BTreeMap<usize, Vec<T>>;

struct Keep<'a, T> {
    rows: &'a mut Rows<T>,
    of: fn(LogitRow<'_>) -> Vec<T>,
}

impl<T: Send> LogitSink for Keep<'_, T> {
    fn row(&mut self, _seq: usize, position: usize, logits: LogitRow<'_>) {
        self.rows.insert(position, (self.of)(logits));
    }

    fn token(&mut self, _seq: usize, _token: TokenId) {}
}

/// The rows of an `exact` or `fast` decoder.
fn single(row: LogitRow<'_>) -> Vec<f32> {
    match row {
        LogitRow::F32(x) => x.to_vec(),
        LogitRow::F64(x) => x.iter().map(|v| *v as f32).collect(),
    }
}

/// Logits of every position of a prompt that is prefilled in chunks, in an emptied cache or not:
/// a run writes every slot before it reads it.
fn run<T: Send>(
    decoder: &mut dyn Decoder,
    tokens: &[TokenId],
    chunk: usize,
    of: fn(LogitRow<'_>) -> Vec<T>,
) -> Rows<T> {
    let mut rows = Rows::new();
    let blocks = tokens.len().div_ceil(BLOCK_SIZE) as u32;
    let table: Vec<BlockId> = (0..blocks).map(BlockId).collect();
    for (index, tokens) in tokens.chunks(chunk).enumerate() {
        let input = SeqInput {
            tokens,
            start: index * chunk,
            block_table: &table,
            rows: LogitRows::All,
            is_prefill: true,
            adapter: None,
        };
        let mut sink = Keep {
            rows: &mut rows,
            of,
        };
        decoder.forward(&[input], &WallClock, &mut sink);
    }
    rows
}

/// A subject under test with everything that is computed once.
pub struct Bench {
    subject: Box<dyn Decoder>,
    prompts: Vec<Prompt>,
}

/// A prompt with its reference and its clean monolithic run.
struct Prompt {
    tokens: Vec<TokenId>,
    truth: Rows<f64>,
    mono: Rows<f32>,
}

impl Bench {
    /// A generated model and `prompts` random prompts, for `Exact` or `Fast` (with f32
    /// activations).
    ///
    /// # Errors
    /// When a decoder cannot be built or a row cannot be scored.
    pub fn new(numerics: Numerics, prompts: usize) -> Result<Bench> {
        let model = synth::model(Kind::Sharp, Size::Small, 3)?;
        let weights = Arc::new(model.weights);
        let judged = match numerics {
            Numerics::Fast => Arc::new(round_matrices_to_bf16(&weights)),
            _ => Arc::clone(&weights),
        };
        let decoder = |weights, numerics| {
            let kv_dtype = match numerics {
                Numerics::F64 => KvDtype::F64,
                _ => KvDtype::F32,
            };
            let options = ForwardOptions {
                numerics,
                kv_dtype,
                threads: 2,
                block_size: BLOCK_SIZE,
                num_blocks: PROMPT_TOKENS.div_ceil(BLOCK_SIZE),
                dot: Some(Dot::F32),
                ..ForwardOptions::default()
            };
            build(weights, &Arc::new(AdapterSet::default()), options)
        };
        let mut reference = decoder(&judged, Numerics::F64)?;
        let mut subject = decoder(&weights, numerics)?;
        let mut stream = Stream::new(11, "numeric faults");
        let mut all = Vec::new();
        for _ in 0..prompts {
            let tokens: Vec<TokenId> = (0..PROMPT_TOKENS)
                .map(|_| stream.below(model.config.vocab as u64) as TokenId)
                .collect();
            let whole = PROMPT_TOKENS;
            let truth = run(reference.as_mut(), &tokens, whole, |row| row.to_f64());
            let mono = run(subject.as_mut(), &tokens, whole, single);
            all.push(Prompt {
                tokens,
                truth,
                mono,
            });
        }
        Ok(Bench {
            subject,
            prompts: all,
        })
    }

    /// Runs every prompt in chunks with a fault planted, and judges the logits.
    ///
    /// # Errors
    /// When the decoder refuses the fault or a row cannot be scored.
    pub fn measure(&mut self, fault: Fault, chunk: usize) -> Result<Measured> {
        let (mut bits, mut own_bits) = (BitDifference::new(), BitDifference::new());
        let mut scores = Vec::new();
        for (index, prompt) in self.prompts.iter().enumerate() {
            self.subject.set_fault(fault)?;
            let subject = self.subject.as_mut();
            let rows = run(subject, &prompt.tokens, chunk, single);
            let own = run(subject, &prompt.tokens, PROMPT_TOKENS, single);
            self.subject.set_fault(Fault::None)?;
            let name = format!("p{index}");
            let mut prompt_scores = PromptScores::new(&name, chunk as u32);
            for (&position, row) in &rows {
                let at = position as u32;
                bits.push_row(&name, at, &prompt.mono[&position], row)?;
                own_bits.push_row(&name, at, &own[&position], row)?;
                let next = prompt.tokens.get(position + 1).copied();
                let reference = ReferenceRow::new(&prompt.truth[&position], next)?;
                prompt_scores.push_logits(at, &reference, &prompt.mono[&position], row)?;
            }
            scores.push(prompt_scores);
        }
        let stats = ConfigStats::of(&scores)?;
        let rho = stats.rho.iter().map(|r| r.rho).sum::<f64>() / stats.rho.len() as f64;
        Ok(Measured {
            fault,
            chunk,
            bits,
            own_bits,
            verdict: judge(&format!("chunk {chunk}"), stats, &Limits::default())?,
            ratio: rho.exp(),
        })
    }
}

/// Every fault at both chunk sizes, for the table of planted faults.
///
/// # Errors
/// As [`Bench::measure`].
pub fn table(numerics: Numerics, prompts: usize) -> Result<Vec<Cell>> {
    let mut bench = Bench::new(numerics, prompts)?;
    let mut cells = Vec::new();
    for (fault, _) in FAULTS {
        for chunk in [64, 50] {
            cells.extend(bench.measure(*fault, chunk)?.cells());
        }
    }
    Ok(cells)
}
