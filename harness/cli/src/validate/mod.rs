//! Do chunking and prefix reuse change the logits?
//!
//! T0 runs the exact mode: every variant must give the monolithic pass's bits. T1 and T2 run the
//! fast mode, whose order of summation does depend on the shape: its errors against an f64
//! reference on the same rounded weights must not be larger chunked than monolithic, by the rules
//! of `pb_judge::numerics`. T1 multiplies with f32 activations, where every structural fault is
//! thousands of times the noise. T2 is the fast mode as it is served where it rounds activations
//! to bf16; the noise is larger there and its limits come from the correct variants themselves.
//! Then a fault is planted and each tier must reject it: a check that cannot fail is no check.

mod capture;
mod scores;
pub(crate) mod table;
mod tiers;

use std::sync::Arc;

use anyhow::{Result, ensure};
use pb_contract::{Fault, FaultClass, Numerics, Stream, TokenId};
use pb_core::EngineParts;
use pb_judge::numerics::{BitCheck, BitDifference, FaultCheck, Validation};
use pb_model::forward::round_matrices_to_bf16;
use pb_workloads::PROSE;
use serde::Serialize;

use crate::model_source::Obtained;
use crate::progress::Progress;
use capture::{BLOCK_SIZE, Captured, Subject, Variant};
use scores::Reference;
use tiers::{Tier, TierKind};

/// What is checked.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ValidateSettings {
    /// Prompts: the units of the statistics.
    pub(crate) prompts: usize,
    /// Tokens in each.
    pub(crate) prompt_len: usize,
    /// Chunk sizes; the default ones when absent.
    pub(crate) chunks: Option<Vec<usize>>,
    /// Plant every numerical fault, not RoPE +1 alone.
    pub(crate) all_faults: bool,
    /// Find limits from the clean variants, and how often they would alarm falsely.
    pub(crate) calibrate: bool,
    /// Leave out the tier whose products are not those of the served mode.
    pub(crate) served_only: bool,
    /// Compute threads.
    pub(crate) threads: usize,
    /// Seed of the choice of prompts.
    pub(crate) seed: u64,
}

/// Chunk sizes around the block size `b` and the prompt length `n`, and a prime.
fn default_chunks(n: usize) -> Vec<usize> {
    let b = BLOCK_SIZE;
    vec![1, b - 1, b, b + 1, PRIME, n - 1, n, n + 1]
}

/// The variants: every chunk size once, and a warm prefix cache.
fn variants(settings: &ValidateSettings) -> Vec<Variant> {
    let mut sizes = match &settings.chunks {
        Some(sizes) => sizes.clone(),
        None => default_chunks(settings.prompt_len),
    };
    sizes.sort_unstable();
    sizes.dedup();
    let chunks = sizes.into_iter().map(Variant::Chunk);
    chunks.chain([Variant::Cached]).collect()
}

/// Tokens of a prompt, for which the limits were found.
pub(crate) const PROMPT_LEN: usize = 128;
/// A chunk size that no block size divides.
const PRIME: usize = 37;
/// Prompts at most: every one costs seconds, and more say nothing more.
const MAX_PROMPTS: usize = 1_000;

/// Prompts whose bits are compared.
const BIT_PROMPTS: usize = 4;

/// Prompts of 128 tokens that make the served mode's tests of equivalence decisive, by the
/// spread that was seen on SmolLM2: products of bf16 pairs need fewer than f32 ones, whose error
/// is so small that a few large activations decide it.
pub(crate) fn enough_prompts() -> usize {
    match TierKind::of_this_machine(true)[0] {
        TierKind::Bf16 => 12,
        TierKind::F32 => 24,
    }
}

/// The variants in which a fault of chunked prefill must show.
const FAULTY: [Variant; 2] = [Variant::Chunk(BLOCK_SIZE), Variant::Chunk(PRIME)];

/// Not defects: whole blocks that change places carry their positions with them, and a coarser
/// cache is an approximation, to be judged by a reference of its own.
const NO_DEFECTS: [Fault; 2] = [Fault::KAndVBlocksSwapped, Fault::KvMantissaCut];

/// The faults to plant.
fn faults(settings: &ValidateSettings) -> Vec<Fault> {
    if !settings.all_faults {
        return vec![Fault::RopePlusOneAfterFirstChunk];
    }
    let numeric = |f: &Fault| f.class() == Some(FaultClass::Numerics);
    Fault::ALL.iter().copied().filter(numeric).collect()
}

/// A fault as a label has it.
fn fault_name(fault: Fault) -> String {
    if fault == Fault::RopePlusOneAfterFirstChunk {
        return "RoPE +1 from chunk 2".to_owned();
    }
    let name = serde_json::to_value(fault).unwrap_or_default();
    name.as_str().unwrap_or("?").to_owned()
}

/// Whether a check that can see any change of the sums must see this one.
fn shows(fault: Fault, variant: Variant) -> bool {
    // Chunks of whole blocks leave no partial block to be missed.
    let whole = matches!(variant, Variant::Chunk(size) if size % BLOCK_SIZE == 0);
    !(NO_DEFECTS.contains(&fault) || fault == Fault::PartialBlockMissing && whole)
}

/// Prompts cut from public-domain text at seeded places.
fn prompts(model: &Obtained, settings: &ValidateSettings) -> Result<Vec<Vec<TokenId>>> {
    let n = settings.prompt_len;
    let context = model.model.config.max_position;
    ensure!(
        n > PRIME,
        "--prompt-len {n}: must be above {PRIME}, or no second chunk exists"
    );
    ensure!(
        n < context - 1,
        "--prompt-len {n}: the model's context holds {context} tokens"
    );
    let prompts = settings.prompts;
    ensure!(
        (1..=MAX_PROMPTS).contains(&prompts),
        "--prompts {prompts}: must be between 1 and {MAX_PROMPTS}"
    );
    if let Some(chunks) = &settings.chunks {
        ensure!(
            !chunks.contains(&0),
            "--chunks 0: a chunk holds at least one token"
        );
    }
    let text = model.model.tokenizer.encode(PROSE, false)?;
    ensure!(
        text.len() > n,
        "the prompt text has only {} tokens; lower --prompt-len",
        text.len()
    );
    let mut stream = Stream::new(settings.seed, "validation prompts");
    let cut = |_| {
        let at = stream.below((text.len() - n) as u64) as usize;
        text[at..at + n].to_vec()
    };
    Ok((0..settings.prompts).map(cut).collect())
}

/// Runs every tier and the planted fault.
pub(crate) fn run(
    model: Obtained,
    settings: &ValidateSettings,
    progress: &Progress,
) -> Result<Validation> {
    let prompts = prompts(&model, settings)?;
    let weights = Arc::new(model.model.weights);
    let threads = settings.threads;
    let parts = |weights| EngineParts::new(weights, [0; 32]);
    let mut validation = Validation::default();
    let faults = faults(settings);
    progress.phase("logits, exact mode: comparing bits");
    let exact = Subject::new(parts(Arc::clone(&weights)), Numerics::Exact, threads)?;
    // Bits need no statistics: a few prompts are enough.
    let few = &prompts[..prompts.len().min(BIT_PROMPTS)];
    let variants = variants(settings);
    tier_zero(exact, few, (&variants, &faults), progress, &mut validation)?;
    progress.phase("logits, fast mode: preparing the f64 reference");
    let mut tiers = Vec::new();
    for kind in TierKind::of_this_machine(settings.served_only) {
        let mut parts = parts(Arc::clone(&weights));
        parts.dot = Some(kind.dot());
        let subject = Subject::new(parts, Numerics::Fast, threads)?;
        tiers.push(Tier::new(kind, subject, &variants, &faults));
    }
    let rounded = Arc::new(round_matrices_to_bf16(&weights));
    drop(weights);
    let mut reference = Subject::new(parts(rounded), Numerics::F64, threads)?;
    for (p, prompt) in prompts.iter().enumerate() {
        let n = prompts.len();
        progress.phase(format!(
            "logits, fast mode against f64: prompt {} of {n}",
            p + 1
        ));
        let truth = reference.logits::<f64>(prompt, Variant::Monolithic, Fault::None)?;
        let scored = Reference::new(prompt, &truth, threads)?;
        for tier in &mut tiers {
            tier.add(p, prompt, &scored)?;
        }
    }
    for tier in tiers {
        tier.judge(settings.calibrate, &mut validation)?;
    }
    Ok(validation)
}

/// T0: bits of every variant against the monolithic pass.
fn tier_zero(
    mut exact: Subject,
    prompts: &[Vec<TokenId>],
    (variants, faults): (&[Variant], &[Fault]),
    progress: &Progress,
    validation: &mut Validation,
) -> Result<()> {
    let mut clean: Vec<BitDifference> = variants.iter().map(|_| BitDifference::new()).collect();
    let planted: Vec<(Fault, Variant)> = faults
        .iter()
        .flat_map(|&fault| FAULTY.map(|variant| (fault, variant)))
        .collect();
    let mut faulty: Vec<BitDifference> = planted.iter().map(|_| BitDifference::new()).collect();
    for (p, prompt) in prompts.iter().enumerate() {
        progress.phase(format!(
            "logits, exact mode: prompt {} of {}",
            p + 1,
            prompts.len()
        ));
        let mono = exact.logits::<f32>(prompt, Variant::Monolithic, Fault::None)?;
        for (variant, bits) in variants.iter().zip(&mut clean) {
            let got = exact.logits::<f32>(prompt, *variant, Fault::None)?;
            compare_bits(p, &mono, &got, bits)?;
        }
        for ((fault, variant), bits) in planted.iter().zip(&mut faulty) {
            let got = exact.logits::<f32>(prompt, *variant, *fault)?;
            compare_bits(p, &mono, &got, bits)?;
        }
    }
    for (variant, bits) in variants.iter().zip(clean) {
        validation.bits.push(BitCheck {
            config: variant.to_string(),
            bits,
        });
    }
    for ((fault, variant), bits) in planted.into_iter().zip(faulty) {
        let verdict = bits.verdict();
        validation.faults.push(FaultCheck {
            label: format!("exact: {}, {variant}", fault_name(fault)),
            rejected: verdict.is_fail(),
            required: shows(fault, variant),
            evidence: table::reasons(&verdict),
            config: None,
        });
    }
    Ok(())
}

/// Compares the rows that the variant computed.
fn compare_bits(
    prompt: usize,
    mono: &Captured<f32>,
    got: &Captured<f32>,
    bits: &mut BitDifference,
) -> Result<()> {
    for (position, (want, got)) in mono.rows.iter().zip(&got.rows).enumerate() {
        if let (Some(want), Some(got)) = (want, got) {
            bits.push_row(&prompt.to_string(), position as u32, want, got)?;
        }
    }
    Ok(())
}
